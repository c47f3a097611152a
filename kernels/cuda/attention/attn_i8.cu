/* Attention on tensor cores over int8 caches. */
#include "kernels/cuda/attention/attn_mma.cuh"

namespace GPU_NAMESPACE {

bool attn_i8(gpu_dev *d, attn_call *c, const struct attn_args *a)
{
    return mma_dims<DT_I8>(d, c, a);
}

} // namespace GPU_NAMESPACE
