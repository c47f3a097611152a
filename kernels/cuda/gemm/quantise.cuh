/* Quantises a row to int8 by one block (linear_args in ops.h defines how); used by the quantising kernel and by the
 * norms, which have the row at hand. Both sum in the same order, that of blocks of row_threads(n), so that they
 * agree on which rows are outliers. All arithmetic is f32 with the same operations as on the other devices, so that
 * the integers are equal. */
#ifndef TANDEM_KERNELS_CUDA_GEMM_QUANTISE_CUH
#define TANDEM_KERNELS_CUDA_GEMM_QUANTISE_CUH

#include "kernels/cuda/gemm/packed_gemm.h"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {

struct quantise_smem {
    block_part<max_sum> amax_sum;
    block_part<float> rest;
};

struct quant_step {
    float inv, step;
};

/* Of a row's amax, which is infinite when the row has a NaN or an infinity. */
__device__ inline quant_step step_of(float amax)
{
    if (amax >= QUANT_AMAX_MIN && amax < INFINITY) return {127.0f / amax, amax / 127.0f};
    return {0, amax < QUANT_AMAX_MIN ? 0 : NAN};
}

__device__ inline int quant_round(float x, quant_step s)
{
    return s.inv == 0 ? 0 : __float2int_rn(__fmul_rn(x, s.inv));
}

/* The residual of x after quantisation. */
__device__ inline float quant_rest(float x, quant_step s)
{
    return fmaf(-(float)quant_round(x, s), s.step, x);
}

/* Stores the thread's columns c .. c + 3; called by whole warps. With even_odd two neighbouring lanes exchange
 * values, so that each stores a word of even or odd columns of eight. */
__device__ inline void store_quantised(int8_t *q, int c, const int (&v)[4], bool even_odd)
{
    unsigned a = (unsigned)v[0] & 255, b = (unsigned)v[1] & 255, e = (unsigned)v[2] & 255, f = (unsigned)v[3] & 255;
    unsigned word = a | b << 8 | e << 16 | f << 24;
    if (even_odd) {
        unsigned evens = a | e << 8, odds = b | f << 8;
        bool first = threadIdx.x % 2 == 0;
        unsigned other = __shfl_xor_sync(FULL_WARP, first ? odds : evens, 1);
        word = first ? evens | other << 16 : other | odds << 16;
    }
    *reinterpret_cast<unsigned *>(q + c) = word;
}

/* Quantises row `at` of n columns to q, by a block of row_threads(n). get(j, c) returns columns c .. c + 3, zeros
 * from n on; j is the index of the thread's vector of four, at most N; N 0: any number, j is always 0. */
template <int N, class GET>
__device__ inline void quantise_row(const quantised &q, bool even_odd, size_t at, int n, quantise_smem &s, GET get)
{
    int step = (int)blockDim.x * 4, from = (int)threadIdx.x * 4;
    auto each = [&](int end, auto what) {
        if constexpr (N > 0) {
#pragma unroll
            for (int j = 0; j < N; j++)
                if (from + j * step < end) what(from + j * step, get(j, from + j * step));
        } else {
            for (int c = from; c < end; c += step) what(c, get(0, c));
        }
    };
    float amax = 0, sum = 0;
    each(n, [&](int, const vec4 &x) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float a = fabsf(x.v[k]);
            amax = a < INFINITY ? fmaxf(amax, a) : INFINITY; /* also for NaN */
            sum += a;
        }
    });
    max_sum all = block_max_sum(amax, sum, s.amax_sum);
    quant_step first = step_of(all.a);
    bool outlier = first.inv != 0 && all.a > all.b * (QUANT_OUTLIER / (float)n);
    if (threadIdx.x == 0) {
        q.step[at] = first.step;
        q.outlier[at] = outlier;
    }
    each(q.ld, [&](int c, const vec4 &x) {
        int v[4] = {quant_round(x.v[0], first), quant_round(x.v[1], first), quant_round(x.v[2], first),
                    quant_round(x.v[3], first)};
        store_quantised(q.q + at * (size_t)q.ld, c, v, even_odd);
    });
    if (!outlier) return; /* uniform over the block */
    float left = 0;
    each(n, [&](int, const vec4 &x) {
#pragma unroll
        for (int k = 0; k < 4; k++) left = fmaxf(left, fabsf(quant_rest(x.v[k], first)));
    });
    quant_step second = step_of(block_max(left, s.rest));
    if (threadIdx.x == 0) q.rest_step[at] = second.step;
    each(q.ld, [&](int c, const vec4 &x) {
        int v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] = quant_round(quant_rest(x.v[k], first), second);
        store_quantised(q.rest + at * (size_t)q.ld, c, v, even_odd);
    });
}

} // namespace GPU_NAMESPACE

#endif
