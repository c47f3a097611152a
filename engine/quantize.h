/* Weight quantisation: float matrices to the canonical int8 and int4 forms of kernels/ops.h, and whole models.
 *
 *   int8  symmetric, one scale per output row: scale = amax / 127.
 *   int4  groups of 32 inputs, f16 scale, values -8..7.  The scale of a group is the one, among candidates around
 *         amax / 8 of either sign, whose rounded values fit the group best when the scale is then set by least squares.
 *   nf4   bitsandbytes' 4-bit type with double quantisation (nf4.h, weights_bnb.h).
 */
#ifndef TANDEM_QUANTIZE_H
#define TANDEM_QUANTIZE_H

#include "engine/base/err.h"

#include <stddef.h>

/* kernels/num.h and ops.h speak of these; users of quantize_model need not see them */
struct weight_src;

enum { INT4_GROUP = 32 };

/* Quantises src (float type) to t (DT_I8, DT_I4, or DT_NF4: see nf4_quantize_matrix) on up to `threads` threads. *out's
 * data and scale are allocated: free both.  ERR_NOMEM, or ERR_INVALID when a weight is not finite (the message has row
 * and column). */
int quantize_matrix(const struct weight_src *src, int t, int threads, struct weight_src *out, struct err *e);

/* Reads the model in `dir` and writes `out` (created; must not hold a model yet): quantised matrices, the other tensors
 * as they are, tokenizer and configs copied.  type: "int8", "int4" or "nf4".  progress may be NULL. */
int quantize_model(const char *dir, const char *out, const char *type, void (*progress)(void *arg, int done, int total),
                   void *arg, struct err *e);

#endif
