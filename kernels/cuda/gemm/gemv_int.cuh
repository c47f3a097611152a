/* The GEMV kernel over int8 activations, for up to eight rows; W is a type of weights:
 *
 *     sum          of products: int, or float where the scales are applied on the way
 *     ROW_SCALE    an output has one scale, applied at the end
 *     UNITS        vectors of 16 activations for each vector of the weight
 *     FLIGHT       vectors of the weight in flight in a lane, over all its rows
 *     blocks(M)    per SM, for __launch_bounds__: as many as registers allow without spilling
 *     vector       what a row of the weight is read in
 *     stream       <R, U>: the loads of R rows, U vectors of each in flight; as weight_stream of gemv.cuh, with a
 *                  `multiply` that adds vector u of every row times the activations get(m, unit) to sum[m * R + r]
 *
 * A row that is an outlier is multiplied a second time, with its residual. */
#ifndef TANDEM_KERNELS_CUDA_GEMM_GEMV_INT_CUH
#define TANDEM_KERNELS_CUDA_GEMM_GEMV_INT_CUH

#include "kernels/cuda/gemm/dot.cuh"
#include "kernels/cuda/gemm/gemv.cuh"

namespace GPU_NAMESPACE {

template <class W, int M, int R, int U, bool GATE>
__global__ void __launch_bounds__(GEMV_THREADS, W::blocks(M))
    gemv_int_kernel(packed_gemm p, quantised x, gemv_prefetch prefetch)
{
    constexpr int V = M * R;
    typedef x_chunks<M, W::UNITS, U> chunks;
    SMEM(chunks, s);
    int unit = (int)(blockIdx.x * (GEMV_THREADS / 32) + threadIdx.x / 32);
    typename W::template stream<R, U> weights;
    launch_next();
    weights.template open<GATE>(p, unit);
    weights.begin();
    weights.prefetch(prefetch.own);
    prefetch_after(p, prefetch);
    scattered<V, R> place;
    float scale[place.PER]; /* of the outputs, where a row has one */
    UNROLL for (int j = 0; j < place.PER; j++) scale[j] =
        !W::ROW_SCALE ? 1 : static_cast<const float *>(p.scale)[weight_row<R, GATE>(p, unit, place.output(j))];
    wait_for_previous();
    s.copy(x.q, (size_t)x.ld, p.M, weights.vectors, 0);
    typename W::sum sum[V];
    float y[place.PER], step[place.PER], bias[place.PER];
    bool again = false;
    UNROLL for (int j = 0; j < place.PER; j++)
    {
        step[j] = x.step[place.row(j) < p.M ? place.row(j) : 0];
        bias[j] = p.bias ? p.bias[weight_row<R, GATE>(p, unit, place.output(j))] : 0;
    }
    UNROLL for (int m = 0; m < M; m++) again = again || (m < p.M && x.outlier[m]);
    for (int pass = 0; pass < (again ? 2 : 1); pass++) {
        const int8_t *q = pass ? x.rest : x.q;
        bool around = again && pass == 0;
        if (pass) s.copy(q, (size_t)x.ld, p.M, weights.vectors, 0);
        UNROLL for (int i = 0; i < V; i++) sum[i] = 0;
        s.walk(q, (size_t)x.ld, p.M, weights.vectors, [&](int u, int k, int half, int at) {
            weights.template multiply<M>(sum, u, [&](int m, int i) { return s.v[half][m < p.M ? m : 0][i][at]; });
            weights.next(u, k, around);
        });
        reduce_scatter<typename W::sum, V>(sum);
        UNROLL for (int j = 0; j < place.PER; j++)
        {
            int m = place.row(j) < p.M ? place.row(j) : 0;
            float v = (float)sum[j];
            if constexpr (W::ROW_SCALE) v = __fmul_rn(v, scale[j]);
            if (pass == 0)
                y[j] = __fmul_rn(v, step[j]);
            else if (x.outlier[m])
                y[j] = __fadd_rn(y[j], __fmul_rn(v, x.rest_step[m]));
        }
    }
    UNROLL for (int j = 0; j < place.PER; j++) if (p.bias) y[j] = __fadd_rn(y[j], bias[j]);
    write_outputs<V, R, GATE>(p, unit, y);
}

template <class W, int M, bool GATE>
void gemv_launch(gpu_dev *d, const char *op, const packed_gemm *p, const quantised *x)
{
    constexpr int R = M <= 2 ? 2 : 4, U = W::FLIGHT / R;
    LAUNCH_EARLY(d, op, (gemv_int_kernel<W, M, R, U, GATE>), gemv_grid(p, R), dim3(GEMV_THREADS),
                 sizeof(x_chunks<M, W::UNITS, U>), *p, *x, gemv_prefetch_of<W>(d, p, R));
}

template <class W, bool GATE>
void gemv_launch_rows(gpu_dev *d, const char *op, const packed_gemm *p, const quantised *x)
{
    if (p->M <= 1)
        gemv_launch<W, 1, GATE>(d, op, p, x);
    else if (p->M <= 2)
        gemv_launch<W, 2, GATE>(d, op, p, x);
    else if (p->M <= 4)
        gemv_launch<W, 4, GATE>(d, op, p, x);
    else
        gemv_launch<W, 8, GATE>(d, op, p, x);
}

/* M <= GEMV_ROWS_INT */
template <class W> void gemv_int_rows(gpu_dev *d, const char *op, const packed_gemm *p, const quantised *x)
{
    p->gate ? gemv_launch_rows<W, true>(d, op, p, x) : gemv_launch_rows<W, false>(d, op, p, x);
}

} // namespace GPU_NAMESPACE

#endif
