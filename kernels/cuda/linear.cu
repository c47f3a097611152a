/* Products with packed weights: which kernel, by type and number of rows.
 *
 *   rows             f32, f16, nf4, bf16            int8, int4 (over quantised rows, see quantise.cu)
 *   to GEMV_ROWS..   gemv_float                     gemv_int
 *   more             cuBLASLt, in f32 or bf16       mma_int
 *
 * A row has the same bits in any company within one of these kernels; that of another class of rows sums in another
 * order (int8 has one order everywhere, for its sums are exact).  What cuBLASLt has no product for, f32 activations
 * over bf16, f16 or nf4 weights, is widened to f32 first, as many outputs at a time as a part of scratch holds. */
#include "kernels/cuda/act.cuh"
#include "kernels/cuda/product.h"
#include "kernels/cuda/products.h"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {
namespace {

enum {
    THREADS = 256,
    WIDE_BYTES = 32 << 20,    /* of scratch for widened weights */
    GATE_UP_BYTES = 64 << 20, /* and for gate and up beside each other */
    GATE_UP_ROWS = 128        /* but at least that many rows at a time: a tile of mma_int */
};

__global__ void __launch_bounds__(THREADS) bias_kernel(float *y, int ld, int n, const float *b)
{
    int c = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    if (c < n) y[(size_t)blockIdx.x * (size_t)ld + (size_t)c] += b[c];
}

struct widen_smem {
    float code[16];
};

/* outputs of a bf16, f16 or nf4 weight as f32, ld apart: two columns a thread */
__global__ void __launch_bounds__(THREADS) widen_kernel(const uint8_t *w, size_t row_bytes, const float *scale,
                                                        enum dtype t, int K, float *out, int ld, nf4_table codes)
{
    SMEM(widen_smem, s);
    if (threadIdx.x < 16) s.code[threadIdx.x] = codes.v[threadIdx.x];
    __syncthreads();
    int c = 2 * (int)(blockIdx.y * blockDim.x + threadIdx.x);
    if (c >= K) return;
    const uint8_t *row = w + (size_t)blockIdx.x * row_bytes;
    float *to = out + (size_t)blockIdx.x * (size_t)ld + (size_t)c, lo, hi;
    if (t == DT_NF4) {
        float by = scale[(size_t)blockIdx.x * (size_t)(K / 64) + (size_t)(c / 64)];
        unsigned byte = row[c / 2];
        lo = __fmul_rn(s.code[byte >> 4], by), hi = __fmul_rn(s.code[byte & 15], by);
    } else {
        unsigned two = reinterpret_cast<const unsigned *>(row)[c / 2]; /* rows are whole 16 bytes */
        lo = t == DT_BF16 ? bf16_to_f32((uint16_t)two) : half_to_float((uint16_t)two);
        hi = t == DT_BF16 ? bf16_to_f32((uint16_t)(two >> 16)) : half_to_float((uint16_t)(two >> 16));
    }
    *reinterpret_cast<float2 *>(to) = {lo, hi}; /* ld is even: room for an odd K's last pair */
}

/* ---- many rows of floats -------------------------------------------------------------------------------------------
 */

void add_bias(gpu_dev *d, const char *op, const product *p)
{
    if (p->bias)
        LAUNCH(d, op, bias_kernel, dim3((unsigned)p->M, blocks_for((size_t)p->N, THREADS)), dim3(THREADS), 0, p->y,
               p->ldy, p->N, p->bias);
}

void lt_bf16(gpu_dev *d, const char *op, const product *p, const struct mat *x)
{
    int ld = half_ld(p->K);
    uint16_t *rounded =
        static_cast<uint16_t *>(gpu_scratch(d, op, AREA_X, (size_t)p->M * (size_t)ld * sizeof(uint16_t)));
    if (!rounded) return;
    round_bf16(d, op, rounded, static_cast<const float *>(x->p), p->M, p->K, x->ld);
    lt_args a = {DT_BF16, p->M, p->N,   p->K, rounded, ld,      false, p->w, (int)(p->row_bytes / sizeof(uint16_t)),
                 true,    p->y, p->ldy, 1,    0,       p->whole};
    lt_multiply(d, op, &a);
}

void lt_f32(gpu_dev *d, const char *op, const product *p, const struct mat *x)
{
    lt_args a = {DT_F32, p->M, p->N,   p->K, x->p, x->ld,   false, p->w, (int)(p->row_bytes / sizeof(float)),
                 true,   p->y, p->ldy, 1,    0,    p->whole};
    lt_multiply(d, op, &a);
}

void lt_widened(gpu_dev *d, const char *op, enum dtype t, const product *p, const struct mat *x)
{
    nf4_table codes = nf4_values();
    int ld = (p->K + 3) / 4 * 4;
    size_t line = (size_t)ld * sizeof(float), fit = WIDE_BYTES / line / WEIGHT_SLICE * WEIGHT_SLICE;
    int lines = fit > (size_t)p->N ? p->N : fit ? (int)fit : WEIGHT_SLICE;
    float *wide = static_cast<float *>(gpu_scratch(d, op, AREA_W, (size_t)lines * line));
    if (!wide) return;
    for (int n = 0; n < p->N; n += lines) {
        int some = p->N - n < lines ? p->N - n : lines;
        const float *scale =
            t == DT_NF4 ? static_cast<const float *>(p->scale) + (size_t)n * (size_t)p->n_groups : nullptr;
        LAUNCH(d, op, widen_kernel, dim3((unsigned)some, blocks_for((size_t)p->K, 2 * THREADS)), dim3(THREADS),
               sizeof(widen_smem), p->w + (size_t)n * p->row_bytes, p->row_bytes, scale, t, p->K, wide, ld, codes);
        lt_args a = {DT_F32, p->M, some, p->K, x->p, x->ld, false, wide, ld, true, p->y + n, p->ldy, 1, 0, p->whole};
        if (!lt_multiply(d, op, &a)) return;
    }
}

/* ---- one product ---------------------------------------------------------------------------------------------------
 */

product product_of(const gpu_weight *w, int first, int rows, const float *bias)
{
    size_t scales = (size_t)w->n_groups * (w->t == DT_I4 ? sizeof(uint16_t) : sizeof(float));
    const uint8_t *scale = static_cast<const uint8_t *>(w->scale);
    product p = {};
    p.w = w->data + (size_t)first * w->row_bytes;
    p.row_bytes = w->row_bytes;
    p.scale = scale ? scale + (size_t)first * scales : nullptr;
    p.group = w->group;
    p.n_groups = w->n_groups;
    p.M = rows;
    p.K = w->cols;
    p.whole = w->rows;
    p.bias = bias;
    return p;
}

bool is_int(const gpu_weight *w)
{
    return w->t == DT_I8 || w->t == DT_I4;
}

/* x is rounded to bf16 */
bool rounds(const gpu_dev *d, const gpu_weight *w)
{
    return w->t == DT_BF16 && d->head.bf16_x;
}

bool few_rows(const gpu_dev *d, const gpu_weight *w, int rows)
{
    return rows <= (is_int(w) ? GEMV_ROWS_INT : rounds(d, w) ? GEMV_ROWS_ROUNDED : GEMV_ROWS);
}

void multiply(gpu_dev *d, const char *op, const gpu_weight *w, product *p, const struct mat *x)
{
    const gpu_weight *after = gpu_weight_after(d, w);
    if (after) {
        p->after = after->data;
        p->after_bytes = (size_t)after->rows * after->row_bytes;
    }
    bool round_x = rounds(d, w);
    if (is_int(w)) {
        quantised q;
        if (!quantise_rows(d, op, x, w->t == DT_I4, &q)) return;
        if (few_rows(d, w, p->M))
            gemv_int(d, op, w->t, p, &q);
        else
            mma_int(d, op, w->t, p, &q);
        return;
    }
    if (d->measuring) gpu_scratch(d, op, AREA_X, GEMV_ROWS * ((size_t)p->K + 64) * sizeof(float)); /* of few rows */
    if (few_rows(d, w, p->M)) {
        gemv_float(d, op, w->t, p, x, round_x);
        return;
    }
    if (w->t == DT_F32)
        lt_f32(d, op, p, x);
    else if (round_x)
        lt_bf16(d, op, p, x);
    else
        lt_widened(d, op, w->t, p, x);
    add_bias(d, op, p);
}

} // namespace

void gpu_linear(struct dev *head, const struct linear_args *a)
{
    const gpu_weight *w = weight_of(a->w);
    if (a->x.rows == 0 || head->error.op) return;
    assert(a->x.cols == w->cols && a->first >= 0 && a->first + a->y.cols <= w->rows);
    product p = product_of(w, a->first, a->x.rows, a->b);
    p.N = a->y.cols;
    p.y = static_cast<float *>(a->y.p);
    p.ldy = a->y.ld;
    multiply(gpu_of(head), "linear", w, &p, &a->x);
}

/* Few rows: in one kernel, which has gate and up of an output in one warp.  More: linear into scratch, then act_mul. */
void gpu_gate_up(struct dev *head, const struct gate_up_args *a)
{
    gpu_dev *d = gpu_of(head);
    const gpu_weight *w = weight_of(a->w);
    int F = a->y.cols, T = a->x.rows;
    if (T == 0 || head->error.op) return;
    assert(a->x.cols == w->cols && w->rows == 2 * F && w->gate_up);
    if (few_rows(d, w, T)) {
        product p = product_of(w, 0, T, a->b);
        p.N = F;
        p.y = static_cast<float *>(a->y.p);
        p.ldy = a->y.ld;
        p.gate = true;
        p.act = a->act;
        multiply(d, "gate_up", w, &p, &a->x);
        return;
    }
    size_t line = (size_t)F * 2 * sizeof(float), fit = GATE_UP_BYTES / line;
    int most = fit > (size_t)T ? T : fit > GATE_UP_ROWS ? (int)fit : GATE_UP_ROWS, chunks = (T + most - 1) / most;
    int rows =
        (T + chunks * GATE_UP_ROWS - 1) / (chunks * GATE_UP_ROWS) * GATE_UP_ROWS; /* about equal, of whole tiles */
    rows = rows < T ? rows : T;
    float *both = static_cast<float *>(gpu_scratch(d, "gate_up", AREA_Y, (size_t)rows * line));
    for (int t = 0; both && t < T; t += rows) {
        int some = T - t < rows ? T - t : rows;
        struct mat x = a->x, y = a->y, gu = {both, DT_F32, some, 2 * F, 2 * F};
        x.p = static_cast<float *>(x.p) + (size_t)t * (size_t)x.ld;
        y.p = static_cast<float *>(y.p) + (size_t)t * (size_t)y.ld;
        x.rows = y.rows = some;
        struct linear_args linear = {gu, x, a->w, a->b, 0};
        struct act_mul_args act = {y, gu, a->act};
        gpu_linear(head, &linear);
        gpu_act_mul(head, &act);
    }
}

} // namespace GPU_NAMESPACE
