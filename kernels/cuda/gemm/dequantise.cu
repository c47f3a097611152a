/* Dequantises packed weights for GEMMs that take floats: backward GEMMs and those of many rows. One slice of a
 * weight at a time, which stays in L2 until it is multiplied. */
#include "kernels/cuda/gemm/block.cuh"
#include "kernels/cuda/gemm/dense_gemm.h"
#include "kernels/cuda/gemm/dequantise.h"
#include "kernels/cuda/gemm/nf4.cuh"

namespace GPU_NAMESPACE {
namespace {

const int DEQUANTISE_THREADS = 256, WIDE = 8; /* columns per thread */

struct dequantise_args {
    const uint8_t *data; /* the slice's first row */
    const void *scale;   /* its scales */
    size_t row_bytes;
    int rows, cols, group, n_groups;
    int first; /* of block, whose `data` are the weight's runs */
    const uint32_t *order; /* of block: the input of each column; NULL: its own number */
};

/* Eight values from column c on, c a multiple of 8, of a row of type T. Past the last column: the padding's values. */
template <enum dtype T>
__device__ inline void values_of(float (&v)[WIDE], const struct dequantise_args &g, const nf4_table &code, int row,
                                 int c)
{
    const uint8_t *p = g.data + (size_t)row * g.row_bytes;
    if constexpr (T == DT_BLOCK) {
        block_output from(reinterpret_cast<const block_run *>(g.data), g.first + row);
        block_scales scales = from.scales(c);
        uint2 w = block_unpack(*from.form, from.codes(), c / WIDE);
#pragma unroll
        for (int i = 0; i < WIDE; i++) v[i] = from.value(w, i, scales);
    } else if constexpr (T == DT_BF16 || T == DT_F16) {
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
    } else if constexpr (T == DT_F8) {
        uint2 w = *reinterpret_cast<const uint2 *>(p + c);
        float scale = static_cast<const float *>(g.scale)[(size_t)row * (size_t)g.n_groups + (size_t)(c / g.group)];
#pragma unroll
        for (int i = 0; i < WIDE; i++) v[i] = e4m3_to_f32((uint8_t)((i < 4 ? w.x : w.y) >> (i % 4 * 8))) * scale;
    } else {
        unsigned w = *reinterpret_cast<const unsigned *>(p + c / 2);
        size_t at = (size_t)row * (size_t)g.n_groups + (size_t)(c / g.group);
        float scale = T == DT_I4 ? half_to_float(static_cast<const uint16_t *>(g.scale)[at])
                                 : static_cast<const float *>(g.scale)[at];
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            unsigned nibble = w >> (i / 2 * 8 + (T == DT_I4 ? i % 2 : 1 - i % 2) * 4) & 15;
            v[i] = (T == DT_I4 ? (float)((int)nibble - 8) : code.v[nibble]) * scale;
        }
    }
}

/* Eight columns from c on of a row `to`, each to the place of its input. */
template <bool HALF>
__device__ inline void store_ordered(void *to, const float (&v)[WIDE], const uint32_t *order, int c, int cols)
{
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        unsigned at = c + i < cols ? order[c + i] : (unsigned)(c + i);
        if constexpr (HALF)
            static_cast<uint16_t *>(to)[at] = (uint16_t)pack_bf16(v[i], 0);
        else
            static_cast<float *>(to)[at] = v[i];
    }
}

/* to (rows, half_ld(cols)) = the values of a slice, f32 or bf16 (HALF). A thread converts eight columns of a row. */
template <enum dtype T, bool HALF>
__global__ void __launch_bounds__(DEQUANTISE_THREADS)
    dequantise_kernel(void *to, struct dequantise_args g, nf4_table codes)
{
    SMEM(nf4_table, code);
    if constexpr (T == DT_NF4) share_nf4(code, codes);
    unsigned i = blockIdx.x * DEQUANTISE_THREADS + threadIdx.x, across = (unsigned)(g.cols + WIDE - 1) / WIDE;
    if (i >= (unsigned)g.rows * across) return;
    float v[WIDE];
    values_of<T>(v, g, code, (int)(i / across), (int)(i % across) * WIDE);
    if constexpr (T == DT_BLOCK) {
        if (g.order) {
            uint8_t *row = static_cast<uint8_t *>(to) + (size_t)(i / across * across * WIDE) * (HALF ? 2 : 4);
            store_ordered<HALF>(row, v, g.order, (int)(i % across) * WIDE, g.cols);
            return;
        }
    }
    if constexpr (HALF) {
        unsigned h[4];
#pragma unroll
        for (int k = 0; k < 4; k++) h[k] = pack_bf16(v[2 * k], v[2 * k + 1]);
        static_cast<uint4 *>(to)[i] = uint4{h[0], h[1], h[2], h[3]};
    } else {
        static_cast<float4 *>(to)[(size_t)i * 2] = float4{v[0], v[1], v[2], v[3]};
        static_cast<float4 *>(to)[(size_t)i * 2 + 1] = float4{v[4], v[5], v[6], v[7]};
    }
}

typedef void (*dequantise_fn)(void *, struct dequantise_args, nf4_table);

dequantise_fn dequantise_of(enum dtype t, bool half)
{
    static const struct {
        enum dtype t;
        dequantise_fn fn[2];
    } all[] = {{DT_BF16, {dequantise_kernel<DT_BF16, false>, nullptr}},
               {DT_F16, {dequantise_kernel<DT_F16, false>, dequantise_kernel<DT_F16, true>}},
               {DT_I8, {dequantise_kernel<DT_I8, false>, dequantise_kernel<DT_I8, true>}},
               {DT_I4, {dequantise_kernel<DT_I4, false>, dequantise_kernel<DT_I4, true>}},
               {DT_NF4, {dequantise_kernel<DT_NF4, false>, dequantise_kernel<DT_NF4, true>}},
               {DT_F8, {dequantise_kernel<DT_F8, false>, dequantise_kernel<DT_F8, true>}},
               {DT_BLOCK, {dequantise_kernel<DT_BLOCK, false>, dequantise_kernel<DT_BLOCK, true>}}};
    for (const auto &a : all)
        if (a.t == t) return a.fn[half];
    return nullptr;
}

} // namespace

const void *dequantise_rows(gpu_dev *d, const char *op, const gpu_weight *w, int first, int rows, bool half, int *ld)
{
    const uint8_t *data = w->data + (size_t)first * w->row_bytes; /* of block: the runs */
    if (w->t == (half ? DT_BF16 : DT_F32)) {
        *ld = (int)(w->row_bytes / (half ? 2 : 4));
        return data;
    }
    *ld = half_ld(w->cols);
    size_t n = (size_t)rows * (size_t)*ld, one = w->t == DT_I4 ? sizeof(uint16_t) : sizeof(float);
    void *to = gpu_scratch(d, op, AREA_W, n * (half ? 2 : 4));
    if (!to) return nullptr;
    struct dequantise_args g = {.data = data,
                                .row_bytes = w->row_bytes,
                                .rows = rows,
                                .cols = w->cols,
                                .group = w->group,
                                .n_groups = w->n_groups,
                                .first = first,
                                .order = w->order};
    if (w->scale) g.scale = static_cast<const uint8_t *>(w->scale) + (size_t)first * (size_t)w->n_groups * one;
    LAUNCH(d, op, dequantise_of(w->t, half), dim3(blocks_for(n / WIDE, DEQUANTISE_THREADS)), dim3(DEQUANTISE_THREADS),
           w->t == DT_NF4 ? sizeof(nf4_table) : 0, to, g, nf4_values());
    return to;
}

} // namespace GPU_NAMESPACE
