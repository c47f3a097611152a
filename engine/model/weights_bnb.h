/* Matrices as transformers and bitsandbytes store them with load_in_4bit: reading and writing.
 *
 * For a matrix X.weight of `rows` outputs and `cols` inputs, n = rows * cols:
 *     X.weight                                     U8 [ceil(n / 2), 1]   (or the same bytes as a float type)
 *     X.weight.absmax                              U8 [blocks] with double quantisation, else F32 [blocks]
 *     X.weight.quant_map                           F32 [16]
 *     X.weight.nested_absmax, .nested_quant_map    F32 [ceil(blocks / nested block)], F32 [256]: double quantisation
 *     X.weight.quant_state.bitsandbytes__nf4       U8, JSON text (nf4.h)
 * With load_in_8bit (LLM.int8()):
 *     X.weight     I8 [rows, cols]
 *     X.SCB        F32 [rows]
 * The files are untrusted: every size is checked against the shape that config.json implies, and errors name the
 * tensor.  fp4 is refused as unsupported. */
#ifndef TANDEM_ENGINE_MODEL_WEIGHTS_BNB_H
#define TANDEM_ENGINE_MODEL_WEIGHTS_BNB_H

#include "engine/base/err.h"
#include "engine/model/tensor_source.h"
#include "engine/model/tensors.h"
#include "kernels/ops.h"

#include <stdbool.h>

/* Whether the tensor is stored by bitsandbytes, in any of its types. */
bool bnb_is_quantized(const struct tensor_source *f, const char *name);

/* The slot's matrix: DT_I8, or DT_NF4 when its blocks fit (cols and the block size are multiples of 64), else DT_F32
 * with its values. src points into the file and into *owned, which the caller frees (it may be NULL). */
int bnb_matrix(const struct tensor_source *f, const struct matrix_slot *slot, struct weight_src *src, void **owned,
               struct err *e);

/* The tensors that store `src` (a float matrix) with double quantisation; the caller frees each name and data. */
enum { BNB_TENSORS = 6 };
int bnb_tensors(const struct weight_src *src, const char *name, int threads, struct tensor out[BNB_TENSORS],
                struct err *e);

struct cJSON;
/* quantization_config of config.json as transformers writes it; dtype: type of the unquantised model.  The caller owns
 * it. */
struct cJSON *bnb_config(enum dtype dtype);

#endif
