/* Ops that this device does not have yet: each fails the device with its name. */
#include "kernels/cuda/device.h"

namespace GPU_NAMESPACE
{

#define MISSING(op)                                                                                                    \
    void gpu_##op(struct dev *d, const struct op##_args *)                                                             \
    {                                                                                                                  \
        dev_fail(d, #op, "not built yet");                                                                             \
    }

MISSING(linear)
MISSING(gate_up)
MISSING(rope_kv)
MISSING(attn)
MISSING(gemm)
MISSING(linear_back)
MISSING(lora)
MISSING(embed_back)
MISSING(col_sum)
MISSING(rope)
MISSING(attn_seq)
MISSING(attn_back)

} // namespace GPU_NAMESPACE
