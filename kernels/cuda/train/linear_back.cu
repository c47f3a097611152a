/* Op linear_back: dx = dy W (+ dx) as dense GEMMs, BACK_SLICE outputs of W at a time. Float weights are multiplied
 * in place where the GEMM supports their type; other slices are dequantised into scratch first, small enough to stay
 * in L2. */
#include "kernels/cuda/gemm/dense_gemm.h"
#include "kernels/cuda/gemm/dequantise.h"

namespace GPU_NAMESPACE {

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
        p.b = dequantise_rows(d, "linear_back", w, a->first + n, count, half, &p.ldb);
        if (!p.b || !gpu_dense_gemm(d, "linear_back", &p)) return;
    }
}

} // namespace GPU_NAMESPACE
