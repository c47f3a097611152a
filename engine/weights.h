/* The weights of a model on a device: names of the families, shapes checked, quantised on the way when asked.
 *
 * Built once at load by the owner, read-only afterwards (engine thread).  The files stay mapped while the embedding
 * table is read from them. */
#ifndef TANDEM_WEIGHTS_H
#define TANDEM_WEIGHTS_H

#include "engine/base/err.h"
#include "engine/config.h"
#include "engine/quantize.h"
#include "engine/safetensors.h"
#include "kernels/ops.h"

#include <stddef.h>
#include <stdint.h>

/* C hidden, H heads, G kv_heads, D head_dim, F inter, V vocab.  Vectors f32 on the device; NULL where the family has
 * none. */
struct layer_weights {
    float *norm1_w, *norm1_b; /* (C) before attention */
    float *norm2_w, *norm2_b; /* (C) before the feed-forward; NULL when parallel */
    struct weight *qkv, *o;   /* ((H + 2G) D, C), (C, H D) */
    float *qkv_b, *o_b;
    float *q_norm, *k_norm;   /* (D) */
    struct weight *up, *down; /* gated: gate stacked on up (2F, C); else (F, C).  down (C, F) */
    float *up_b, *down_b;
};

struct weights {
    struct mat embed, pos;         /* (V, C), (max_len, C): file's type; embed.p NULL when embed_w is set */
    struct weight *embed_w;        /* (V, C) quantised, rows are looked up in it; the same as head when tied */
    bool embed_mapped, pos_mapped; /* they lie in the mapped file, not in device memory of ours */
    struct layer_weights *layer;
    float *norm_w, *norm_b; /* (C) */
    struct weight *head;    /* (V, C) */
    float *head_b;          /* (V) */
    struct safetensors *file;
    enum dtype type; /* of the layers' matrices */
    uint64_t parameters;
    size_t bytes; /* packed matrices and tables */
};

/* quantize: NULL keeps the file's types. */
int weights_load(struct weights *w, struct dev *d, const struct model_config *c, const char *dir,
                 const struct quantize_how *quantize, int threads, struct err *e);
void weights_free(struct weights *w, struct dev *d, const struct model_config *c);

enum { TENSOR_NAME_MAX = 128 };

/* The embedding table's name in this file, and the family's usual one (they differ when a tied table is stored as the
 * head). */
void weights_embed_names(const struct safetensors *f, const struct model_config *c, char stored[TENSOR_NAME_MAX],
                         char usual[TENSOR_NAME_MAX]);

/* Every matrix that is quantised, in order (layers, head, and the embedding table when it is not the head): calls fn
 * with the tensor's name as stored, and whether it is stored [inputs][outputs].  Stops at the first non-zero return,
 * which it returns. */
struct matrix_slot {
    const char *name;
    int rows, cols; /* outputs, inputs */
    bool transposed;
    bool head;   /* the vocabulary product */
    bool table;  /* the embedding table; with head too: a tied one */
    int product; /* which input it multiplies: 4 layer + 0 (q k v), 1 (o), 2 (gate up), 3 (down); 4 layers: the head;
                    -1: a table only */
};
int weights_each_matrix(const struct safetensors *f, const struct model_config *c,
                        int (*fn)(void *arg, const struct matrix_slot *), void *arg, struct err *e);

/* The named tensor as a canonical matrix of rows x cols.  *owned gets memory to free (NULL when src points into the
 * file). */
int weights_matrix(const struct safetensors *f, const struct matrix_slot *slot, struct weight_src *src, void **owned,
                   struct err *e);

#endif
