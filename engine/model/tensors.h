/* The tensors of one model: the rows of its family (tensor_table.h) with its configuration's sizes, under the names
 * that its files have, each with its place in struct weights (weights.h).  Any thread. */
#ifndef TANDEM_ENGINE_MODEL_TENSORS_H
#define TANDEM_ENGINE_MODEL_TENSORS_H

#include "engine/model/config.h"
#include "engine/model/tensor_source.h"
#include "engine/model/tensor_table.h"

#include <stdbool.h>
#include <stddef.h>

enum { TENSOR_NAME_MAX = 128, STACK_MAX = 3 };

/* Borrows all three. */
struct tensors {
    const struct model_config *c;
    const struct tensor_source *source; /* NULL: names are transformers' own, wherever they are stored */
    const char *prefix;                 /* of the table's: the one that the source uses */
};

struct tensors tensors_of(const struct model_config *, const struct tensor_source *);

/* ---- matrices -------------------------------------------------------------------------------------------------- */

/* The four products of a layer: each multiplies by one stack, and adapters can change each. */
enum product { PRODUCT_QKV, PRODUCT_O, PRODUCT_UP, PRODUCT_DOWN, PRODUCTS };

/* A matrix of a layer: rows [at, at + rows) of its product's stack. */
struct layer_matrix {
    const struct tensor_row *row;
    enum product product;
    int at, rows, cols;
};
/* All of a layer's in the order of the table; returns how many. */
enum { LAYER_MATRICES_MAX = 8 };
int tensors_layer_matrices(const struct model_config *, struct layer_matrix out[LAYER_MATRICES_MAX]);

struct matrix_slot {
    char name[TENSOR_NAME_MAX]; /* of the tensor as stored */
    int rows, cols;             /* outputs, inputs */
    bool transposed;            /* stored [inputs][outputs] */
    bool residual;              /* for random initialisation */
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

/* Stack i of tensors_stacks(): those of each layer (layer * PRODUCTS + product), then the head, then the embedding
 * table when it is not the head. */
int tensors_stacks(const struct model_config *);
void tensors_stack(const struct tensors *, int i, struct stack *out);

/* The embedding table's name in this source, and the family's usual one (they differ when a tied table is stored as the
 * head). */
void tensors_embed_names(const struct tensors *, char stored[TENSOR_NAME_MAX], char usual[TENSOR_NAME_MAX]);

/* The names of the final norm and of the head in this source. */
void tensors_norm_name(const struct tensors *, char out[TENSOR_NAME_MAX]);
void tensors_head_name(const struct tensors *, char out[TENSOR_NAME_MAX]);

/* A module of the model as transformers names it, "model.embed_tokens". */
void tensors_module(const struct model_config *, enum tensor_part, char out[TENSOR_NAME_MAX]);

/* ---- vectors --------------------------------------------------------------------------------------------------- */

/* A vector (a norm or a bias) or the position table, and where it belongs: `at` floats into the array that the pointer
 * at `field` of struct layer_weights points to, or of struct weights where layer is -1 (the table: `pos`).  Biases of
 * stacked matrices are parts of one array and follow each other; the first has at 0. */
struct vector_slot {
    char name[TENSOR_NAME_MAX];
    int layer;
    size_t field;
    int at, rows, cols; /* rows 1, but for the table */
    bool table;         /* the position table */
    bool norm;          /* multiplies by 1 at first */
    bool minus_one;     /* stored as w, multiplies by 1 + w */
};
/* Fills `out` with all of the model's, in a fixed order; out NULL: only counts. */
int tensors_vectors(const struct tensors *, struct vector_slot *out);

#endif
