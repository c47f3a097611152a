/* Op gemm, and the dense GEMMs that linear_back shares with it: cuBLASLt's, and a kernel of f32 tiles that sums in
 * an order that depends on N and K alone (with ta also on M). */
#include "kernels/cuda/gemm/dense_gemm.h"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {
namespace {

const int TILE = 64, DEPTH = 16, STAGES = 3, TILE_THREADS = 256, STRIDE = TILE + 4, DEPTH_STRIDE = DEPTH + 4;
const int TILE_FLOATS = TILE * DEPTH_STRIDE; /* of the larger layout */
static_assert(DEPTH * STRIDE <= TILE_FLOATS, "a tile of rows of k is the larger");
const int SPLIT_LEAST = 512, SPLITS_MAX = 16, SPLIT_TILES = 64;
const int LT_LEAST = 8, ODD_MOST = 1 << 20; /* bounds of N and K for cuBLASLt */

struct tile_args {
    const float *a, *b;
    float *c;
    int lda, ldb, ldc, M, N, K;
    int chunk; /* of K, that one block sums; a multiple of DEPTH */
    float alpha, beta;
};

struct tile_smem {
    float a[STAGES][TILE_FLOATS], b[STAGES][TILE_FLOATS];
};

/* A tile of TILE rows or columns ("places") by DEPTH of k, in the layout of memory: BY_K: one line for each k, else
 * one line for each place. Zeros past the ends. */
template <bool BY_K, bool VEC>
__device__ inline void load_tile(float *to, const float *from, int ld, int place0, int places, int k0, int k_end)
{
    const int across = BY_K ? TILE : DEPTH, stride = BY_K ? STRIDE : DEPTH_STRIDE, tid = (int)threadIdx.x;
    int row0 = BY_K ? k0 : place0, rows = BY_K ? k_end : places, col0 = BY_K ? place0 : k0,
        cols = BY_K ? places : k_end;
    if constexpr (VEC) {
        int r = tid / (across / 4), c = tid % (across / 4) * 4;
        int left = row0 + r < rows ? cols - (col0 + c) : 0, bytes = left >= 4 ? 16 : left > 0 ? left * 4 : 0;
        const float *p = bytes ? from + (size_t)(row0 + r) * (size_t)ld + (size_t)(col0 + c) : from;
        cp_async16_part(to + r * stride + c, p, bytes);
    } else {
#pragma unroll
        for (int i = 0; i < TILE * DEPTH / TILE_THREADS; i++) {
            int r = tid / across + i * (TILE_THREADS / across), c = tid % across;
            bool in = row0 + r < rows && col0 + c < cols;
            cp_async4(to + r * stride + c, in ? from + (size_t)(row0 + r) * (size_t)ld + (size_t)(col0 + c) : from, in);
        }
    }
}

/* A thread's four places of a tile for four k from kk: v[e][i]; of a tile that is not BY_K v[i][e]. */
template <bool BY_K> __device__ inline void take(float (&v)[4][4], const float *tile, int of, int kk)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *p = BY_K ? tile + (kk + i) * STRIDE + of * 4 : tile + (of + 16 * i) * DEPTH_STRIDE + kk;
        float4 f = *reinterpret_cast<const float4 *>(p);
        v[i][0] = f.x, v[i][1] = f.y, v[i][2] = f.z, v[i][3] = f.w;
    }
}

template <bool BY_K> __device__ inline int place_at(int of, int i)
{
    return BY_K ? of * 4 + i : of + 16 * i;
}

/* Block (x, y, z): row tile x and column tile y of the sum over chunk z of k, written to c + z M ldc. */
template <bool TA, bool TB, bool VEC> __global__ void __launch_bounds__(TILE_THREADS) tile_kernel(struct tile_args g)
{
    SMEM(tile_smem, s);
    const int tx = (int)threadIdx.x % 16, ty = (int)threadIdx.x / 16;
    int m0 = (int)blockIdx.x * TILE, n0 = (int)blockIdx.y * TILE, k0 = (int)blockIdx.z * g.chunk;
    int end = g.K - k0 > g.chunk ? k0 + g.chunk : g.K, steps = (end - k0 + DEPTH - 1) / DEPTH;
    float acc[4][4] = {};
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < steps) {
            load_tile<TA, VEC>(s.a[i], g.a, g.lda, m0, g.M, k0 + i * DEPTH, end);
            load_tile<!TB, VEC>(s.b[i], g.b, g.ldb, n0, g.N, k0 + i * DEPTH, end);
        }
        cp_async_commit();
    }
    for (int step = 0; step < steps; step++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        int next = step + STAGES - 1, into = next % STAGES;
        if (next < steps) {
            load_tile<TA, VEC>(s.a[into], g.a, g.lda, m0, g.M, k0 + next * DEPTH, end);
            load_tile<!TB, VEC>(s.b[into], g.b, g.ldb, n0, g.N, k0 + next * DEPTH, end);
        }
        cp_async_commit();
        const float *a = s.a[step % STAGES], *b = s.b[step % STAGES];
#pragma unroll
        for (int kk = 0; kk < DEPTH; kk += 4) {
            float av[4][4], bv[4][4];
            take<TA>(av, a, ty, kk);
            take<!TB>(bv, b, tx, kk);
#pragma unroll
            for (int e = 0; e < 4; e++)
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        acc[i][j] = fmaf(TA ? av[e][i] : av[i][e], TB ? bv[j][e] : bv[e][j], acc[i][j]);
        }
    }
    float *c = g.c + (size_t)blockIdx.z * (size_t)g.M * (size_t)g.ldc;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int m = m0 + place_at<TA>(ty, i), n = n0 + place_at<!TB>(tx, j);
            if (m >= g.M || n >= g.N) continue;
            float *p = c + (size_t)m * (size_t)g.ldc + n;
            *p = g.alpha * acc[i][j] + (g.beta != 0 ? g.beta * *p : 0);
        }
}

__global__ void __launch_bounds__(TILE_THREADS) add_splits_kernel(struct splits_args s)
{
    unsigned i = blockIdx.x * TILE_THREADS + threadIdx.x, all = (unsigned)s.M * (unsigned)s.N, n = i % (unsigned)s.N;
    if (i >= all) return;
    float sum = s.part[i];
    for (int k = 1; k < s.splits; k++) sum += s.part[(size_t)k * all + i];
    float *c = s.c + (size_t)(i / (unsigned)s.N) * (size_t)s.ldc + n;
    sum = s.alpha * sum + (s.beta != 0 ? s.beta * *c : 0);
    *c = s.bias ? __fadd_rn(sum, s.bias[n]) : sum;
}

/* 8 columns a thread */
__global__ void __launch_bounds__(TILE_THREADS)
    round_kernel(uint16_t *to, const float *x, int rows, int cols, int ld, bool vec)
{
    unsigned i = blockIdx.x * TILE_THREADS + threadIdx.x, across = (unsigned)(cols + 7) / 8;
    if (i >= (unsigned)rows * across) return;
    int col = (int)(i % across) * 8;
    const float *from = x + (size_t)(i / across) * (size_t)ld + col;
    float v[8];
    if (vec && col + 8 <= cols) {
        float4 lo = *reinterpret_cast<const float4 *>(from), hi = *reinterpret_cast<const float4 *>(from + 4);
        v[0] = lo.x, v[1] = lo.y, v[2] = lo.z, v[3] = lo.w, v[4] = hi.x, v[5] = hi.y, v[6] = hi.z, v[7] = hi.w;
    } else {
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = col + k < cols ? from[k] : 0;
    }
    unsigned h[4];
#pragma unroll
    for (int k = 0; k < 4; k++) h[k] = (unsigned)f32_to_bf16(v[2 * k]) | (unsigned)f32_to_bf16(v[2 * k + 1]) << 16;
    *reinterpret_cast<uint4 *>(to + (size_t)i * 8) = uint4{h[0], h[1], h[2], h[3]};
}

/* The trainer divides a sum over tokens into calls of limited cost, so a call with fewer tokens may have larger
 * operands than the largest work that reserve measures: by less than this factor, rounding included. */
const size_t SUM_SPARE = 4;

bool aligned(const void *p, int ld)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0 && ld % 4 == 0;
}

/* Split-K factor: how many blocks share a tile's sum. Above 1 where there are few tiles; without ta the number of
 * rows is not considered, so that a row's bits do not depend on it. */
int splits_of(const struct lt_args *p)
{
    long tiles = (long)blocks_for((size_t)p->N, TILE) * (p->ta ? (long)blocks_for((size_t)p->M, TILE) : 1);
    if (p->K < 2 * SPLIT_LEAST || tiles >= SPLIT_TILES) return 1;
    long want = SPLIT_TILES / tiles, most = p->K / SPLIT_LEAST;
    if (want > most) want = most;
    return want > SPLITS_MAX ? SPLITS_MAX : (int)want;
}

bool tile_multiply(gpu_dev *d, const char *op, const struct lt_args *p)
{
    static void (*const kernels[8])(struct tile_args) = {
        tile_kernel<false, false, false>, tile_kernel<false, false, true>, tile_kernel<false, true, false>,
        tile_kernel<false, true, true>,   tile_kernel<true, false, false>, tile_kernel<true, false, true>,
        tile_kernel<true, true, false>,   tile_kernel<true, true, true>};
    bool vec = aligned(p->a, p->lda) && aligned(p->b, p->ldb);
    int splits = splits_of(p), steps = (int)blocks_for((size_t)p->K, DEPTH);
    int chunk = steps ? (int)blocks_for((size_t)steps, splits) * DEPTH : DEPTH;
    struct tile_args g = {.a = static_cast<const float *>(p->a),
                          .b = static_cast<const float *>(p->b),
                          .c = static_cast<float *>(p->c),
                          .lda = p->lda,
                          .ldb = p->ldb,
                          .ldc = p->ldc,
                          .M = p->M,
                          .N = p->N,
                          .K = p->K,
                          .chunk = chunk,
                          .alpha = p->alpha,
                          .beta = p->beta};
    struct tile_args t = g;
    splits = steps ? (int)blocks_for((size_t)p->K, chunk) : 1;
    size_t all = (size_t)p->M * (size_t)p->N;
    if (splits > 1) {
        t.c = static_cast<float *>(gpu_scratch(d, op, AREA_SUM, all * (size_t)splits * sizeof(float)));
        if (!t.c) return false;
        t.ldc = p->N, t.alpha = 1, t.beta = 0;
    }
    dim3 grid(blocks_for((size_t)p->M, TILE), blocks_for((size_t)p->N, TILE), (unsigned)splits);
    LAUNCH(d, op, kernels[p->ta * 4 + p->tb * 2 + vec], grid, dim3(TILE_THREADS), sizeof(tile_smem), t);
    struct splits_args sum = {t.c, splits, p->M, p->N, g.c, g.ldc, g.alpha, g.beta, nullptr};
    if (splits > 1) add_splits(d, op, &sum);
    return !d->head.error.op;
}

} // namespace

void add_splits(gpu_dev *d, const char *op, const struct splits_args *s)
{
    size_t all = (size_t)s->M * (size_t)s->N;
    assert(all <= UINT32_MAX - TILE_THREADS);
    LAUNCH(d, op, add_splits_kernel, dim3(blocks_for(all, TILE_THREADS)), dim3(TILE_THREADS), 0, *s);
}

void round_bf16(gpu_dev *d, const char *op, uint16_t *to, const float *x, int rows, int cols, int ld)
{
    size_t n = (size_t)rows * (size_t)(half_ld(cols) / 8);
    assert(n <= UINT32_MAX - TILE_THREADS);
    if (n)
        LAUNCH(d, op, round_kernel, dim3(blocks_for(n, TILE_THREADS)), dim3(TILE_THREADS), 0, to, x, rows, cols, ld,
               aligned(x, ld));
}

bool gpu_dense_gemm(gpu_dev *d, const char *op, const struct lt_args *p)
{
    bool small = p->N < LT_LEAST || p->K < LT_LEAST || (p->ta && p->M < LT_LEAST);
    bool lies = aligned(p->a, p->lda) && aligned(p->b, p->ldb) && aligned(p->c, p->ldc);
    small = small || (!lies && (long)p->N * p->K < ODD_MOST);
    if (p->t == DT_F32 && small) return tile_multiply(d, op, p);
    return lt_multiply(d, op, p);
}

void gpu_gemm(struct dev *head, const struct gemm_args *a)
{
    gpu_dev *d = gpu_of(head);
    int M = a->c.rows, N = a->c.cols, K = a->ta ? a->a.rows : a->a.cols;
    if (M == 0 || N == 0) return;
    struct lt_args p = {.t = DT_F32,
                        .M = M,
                        .N = N,
                        .K = K,
                        .a = a->a.p,
                        .lda = a->a.ld,
                        .ta = a->ta,
                        .b = a->b.p,
                        .ldb = a->b.ld,
                        .tb = a->tb,
                        .c = a->c.p,
                        .ldc = a->c.ld,
                        .alpha = a->alpha,
                        .beta = a->accumulate ? 1.0f : 0.0f};
    if (d->measuring && a->ta)
        gpu_scratch(d, "gemm", AREA_SUM,
                    (size_t)SPLIT_TILES * TILE * TILE * sizeof(float)); /* the largest for any number of splits */
    if (a->half && head->bf16_x && N >= HALF_LEAST && K >= HALF_LEAST && (!a->ta || M >= HALF_LEAST)) {
        int lda = half_ld(a->a.cols), ldb = half_ld(a->b.cols);
        size_t each = sizeof(uint16_t) * (d->measuring && a->ta ? SUM_SPARE : 1);
        size_t a_bytes = (size_t)a->a.rows * (size_t)lda * each, b_bytes = (size_t)a->b.rows * (size_t)ldb * each;
        uint16_t *ha = static_cast<uint16_t *>(gpu_scratch(d, "gemm", AREA_X, a_bytes));
        uint16_t *hb = static_cast<uint16_t *>(gpu_scratch(d, "gemm", AREA_W, b_bytes));
        if (!ha || !hb) return;
        round_bf16(d, "gemm", ha, static_cast<const float *>(a->a.p), a->a.rows, a->a.cols, a->a.ld);
        round_bf16(d, "gemm", hb, static_cast<const float *>(a->b.p), a->b.rows, a->b.cols, a->b.ld);
        p.t = DT_BF16, p.a = ha, p.lda = lda, p.b = hb, p.ldb = ldb;
    }
    gpu_dense_gemm(d, "gemm", &p);
}

} // namespace GPU_NAMESPACE
