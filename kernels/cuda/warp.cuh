/* Reductions over a warp and over a block, and reading rows of any float type.  Each sums in an order that depends on the
 * block's size alone. */
#ifndef TANDEM_KERNELS_CUDA_WARP_CUH
#define TANDEM_KERNELS_CUDA_WARP_CUH

#include "kernels/cuda/ptx.cuh"

namespace GPU_NAMESPACE
{

template <class T> __device__ inline T warp_sum(T v)
{
    for (int m = 16; m; m >>= 1) v += __shfl_xor_sync(FULL_WARP, v, m);
    return v;
}

/* fmaxf: a NaN loses */
__device__ inline float warp_max(float v)
{
    for (int m = 16; m; m >>= 1) v = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, m));
    return v;
}

/* one value of each warp; for blocks whose threads are whole warps */
template <class T> struct block_part {
    T warp[32];
};

/* The sum over the block, on every thread.  Ends with a barrier, so that the same part serves again. */
template <class T> __device__ inline T block_sum(T v, block_part<T> &s)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    v = warp_sum(v);
    if (lane == 0) s.warp[warp] = v;
    __syncthreads();
    v = warp_sum(lane < warps ? s.warp[lane] : T(0));
    __syncthreads();
    return v;
}

__device__ inline float block_max(float v, block_part<float> &s)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    v = warp_max(v);
    if (lane == 0) s.warp[warp] = v;
    __syncthreads();
    v = warp_max(lane < warps ? s.warp[lane] : -INFINITY);
    __syncthreads();
    return v;
}

/* element i of an array of f32, bf16 or f16 */
__device__ inline float load_float(const void *p, enum dtype t, size_t i)
{
    if (t == DT_F32) return static_cast<const float *>(p)[i];
    uint16_t h = static_cast<const uint16_t *>(p)[i];
    return t == DT_BF16 ? bf16_to_f32(h) : half_to_float(h);
}

} // namespace GPU_NAMESPACE

#endif
