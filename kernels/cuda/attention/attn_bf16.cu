/* Attention on tensor cores over bf16 caches. */
#include "kernels/cuda/attention/attn_mma.cuh"

namespace GPU_NAMESPACE {

bool attn_bf16(gpu_dev *d, attn_call *c, const struct attn_args *a)
{
    return mma_dims<DT_BF16>(d, c, a);
}

} // namespace GPU_NAMESPACE
