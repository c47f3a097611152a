/* Op linear_back: dx = dy W (+ dx) as dense products, BACK_SLICE outputs of W at a time.  Weights of floats are
 * multiplied as they lie where the product takes their type; of the others a slice's values are written into scratch
 * first, which a slice leaves in the second-level cache. */
#include "kernels/cuda/product.h"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {
namespace {

const int WIDEN_THREADS = 256, WIDE = 8; /* columns of a thread */

struct widen_args {
    const uint8_t *data; /* the slice's first row */
    const void *scale;   /* its scales */
    size_t row_bytes;
    int rows, cols, group, n_groups;
    float code[16]; /* of nf4 */
};

/* Eight values from column c on, c a multiple of 8, of a row of T.  Past the columns: those of the padding. */
template <enum dtype T>
__device__ inline void values_of(float (&v)[WIDE], const struct widen_args &g, const float *code, int row, int c)
{
    const uint8_t *p = g.data + (size_t)row * g.row_bytes;
    if constexpr (T == DT_BF16 || T == DT_F16) {
        uint4 w = *reinterpret_cast<const uint4 *>(p + (size_t)c * 2);
        unsigned u[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            uint16_t h = (uint16_t)(u[i / 2] >> (i % 2 * 16));
            v[i] = T == DT_BF16 ? bf16_to_f32(h) : half_to_float(h);
        }
    } else if constexpr (T == DT_I8) {
        uint2 w = *reinterpret_cast<const uint2 *>(p + c);
        float scale = static_cast<const float *>(g.scale)[row];
#pragma unroll
        for (int i = 0; i < WIDE; i++) v[i] = (float)(int8_t)((i < 4 ? w.x : w.y) >> (i % 4 * 8)) * scale;
    } else {
        unsigned w = *reinterpret_cast<const unsigned *>(p + c / 2);
        size_t at = (size_t)row * (size_t)g.n_groups + (size_t)(c / g.group);
        float scale = T == DT_I4 ? half_to_float(static_cast<const uint16_t *>(g.scale)[at])
                                 : static_cast<const float *>(g.scale)[at];
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            unsigned nibble = w >> (i / 2 * 8 + (T == DT_I4 ? i % 2 : 1 - i % 2) * 4) & 15;
            v[i] = (T == DT_I4 ? (float)((int)nibble - 8) : code[nibble]) * scale;
        }
    }
}

struct widen_smem {
    float code[16];
};

/* to (rows, half_ld(cols)) = the values of a slice, f32 or bf16 (HALF).  A thread has eight columns of a row. */
template <enum dtype T, bool HALF>
__global__ void __launch_bounds__(WIDEN_THREADS) widen_kernel(void *to, const __grid_constant__ struct widen_args g)
{
    SMEM(widen_smem, s);
    if constexpr (T == DT_NF4) {
        if (threadIdx.x < 16) s.code[threadIdx.x] = g.code[threadIdx.x];
        __syncthreads();
    }
    unsigned i = blockIdx.x * WIDEN_THREADS + threadIdx.x, across = (unsigned)(g.cols + WIDE - 1) / WIDE;
    if (i >= (unsigned)g.rows * across) return;
    float v[WIDE];
    values_of<T>(v, g, s.code, (int)(i / across), (int)(i % across) * WIDE);
    if constexpr (HALF) {
        unsigned h[4];
#pragma unroll
        for (int k = 0; k < 4; k++) h[k] = (unsigned)f32_to_bf16(v[2 * k]) | (unsigned)f32_to_bf16(v[2 * k + 1]) << 16;
        static_cast<uint4 *>(to)[i] = uint4{h[0], h[1], h[2], h[3]};
    } else {
        static_cast<float4 *>(to)[(size_t)i * 2] = float4{v[0], v[1], v[2], v[3]};
        static_cast<float4 *>(to)[(size_t)i * 2 + 1] = float4{v[4], v[5], v[6], v[7]};
    }
}

typedef void (*widen_fn)(void *, struct widen_args);

widen_fn widen_of(enum dtype t, bool half)
{
    static const struct {
        enum dtype t;
        widen_fn fn[2];
    } all[] = {{DT_BF16, {widen_kernel<DT_BF16, false>, nullptr}},
               {DT_F16, {widen_kernel<DT_F16, false>, widen_kernel<DT_F16, true>}},
               {DT_I8, {widen_kernel<DT_I8, false>, widen_kernel<DT_I8, true>}},
               {DT_I4, {widen_kernel<DT_I4, false>, widen_kernel<DT_I4, true>}},
               {DT_NF4, {widen_kernel<DT_NF4, false>, widen_kernel<DT_NF4, true>}}};
    for (const auto &a : all)
        if (a.t == t) return a.fn[half];
    return nullptr;
}

/* Rows first .. first + rows - 1 of w as f32 or bf16: where they are, and how far apart in elements.  NULL: failed. */
const void *slice_of(gpu_dev *d, const gpu_weight *w, int first, int rows, bool half, int *ld)
{
    const uint8_t *data = w->data + (size_t)first * w->row_bytes;
    if (w->t == (half ? DT_BF16 : DT_F32)) {
        *ld = (int)(w->row_bytes / (half ? 2 : 4));
        return data;
    }
    *ld = half_ld(w->cols);
    size_t n = (size_t)rows * (size_t)*ld, one = w->t == DT_I4 ? sizeof(uint16_t) : sizeof(float);
    void *to = gpu_scratch(d, "linear_back", AREA_W, n * (half ? 2 : 4));
    if (!to) return nullptr;
    struct widen_args g = {.data = data,
                           .row_bytes = w->row_bytes,
                           .rows = rows,
                           .cols = w->cols,
                           .group = w->group,
                           .n_groups = w->n_groups};
    if (w->scale) g.scale = static_cast<const uint8_t *>(w->scale) + (size_t)first * (size_t)w->n_groups * one;
    for (int i = 0; i < 16; i++) g.code[i] = nf4_code[i];
    LAUNCH(d, "linear_back", widen_of(w->t, half), dim3(blocks_for(n / WIDE, WIDEN_THREADS)), dim3(WIDEN_THREADS),
           w->t == DT_NF4 ? sizeof(widen_smem) : 0, to, g);
    return to;
}

} // namespace

void gpu_linear_back(struct dev *head, const struct linear_back_args *a)
{
    gpu_dev *d = gpu_of(head);
    const gpu_weight *w = weight_of(a->w);
    int T = a->dx.rows, N = a->dy.cols;
    bool half = head->bf16_x && w->t != DT_F32 && w->cols >= HALF_LEAST && w->rows >= HALF_LEAST;
    if (T == 0) return;
    assert(a->first % BACK_SLICE == 0 && a->first + N <= w->rows && a->dx.cols == w->cols);
    uint16_t *rounded = nullptr;
    if (half) {
        size_t bytes = (size_t)T * BACK_SLICE * sizeof *rounded;
        rounded = static_cast<uint16_t *>(gpu_scratch(d, "linear_back", AREA_X, bytes));
        if (!rounded) return;
    }
    for (int n = 0; n < N; n += BACK_SLICE) {
        int count = N - n < BACK_SLICE ? N - n : BACK_SLICE;
        const float *dy = static_cast<const float *>(a->dy.p) + n;
        struct lt_args p = {.t = half ? DT_BF16 : DT_F32,
                            .M = T,
                            .N = w->cols,
                            .K = count,
                            .a = dy,
                            .lda = a->dy.ld,
                            .c = a->dx.p,
                            .ldc = a->dx.ld,
                            .alpha = 1,
                            .beta = a->accumulate || n ? 1.0f : 0.0f};
        if (half) {
            round_bf16(d, "linear_back", rounded, dy, T, count, a->dy.ld);
            p.a = rounded, p.lda = half_ld(count);
        }
        p.b = slice_of(d, w, a->first + n, count, half, &p.ldb);
        if (!p.b || !gpu_product(d, "linear_back", &p)) return;
    }
}

} // namespace GPU_NAMESPACE
