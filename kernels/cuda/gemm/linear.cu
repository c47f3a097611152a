/* GEMMs with packed weights: chooses the kernel, by type and number of rows.
 *
 *   rows             f32, f16, nf4, fp8, bf16       int8, int4, block (over quantised rows, see quantise.cu)
 *   to GEMV_ROWS..   gemv_float                     gemv_int, gemv_block
 *   more             cuBLASLt, in f32, bf16, f16;   mma_int, mma_block; of many rows and int8 cuBLASLt (many_int.cu)
 *                    nf4 in bf16 to MMA_ROWS_NF4: mma_nf4
 *
 * Within one of these kernels a row's bits do not depend on the other rows; kernels for different numbers of rows
 * sum in different orders (int8 has the same result everywhere, because its sums are exact). Combinations that
 * cuBLASLt lacks, nf4 and fp8 weights and f32 activations with 16-bit weights, are dequantised or converted first, as
 * many outputs at a time as a part of scratch holds: nf4 and fp8 to bf16 where x may be rounded, the rest to f32. */
#include "kernels/cuda/act.cuh"
#include "kernels/cuda/gemm/dense_gemm.h"
#include "kernels/cuda/gemm/dequantise.h"
#include "kernels/cuda/gemm/packed_gemm.h"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {
namespace {

enum {
    THREADS = 256,
    WIDE_BYTES = 32 << 20,    /* scratch for dequantised or converted weights */
    GATE_UP_BYTES = 64 << 20, /* scratch for gate and up together */
    GATE_UP_ROWS = 128        /* least rows of a chunk of gate_up: a tile of mma_int */
};

/* ---- many rows of floats -------------------------------------------------------------------------------------------
 */

/* x rounded to bf16, rows half_ld(K) apart, in AREA_X. NULL: the device has failed. */
const uint16_t *rounded_x(gpu_dev *d, const char *op, const packed_gemm *p, const struct mat *x)
{
    size_t bytes = (size_t)p->M * (size_t)half_ld(p->K) * sizeof(uint16_t);
    uint16_t *to = static_cast<uint16_t *>(gpu_scratch(d, op, AREA_X, bytes));
    if (to) round_bf16(d, op, to, static_cast<const float *>(x->p), p->M, p->K, x->ld);
    return to;
}

/* y = x W^T + bias, with x at `a` and W at `b`, both of type t. */
lt_args lt_args_of(const packed_gemm *p, enum dtype t, const void *a, int lda, const void *b, int ldb)
{
    return {.t = t,
            .M = p->M,
            .N = p->N,
            .K = p->K,
            .a = a,
            .lda = lda,
            .b = b,
            .ldb = ldb,
            .tb = true,
            .c = p->y,
            .ldc = p->ldy,
            .alpha = 1,
            .whole = p->whole,
            .bias = p->bias};
}

void lt_bf16(gpu_dev *d, const char *op, const packed_gemm *p, const struct mat *x)
{
    const uint16_t *rounded = rounded_x(d, op, p, x);
    if (!rounded) return;
    lt_args a = lt_args_of(p, DT_BF16, rounded, half_ld(p->K), p->w, (int)(p->row_bytes / sizeof(uint16_t)));
    lt_multiply(d, op, &a);
}

void lt_f32(gpu_dev *d, const char *op, const packed_gemm *p, const struct mat *x)
{
    lt_args a = lt_args_of(p, DT_F32, x->p, x->ld, p->w, (int)(p->row_bytes / sizeof(float)));
    lt_multiply(d, op, &a);
}

/* A GEMM over dequantised weights, in f32, or with x and the weight's values rounded to bf16. */
void lt_dequantised(gpu_dev *d, const char *op, const gpu_weight *w, const packed_gemm *p, const struct mat *x,
                    bool half)
{
    size_t line = (size_t)half_ld(p->K) * (half ? sizeof(uint16_t) : sizeof(float));
    size_t fit = WIDE_BYTES / line / WEIGHT_SLICE * WEIGHT_SLICE;
    int lines = fit > (size_t)p->N ? p->N : fit ? (int)fit : WEIGHT_SLICE, ldx = half ? half_ld(p->K) : x->ld, ld;
    const void *from = half ? rounded_x(d, op, p, x) : x->p;
    for (int n = 0; from && n < p->N; n += lines) {
        int some = p->N - n < lines ? p->N - n : lines;
        const void *wide = dequantise_rows(d, op, w, p->first + n, some, half, &ld);
        if (!wide) return;
        lt_args a = lt_args_of(p, half ? DT_BF16 : DT_F32, from, ldx, wide, ld);
        a.N = some;
        a.c = p->y + n;
        a.bias = p->bias ? p->bias + n : nullptr;
        if (!lt_multiply(d, op, &a)) return;
    }
}

/* f16 weights: x is converted to f16. A row whose largest magnitude is not in [1, 2^15) is scaled by a power of two
 * to [2^14, 2^15): nothing overflows, and what is lost below 2^-24 is small compared with the largest value. */

struct f16_smem {
    block_part<float> part;
};

/* to (M, ld) = rows of x as f16, zeros past K; by[m]: the factor that undoes the row's scaling. */
__global__ void __launch_bounds__(THREADS) round_f16_kernel(uint16_t *to, int ld, float *by, struct mat x)
{
    SMEM(f16_smem, s);
    const float *row = static_cast<const float *>(x.p) + (size_t)blockIdx.x * (size_t)x.ld;
    float most = 0, up = 1, down = 1;
    for (int c = (int)threadIdx.x; c < x.cols; c += THREADS) most = fmaxf(most, fabsf(row[c]));
    most = block_max(most, s.part);
    if (most > 0 && most < INFINITY && (most < 1 || most >= 32768)) {
        int shift = 14 + 127 - (int)(__float_as_uint(most) >> 23); /* to [2^14, 2^15) */
        shift = shift < 126 ? shift : 126;
        up = __uint_as_float((unsigned)(127 + shift) << 23), down = __uint_as_float((unsigned)(127 - shift) << 23);
    }
    if (threadIdx.x == 0) by[blockIdx.x] = down;
    unsigned *pair = reinterpret_cast<unsigned *>(to + (size_t)blockIdx.x * (size_t)ld);
    for (int c = 2 * (int)threadIdx.x; c < ld; c += 2 * THREADS)
        pair[c / 2] = pack_f16(c < x.cols ? row[c] * up : 0, c + 1 < x.cols ? row[c + 1] * up : 0);
}

/* y = y * by[row] + b. */
__global__ void __launch_bounds__(THREADS) scale_rows_kernel(float *y, int ld, int n, const float *by, const float *b)
{
    int c = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    float times = by[blockIdx.x];
    if (c >= n || (times == 1 && !b)) return;
    float *at = y + (size_t)blockIdx.x * (size_t)ld + (size_t)c;
    *at = __fadd_rn(__fmul_rn(*at, times), b ? b[c] : 0);
}

void lt_f16(gpu_dev *d, const char *op, const packed_gemm *p, const struct mat *x)
{
    int ld = half_ld(p->K);
    uint16_t *to = static_cast<uint16_t *>(gpu_scratch(d, op, AREA_X, (size_t)p->M * (size_t)ld * sizeof *to));
    float *by = static_cast<float *>(gpu_scratch(d, op, AREA_SUM, (size_t)p->M * sizeof *by));
    if (!to || !by) return;
    LAUNCH(d, op, round_f16_kernel, dim3((unsigned)p->M), dim3(THREADS), sizeof(f16_smem), to, ld, by, *x);
    lt_args a = lt_args_of(p, DT_F16, to, ld, p->w, (int)(p->row_bytes / sizeof(uint16_t)));
    a.bias = nullptr; /* added after the scaling */
    if (lt_multiply(d, op, &a))
        LAUNCH(d, op, scale_rows_kernel, dim3((unsigned)p->M, blocks_for((size_t)p->N, THREADS)), dim3(THREADS), 0,
               p->y, p->ldy, p->N, by, p->bias);
}

/* ---- one GEMM --------------------------------------------------------------------------------------------------- */

packed_gemm packed_gemm_of(const gpu_weight *w, int first, int rows, const float *bias)
{
    size_t scales = (size_t)w->n_groups * (w->t == DT_I4 ? sizeof(uint16_t) : sizeof(float));
    const uint8_t *scale = static_cast<const uint8_t *>(w->scale);
    packed_gemm p = {};
    p.w = w->data + (size_t)first * w->row_bytes;
    p.row_bytes = w->row_bytes;
    p.scale = scale ? scale + (size_t)first * scales : nullptr;
    p.group = w->group;
    p.n_groups = w->n_groups;
    p.M = rows;
    p.K = w->cols;
    p.first = first;
    p.whole = w->rows;
    p.bias = bias;
    return p;
}

bool is_int(const gpu_weight *w)
{
    return w->t == DT_I8 || w->t == DT_I4 || w->t == DT_BLOCK;
}

/* Whether x is rounded to bf16. */
bool rounds(const gpu_dev *d, const gpu_weight *w)
{
    return (w->t == DT_BF16 || w->t == DT_F8) && d->head.bf16_x;
}

bool few_rows(const gpu_dev *d, const gpu_weight *w, int rows)
{
    return rows <= (is_int(w) ? GEMV_ROWS_INT : rounds(d, w) ? GEMV_ROWS_ROUNDED : GEMV_ROWS);
}

/* The outputs of p run by run. */
void multiply_block(gpu_dev *d, const char *op, const gpu_weight *w, const packed_gemm *p, const quantised *q)
{
    int outputs = p->gate ? 2 * p->N : p->N; /* with gate there is one run */
    for (int i = 0; i < w->n_runs; i++) {
        const block_run *run = w->runs + i;
        int first = p->first > run->first ? p->first : run->first;
        int end = p->first + outputs < run->end ? p->first + outputs : run->end;
        if (first >= end) continue;
        packed_gemm some = *p;
        some.block = block_from(run->form, (size_t)(first - run->first));
        some.w = some.block.data;
        some.row_bytes = some.block.row_bytes;
        some.group = 1 << some.block.group_shift;
        some.n_groups = some.block.n_groups;
        some.first = first;
        if (!p->gate) some.N = end - first;
        some.y += first - p->first;
        if (some.bias) some.bias += first - p->first;
        if (few_rows(d, w, p->M))
            gemv_block(d, op, &some, q);
        else
            mma_block(d, op, &some, q);
    }
}

/* What a GEMM with w reads first. */
void note_after(packed_gemm *p, const gpu_weight *w)
{
    bool block = w->t == DT_BLOCK;
    p->after = block ? w->runs->form.data : w->data;
    p->after_bytes = block ? (size_t)w->runs->end * w->runs->form.row_bytes : (size_t)w->rows * w->row_bytes;
}

void multiply(gpu_dev *d, const char *op, const gpu_weight *w, packed_gemm *p, const struct mat *x)
{
    const gpu_weight *after = gpu_weight_after(d, w);
    if (after) note_after(p, after);
    bool round_x = rounds(d, w);
    if (is_int(w)) {
        quantised q;
        if (!quantise_rows(d, op, x, w->t == DT_I4, w->order, &q)) return;
        if (w->t == DT_BLOCK)
            multiply_block(d, op, w, p, &q);
        else if (few_rows(d, w, p->M))
            gemv_int(d, op, w->t, p, &q);
        else
            many_int(d, op, w->t, p, &q);
        return;
    }
    if (d->measuring) gpu_scratch(d, op, AREA_X, GEMV_ROWS * ((size_t)p->K + 64) * sizeof(float)); /* by gemv */
    if (few_rows(d, w, p->M)) {
        gemv_float(d, op, w->t, p, x, round_x);
        return;
    }
    bool half = (w->t == DT_NF4 || w->t == DT_F8) && d->head.bf16_x, nf4 = half && w->t == DT_NF4;
    if (nf4 && (d->measuring || p->M <= MMA_ROWS_NF4)) mma_nf4(d, op, p, x);
    if (nf4 && p->M <= MMA_ROWS_NF4) return;
    if (w->t == DT_F16 && d->head.bf16_x) {
        lt_f16(d, op, p, x);
        return;
    }
    if (w->t == DT_F32)
        lt_f32(d, op, p, x);
    else if (w->t == DT_BF16 && round_x)
        lt_bf16(d, op, p, x);
    else
        lt_dequantised(d, op, w, p, x, half);
}

} // namespace

void gpu_linear(struct dev *head, const struct linear_args *a)
{
    const gpu_weight *w = weight_of(a->w);
    if (a->x.rows == 0 || head->error.op) return;
    assert(a->x.cols == w->cols && a->first >= 0 && a->first + a->y.cols <= w->rows);
    packed_gemm p = packed_gemm_of(w, a->first, a->x.rows, a->b);
    p.N = a->y.cols;
    p.y = static_cast<float *>(a->y.p);
    p.ldy = a->y.ld;
    multiply(gpu_of(head), "linear", w, &p, &a->x);
}

/* Few rows: one kernel, in which a warp has gate and up of an output. More, or two forms of block: linear into scratch,
 * then act_mul. */
void gpu_gate_up(struct dev *head, const struct gate_up_args *a)
{
    gpu_dev *d = gpu_of(head);
    const gpu_weight *w = weight_of(a->w);
    int F = a->y.cols, T = a->x.rows;
    if (T == 0 || head->error.op) return;
    assert(a->x.cols == w->cols && w->rows == 2 * F && w->gate_up);
    if (few_rows(d, w, T) && w->n_runs <= 1) {
        packed_gemm p = packed_gemm_of(w, 0, T, a->b);
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
        (T + chunks * GATE_UP_ROWS - 1) / (chunks * GATE_UP_ROWS) * GATE_UP_ROWS; /* about equal, in whole tiles */
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
