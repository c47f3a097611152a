/* Exact integer dot products, and their conversion to float without an instruction of a quarter of the rate: a sum that
 * starts at the bit pattern of 1.5 * 2^23 ends as the bits of a float, as long as it stays within +-2^22. */
#ifndef TANDEM_KERNELS_CUDA_GEMM_DOT_CUH
#define TANDEM_KERNELS_CUDA_GEMM_DOT_CUH

#include "kernels/cuda/ptx.cuh"

namespace GPU_NAMESPACE {

constexpr int FLOAT_BITS = 0x4b400000; /* 1.5 * 2^23 */
constexpr float FLOAT_START = 12582912.0f;

/* A sum that started at FLOAT_BITS, less `start`. */
__device__ inline float float_of_sum(int sum, float start = FLOAT_START)
{
    return __uint_as_float((unsigned)sum) - start;
}

/* Eight columns. */
__device__ inline int dot8(const uint2 &w, const uint2 &a, int s = 0)
{
    return __dp4a((int)w.y, (int)a.y, __dp4a((int)w.x, (int)a.x, s));
}

/* Sixteen columns. */
__device__ inline int dot16(const uint4 &w, const uint4 &a, int s = 0)
{
    s = __dp4a((int)w.x, (int)a.x, s);
    s = __dp4a((int)w.y, (int)a.y, s);
    s = __dp4a((int)w.z, (int)a.z, s);
    return __dp4a((int)w.w, (int)a.w, s);
}

/* The sum of sixteen activations. */
__device__ inline int sum16(const uint4 &a)
{
    const uint4 ones = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
    return dot16(ones, a);
}

} // namespace GPU_NAMESPACE

#endif
