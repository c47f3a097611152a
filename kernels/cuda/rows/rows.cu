/* Row-wise ops: embedding, norms, sums, activations, gathering rows. */
#include "kernels/cuda/act.cuh"
#include "kernels/cuda/gemm/quantise.cuh"
#include "kernels/cuda/rows/rows.cuh"

namespace GPU_NAMESPACE {
namespace {

enum { ROW_THREADS = 256 };

/* ---- norm -------------------------------------------------------------------------------------------------------- */

struct norm_smem {
    block_part<float> part;
    quantise_smem quantise;
};

/* The sum of four elements, and of their squares about the mean, over the elements that exist. */
__device__ inline float sum4(const vec4 &a)
{
    return (a.v[0] + a.v[1]) + (a.v[2] + a.v[3]);
}

__device__ inline float square4(const vec4 &a, float mean, int left)
{
    vec4 q;
#pragma unroll
    for (int k = 0; k < 4; k++) q.v[k] = k < left ? (a.v[k] - mean) * (a.v[k] - mean) : 0;
    return sum4(q);
}

/* One block per row. Rows of at most N times four elements per thread are kept in registers, so that x is read once.
 * N 0: rows of any length, read again for each pass. y: added to x first; NULL: nothing. QUANT (only for rows kept
 * in registers, with VEC): also quantises the output rows. */
template <bool VEC, int N, bool QUANT>
__global__ void __launch_bounds__(ROW_THREADS, (QUANT ? N : 0) > 4 ? 2 : 4)
    norm_kernel(struct mat out, struct mat x, struct mat y, const float *w, const float *b, float eps,
                enum norm_kind kind, quantised q, bool even_odd)
{
    SMEM(norm_smem, s);
    launch_next();
    if (VEC && threadIdx.x == 0 && blockIdx.x == 0) prefetch_l2(w, (unsigned)x.cols * (unsigned)sizeof *w);
    wait_for_previous();
    int n = x.cols, step = (int)blockDim.x * 4, first = (int)threadIdx.x * 4;
    float *row = static_cast<float *>(x.p) + (size_t)blockIdx.x * (size_t)x.ld;
    float *to = static_cast<float *>(out.p) + (size_t)blockIdx.x * (size_t)out.ld;
    const float *more = y.p ? static_cast<const float *>(y.p) + (size_t)blockIdx.x * (size_t)y.ld : nullptr;
    vec4 kept[N ? N : 1];
    float sum = 0, square = 0;
    auto load = [&](int i) {
        vec4 a = load4<VEC>(row + i, n - i);
        if (!more) return a;
        vec4 c = load4<VEC>(more + i, n - i);
#pragma unroll
        for (int k = 0; k < 4; k++) a.v[k] += c.v[k];
        store4<VEC>(row + i, a, n - i);
        return a;
    };
    auto give = [&](int i, const vec4 &a, float mean, float inv) {
        vec4 o, scale = load4<VEC>(w + i, n - i), shift = {};
        if (b) shift = load4<VEC>(b + i, n - i);
#pragma unroll
        for (int k = 0; k < 4; k++) o.v[k] = (a.v[k] - mean) * inv * scale.v[k] + shift.v[k];
        store4<VEC>(to + i, o, n - i);
        return o;
    };
    if constexpr (N > 0) {
#pragma unroll
        for (int j = 0; j < N; j++) {
            kept[j] = {};
            if (first + j * step < n) kept[j] = load(first + j * step);
            sum += sum4(kept[j]);
        }
    } else {
        for (int i = first; i < n; i += step) sum += sum4(load(i));
    }
    float mean = kind == NORM_LAYER ? block_sum(sum, s.part) / (float)n : 0;
    if constexpr (N > 0) {
#pragma unroll
        for (int j = 0; j < N; j++) square += square4(kept[j], mean, n - first - j * step);
    } else {
        for (int i = first; i < n; i += step) square += square4(load4<VEC>(row + i, n - i), mean, n - i);
    }
    float inv = 1 / sqrtf(block_sum(square, s.part) / (float)n + eps);
    if constexpr (N > 0) {
#pragma unroll
        for (int j = 0; j < N; j++)
            if (first + j * step < n) kept[j] = give(first + j * step, kept[j], mean, inv);
    } else {
        for (int i = first; i < n; i += step) give(i, load4<VEC>(row + i, n - i), mean, inv);
    }
    if constexpr (QUANT) quantise_row<N>(q, even_odd, blockIdx.x, n, s.quantise, [&](int j, int) { return kept[j]; });
}

template <bool VEC, bool QUANT> auto norm_kernel_of(int cols, int threads)
{
    int each = (cols + threads * 4 - 1) / (threads * 4); /* vectors of four per thread */
    return each <= 1   ? norm_kernel<VEC, 1, QUANT>
           : each <= 4 ? norm_kernel<VEC, 4, QUANT>
           : each <= 8 ? norm_kernel<VEC, 8, QUANT>
                       : norm_kernel<VEC, 0, false>;
}

enum { NORM_KEPT = 8 * 4 * ROW_THREADS }; /* most columns of a row that is kept in registers */

/* y.p NULL: nothing is added. */
void norm_any(gpu_dev *d, const char *op, const struct norm_args *a, struct mat y)
{
    int C = a->x.cols;
    bool vec = row_vectors(a->x.p, C, a->x.ld) && row_vectors(a->out.p, C, a->out.ld) && row_vectors(y.p, C, y.ld) &&
               row_vectors(a->w, C, 0) && row_vectors(a->b, C, 0);
    if (a->x.rows == 0) return;
    const gpu_weight *next = a->next && vec && C <= NORM_KEPT ? weight_of(a->next) : nullptr;
    quantised q = {};
    bool quant = prequantise(d, op, &a->out, next, &q);
    int threads = row_threads(C);
    auto kernel = quant ? norm_kernel_of<true, true>(C, threads)
                  : vec ? norm_kernel_of<true, false>(C, threads)
                        : norm_kernel_of<false, false>(C, threads);
    LAUNCH_EARLY(d, op, kernel, dim3((unsigned)a->x.rows), dim3((unsigned)threads), sizeof(norm_smem), a->out, a->x, y,
                 a->w, a->b, a->eps, a->kind, q, next && next->t == DT_I4);
    if (d->head.error.op) d->prequantised.data = nullptr;
}

} // namespace

void gpu_norm(struct dev *head, const struct norm_args *a)
{
    norm_any(gpu_of(head), "norm", a, (struct mat){});
}

void gpu_add_norm(struct dev *head, const struct add_norm_args *a)
{
    struct norm_args norm = {a->out, a->x, a->w, a->b, a->eps, a->kind, a->next};
    if (a->post_w) { /* out holds norm(y) until it is added: each thread reads its elements before it writes them */
        struct norm_args post = {a->out, a->y, a->post_w, a->post_b, a->eps, a->kind};
        norm_any(gpu_of(head), "add_norm", &post, (struct mat){});
    }
    norm_any(gpu_of(head), "add_norm", &norm, a->post_w ? a->out : a->y);
}

namespace {

/* One warp per head of a row; w and b of the head h begin at h * step. */
__global__ void head_norm_kernel(struct mat x, int col, int heads, int dim, const float *w, const float *b, int step,
                                 float eps, enum norm_kind kind)
{
    int lane = (int)threadIdx.x % 32, h = (int)(blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32);
    launch_next_and_wait();
    if (h >= heads) return;
    float *p = static_cast<float *>(x.p) + (size_t)blockIdx.x * (size_t)x.ld + col + h * dim;
    float mean = 0, square = 0;
    if (kind == NORM_LAYER) {
        for (int i = lane; i < dim; i += 32) mean += p[i];
        mean = warp_sum(mean) / (float)dim;
    }
    for (int i = lane; i < dim; i += 32) square += (p[i] - mean) * (p[i] - mean);
    float inv = 1 / sqrtf(warp_sum(square) / (float)dim + eps);
    for (int i = lane; i < dim; i += 32) {
        float y = (p[i] - mean) * inv * w[h * step + i];
        p[i] = b ? y + b[h * step + i] : y;
    }
}

/* ---- elementwise ------------------------------------------------------------------------------------------------ */

/* Four elements of a table of any float type. */
template <bool VEC> __device__ inline vec4 load_table(const struct mat &m, size_t row, const vec4_at &p)
{
    size_t at = row * (size_t)m.ld + (size_t)p.col;
    if (m.t == DT_F32) return load4<VEC>(static_cast<const float *>(m.p) + at, p.left);
    if constexpr (VEC) {
        uint2 two = *reinterpret_cast<const uint2 *>(static_cast<const uint16_t *>(m.p) + at);
        uint16_t h[4] = {(uint16_t)two.x, (uint16_t)(two.x >> 16), (uint16_t)two.y, (uint16_t)(two.y >> 16)};
        vec4 a;
#pragma unroll
        for (int k = 0; k < 4; k++) a.v[k] = m.t == DT_BF16 ? bf16_to_f32(h[k]) : half_to_float(h[k]);
        return a;
    } else {
        vec4 a;
#pragma unroll
        for (int k = 0; k < 4; k++) a.v[k] = k < p.left ? load_float(m.p, m.t, at + (size_t)k) : 0;
        return a;
    }
}

template <bool VEC>
__global__ void __launch_bounds__(ROW_THREADS) embed_kernel(struct mat out, struct mat table, struct mat pos_table,
                                                            const int32_t *id, const int32_t *pos, float scale)
{
    launch_next_and_wait();
    vec4_at p = vec4_at_of(out.cols);
    if (p.left <= 0) return;
    vec4 v = load_table<VEC>(table, (size_t)id[p.row], p);
#pragma unroll
    for (int k = 0; k < 4; k++) v.v[k] *= scale;
    if (pos_table.p) {
        vec4 more = load_table<VEC>(pos_table, (size_t)pos[p.row], p);
#pragma unroll
        for (int k = 0; k < 4; k++) v.v[k] += more.v[k];
    }
    store4<VEC>(at4(out, p), v, p.left);
}

template <bool VEC> __global__ void __launch_bounds__(ROW_THREADS) add_kernel(struct mat x, struct mat y)
{
    launch_next_and_wait();
    vec4_at p = vec4_at_of(x.cols);
    if (p.left <= 0) return;
    vec4 a = load4<VEC>(at4(x, p), p.left), b = load4<VEC>(at4(y, p), p.left);
#pragma unroll
    for (int k = 0; k < 4; k++) a.v[k] += b.v[k];
    store4<VEC>(at4(x, p), a, p.left);
}

template <bool VEC> __global__ void __launch_bounds__(ROW_THREADS) act_kernel(struct mat x, enum act_kind act)
{
    launch_next_and_wait();
    vec4_at p = vec4_at_of(x.cols);
    if (p.left <= 0) return;
    vec4 a = load4<VEC>(at4(x, p), p.left);
#pragma unroll
    for (int k = 0; k < 4; k++) a.v[k] = act_value(a.v[k], act);
    store4<VEC>(at4(x, p), a, p.left);
}

/* x = tanh(x * scale) * cap; cap 0: x *= scale */
template <bool VEC> __global__ void __launch_bounds__(ROW_THREADS) softcap_kernel(struct mat x, float scale, float cap)
{
    launch_next_and_wait();
    vec4_at p = vec4_at_of(x.cols);
    if (p.left <= 0) return;
    vec4 a = load4<VEC>(at4(x, p), p.left);
#pragma unroll
    for (int k = 0; k < 4; k++) a.v[k] *= scale;
    if (cap > 0)
#pragma unroll
        for (int k = 0; k < 4; k++) a.v[k] = tanhf(a.v[k]) * cap;
    store4<VEC>(at4(x, p), a, p.left);
}

template <bool VEC>
__global__ void __launch_bounds__(ROW_THREADS) act_mul_kernel(struct mat out, struct mat gu, enum act_kind act)
{
    launch_next_and_wait();
    vec4_at p = vec4_at_of(out.cols);
    if (p.left <= 0) return;
    vec4 a = load4<VEC>(at4(gu, p), p.left), b = load4<VEC>(at4(gu, p) + out.cols, p.left);
#pragma unroll
    for (int k = 0; k < 4; k++) a.v[k] = act_value(a.v[k], act) * act_up(b.v[k], act);
    store4<VEC>(at4(out, p), a, p.left);
}

template <bool VEC>
__global__ void __launch_bounds__(ROW_THREADS) rows_kernel(struct mat out, struct mat x, const int32_t *row)
{
    launch_next_and_wait();
    vec4_at p = vec4_at_of(out.cols);
    if (p.left <= 0) return;
    vec4_at from = {(size_t)row[p.row], p.col, p.left};
    store4<VEC>(at4(out, p), load4<VEC>(at4(x, from), p.left), p.left);
}

bool vectors(const struct mat &m, int cols)
{
    return row_vectors(m.p, cols, m.ld);
}

/* LAUNCH_EARLY of a vec4_at kernel over (rows, cols); `vec`: with 16-byte vectors. */
#define LAUNCH4(head, op, kernel, vec, rows, cols, ...)                                                                \
    do {                                                                                                               \
        dim3 threads_((unsigned)row_threads(cols));                                                                    \
        if (vec)                                                                                                       \
            LAUNCH_EARLY(gpu_of(head), op, kernel<true>, grid4(rows, cols), threads_, 0, __VA_ARGS__);                 \
        else                                                                                                           \
            LAUNCH_EARLY(gpu_of(head), op, kernel<false>, grid4(rows, cols), threads_, 0, __VA_ARGS__);                \
    } while (0)

} // namespace

void gpu_head_norm(struct dev *head, const struct head_norm_args *a)
{
    if (a->x.rows == 0) return;
    LAUNCH_EARLY(gpu_of(head), "head_norm", head_norm_kernel,
                 dim3((unsigned)a->x.rows, blocks_for((size_t)a->heads, ROW_THREADS / 32)), dim3(ROW_THREADS), 0, a->x,
                 a->col, a->heads, a->head_dim, a->w, a->b, a->by_head ? a->head_dim : 0, a->eps, a->kind);
}

void gpu_embed(struct dev *head, const struct embed_args *a)
{
    if (a->out.rows == 0) return;
    if (a->w) return embed_packed(gpu_of(head), a);
    int T = a->out.rows, C = a->out.cols;
    bool vec = vectors(a->out, C) && vectors(a->table, C) && vectors(a->pos_table, C);
    LAUNCH4(head, "embed", embed_kernel, vec, T, C, a->out, a->table, a->pos_table, a->id, a->pos,
            a->scale == 0 ? 1.0f : a->scale);
}

void gpu_add(struct dev *head, const struct add_args *a)
{
    if (a->x.rows == 0) return;
    int T = a->x.rows, C = a->x.cols;
    LAUNCH4(head, "add", add_kernel, vectors(a->x, C) && vectors(a->y, C), T, C, a->x, a->y);
}

void gpu_act(struct dev *head, const struct act_args *a)
{
    if (a->x.rows == 0) return;
    LAUNCH4(head, "act", act_kernel, vectors(a->x, a->x.cols), a->x.rows, a->x.cols, a->x, a->act);
}

void gpu_softcap(struct dev *head, const struct softcap_args *a)
{
    if (a->x.rows == 0) return;
    LAUNCH4(head, "softcap", softcap_kernel, vectors(a->x, a->x.cols), a->x.rows, a->x.cols, a->x,
            a->cap > 0 ? a->scale / a->cap : a->scale, a->cap);
}

void gpu_act_mul(struct dev *head, const struct act_mul_args *a)
{
    if (a->out.rows == 0) return;
    int T = a->out.rows, F = a->out.cols;
    LAUNCH4(head, "act_mul", act_mul_kernel, vectors(a->out, F) && vectors(a->gu, F), T, F, a->out, a->gu, a->act);
}

void gpu_rows(struct dev *head, const struct rows_args *a)
{
    if (a->out.rows == 0) return;
    int T = a->out.rows, C = a->out.cols;
    LAUNCH4(head, "rows", rows_kernel, vectors(a->out, C) && vectors(a->x, C), T, C, a->out, a->x, a->row);
}

} // namespace GPU_NAMESPACE
