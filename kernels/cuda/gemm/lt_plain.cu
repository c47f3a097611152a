/* GEMMs that cuBLASLt does not support: 64 by 64 tiles, every type, any form and alignment. Meant to be correct;
 * shapes that must be fast have other kernels. Also adds the bias where the library cannot. */
#include "kernels/cuda/gemm/lt.h"
#include "kernels/cuda/ptx.cuh"

namespace GPU_NAMESPACE {
namespace {

enum { TILE = 64, DEPTH = 16, THREADS = 256, LINE = TILE + 4 };

/* op(A) and op(B) by strides: the element at index p (of M or N) and k is at p * stride + k * stride_k, one of which
 * is 1. */
struct plain_args {
    const void *a, *b;
    void *c;
    int64_t a_stride, a_k, b_stride, b_k;
    int M, N, K, ldc;
    float alpha, beta;
};

template <class T> struct plain_smem {
    T a[DEPTH][LINE], b[DEPTH][LINE];
};

template <enum dtype T> __device__ inline auto plain_load(const void *p, int64_t i)
{
    if constexpr (T == DT_F32) return static_cast<const float *>(p)[i];
    if constexpr (T == DT_BF16) return bf16_to_f32(static_cast<const uint16_t *>(p)[i]);
    if constexpr (T == DT_F16) return half_to_float(static_cast<const uint16_t *>(p)[i]);
    if constexpr (T == DT_I8) return (int)static_cast<const int8_t *>(p)[i];
}

/* Loads a tile of 64 rows or columns by DEPTH of k, zeros past the ends; neighbouring threads read neighbouring
 * addresses. */
template <enum dtype T, class S>
__device__ inline void load_tile(S (&to)[DEPTH][LINE], const void *from, int64_t stride, int64_t stride_k, int p0,
                                 int end, int k0, int depth)
{
    for (int i = (int)threadIdx.x; i < TILE * DEPTH; i += THREADS) {
        int p = stride_k == 1 ? i / DEPTH : i % TILE, k = stride_k == 1 ? i % DEPTH : i / TILE;
        bool in = p0 + p < end && k0 + k < depth;
        to[k][p] = in ? plain_load<T>(from, (p0 + p) * stride + (k0 + k) * stride_k) : 0;
    }
}

/* A thread computes four rows, 16 apart, by four columns, 16 apart; each sum goes over k in order. */
template <enum dtype T> __global__ void __launch_bounds__(THREADS) plain_kernel(plain_args g)
{
    typedef decltype(plain_load<T>(nullptr, 0)) S;
    SMEM(plain_smem<S>, s);
    int tx = (int)threadIdx.x % 16, ty = (int)threadIdx.x / 16, m0 = (int)blockIdx.x * TILE,
        n0 = (int)blockIdx.y * TILE;
    S sum[4][4] = {};
    for (int k0 = 0; k0 < g.K; k0 += DEPTH) {
        load_tile<T>(s.a, g.a, g.a_stride, g.a_k, m0, g.M, k0, g.K);
        load_tile<T>(s.b, g.b, g.b_stride, g.b_k, n0, g.N, k0, g.K);
        __syncthreads();
        for (int k = 0; k < DEPTH; k++) {
            S a[4], b[4];
            UNROLL for (int i = 0; i < 4; i++) a[i] = s.a[k][ty + 16 * i], b[i] = s.b[k][tx + 16 * i];
            UNROLL for (int i = 0; i < 4; i++) UNROLL for (int j = 0; j < 4; j++)
            {
                if constexpr (T == DT_I8)
                    sum[i][j] += a[i] * b[j];
                else
                    sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
            }
        }
        __syncthreads();
    }
    UNROLL for (int i = 0; i < 4; i++) UNROLL for (int j = 0; j < 4; j++)
    {
        int m = m0 + ty + 16 * i, n = n0 + tx + 16 * j;
        if (m >= g.M || n >= g.N) continue;
        S *c = static_cast<S *>(g.c) + (size_t)m * (size_t)g.ldc + n;
        if constexpr (T == DT_I8)
            *c = sum[i][j];
        else
            *c = g.alpha * sum[i][j] + (g.beta != 0 ? g.beta * *c : 0);
    }
}

__global__ void __launch_bounds__(THREADS) bias_kernel(float *c, int ld, int n, const float *bias)
{
    int i = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    if (i < n) c[(size_t)blockIdx.x * (size_t)ld + (size_t)i] += bias[i];
}

} // namespace

void lt_plain(gpu_dev *d, const char *op, const struct lt_args *a)
{
    plain_args g = {.a = a->a,
                    .b = a->b,
                    .c = a->c,
                    .a_stride = a->ta ? 1 : a->lda,
                    .a_k = a->ta ? a->lda : 1,
                    .b_stride = a->tb ? a->ldb : 1,
                    .b_k = a->tb ? 1 : a->ldb,
                    .M = a->M,
                    .N = a->N,
                    .K = a->K,
                    .ldc = a->ldc,
                    .alpha = a->alpha,
                    .beta = a->beta};
    void (*kernel)(plain_args) = a->t == DT_F32    ? plain_kernel<DT_F32>
                                 : a->t == DT_BF16 ? plain_kernel<DT_BF16>
                                 : a->t == DT_F16  ? plain_kernel<DT_F16>
                                                   : plain_kernel<DT_I8>;
    dim3 grid(blocks_for((size_t)a->M, TILE), blocks_for((size_t)a->N, TILE));
    LAUNCH(d, op, kernel, grid, dim3(THREADS), sizeof(plain_smem<float>), g);
}

void lt_add_bias(gpu_dev *d, const char *op, const struct lt_args *a)
{
    LAUNCH(d, op, bias_kernel, dim3((unsigned)a->M, blocks_for((size_t)a->N, THREADS)), dim3(THREADS), 0,
           static_cast<float *>(a->c), a->ldc, a->N, a->bias);
}

} // namespace GPU_NAMESPACE
