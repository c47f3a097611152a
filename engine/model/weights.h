/* The weights of a model on a device: names of the families, shapes checked, quantised on the way when asked.
 *
 * Built once at load by the owner, read-only afterwards (engine thread).  The files stay mapped while the embedding
 * table is read from them. */
#ifndef TANDEM_ENGINE_MODEL_WEIGHTS_H
#define TANDEM_ENGINE_MODEL_WEIGHTS_H

#include "engine/base/err.h"
#include "engine/model/config.h"
#include "engine/model/quantize.h"
#include "engine/model/tensor_source.h"
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
    enum dtype type; /* of the layers' matrices */
    uint64_t parameters;
    size_t bytes; /* packed matrices and tables */
};

/* quantize: NULL keeps the file's types.  verify: every byte is read and compared with the file's checksums first. */
int weights_load(struct weights *w, struct dev *d, const struct model_config *c, const char *dir,
                 const struct quantize_how *quantize, bool verify, int threads, struct err *e);
void weights_free(struct weights *w, struct dev *d, const struct model_config *c);

/* ---- the matrices, for the quantiser ---- */

enum { TENSOR_NAME_MAX = 128, STACK_MAX = 3 };

/* The embedding table's name in this file, and the family's usual one (they differ when a tied table is stored as the
 * head). */
void weights_embed_names(const struct tensor_source *f, const struct model_config *c, char stored[TENSOR_NAME_MAX],
                         char usual[TENSOR_NAME_MAX]);

struct matrix_slot {
    char name[TENSOR_NAME_MAX]; /* of the tensor as stored */
    int rows, cols;             /* outputs, inputs */
    bool transposed;            /* stored [inputs][outputs] */
    bool head;                  /* the vocabulary product */
    bool table;                 /* the embedding table; with head too: a tied one */
};

/* What one product of the forward pass multiplies by: one to three tensors, stacked by rows. */
struct stack {
    char name[TENSOR_NAME_MAX]; /* of its packed form in a file: "packed.layers.3.qkv" */
    struct matrix_slot part[STACK_MAX];
    int n, rows, cols; /* rows: of all parts */
    bool gate_up;      /* for weight_src */
    int product;       /* which input it multiplies, for calibration_feedback: its number; -1: a table only */
};

/* Stack i of weights_stacks(): qkv, o, up (gate and up when gated) and down of each layer, then the head, then the
 * embedding table when it is not the head. */
int weights_stacks(const struct model_config *c);
void weights_stack(const struct tensor_source *f, const struct model_config *c, int i, struct stack *out);

/* A vector (a norm or a bias) or the position table, and where it belongs: `at` floats into the array that the pointer
 * at `field` of struct layer_weights points to, or of struct weights where layer is -1 (the table: `pos`). */
struct vector_slot {
    char name[TENSOR_NAME_MAX];
    int layer;
    size_t field;
    int at, rows, cols; /* rows 1, but for the table */
    bool norm;          /* begins as ones */
};
/* Fills `out` with all of the model's, in a fixed order; out NULL: only counts. */
int weights_vectors(const struct tensor_source *f, const struct model_config *c, struct vector_slot *out);

/* The tensor as a canonical matrix.  *owned gets memory to free (NULL when src points into the file). */
int weights_matrix(const struct tensor_source *f, const struct matrix_slot *slot, struct weight_src *src, void **owned,
                   struct err *e);

/* Its parts in canonical form, floats quantised (type DT_NONE: left).  Free with
 * weights_parts_free, also after an error. */
struct parts {
    struct weight_src src[STACK_MAX];
    void *owned[STACK_MAX][2]; /* data, scale; NULL where src points into the file */
    int n;
};
int weights_parts(const struct tensor_source *f, const struct stack *m, const struct quantize_how *, int threads,
                  struct parts *, struct err *e);
void weights_parts_free(struct parts *);

/* ---- directories of `tandem quantize` (docs/quantisation.md) ---- */

/* The metadata of model.safetensors: format "tandem"; version "2" (what this tandem writes) or "1"; layout
 * WEIGHTS_CANONICAL or the dev_ops.layout that its packed stacks have; and for each of those, under its name, what
 * weights_describe says of it. */
#define WEIGHTS_VERSION "2"
#define WEIGHTS_CANONICAL "canonical"
enum { DESCRIPTION_MAX = 64, PACKED_ALIGN = 64 };
void weights_describe(const struct stack *, enum dtype t, int group, char out[DESCRIPTION_MAX]);

#endif
