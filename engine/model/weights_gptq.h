/* Matrices as GPTQ's and AWQ's tools store them.  For X.weight of `rows` outputs and `cols` inputs, in groups of `cols
 * / groups` inputs, with p = 32 / bits codes to an I32, the first in the lowest bits:
 *
 *     GPTQ  X.qweight I32 [cols / p, rows]        of input k and output r: word [k / p, r], code k % p
 *           X.qzeros  I32 [groups, rows / p]      of output r: word [g, r / p], code r % p; the first format stores
 * them less one (quant_config.zero_less_one) X.scales  F16 [groups, rows] X.g_idx   I32 [cols]                  the
 * group of each input (act-order); may be absent AWQ   X.qweight I32 [cols, rows / 8]        4 bits; of 8 outputs the
 * codes are those of 0, 2, 4, 6, 1, 3, 5, 7 X.qzeros  I32 [groups, rows / 8]      in the same order X.scales  F16
 * [groups, rows]
 *
 * (AutoGPTQ 0.7, nn_modules/qlinear/qlinear_cuda.py, pack; AutoAWQ 0.2.9, modules/linear/gemm.py, from_linear.)  The
 * files are untrusted: every size is checked against the shape that config.json implies, and errors name the tensor. */
#ifndef TANDEM_ENGINE_MODEL_WEIGHTS_GPTQ_H
#define TANDEM_ENGINE_MODEL_WEIGHTS_GPTQ_H

#include "engine/model/quant_config.h"
#include "engine/model/tensor_source.h"
#include "engine/model/tensors.h"

#include <stdbool.h>

/* Whether NAME, "X.weight", is stored so: X.qweight is there. */
bool gptq_is_quantized(const struct tensor_source *f, const char *name);

/* The slot's matrix (stored_ints_matrix).  src points into *owned, which the caller frees. */
int gptq_matrix(const struct tensor_source *f, const struct quant_config *, const struct matrix_slot *slot,
                struct weight_src *src, void **owned, struct err *e);

#endif
