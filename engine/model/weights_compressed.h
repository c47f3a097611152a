/* Integer matrices as compressed-tensors stores them.  For X.weight of `rows` outputs and `cols` inputs:
 *
 *     pack-quantized  X.weight_packed      I32 [rows, ceil(cols bits / 32)]  code k of an output in bits k bits.. of
 * its words, the lowest first; a code is the value + 2^(bits - 1) X.weight_zero_point  I32 [ceil(rows bits / 32),
 * groups]  packed likewise along the outputs; absent: 0 X.weight_g_idx       I32 [cols]                          the
 * group of each input; may be absent int-quantized   X.weight             I8 [rows, cols] X.weight_zero_point  I8, of
 * the scale's shape; absent: 0 both            X.weight_scale       floats [rows, groups], [rows, 1] or [1]
 *
 * (compressed-tensors 0.20: compressors/pack_quantized/helpers.py, compressors/naive_quantized/base.py.)  The files are
 * untrusted: every size is checked against the shape that config.json implies, and errors name the tensor. */
#ifndef TANDEM_ENGINE_MODEL_WEIGHTS_COMPRESSED_H
#define TANDEM_ENGINE_MODEL_WEIGHTS_COMPRESSED_H

#include "engine/model/tensor_source.h"
#include "engine/model/tensors.h"

#include <stdbool.h>

/* Whether NAME, "X.weight", is stored so. */
bool compressed_is_quantized(const struct tensor_source *f, const char *name);

/* The slot's matrix (stored_ints_matrix).  src points into *owned, which the caller frees. */
int compressed_matrix(const struct tensor_source *f, const struct matrix_slot *slot, struct weight_src *src,
                      void **owned, struct err *e);

#endif
