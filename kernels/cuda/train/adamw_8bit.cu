/* The optimizer whose moments have 8 bits (dynamic8.h).  A warp has a block of 256 parameters, a lane eight of them:
 * two groups of four, 128 apart.  In f32, with the operations of the cpu device in their order. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/warp.cuh"
#include "kernels/dynamic8.h"

#include <cfloat>
#include <cmath>
#include <cstring>

namespace GPU_NAMESPACE {
namespace {

const int THREADS = 256, WARPS = THREADS / 32, GROUPS = DYNAMIC8_BLOCK / 128;

struct adamw_8bit_scalars {
    float grad_scale, keep, beta1, new1, beta2, new2, lr, eps, root_bias2;
};

/* The entries of the map with signs and of the one without. */
struct adamw_8bit_maps {
    float m[DYNAMIC8_SIGNED], v[DYNAMIC8_UNSIGNED];
};

struct adamw_8bit_smem {
    float m[DYNAMIC8_SIGNED], v[DYNAMIC8_UNSIGNED];
    float m_middle[DYNAMIC8_SIGNED - 1], v_middle[DYNAMIC8_UNSIGNED - 1];
};

/* How many of the n ascending middles are below x, which is the number of the nearest entry; n < 256. */
__device__ inline int nearest(const float *middle, int n, float x)
{
    int at = 0;
    for (int by = 128; by; by >>= 1)
        if (at + by <= n && x > middle[at + by - 1]) at += by;
    return at;
}

/* Four codes, the first in the lowest byte; those from `left` on are 0.  VEC: all exist, and p is aligned. */
template <bool VEC> __device__ inline uint32_t load_codes(const uint8_t *p, int left)
{
    if constexpr (VEC) return *reinterpret_cast<const uint32_t *>(p);
    uint32_t codes = 0;
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (k < left) codes |= (uint32_t)p[k] << (8 * k);
    return codes;
}

template <bool VEC> __device__ inline void store_codes(uint8_t *p, uint32_t codes, int left)
{
    if constexpr (VEC) {
        *reinterpret_cast<uint32_t *>(p) = codes;
    } else {
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (k < left) p[k] = (uint8_t)(codes >> (8 * k));
    }
}

__device__ inline float moment_of(const adamw_8bit_smem &s, uint32_t code)
{
    int i = (int)code - DYNAMIC8_ZERO;
    return i < 0 ? -s.m[-i] : s.m[i];
}

__device__ inline uint32_t moment_code(const adamw_8bit_smem &s, float share)
{
    int i = nearest(s.m_middle, DYNAMIC8_SIGNED - 1, fabsf(share));
    return (uint32_t)(share < 0 ? DYNAMIC8_ZERO - (i < DYNAMIC8_ZERO ? i : DYNAMIC8_ZERO) : DYNAMIC8_ZERO + i);
}

__device__ inline uint32_t square_code(const adamw_8bit_smem &s, float share)
{
    int i = nearest(s.v_middle, DYNAMIC8_UNSIGNED - 1, share);
    return (uint32_t)(i == 0 && share > 0 ? 1 : i);
}

/* Updates the parameters from i on, `left` of four; m and v are then the new moments. */
template <bool VEC>
__device__ inline void adamw_8bit_four(const adamw_8bit_args &a, const adamw_8bit_scalars &c, const adamw_8bit_smem &s,
                                       size_t i, int left, float m_scale, float v_scale, vec4 &m, vec4 &v)
{
    vec4 p = load4<VEC>(a.p + i, left), g = load4<VEC>(a.g + i, left);
    uint32_t m_codes = load_codes<VEC>(a.m + i, left), v_codes = load_codes<VEC>(a.v + i, left);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float grad = g.v[k] * c.grad_scale;
        float new_m = fmaf(grad, c.new1, moment_of(s, m_codes >> (8 * k) & 255) * m_scale * c.beta1);
        float new_v = fmaf(grad * grad, c.new2, s.v[v_codes >> (8 * k) & 255] * v_scale * c.beta2);
        new_v = fminf(new_v, FLT_MAX);
        p.v[k] = p.v[k] * c.keep - c.lr * new_m / fmaf(sqrtf(new_v), c.root_bias2, c.eps);
        bool exists = VEC || k < left;
        m.v[k] = exists ? new_m : 0;
        v.v[k] = exists ? new_v : 0;
    }
    store4<VEC>(a.p + i, p, left);
}

template <bool VEC>
__device__ inline void store_moments(const adamw_8bit_args &a, const adamw_8bit_smem &s, size_t i, int left,
                                     float most_m, float most_v, const vec4 &m, const vec4 &v)
{
    float by_m = most_m > 0 ? most_m : 1, by_v = most_v > 0 ? most_v : 1;
    uint32_t m_codes = 0, v_codes = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        m_codes |= moment_code(s, m.v[k] / by_m) << (8 * k);
        v_codes |= square_code(s, v.v[k] / by_v) << (8 * k);
    }
    store_codes<VEC>(a.m + i, m_codes, left);
    store_codes<VEC>(a.v + i, v_codes, left);
}

template <bool VEC>
__global__ void __launch_bounds__(THREADS)
    adamw_8bit_kernel(adamw_8bit_args a, adamw_8bit_scalars c, adamw_8bit_maps maps)
{
    SMEM(adamw_8bit_smem, s);
    for (int i = (int)threadIdx.x; i < DYNAMIC8_UNSIGNED; i += THREADS) {
        s.v[i] = maps.v[i];
        if (i + 1 < DYNAMIC8_UNSIGNED) s.v_middle[i] = dynamic8_between(maps.v[i], maps.v[i + 1]);
        if (i < DYNAMIC8_SIGNED) s.m[i] = maps.m[i];
        if (i + 1 < DYNAMIC8_SIGNED) s.m_middle[i] = dynamic8_between(maps.m[i], maps.m[i + 1]);
    }
    __syncthreads();
    size_t block = (size_t)blockIdx.x * WARPS + threadIdx.x / 32, first = block * DYNAMIC8_BLOCK;
    if (first >= a.n) return; /* the whole warp */
    int lane = (int)threadIdx.x % 32, n = a.n - first < DYNAMIC8_BLOCK ? (int)(a.n - first) : DYNAMIC8_BLOCK;
    float m_scale = a.m_scale[block], v_scale = a.v_scale[block], most_m = 0, most_v = 0;
    vec4 m[GROUPS] = {}, v[GROUPS] = {};
#pragma unroll
    for (int k = 0; k < GROUPS; k++) {
        int i = k * 128 + lane * 4, left = n - i;
        if (VEC && left >= 4)
            adamw_8bit_four<VEC>(a, c, s, first + (size_t)i, 4, m_scale, v_scale, m[k], v[k]);
        else if (left > 0)
            adamw_8bit_four<false>(a, c, s, first + (size_t)i, left, m_scale, v_scale, m[k], v[k]);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            most_m = fmaxf(most_m, fabsf(m[k].v[j]));
            most_v = fmaxf(most_v, v[k].v[j]);
        }
    }
    most_m = warp_max(most_m);
    most_v = warp_max(most_v);
#pragma unroll
    for (int k = 0; k < GROUPS; k++) {
        int i = k * 128 + lane * 4, left = n - i;
        if (VEC && left >= 4)
            store_moments<VEC>(a, s, first + (size_t)i, 4, most_m, most_v, m[k], v[k]);
        else if (left > 0)
            store_moments<false>(a, s, first + (size_t)i, left, most_m, most_v, m[k], v[k]);
    }
    if (lane == 0) a.m_scale[block] = most_m;
    if (lane == 1) a.v_scale[block] = most_v;
}

bool aligned(const void *p, size_t by)
{
    return reinterpret_cast<uintptr_t>(p) % by == 0;
}

} // namespace

void gpu_adamw_8bit(struct dev *head, const struct adamw_8bit_args *a)
{
    adamw_8bit_scalars c = {.grad_scale = (float)a->grad_scale,
                            .keep = (float)(1 - a->lr * a->decay),
                            .beta1 = (float)a->beta1,
                            .new1 = (float)(1 - a->beta1),
                            .beta2 = (float)a->beta2,
                            .new2 = (float)(1 - a->beta2),
                            .lr = (float)(a->lr / a->bias1),
                            .eps = (float)a->eps,
                            .root_bias2 = (float)(1 / sqrt(a->bias2))};
    adamw_8bit_maps maps;
    float with_signs[DYNAMIC8_UNSIGNED];
    if (a->n == 0) return;
    dynamic8_entries(true, with_signs);
    memcpy(maps.m, with_signs, sizeof maps.m);
    dynamic8_entries(false, maps.v);
    dim3 grid(blocks_for(a->n, WARPS * DYNAMIC8_BLOCK));
    if (aligned(a->p, 16) && aligned(a->g, 16) && aligned(a->m, 4) && aligned(a->v, 4))
        LAUNCH(gpu_of(head), "adamw_8bit", adamw_8bit_kernel<true>, grid, dim3(THREADS), sizeof(adamw_8bit_smem), *a, c,
               maps);
    else
        LAUNCH(gpu_of(head), "adamw_8bit", adamw_8bit_kernel<false>, grid, dim3(THREADS), sizeof(adamw_8bit_smem), *a,
               c, maps);
}

} // namespace GPU_NAMESPACE
