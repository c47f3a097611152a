/* Parts that are stacked into one weight (kernels/ops.h, weight_pack) get one type without a change of value: modules
 * that a quantiser left in floats, or quantised in another way, stand beside others. */
#ifndef TANDEM_ENGINE_MODEL_WEIGHTS_UNIFY_H
#define TANDEM_ENGINE_MODEL_WEIGHTS_UNIFY_H

#include "engine/base/err.h"
#include "kernels/ops.h"

#include <stdbool.h>

/* Where the types differ: integers (DT_I8, DT_I4, DT_BLOCK) become DT_BLOCK, anything else DT_F32; also int4 of
 * different groups become DT_BLOCK.  With `floats`, or where the orders of their columns differ, all become DT_F32.
 * owned[i] is freed and replaced where part i changes; part i then points into it.  ERR_NOMEM. */
int weights_unify(struct weight_src *part, int n, bool floats, void **owned, struct err *e);

#endif
