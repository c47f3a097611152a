/* Matrices of a GGUF file in canonical form (kernels/ops.h).
 *
 * llama.cpp rotates features 2i and 2i + 1 of a head together, transformers i and i + D/2: files of some architectures
 * have the rows of q and k in llama.cpp's order.  In files of others the q, k and v of all heads lie behind each other,
 * where the family has those of each head together.  Whole rows move, so blocks along a row stay as they are. */
#ifndef TANDEM_ENGINE_MODEL_WEIGHTS_GGUF_H
#define TANDEM_ENGINE_MODEL_WEIGHTS_GGUF_H

#include "engine/model/tensors.h"
#include "kernels/ops.h"

/* The tensor must have a form.  *owned gets memory to free. */
int gguf_matrix(const struct tensor *t, const struct matrix_slot *slot, struct weight_src *src, void **owned,
                struct err *e);

/* The values of a matrix of quantised blocks, in the family's order, for the caller to free.  NULL: out of memory. */
float *gguf_floats(const struct tensor *t);

/* The stored row, of `rows`, that is the family's row `row`. */
int64_t gguf_stored_row(const struct tensor_form *, int64_t rows, int64_t row);

/* Of a tensor whose rows are q, k and v in turn: whether gguf_matrix puts them by head, as the family's files have
 * them; quantised rows stay, since all heads' q, then k, then v is what weights are packed from. */
bool gguf_by_head(const struct tensor *t);

#endif
