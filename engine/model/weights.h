/* The weights of a model on a device, quantised on the way when asked.
 *
 * Built once at load by the owner, read-only afterwards (engine thread).  The files stay mapped while the embedding
 * table is read from them. */
#ifndef TANDEM_ENGINE_MODEL_WEIGHTS_H
#define TANDEM_ENGINE_MODEL_WEIGHTS_H

#include "engine/base/err.h"
#include "engine/model/config.h"
#include "engine/model/quantize.h"
#include "engine/model/tensors.h"
#include "kernels/ops.h"

#include <stddef.h>
#include <stdint.h>

/* C hidden, H heads, G kv_heads, D head_dim, F inter, V vocab.  Vectors f32 on the device; NULL where the family has
 * none. */
struct layer_weights {
    float *norm1_w, *norm1_b; /* (C) before attention */
    float *norm2_w, *norm2_b; /* (C) before the feed-forward; NULL when parallel */
    float *post1_w, *post1_b; /* (C) after attention */
    float *post2_w, *post2_b; /* (C) after the feed-forward */
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
    struct tensor_source *file;
    enum dtype type;       /* of the layers' matrices */
    enum dtype float_type; /* of the final norm in the file: quantising leaves it as the model was saved */
    uint64_t parameters;
    size_t bytes; /* packed matrices and tables */
};

/* quantize: NULL keeps the file's types.  verify: every byte is read and compared with the file's checksums first. */
int weights_load(struct weights *w, struct dev *d, const struct model_config *c, const char *dir,
                 const struct quantize_how *quantize, bool verify, int threads, struct err *e);
void weights_free(struct weights *w, struct dev *d, const struct model_config *c);

/* ---- places of slots (tensors.h) ---- */

/* Where the packed form of stack i is; NULL for the embedding table beside a head, which is one only when quantised. */
struct weight **weights_stack_place(struct weights *, const struct model_config *, int i);
/* The pointer to the vector's array. */
float **weights_vector_place(struct weights *, const struct vector_slot *);

#endif
