/* The tensors of one model: the rows of its family (tensor_table.h) with its configuration's sizes, under the names
 * used in its files, each with its field in struct weights (weights.h).  Any thread. */
#ifndef TANDEM_ENGINE_MODEL_TENSORS_H
#define TANDEM_ENGINE_MODEL_TENSORS_H

#include "engine/model/config.h"
#include "engine/model/tensor_source.h"
#include "engine/model/tensor_table.h"

#include <stdbool.h>
#include <stddef.h>

enum { TENSOR_NAME_MAX = 128, TENSOR_MODULE_MAX = 64, STACK_MAX = 3 };

/* Borrows all. */
struct tensors {
    const struct model_config *c;
    const struct tensor_source *source; /* NULL: transformers' own names, not those of a file */
    const char *prefix;                 /* the table's prefix that the source uses */
    const struct tensor_table *table;   /* the family's, or its `renamed`, by the names that the source has */
};

struct tensors tensors_of(const struct model_config *, const struct tensor_source *);

/* ---- matrices -------------------------------------------------------------------------------------------------- */

/* The four GEMMs of a layer: each multiplies by one stack.  Adapters can change each, those of the experts, the LM head
 * and the embedding table. */
enum layer_gemm {
    GEMM_QKV,
    GEMM_O,
    GEMM_UP,
    GEMM_DOWN,
    LAYER_GEMMS,
    GEMM_ROUTER = LAYER_GEMMS,
    GEMM_EXPERT_UP,
    GEMM_EXPERT_DOWN,
    GEMM_LM_HEAD,
    GEMM_EMBEDDING,
    LORA_GEMMS
};

/* A matrix of a layer: rows [at, at + rows) of its GEMM's stack. */
struct layer_matrix {
    const struct tensor_row *row;
    enum layer_gemm gemm;
    int at, rows, cols;
};
/* All matrices of a layer but those of its router and experts, in the order of the table; @return their number. */
enum { LAYER_MATRICES_MAX = 8 };
int tensors_layer_matrices(const struct model_config *, int layer, struct layer_matrix out[LAYER_MATRICES_MAX]);

/* Whether the layer has the row's weight. */
bool tensors_row_present(const struct model_config *, int layer, const struct tensor_row *);

struct matrix_slot {
    char name[TENSOR_NAME_MAX]; /* the tensor's name in the source */
    int rows, cols;             /* outputs, inputs */
    bool transposed;            /* stored [inputs][outputs] */
    bool residual;              /* for random initialisation */
    int by_head;                /* heads of a matrix with TENSOR_BY_HEAD; 0: rows are stored in the stack's order */
    bool head;                  /* the matrix of the LM head */
    bool table;                 /* the embedding table; with head also set: tied */
};

/* The stored row of row i: of n rows that the stack has as q, k and v, and the file as q, k and v of each head. */
static inline int tensors_stored_row(int heads, int n, int i)
{
    int dim = n / (3 * heads), part = i / (heads * dim), head = i / dim % heads;
    return (head * 3 + part) * dim + i % dim;
}

/* The weight of one GEMM of the forward pass: one to three tensors, stacked by rows. */
struct stack {
    char name[TENSOR_NAME_MAX]; /* of its packed form in a file: "packed.layers.3.qkv" */
    struct matrix_slot part[STACK_MAX];
    int n, rows, cols; /* rows: of all parts */
    bool gate_up;      /* for weight_src */
    bool floats;       /* never quantised: a router */
    bool expert;       /* of an expert */
    int gemm;          /* number of the GEMM, below tensors_gemms; -1: a lookup table, or floats */
};

bool tensors_have_head(const struct model_config *); /* the LM head: encoders and classifiers have none */

/* Stack i of tensors_stacks(): those of each layer (layer * LAYER_GEMMS + gemm), then the head, then the embedding
 * table unless it is tied to the head, then those of each layer's experts.  n is 0 where the layer has none. */
int tensors_stacks(const struct model_config *);
/* GEMMs by number: layer * LAYER_GEMMS + gemm, the head's, then gate and up, and down, of each expert of each layer. */
int tensors_gemms(const struct model_config *);
int tensors_expert_gemm(const struct model_config *, int layer, int expert, bool down);
void tensors_stack(const struct tensors *, int i, struct stack *out);
/* What stack i is of a layer's experts: its router, or gate and up, or down, of an expert. */
enum expert_gemm { EXPERT_ROUTER, EXPERT_UP, EXPERT_DOWN };
struct expert_stack {
    int layer, expert; /* layer -1: no stack of experts */
    enum expert_gemm gemm;
};
struct expert_stack tensors_expert_stack(const struct model_config *, int i);
/* The name of a module of an expert or a head: its number takes the place of %d, if the name has one. */
void tensors_expert_module(const char *module, int expert, char out[TENSOR_MODULE_MAX]);

/* The embedding table's name in this source, and the family's name for it (different when a tied table is stored as the
 * head). */
void tensors_embed_names(const struct tensors *, char stored[TENSOR_NAME_MAX], char usual[TENSOR_NAME_MAX]);

/* The names of the final norm (or that of the embeddings, where there is no final one) and of the head in this source.
 */
void tensors_norm_name(const struct tensors *, char out[TENSOR_NAME_MAX]);
void tensors_head_name(const struct tensors *, char out[TENSOR_NAME_MAX]);

/* The transformers name of a module of the model, "model.embed_tokens". */
void tensors_module(const struct model_config *, enum tensor_part, char out[TENSOR_NAME_MAX]);

/* ---- vectors --------------------------------------------------------------------------------------------------- */

/* A vector (a norm or a bias) or the position table, and its destination: `at` floats into the array whose pointer is
 * at offset `field` of struct layer_weights, or of struct weights when layer is -1 (a table: a struct mat).  Biases of
 * stacked matrices are contiguous parts of one array; the first has at 0. */
struct vector_slot {
    char name[TENSOR_NAME_MAX];
    int layer;
    size_t field;
    int at, rows, cols; /* rows is 1 except for a table */
    int by_head;        /* as matrix_slot's */
    bool table;         /* the table of positions, or of token types */
    bool norm;          /* initialised to 1 */
    bool minus_one;     /* stored as w, applied as 1 + w */
};
/* Fills `out` with all vectors of the model, in a fixed order; out NULL: only counts. */
int tensors_vectors(const struct tensors *, struct vector_slot *out);

#endif
