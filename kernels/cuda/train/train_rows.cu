/* Row-wise ops of training, and those of the optimizer.
 *
 * What is summed over tokens (the gradients of norms' parameters) is summed over SUM_ROWS rows at a time into
 * scratch, and these sums are added in an order that depends on their number alone: no atomics on floats, the same
 * bits in every run. */
#include "kernels/cuda/act.cuh"
#include "kernels/cuda/rows/rows.cuh"
#include "kernels/rng.h"

namespace GPU_NAMESPACE {
namespace {

enum { THREADS = 256, SUM_ROWS = 16 };

/* ---- sums over tokens -------------------------------------------------------------------------------------------- */

enum { FOLD_COLS = 32, FOLD_LANES = 8 };

struct fold_smem {
    double sum[FOLD_LANES][FOLD_COLS];
};

/* to[c] += the sum of part[b][c] over b: eight chains per column, added in order. part (n, ld). */
__global__ void __launch_bounds__(FOLD_COLS *FOLD_LANES)
    fold_kernel(float *to, const float *part, int n, int cols, size_t ld)
{
    SMEM(fold_smem, s);
    int c = (int)(blockIdx.x * FOLD_COLS + threadIdx.x), lane = (int)threadIdx.y;
    double sum = 0;
    if (c < cols)
        for (int b = lane; b < n; b += FOLD_LANES) sum += (double)part[(size_t)b * ld + (size_t)c];
    s.sum[lane][threadIdx.x] = sum;
    __syncthreads();
    if (lane || c >= cols) return;
    for (int l = 1; l < FOLD_LANES; l++) sum += s.sum[l][threadIdx.x];
    to[c] = (float)((double)to[c] + sum);
}

void fold(gpu_dev *d, const char *op, float *to, const float *part, int n, int cols, size_t ld)
{
    if (to)
        LAUNCH(d, op, fold_kernel, dim3(blocks_for((size_t)cols, FOLD_COLS)), dim3(FOLD_COLS, FOLD_LANES),
               sizeof(fold_smem), to, part, n, cols, ld);
}

/* ---- norm_back --------------------------------------------------------------------------------------------------- */

/* With xhat = (x - mean) inv and g = dy w: dx = inv (g - [mean_g] - xhat mean_gx), the bracket for LAYER only, where
 * mean_gx = mean(g xhat). One kernel computes four numbers per row, the other one the elements by columns. */
struct norm_stats {
    float mean, inv, mean_g, mean_gx;
};

struct three {
    float a, b, c;
};

struct stats_smem {
    block_part<float> part, part_b, part_c;
};

/* Three sums over the block with two barriers. */
__device__ inline three block_sum3(three v, stats_smem &s)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    v = {warp_sum(v.a), warp_sum(v.b), warp_sum(v.c)};
    if (lane == 0) {
        s.part.warp[warp] = v.a;
        s.part_b.warp[warp] = v.b;
        s.part_c.warp[warp] = v.c;
    }
    __syncthreads();
    bool has = lane < warps;
    v = {warp_sum(has ? s.part.warp[lane] : 0), warp_sum(has ? s.part_b.warp[lane] : 0),
         warp_sum(has ? s.part_c.warp[lane] : 0)};
    __syncthreads();
    return v;
}

/* One block per row. */
template <bool VEC>
__global__ void __launch_bounds__(THREADS)
    norm_stats_kernel(norm_stats *out, struct mat mx, struct mat mdy, const float *w, float eps, enum norm_kind kind)
{
    SMEM(stats_smem, s);
    int n = mx.cols, step = (int)blockDim.x * 4;
    const float *x = static_cast<const float *>(mx.p) + (size_t)blockIdx.x * (size_t)mx.ld;
    const float *dy = static_cast<const float *>(mdy.p) + (size_t)blockIdx.x * (size_t)mdy.ld;
    float mean = 0;
    if (kind == NORM_LAYER) {
        float sum = 0;
        for (int i = (int)threadIdx.x * 4; i < n; i += step) {
            vec4 a = load4<VEC>(x + i, n - i);
            sum += (a.v[0] + a.v[1]) + (a.v[2] + a.v[3]);
        }
        mean = block_sum(sum, s.part) / (float)n;
    }
    three sums = {0, 0, 0}; /* of c^2, g and g c, where c = x - mean */
    for (int i = (int)threadIdx.x * 4; i < n; i += step) {
        vec4 a = load4<VEC>(x + i, n - i), b = load4<VEC>(dy + i, n - i), weight = load4<VEC>(w + i, n - i);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float c = VEC || k < n - i ? a.v[k] - mean : 0, g = b.v[k] * weight.v[k];
            sums.a += c * c;
            sums.b += g;
            sums.c += g * c;
        }
    }
    sums = block_sum3(sums, s);
    if (threadIdx.x) return;
    float inv = 1 / sqrtf(sums.a / (float)n + eps);
    out[blockIdx.x] = {mean, inv, kind == NORM_LAYER ? sums.b / (float)n : 0, sums.c * inv / (float)n};
}

/* A thread sums a column over SUM_ROWS rows. part (blocks of rows, 2 cols): sums of dy xhat and of dy; NULL: not
 * computed. */
__global__ void __launch_bounds__(THREADS)
    norm_back_kernel(struct mat mdx, struct mat mx, struct mat mdy, const norm_stats *stats, const float *w,
                     bool accumulate, float *part)
{
    int c = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    if (c >= mx.cols) return;
    int from = (int)blockIdx.x * SUM_ROWS, to = from + SUM_ROWS < mx.rows ? from + SUM_ROWS : mx.rows;
    float sum_w = 0, sum_b = 0, weight = w[c];
#pragma unroll 4
    for (int t = from; t < to; t++) {
        norm_stats r = stats[t];
        float dy = static_cast<const float *>(mdy.p)[(size_t)t * (size_t)mdy.ld + (size_t)c];
        float xhat = (static_cast<const float *>(mx.p)[(size_t)t * (size_t)mx.ld + (size_t)c] - r.mean) * r.inv;
        float *dx = static_cast<float *>(mdx.p) + (size_t)t * (size_t)mdx.ld + c;
        float by = r.inv * (dy * weight - r.mean_g - xhat * r.mean_gx);
        sum_w += dy * xhat;
        sum_b += dy;
        *dx = accumulate ? *dx + by : by;
    }
    if (!part) return;
    part += (size_t)blockIdx.x * 2 * (size_t)mx.cols;
    part[c] = sum_w;
    part[mx.cols + c] = sum_b;
}

} // namespace

void gpu_norm_back(struct dev *head, const struct norm_back_args *a)
{
    gpu_dev *d = gpu_of(head);
    int T = a->x.rows, C = a->x.cols;
    bool vec = row_vectors(a->x.p, C, a->x.ld) && row_vectors(a->dy.p, C, a->dy.ld) && row_vectors(a->w, C, 0);
    if (T == 0) return;
    unsigned blocks = blocks_for((size_t)T, SUM_ROWS);
    float *part = nullptr;
    auto *stats = static_cast<norm_stats *>(gpu_scratch(d, "norm_back", AREA_X, (size_t)T * sizeof(norm_stats)));
    if (a->dw || a->db) {
        part = static_cast<float *>(gpu_scratch(d, "norm_back", AREA_SUM, (size_t)blocks * 2 * (size_t)C * 4));
        if (!part) return;
    }
    if (!stats) return;
    dim3 threads((unsigned)row_threads(C));
    if (vec)
        LAUNCH(d, "norm_back", norm_stats_kernel<true>, dim3((unsigned)T), threads, sizeof(stats_smem), stats, a->x,
               a->dy, a->w, a->eps, a->kind);
    else
        LAUNCH(d, "norm_back", norm_stats_kernel<false>, dim3((unsigned)T), threads, sizeof(stats_smem), stats, a->x,
               a->dy, a->w, a->eps, a->kind);
    unsigned width = C < THREADS ? blocks_for((size_t)C, 32) * 32 : (unsigned)THREADS;
    LAUNCH(d, "norm_back", norm_back_kernel, dim3(blocks, blocks_for((size_t)C, (int)width)), dim3(width), 0, a->dx,
           a->x, a->dy, stats, a->w, a->accumulate, part);
    fold(d, "norm_back", a->dw, part, (int)blocks, C, 2 * (size_t)C);
    if (a->db) fold(d, "norm_back", a->db, part + C, (int)blocks, C, 2 * (size_t)C);
}

/* ---- head_norm_back ---------------------------------------------------------------------------------------------- */

namespace {

enum { HEAD_WARPS = 8 };

template <int N> struct head_smem {
    float sum[HEAD_WARPS][N * 32];
};

/* The warps' sums of each column, added.  Every thread of the block calls it. */
template <int N> __device__ inline void add_warps(head_smem<N> &s, const float (&sum)[N], int dim, float *out)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
#pragma unroll
    for (int k = 0; k < N; k++) s.sum[warp][lane + 32 * k] = sum[k];
    __syncthreads();
    for (int c = (int)threadIdx.x; c < dim; c += HEAD_WARPS * 32) {
        float all = 0;
        for (int k = 0; k < HEAD_WARPS; k++) all += s.sum[k][c];
        out[c] = all;
    }
    __syncthreads();
}

/* `heads` heads of SUM_ROWS rows: all, or the head blockIdx.y alone, with a weight of its own. A warp handles every
 * eighth, its lanes the columns lane, lane + 32..., at most N each. part (blocks of rows, 2, gridDim.y, dim): their
 * sums for dw, then for db. With 16 columns registers do not hold the weights, too: they are read again and again. */
template <int N>
__global__ void __launch_bounds__(HEAD_WARPS * 32)
    head_norm_back_kernel(struct mat mdx, struct mat mx, int col, int heads, int dim, const float *w, float eps,
                          enum norm_kind kind, float *part)
{
    SMEM(head_smem<N>, s);
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, first = (int)blockIdx.y * dim;
    int from = (int)blockIdx.x * SUM_ROWS, rows = mx.rows - from < SUM_ROWS ? mx.rows - from : SUM_ROWS;
    float sum_w[N] = {}, sum_b[N] = {}, kept[N];
    auto load = [=](int k) { return lane + 32 * k < dim ? w[first + lane + 32 * k] : 0; };
#pragma unroll
    for (int k = 0; k < N; k++) kept[k] = load(k);
    auto weight = [&](int k) { return N < 16 ? kept[k] : load(k); };
    for (int i = warp; i < rows * heads; i += HEAD_WARPS) {
        size_t t = (size_t)from + (size_t)(i / heads), at = (size_t)col + (size_t)(first + i % heads * dim + lane);
        const float *x = static_cast<const float *>(mx.p) + t * (size_t)mx.ld + at;
        float *dx = static_cast<float *>(mdx.p) + t * (size_t)mdx.ld + at;
        float v[N], dy[N], mean = 0, square = 0, g = 0, gx = 0;
#pragma unroll
        for (int k = 0; k < N; k++) {
            bool there = lane + 32 * k < dim;
            v[k] = there ? x[32 * k] : 0;
            dy[k] = there ? dx[32 * k] : 0;
            mean += v[k];
            g += dy[k] * weight(k);
        }
        mean = kind == NORM_LAYER ? warp_sum(mean) / (float)dim : 0;
        float mean_g = kind == NORM_LAYER ? warp_sum(g) / (float)dim : 0;
#pragma unroll
        for (int k = 0; k < N; k++) {
            v[k] = lane + 32 * k < dim ? v[k] - mean : 0;
            square += v[k] * v[k];
            gx += dy[k] * weight(k) * v[k];
        }
        float inv = 1 / sqrtf(warp_sum(square) / (float)dim + eps), mean_gx = warp_sum(gx) * inv / (float)dim;
#pragma unroll
        for (int k = 0; k < N; k++) {
            float xhat = v[k] * inv;
            sum_w[k] += dy[k] * xhat;
            sum_b[k] += dy[k];
            if (lane + 32 * k < dim) dx[32 * k] = inv * (dy[k] * weight(k) - mean_g - xhat * mean_gx);
        }
    }
    if (!part) return;
    int width = (int)gridDim.y * dim;
    part += (size_t)blockIdx.x * 2 * (size_t)width + (size_t)first;
    add_warps<N>(s, sum_w, dim, part);
    add_warps<N>(s, sum_b, dim, part + width);
}

template <int N> void head_norm_back(gpu_dev *d, const struct head_norm_back_args *a, unsigned blocks, float *part)
{
    unsigned apart = a->by_head ? (unsigned)a->heads : 1;
    LAUNCH(d, "head_norm_back", head_norm_back_kernel<N>, dim3(blocks, apart), dim3(HEAD_WARPS * 32),
           sizeof(head_smem<N>), a->dx, a->x, a->col, a->by_head ? 1 : a->heads, a->head_dim, a->w, a->eps, a->kind,
           part);
}

} // namespace

void gpu_head_norm_back(struct dev *head, const struct head_norm_back_args *a)
{
    gpu_dev *d = gpu_of(head);
    int T = a->x.rows, D = a->head_dim, width = a->by_head ? a->heads * D : D;
    if (T == 0) return;
    unsigned blocks = blocks_for((size_t)T, SUM_ROWS);
    float *part = nullptr;
    if (D > TRAIN_HEAD_MAX) {
        dev_fail(head, "head_norm_back", "head_dim is %d", D);
        return;
    }
    if (a->dw || a->db) {
        part = static_cast<float *>(gpu_scratch(d, "head_norm_back", AREA_SUM, (size_t)blocks * 2 * (size_t)width * 4));
        if (!part) return;
    }
    if (D <= 64)
        head_norm_back<2>(d, a, blocks, part);
    else if (D <= 128)
        head_norm_back<4>(d, a, blocks, part);
    else if (D <= 256)
        head_norm_back<8>(d, a, blocks, part);
    else
        head_norm_back<16>(d, a, blocks, part);
    fold(d, "head_norm_back", a->dw, part, (int)blocks, width, 2 * (size_t)width);
    if (a->db) fold(d, "head_norm_back", a->db, part + width, (int)blocks, width, 2 * (size_t)width);
}

/* ---- activations, dropout: four elements per thread ------------------------------------------------------------- */

namespace {

template <bool VEC>
__global__ void __launch_bounds__(THREADS)
    act_mul_back_kernel(struct mat dgu, struct mat gu, struct mat mdy, enum act_kind act)
{
    vec4_at p = vec4_at_of(mdy.cols);
    if (p.left <= 0) return;
    int F = mdy.cols;
    vec4 gate = load4<VEC>(at4(gu, p), p.left), up = load4<VEC>(at4(gu, p) + F, p.left);
    vec4 dy = load4<VEC>(at4(mdy, p), p.left);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float value, slope = act_slope(gate.v[k], act, &value);
        gate.v[k] = dy.v[k] * act_up(up.v[k], act) * slope;
        up.v[k] = dy.v[k] * value * act_up_slope(up.v[k], act);
    }
    store4<VEC>(at4(dgu, p), gate, p.left);
    store4<VEC>(at4(dgu, p) + F, up, p.left);
}

template <bool VEC>
__global__ void __launch_bounds__(THREADS)
    act_back_kernel(struct mat dx, struct mat mx, struct mat mdy, enum act_kind act)
{
    vec4_at p = vec4_at_of(mdy.cols);
    if (p.left <= 0) return;
    vec4 x = load4<VEC>(at4(mx, p), p.left), dy = load4<VEC>(at4(mdy, p), p.left);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float value;
        dy.v[k] *= act_slope(x.v[k], act, &value);
    }
    store4<VEC>(at4(dx, p), dy, p.left);
}

/* Keeps an element when u >= p, where u is rng_uniform's fraction of 53 bits: bits >= from = p 2^53, which is exact
 * because p is a float. */
template <bool VEC>
__global__ void __launch_bounds__(THREADS)
    dropout_kernel(struct mat mx, uint64_t stream, uint64_t row0, uint64_t from, float by)
{
    vec4_at p = vec4_at_of(mx.cols);
    if (p.left <= 0) return;
    vec4 x = load4<VEC>(at4(mx, p), p.left);
    uint64_t first = (row0 + p.row) * (uint64_t)mx.cols + (uint64_t)p.col;
#pragma unroll
    for (int k = 0; k < 4; k++) x.v[k] = rng_in(stream, first + (uint64_t)k) >> 11 >= from ? x.v[k] * by : 0;
    store4<VEC>(at4(mx, p), x, p.left);
}

} // namespace

void gpu_act_mul_back(struct dev *head, const struct act_mul_back_args *a)
{
    int T = a->dy.rows, F = a->dy.cols;
    bool vec =
        row_vectors(a->dgu.p, F, a->dgu.ld) && row_vectors(a->gu.p, F, a->gu.ld) && row_vectors(a->dy.p, F, a->dy.ld);
    if (T == 0) return;
    dim3 threads((unsigned)row_threads(F));
    if (vec)
        LAUNCH(gpu_of(head), "act_mul_back", act_mul_back_kernel<true>, grid4(T, F), threads, 0, a->dgu, a->gu, a->dy,
               a->act);
    else
        LAUNCH(gpu_of(head), "act_mul_back", act_mul_back_kernel<false>, grid4(T, F), threads, 0, a->dgu, a->gu, a->dy,
               a->act);
}

void gpu_act_back(struct dev *head, const struct act_back_args *a)
{
    int T = a->dy.rows, F = a->dy.cols;
    bool vec =
        row_vectors(a->dx.p, F, a->dx.ld) && row_vectors(a->x.p, F, a->x.ld) && row_vectors(a->dy.p, F, a->dy.ld);
    if (T == 0) return;
    dim3 threads((unsigned)row_threads(F));
    if (vec)
        LAUNCH(gpu_of(head), "act_back", act_back_kernel<true>, grid4(T, F), threads, 0, a->dx, a->x, a->dy, a->act);
    else
        LAUNCH(gpu_of(head), "act_back", act_back_kernel<false>, grid4(T, F), threads, 0, a->dx, a->x, a->dy, a->act);
}

void gpu_dropout(struct dev *head, const struct dropout_args *a)
{
    int T = a->x.rows, C = a->x.cols;
    uint64_t from = (uint64_t)ceil((double)a->p * 0x1p53), stream = rng_mix(a->seed);
    float by = (float)(1 / (1 - (double)a->p));
    if (T == 0) return;
    dim3 threads((unsigned)row_threads(C));
    if (row_vectors(a->x.p, C, a->x.ld))
        LAUNCH(gpu_of(head), "dropout", dropout_kernel<true>, grid4(T, C), threads, 0, a->x, stream, a->row0, from, by);
    else
        LAUNCH(gpu_of(head), "dropout", dropout_kernel<false>, grid4(T, C), threads, 0, a->x, stream, a->row0, from,
               by);
}

/* ---- the optimizer: flat arrays ---------------------------------------------------------------------------------- */

namespace {

enum { SQUARE_BLOCK = 1 << 14 }; /* elements per block */

struct square_smem {
    block_part<double> part;
};

/* The square of a float is exact in double. sums: one per SQUARE_BLOCK. */
template <bool VEC> __global__ void __launch_bounds__(THREADS) square_sum_kernel(double *sums, const float *x, size_t n)
{
    SMEM(square_smem, s);
    size_t at = (size_t)blockIdx.x * SQUARE_BLOCK;
    int count = n - at < SQUARE_BLOCK ? (int)(n - at) : SQUARE_BLOCK;
    double sum = 0;
#pragma unroll 4
    for (int i = (int)threadIdx.x * 4; i < count; i += THREADS * 4) {
        vec4 a = VEC && count - i >= 4 ? load4<VEC>(x + at + i, 4) : load4<false>(x + at + i, count - i);
#pragma unroll
        for (int k = 0; k < 4; k++) sum += (double)a.v[k] * (double)a.v[k];
    }
    sum = block_sum(sum, s.part);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

/* Launched with one block. */
__global__ void __launch_bounds__(THREADS) square_fold_kernel(double *to, const double *sums, int n)
{
    SMEM(square_smem, s);
    double sum = 0;
    for (int i = (int)threadIdx.x; i < n; i += THREADS) sum += sums[i];
    sum = block_sum(sum, s.part);
    if (threadIdx.x == 0) *to += sum;
}

struct adamw_scalars {
    float grad_scale, keep, beta1, new1, beta2, new2, lr, eps, root_bias2;
};

template <bool VEC>
__device__ inline void adamw_four(const struct adamw_args &a, const adamw_scalars &c, size_t i, int left)
{
    vec4 p = load4<VEC>(a.p + i, left), m = load4<VEC>(a.m + i, left), v = load4<VEC>(a.v + i, left);
    vec4 g = load4<VEC>(a.g + i, left);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float grad = g.v[k] * c.grad_scale;
        m.v[k] = fmaf(grad, c.new1, m.v[k] * c.beta1);
        v.v[k] = fmaf(grad * grad, c.new2, v.v[k] * c.beta2);
        p.v[k] = p.v[k] * c.keep - c.lr * m.v[k] / fmaf(sqrtf(v.v[k]), c.root_bias2, c.eps);
    }
    store4<VEC>(a.p + i, p, left);
    store4<VEC>(a.m + i, m, left);
    store4<VEC>(a.v + i, v, left);
}

template <bool VEC> __global__ void __launch_bounds__(THREADS) adamw_kernel(struct adamw_args a, adamw_scalars c)
{
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * 4;
    if (i + 4 <= a.n)
        adamw_four<VEC>(a, c, i, 4);
    else if (i < a.n)
        adamw_four<false>(a, c, i, (int)(a.n - i));
}

template <bool VEC>
__device__ inline void axpby_four(float *y, const float *x, float alpha, float beta, size_t i, int left)
{
    vec4 a = load4<VEC>(x + i, left), b = {};
    if (beta != 0) b = load4<VEC>(y + i, left);
#pragma unroll
    for (int k = 0; k < 4; k++) a.v[k] = beta == 0 ? a.v[k] * alpha : fmaf(b.v[k], beta, a.v[k] * alpha);
    store4<VEC>(y + i, a, left);
}

template <bool VEC>
__global__ void __launch_bounds__(THREADS) axpby_kernel(float *y, const float *x, size_t n, float alpha, float beta)
{
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * 4;
    if (i + 4 <= n)
        axpby_four<VEC>(y, x, alpha, beta, i, 4);
    else if (i < n)
        axpby_four<false>(y, x, alpha, beta, i, (int)(n - i));
}

bool aligned16(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

} // namespace

void gpu_square_sum(struct dev *head, const struct square_sum_args *a)
{
    gpu_dev *d = gpu_of(head);
    unsigned blocks = blocks_for(a->n, SQUARE_BLOCK);
    if (a->n == 0) return;
    auto *sums = static_cast<double *>(gpu_scratch(d, "square_sum", AREA_SUM, blocks * sizeof(double)));
    if (!sums) return;
    if (aligned16(a->x))
        LAUNCH(d, "square_sum", square_sum_kernel<true>, dim3(blocks), dim3(THREADS), sizeof(square_smem), sums, a->x,
               a->n);
    else
        LAUNCH(d, "square_sum", square_sum_kernel<false>, dim3(blocks), dim3(THREADS), sizeof(square_smem), sums, a->x,
               a->n);
    LAUNCH(d, "square_sum", square_fold_kernel, dim3(1), dim3(THREADS), sizeof(square_smem), a->sum, sums, (int)blocks);
}

/* In f32, as on the cpu device; the scalars are computed in double. */
void gpu_adamw(struct dev *head, const struct adamw_args *a)
{
    adamw_scalars c = {.grad_scale = (float)a->grad_scale,
                       .keep = (float)(1 - a->lr * a->decay),
                       .beta1 = (float)a->beta1,
                       .new1 = (float)(1 - a->beta1),
                       .beta2 = (float)a->beta2,
                       .new2 = (float)(1 - a->beta2),
                       .lr = (float)(a->lr / a->bias1),
                       .eps = (float)a->eps,
                       .root_bias2 = (float)(1 / sqrt(a->bias2))};
    if (a->n == 0) return;
    dim3 grid(blocks_for(a->n, THREADS * 4));
    if (aligned16(a->p) && aligned16(a->m) && aligned16(a->v) && aligned16(a->g))
        LAUNCH(gpu_of(head), "adamw", adamw_kernel<true>, grid, dim3(THREADS), 0, *a, c);
    else
        LAUNCH(gpu_of(head), "adamw", adamw_kernel<false>, grid, dim3(THREADS), 0, *a, c);
}

void gpu_axpby(struct dev *head, const struct axpby_args *a)
{
    dim3 grid(blocks_for(a->n, THREADS * 4));
    if (a->n == 0) return;
    float alpha = (float)a->alpha, beta = (float)a->beta;
    if (aligned16(a->x) && aligned16(a->y))
        LAUNCH(gpu_of(head), "axpby", axpby_kernel<true>, grid, dim3(THREADS), 0, a->y, a->x, a->n, alpha, beta);
    else
        LAUNCH(gpu_of(head), "axpby", axpby_kernel<false>, grid, dim3(THREADS), 0, a->y, a->x, a->n, alpha, beta);
}

} // namespace GPU_NAMESPACE
