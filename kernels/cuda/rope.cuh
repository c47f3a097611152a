/* The rotation of one head, for rope_kv and rope: the same bits from both. */
#ifndef TANDEM_KERNELS_CUDA_ROPE_CUH
#define TANDEM_KERNELS_CUDA_ROPE_CUH

#include "kernels/cuda/gpu.h"

namespace GPU_NAMESPACE {

/* Rotates the first 2 half values of x, by one warp. row: where the token's angles begin; sign -1: backwards. Lane i
 * has the pairs (i, i + half), (i + 32, ...). Multiply-adds are fused explicitly, so that every kernel that includes
 * this rounds alike. */
__device__ inline void rope_head(float *x, int lane, int half, const float *cosines, const float *sines, size_t row,
                                 float sign)
{
    for (int i = lane; i < half; i += 32) {
        float c = cosines[row + (size_t)i], s = sines[row + (size_t)i] * sign, x0 = x[i], x1 = x[i + half];
        x[i] = fmaf(x0, c, -__fmul_rn(x1, s));
        x[i + half] = fmaf(x1, c, __fmul_rn(x0, s));
    }
}

} // namespace GPU_NAMESPACE

#endif
