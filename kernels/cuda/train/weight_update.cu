/* Overwrites a weight of floats with new values: the parts are f32 in device memory (a trainer's master weights),
 * rounded to the weight's type. A chunk is a range of its rows. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {
namespace {

const int UPDATE_THREADS = 256, WIDE = 8; /* columns per thread: 16 bytes of a 16-bit row */

/* Converts the rows of `from` (rows, cols), dense, to rows of the weight; the padding is not written. */
template <enum dtype T>
__global__ void __launch_bounds__(UPDATE_THREADS)
    update_kernel(uint8_t *to, size_t row_bytes, const float *from, int rows, int cols, bool vec)
{
    size_t across = (size_t)(cols + WIDE - 1) / WIDE, i = (size_t)blockIdx.x * UPDATE_THREADS + threadIdx.x;
    size_t row = i / across;
    int c = (int)(i % across) * WIDE;
    if (row >= (size_t)rows) return;
    const float *p = from + row * (size_t)cols + c;
    uint8_t *q = to + row * row_bytes + dtype_bytes(T, (size_t)c);
    float v[WIDE];
    if (vec) {
        float4 lo = *reinterpret_cast<const float4 *>(p), hi = *reinterpret_cast<const float4 *>(p + 4);
        v[0] = lo.x, v[1] = lo.y, v[2] = lo.z, v[3] = lo.w, v[4] = hi.x, v[5] = hi.y, v[6] = hi.z, v[7] = hi.w;
    } else {
#pragma unroll
        for (int k = 0; k < WIDE; k++) v[k] = c + k < cols ? p[k] : 0;
    }
    if constexpr (T == DT_F32) {
        float *f = reinterpret_cast<float *>(q);
        if (vec) {
            reinterpret_cast<float4 *>(f)[0] = float4{v[0], v[1], v[2], v[3]};
            reinterpret_cast<float4 *>(f)[1] = float4{v[4], v[5], v[6], v[7]};
            return;
        }
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            if (c + k < cols) f[k] = v[k];
    } else {
        unsigned h[WIDE / 2];
#pragma unroll
        for (int k = 0; k < WIDE; k += 2)
            h[k / 2] = (unsigned)(T == DT_BF16 ? f32_to_bf16(v[k]) : f32_to_f16(v[k])) |
                       (unsigned)(T == DT_BF16 ? f32_to_bf16(v[k + 1]) : f32_to_f16(v[k + 1])) << 16;
        *reinterpret_cast<uint4 *>(q) = uint4{h[0], h[1], h[2], h[3]};
    }
}

/* Overwrites rows first .. first + rows - 1 of w. */
void update_rows(gpu_dev *d, const gpu_weight *w, int first, int rows, const float *from)
{
    uint8_t *to = w->data + (size_t)first * w->row_bytes;
    bool vec = w->cols % WIDE == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0;
    auto kernel = w->t == DT_F32    ? update_kernel<DT_F32>
                  : w->t == DT_BF16 ? update_kernel<DT_BF16>
                                    : update_kernel<DT_F16>;
    size_t threads = (size_t)rows * ((size_t)(w->cols + WIDE - 1) / WIDE);
    assert(threads <= (size_t)INT32_MAX * UPDATE_THREADS);
    LAUNCH(d, "weight_update", kernel, dim3(blocks_for(threads, UPDATE_THREADS)), dim3(UPDATE_THREADS), 0, to,
           w->row_bytes, from, rows, w->cols, vec);
    d->weights_written = true;
}

} // namespace

void gpu_weight_update(struct dev *head, struct weight *weight, const struct weight_src *parts, int n_parts, int chunk,
                       int chunks)
{
    const gpu_weight *w = weight_of(weight);
    int64_t from = (int64_t)w->rows * chunk / chunks, end = (int64_t)w->rows * (chunk + 1) / chunks, row = 0;
    if (w->t != DT_F32 && w->t != DT_BF16 && w->t != DT_F16) {
        dev_fail(head, "weight_update", "w is %s", dtype_name(w->t));
        return;
    }
    for (int i = 0; i < n_parts; row += parts[i++].rows) {
        int64_t lo = from > row ? from : row, hi = end < row + parts[i].rows ? end : row + parts[i].rows;
        const float *data = static_cast<const float *>(parts[i].data);
        if (lo < hi) update_rows(gpu_of(head), w, (int)lo, (int)(hi - lo), data + (size_t)(lo - row) * (size_t)w->cols);
    }
}

} // namespace GPU_NAMESPACE
