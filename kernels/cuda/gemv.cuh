/* What the kernels of few rows share.  A warp owns R outputs for all of up to M rows of x: each lane takes the 16 (or
 * 8) bytes of every 32nd piece of the weight's rows, several pieces in flight, and its part of each (row, output) pair
 * stays in a register; at the end the pairs are summed over the lanes.  x comes through the first-level cache, which
 * all warps of a processor walk through at about the same pace.
 *
 * The order of a sum over k depends on the piece and the lane alone, not on M or R: a row's bits are the same in any
 * company. */
#ifndef TANDEM_KERNELS_CUDA_GEMV_CUH
#define TANDEM_KERNELS_CUDA_GEMV_CUH

#include "kernels/cuda/act.cuh"
#include "kernels/cuda/products.h"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {

enum { GEMV_THREADS = 128 };

/* Sums V values (a power of two) over the lanes, spread over them: afterwards lane l holds value l / (32 / V) in v[0],
 * or for V > 32 the values l * V / 32 + j in v[j].  In the order of the plain butterfly, whatever V. */
template <class T, int V, int n = V, int mask = 16> __device__ inline void spread_sum(T (&v)[V])
{
    if constexpr (mask > 0 && n > 1) {
        bool high = (int)threadIdx.x & mask;
        UNROLL for (int i = 0; i < n / 2; i++)
        {
            T send = high ? v[i] : v[i + n / 2], keep = high ? v[i + n / 2] : v[i];
            v[i] = keep + __shfl_xor_sync(FULL_WARP, send, mask);
        }
        spread_sum<T, V, n / 2, mask / 2>(v);
    } else if constexpr (mask > 0) {
        v[0] += __shfl_xor_sync(FULL_WARP, v[0], mask);
        spread_sum<T, V, n, mask / 2>(v);
    }
}

/* Which of V values of M x R a lane holds in v[j] after spread_sum, and whether it is the lane to write it. */
template <int V, int R> struct spread {
    static constexpr int PER = V > 32 ? V / 32 : 1, COPIES = V > 32 ? 1 : 32 / V;
    int lane;
    __device__ explicit spread() : lane((int)threadIdx.x % 32) {}
    __device__ int row(int j) const
    {
        return (lane / COPIES * PER + j) / R;
    }
    __device__ int output(int j) const
    {
        return (lane / COPIES * PER + j) % R;
    }
    __device__ bool writes() const
    {
        return lane % COPIES == 0;
    }
};

/* The weight's row that is output r of the warp's R: gate and up of one output lie beside each other. */
template <int R, bool GATE> __device__ inline int weight_row(const product &p, int unit, int r)
{
    int n = GATE ? unit * (R / 2) + r / 2 : unit * R + r;
    n = n < p.N ? n : p.N - 1; /* past the end: computed again and not written */
    return GATE && (r & 1) ? p.N + n : n;
}

/* v[j]: the finished products, bias included, as spread says */
template <int V, int R, bool GATE>
__device__ inline void write_products(const product &p, int unit, const float (&v)[spread<V, R>::PER])
{
    spread<V, R> s;
    UNROLL for (int j = 0; j < s.PER; j++)
    {
        int m = s.row(j), r = s.output(j);
        float up = 0;
        if constexpr (GATE && s.PER == 1) up = __shfl_xor_sync(FULL_WARP, v[0], s.COPIES);
        if constexpr (GATE && s.PER > 1) up = v[j ^ 1];
        int n = GATE ? unit * (R / 2) + r / 2 : unit * R + r;
        if (m >= p.M || n >= p.N || !s.writes() || (GATE && (r & 1))) continue;
        p.y[(size_t)m * (size_t)p.ldy + (size_t)n] = GATE ? __fmul_rn(act_value(v[j], p.act), up) : v[j];
    }
}

/* Blocks for N outputs, R (or R / 2 pairs) a warp. */
static inline dim3 gemv_grid(const product *p, int R)
{
    size_t units = ((size_t)p->N + (size_t)(p->gate ? R / 2 : R) - 1) / (size_t)(p->gate ? R / 2 : R);
    return dim3(blocks_for(units, GEMV_THREADS / 32));
}

} // namespace GPU_NAMESPACE

#endif
