/* Ops that this device does not have yet: each fails the device with its name. */
#include "kernels/cuda/device.h"

namespace GPU_NAMESPACE
{

#define MISSING(op)                                                                                                    \
    void gpu_##op(struct dev *d, const struct op##_args *)                                                             \
    {                                                                                                                  \
        dev_fail(d, #op, "not built yet");                                                                             \
    }

MISSING(rope_kv)
MISSING(attn)
MISSING(sample)
MISSING(gemm)
MISSING(linear_back)
MISSING(lora)
MISSING(embed_back)
MISSING(col_sum)
MISSING(norm_back)
MISSING(rope)
MISSING(attn_seq)
MISSING(attn_back)
MISSING(head_norm_back)
MISSING(act_mul_back)
MISSING(act_back)
MISSING(cross_entropy)
MISSING(dropout)
MISSING(square_sum)
MISSING(adamw)
MISSING(axpby)

} // namespace GPU_NAMESPACE
