/* Matrices of 8-bit floats, F8_E4M3 [rows, cols], with the scale that a value is multiplied by:
 *
 *     X.weight_scale_inv, or X.weight_scale   floats [1] or []: of the matrix; [rows] or [rows, 1]: of each output;
 *                                             [ceil(rows / a), ceil(cols / b)]: of blocks of a x b (weight_block_size)
 *
 * as transformers' fp8 and fbgemm_fp8 (integrations/finegrained_fp8.py, fbgemm_fp8.py of 5.23), compressed-tensors'
 * float-quantized and modelopt's FP8 write them.  e4m3 as in OCP's 8-bit floating point specification 1.0: no infinity.
 * The files are untrusted. */
#ifndef TANDEM_ENGINE_MODEL_WEIGHTS_FP8_H
#define TANDEM_ENGINE_MODEL_WEIGHTS_FP8_H

#include "engine/model/quant_config.h"
#include "engine/model/tensor_source.h"
#include "engine/model/tensors.h"

#include <stdbool.h>

/* Whether NAME is a tensor of 8-bit floats. */
bool fp8_is_quantized(const struct tensor_source *f, const char *name);

/* The slot's matrix: DT_F8, whose codes stay in the file; DT_F32 of the same values where blocks have columns that are
 * no multiple of 16.  *owned is the caller's to free after src.  A NaN is an error. */
int fp8_matrix(const struct tensor_source *f, const struct quant_config *, const struct matrix_slot *slot,
               struct weight_src *src, void **owned, struct err *e);

#endif
