/* Attention on tensor cores over f16 caches. */
#include "kernels/cuda/attention/attn_mma.cuh"

namespace GPU_NAMESPACE {

bool attn_f16(gpu_dev *d, attn_call *c, const struct attn_args *a)
{
    return mma_dims<DT_F16>(d, c, a);
}

} // namespace GPU_NAMESPACE
