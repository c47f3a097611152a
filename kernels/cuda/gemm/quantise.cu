/* Quantises activations to int8, row by row, for GEMMs with int8, int4 and block weights. A norm whose output such a
 * GEMM reads next quantises it itself; gpu_dev.prequantised describes what it left in AREA_NORM. */
#include "kernels/cuda/gemm/quantise.cuh"

namespace GPU_NAMESPACE {
namespace {

enum { QUANT_THREADS = 256, QUANT_PAD = 128 };

/* How a thread reads four columns of x: one by one, as a vector, or those that `order` says. */
enum reads { SINGLES, VECTORS, ORDERED };

/* One block per row. Rows of at most N times four elements per thread are kept in registers; N 0: rows of any
 * length, read again for each pass. */
template <enum reads READS, int N>
__global__ void __launch_bounds__(QUANT_THREADS, N > 8 ? 2 : 4)
    quantise_kernel(struct mat x, bool even_odd, const uint32_t *order, quantised q)
{
    SMEM(quantise_smem, s);
    launch_next_and_wait();
    int n = x.cols, from = (int)threadIdx.x * 4;
    const float *row = static_cast<const float *>(x.p) + (size_t)blockIdx.x * (size_t)x.ld;
    auto load = [&](int c) {
        vec4 v = {};
        if constexpr (READS == ORDERED) {
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (c + k < n) v.v[k] = row[order[c + k]];
        } else if (c < n) {
            v = load4<READS == VECTORS>(row + c, n - c);
        }
        return v;
    };
    vec4 kept[N ? N : 1];
    if constexpr (N > 0) {
#pragma unroll
        for (int j = 0; j < N; j++) kept[j] = load(from + j * (int)blockDim.x * 4);
    }
    quantise_row<N>(q, even_odd, blockIdx.x, n, s, [&](int j, int c) { return N ? kept[j] : load(c); });
}

/* Row stride of quantised rows of `cols` columns. */
int padded(int cols)
{
    return (cols + QUANT_PAD - 1) / QUANT_PAD * QUANT_PAD;
}

size_t quantised_bytes(int rows, int cols)
{
    return (size_t)rows * (2 * (size_t)padded(cols) + 3 * sizeof(float));
}

quantised quantised_at(void *place, int rows, int cols)
{
    size_t ld = (size_t)padded(cols), n = (size_t)rows;
    int8_t *q = static_cast<int8_t *>(place);
    float *step = reinterpret_cast<float *>(q + 2 * n * ld);
    return {q, q + n * ld, step, step + n, reinterpret_cast<int *>(step + 2 * n), (int)ld};
}

/* Whether x is a range of the rows that a norm has quantised, in the wanted order. */
bool use_prequantised(const gpu_dev *d, const struct mat *x, bool even_odd, quantised *out)
{
    const gpu_prequantised *a = &d->prequantised;
    if (!a->data || a->even_odd != even_odd || a->x.cols != x->cols || a->x.ld != x->ld || x->p < a->x.p) return false;
    size_t apart = (size_t)(static_cast<float *>(x->p) - static_cast<float *>(a->x.p)), ld = (size_t)x->ld;
    size_t row = apart / ld;
    if (apart % ld || row + (size_t)x->rows > (size_t)a->x.rows) return false;
    *out = quantised_at(a->data, a->x.rows, a->x.cols);
    out->q += row * (size_t)out->ld;
    out->rest += row * (size_t)out->ld;
    out->step += row;
    out->rest_step += row;
    out->outlier += row;
    return true;
}

} // namespace

bool quantise_rows(gpu_dev *d, const char *op, const struct mat *x, bool even_odd, const uint32_t *order,
                   quantised *out)
{
    if (!order && use_prequantised(d, x, even_odd, out)) return true;
    void *place = gpu_scratch(d, op, AREA_X, quantised_bytes(x->rows, x->cols));
    if (!place) return false;
    *out = quantised_at(place, x->rows, x->cols);
    /* vectors of four per thread */
    int threads = row_threads(x->cols), each = (x->cols + threads * 4 - 1) / (threads * 4);
    bool vec = row_vectors(x->p, x->cols, x->ld);
    auto kernel = order        ? each <= 4 ? quantise_kernel<ORDERED, 4> : quantise_kernel<ORDERED, 0>
                         : !vec ? quantise_kernel<SINGLES, 0>
                  : each <= 1  ? quantise_kernel<VECTORS, 1>
                  : each <= 4  ? quantise_kernel<VECTORS, 4>
                  : each <= 16 ? quantise_kernel<VECTORS, 16>
                               : quantise_kernel<VECTORS, 0>;
    LAUNCH_EARLY(d, op, kernel, dim3((unsigned)x->rows), dim3((unsigned)threads), sizeof(quantise_smem), *x, even_odd,
                 order, *out);
    return !d->head.error.op;
}

bool prequantise(gpu_dev *d, const char *op, const struct mat *x, const gpu_weight *w, quantised *out)
{
    d->prequantised.data = nullptr;
    if (!w || (w->t != DT_I8 && w->t != DT_I4 && w->t != DT_BLOCK) || w->order || w->cols != x->cols) return false;
    void *place = gpu_scratch(d, op, AREA_NORM, quantised_bytes(x->rows, x->cols));
    if (!place) return false;
    *out = quantised_at(place, x->rows, x->cols);
    if (!d->measuring) d->prequantised = {*x, w->t == DT_I4, place};
    return true;
}

} // namespace GPU_NAMESPACE
