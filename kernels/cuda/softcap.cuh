/* The tanh of softcap. */
#ifndef TANDEM_KERNELS_CUDA_SOFTCAP_CUH
#define TANDEM_KERNELS_CUDA_SOFTCAP_CUH

#include "kernels/cuda/ptx.cuh"

namespace GPU_NAMESPACE {

/* Relative error about 3e-7: an odd polynomial near 0 (Cephes' tanhf), else 1 - 2 / (1 + e^2x). */
__device__ inline float tanh_fast(float x)
{
    float size = fabsf(x), square = __fmul_rn(x, x), p = -5.70498872745e-3f;
    float large = 1 - __fdividef(2, exp2_fast(2.88539008f * size) + 1);
    p = fmaf(p, square, 2.06390887954e-2f);
    p = fmaf(p, square, -5.37397155531e-2f);
    p = fmaf(p, square, 1.33314422036e-1f);
    p = fmaf(p, square, -3.33332819422e-1f);
    return size < 0.625f ? fmaf(__fmul_rn(p, square), x, x) : copysignf(large, x);
}

} // namespace GPU_NAMESPACE

#endif
