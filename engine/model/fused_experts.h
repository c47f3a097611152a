/* Files that have the experts of a layer fused, as a tensor_source of experts one by one:
 *
 *     X.experts.gate_up_proj       floats [E, 2F, C]     X.experts.N.gate_proj.weight, X.experts.N.up_proj.weight
 *     X.experts.gate_up_proj_bias  floats [E, 2F]        X.experts.N.gate_proj.bias, X.experts.N.up_proj.bias
 *     X.experts.down_proj          floats [E, C, F]      X.experts.N.down_proj.weight
 *     X.experts.down_proj_bias     floats [E, C]         X.experts.N.down_proj.bias
 *
 * with the layout that the family's table says (tensor_table.h, enum fused_experts).  With MXFP4, in place of a matrix
 * of `rows` outputs and `cols` inputs, never transposed:
 *
 *     X.experts.gate_up_proj_blocks, .down_proj_blocks    U8 [E, rows, cols / 32, 16]
 *     X.experts.gate_up_proj_scales, .down_proj_scales    U8 [E, rows, cols / 32]
 *
 * A byte of the blocks has two e2m1 codes, that of the first input in the low bits; a scale is e8m0, 2^(byte - 127)
 *
 * (transformers 5.23: models/gpt_oss, integrations/mxfp4.py; e2m1 and e8m0 as in OCP's Microscaling Formats
 * specification 1.0.)  A matrix that is not a range of a tensor has a form (struct expert_slice) and is read by
 * fused_matrix.  The files are untrusted: shapes are checked against the configuration, and errors name the tensor. */
#ifndef TANDEM_ENGINE_MODEL_FUSED_EXPERTS_H
#define TANDEM_ENGINE_MODEL_FUSED_EXPERTS_H

#include "engine/model/config.h"
#include "engine/model/tensor_source.h"
#include "engine/model/tensors.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A matrix of an expert within the expert's part of a tensor: output r is stored row (transposed: column) first + r *
 * step of `stored`. */
struct expert_slice {
    size_t first, step, stored;
    bool transposed;
    const uint8_t *scales; /* [stored][cols / 32] of MXFP4, whose blocks are the tensor's data; NULL: floats */
};

/* Owns `inner`, also after an error (NULL); `inner` itself where nothing in it is fused. */
struct tensor_source *fused_experts_source(struct tensor_source *inner, const struct model_config *, struct err *e);

/* A matrix whose tensor has a slice: floats of the tensor's type, or DT_BLOCK.  src points into *owned, which the
 * caller frees. */
int fused_matrix(const struct tensor *t, const struct matrix_slot *slot, struct weight_src *src, void **owned,
                 struct err *e);

/* Whether it is an expert's matrix of MXFP4, and row r of it in the blocks of GGUF files (gguf_blocks.h, GGML_MXFP4). */
bool fused_is_mxfp4(const struct tensor *t);
void fused_mxfp4_row(const struct tensor *t, int r, uint8_t *out);

#endif
