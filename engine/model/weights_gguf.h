/* Matrices of a GGUF file in canonical form (kernels/ops.h).
 *
 * llama.cpp rotates features 2i and 2i + 1 of a head together, transformers i and i + D/2: files of some architectures
 * have the rows of q and k in llama.cpp's order.  Whole rows move, so blocks along a row stay as they are. */
#ifndef TANDEM_ENGINE_MODEL_WEIGHTS_GGUF_H
#define TANDEM_ENGINE_MODEL_WEIGHTS_GGUF_H

#include "engine/model/tensors.h"
#include "kernels/ops.h"

/* The tensor must have a form.  *owned gets memory to free. */
int gguf_matrix(const struct tensor *t, const struct matrix_slot *slot, struct weight_src *src, void **owned,
                struct err *e);

/* The values of a matrix of quantised blocks, in the family's order, for the caller to free.  NULL: out of memory. */
float *gguf_floats(const struct tensor *t);

/* The row of such a tensor with heads of `dim` features that is the family's row `row`. */
int64_t gguf_stored_row(int64_t row, int64_t dim);

#endif
