/* Reductions over a warp and over a block, and loads from rows of any float type. The order of each reduction
 * depends on the block's size alone. */
#ifndef TANDEM_KERNELS_CUDA_WARP_CUH
#define TANDEM_KERNELS_CUDA_WARP_CUH

#include "kernels/cuda/ptx.cuh"

namespace GPU_NAMESPACE {

template <class T> __device__ inline T warp_sum(T v)
{
    for (int m = 16; m; m >>= 1) v += __shfl_xor_sync(FULL_WARP, v, m);
    return v;
}

/* Ignores NaN, as fmaxf does. */
__device__ inline float warp_max(float v)
{
    for (int m = 16; m; m >>= 1) v = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, m));
    return v;
}

/* Inclusive prefix sum over the lanes. */
__device__ inline int warp_scan(int v, int lane)
{
    for (int by = 1; by < 32; by *= 2) {
        int below = __shfl_up_sync(FULL_WARP, v, by);
        if (lane >= by) v += below;
    }
    return v;
}

/* One value per warp; for blocks that consist of whole warps. */
template <class T> struct block_part {
    T warp[32];
};

/* The sum over the block, on every thread. Ends with a barrier, so that s may be reused at once. */
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

/* The maximum of a and the sum of b over the block, each as above, on every thread. */
struct max_sum {
    float a, b;
};
__device__ inline max_sum block_max_sum(float a, float b, block_part<max_sum> &s)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    max_sum v = {warp_max(a), warp_sum(b)};
    if (lane == 0) s.warp[warp] = v;
    __syncthreads();
    v = lane < warps ? s.warp[lane] : max_sum{-INFINITY, 0};
    v = {warp_max(v.a), warp_sum(v.b)};
    __syncthreads();
    return v;
}

/* Threads for a row of n floats, four floats per thread: whole warps, 32 .. 256. Depends on n alone. */
static inline int row_threads(int n)
{
    int t = (n / 4 + 31) / 32 * 32;
    return t < 32 ? 32 : t > 256 ? 256 : t;
}

/* Whether rows of n floats, ld apart, may be read and written 16 bytes at a time. */
static inline bool row_vectors(const void *p, int n, int ld)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0 && n % 4 == 0 && ld % 4 == 0;
}

struct vec4 {
    float v[4];
};

/* Loads four floats; those from `left` on are 0. VEC: all exist, and p is 16-byte aligned. */
template <bool VEC> __device__ inline vec4 load4(const float *p, int left)
{
    if constexpr (VEC) {
        float4 f = *reinterpret_cast<const float4 *>(p);
        return {f.x, f.y, f.z, f.w};
    } else {
        return {p[0], left > 1 ? p[1] : 0, left > 2 ? p[2] : 0, left > 3 ? p[3] : 0};
    }
}

template <bool VEC> __device__ inline void store4(float *p, const vec4 &x, int left)
{
    if constexpr (VEC) {
        *reinterpret_cast<float4 *>(p) = {x.v[0], x.v[1], x.v[2], x.v[3]};
    } else {
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (k < left) p[k] = x.v[k];
    }
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
