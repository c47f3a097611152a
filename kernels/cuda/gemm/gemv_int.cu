/* GEMV with int8 and int4 weights over int8 activations, for up to eight rows: four multiply-adds per instruction
 * (dp4a).
 *
 * int4 weights are multiplied by the same int8 activations as on every other device: one definition, exact integers,
 * and twice the rate of bf16. A word of eight nibbles becomes two words of four bytes, its even and its odd columns,
 * each byte 16 * (nibble - 8): the nibble moves to the high half of a byte, and the top bit is flipped. The factor
 * of sixteen goes into the scale, exactly.
 *
 * A row that is an outlier is multiplied a second time, with its residual. */
#include "kernels/cuda/gemm/gemv.cuh"

namespace GPU_NAMESPACE {
namespace {

struct int8_weights {
    typedef int sum; /* of the whole row */
    typedef uint4 vector;
    typedef uint16_t scale;
    static constexpr bool SCALED = false; /* the scale is applied per row, at the end */
    static constexpr int UNITS = 1;       /* vectors of 16 activations for each vector of the weight */
};

struct int4_weights {
    typedef float sum;
    typedef uint4 vector;
    typedef uint16_t scale;
    static constexpr bool SCALED = true;
    static constexpr int UNITS = 2;
};

template <class W> constexpr bool is_int4 = W::SCALED;

__device__ inline int dot16(const uint4 &w, const uint4 &a)
{
    int s = __dp4a((int)w.x, (int)a.x, 0);
    s = __dp4a((int)w.y, (int)a.y, s);
    s = __dp4a((int)w.z, (int)a.z, s);
    return __dp4a((int)w.w, (int)a.w, s);
}

__device__ inline unsigned even_columns(unsigned w)
{
    return and_xor(w << 4, 0xf0f0f0f0u, 0x80808080u);
}

__device__ inline unsigned odd_columns(unsigned w)
{
    return and_xor(w, 0xf0f0f0f0u, 0x80808080u);
}

/* Multiplies one vector of a weight row by one of a row of activations. */
__device__ inline void multiply(int &sum, const uint4 &w, const uint4 (&a)[1], uint16_t)
{
    sum += dot16(w, a[0]);
}

/* 32 columns, all in one group. */
__device__ inline void multiply(float &sum, const uint4 &w, const uint4 (&a)[2], uint16_t scale)
{
    uint4 lo = {even_columns(w.x), odd_columns(w.x), even_columns(w.y), odd_columns(w.y)};
    uint4 hi = {even_columns(w.z), odd_columns(w.z), even_columns(w.w), odd_columns(w.w)};
    sum = fmaf((float)(dot16(lo, a[0]) + dot16(hi, a[1])), half_to_float(scale) * 0.0625f, sum);
}

/* Blocks per SM for __launch_bounds__: as many as registers allow without spilling; a warp has 4 KiB in flight. */
constexpr int gemv_blocks(int M, bool int4)
{
    return M <= 1 ? 7 : M <= 2 ? 5 : M <= 4 ? (int4 ? 3 : 4) : int4 ? 2 : 3;
}

template <class W, int M, int R, int U, bool GATE>
__global__ void __launch_bounds__(GEMV_THREADS, gemv_blocks(M, is_int4<W>))
    gemv_int_kernel(packed_gemm p, quantised x, gemv_prefetch prefetch)
{
    constexpr int V = M * R;
    typedef x_chunks<M, W::UNITS, U> chunks;
    SMEM(chunks, s);
    int unit = (int)(blockIdx.x * (GEMV_THREADS / 32) + threadIdx.x / 32);
    weight_stream<W, R, U> weights;
    launch_next();
    weights.template open<GATE>(p, unit, (int)(p.row_bytes / 16), p.group / 64); /* 1, 2 or 4 vectors per group */
    weights.begin();
    weights.prefetch(prefetch.own);
    prefetch_after(p, prefetch);
    scattered<V, R> place;
    float scale[place.PER]; /* of the outputs, where a row has one */
    UNROLL for (int j = 0; j < place.PER; j++) scale[j] =
        is_int4<W> ? 1 : static_cast<const float *>(p.scale)[weight_row<R, GATE>(p, unit, place.output(j))];
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
            UNROLL for (int m = 0; m < M; m++)
            {
                uint4 a[W::UNITS];
                UNROLL for (int i = 0; i < W::UNITS; i++) a[i] = s.v[half][m < p.M ? m : 0][i][at];
                UNROLL for (int r = 0; r < R; r++) multiply(sum[m * R + r], weights.at[u][r], a, weights.by[u][r]);
            }
            weights.next(u, k, around);
        });
        reduce_scatter<typename W::sum, V>(sum);
        UNROLL for (int j = 0; j < place.PER; j++)
        {
            int m = place.row(j) < p.M ? place.row(j) : 0;
            float v = (float)sum[j];
            if constexpr (!is_int4<W>) v = __fmul_rn(v, scale[j]);
            if (pass == 0)
                y[j] = __fmul_rn(v, step[j]);
            else if (x.outlier[m])
                y[j] = __fadd_rn(y[j], __fmul_rn(v, x.rest_step[m]));
        }
    }
    UNROLL for (int j = 0; j < place.PER; j++) if (p.bias) y[j] = __fadd_rn(y[j], bias[j]);
    write_outputs<V, R, GATE>(p, unit, y);
}

template <class W, int M, bool GATE> void launch(gpu_dev *d, const char *op, const packed_gemm *p, const quantised *x)
{
    constexpr int R = M <= 2 ? 2 : 4, U = 8 / R;
    LAUNCH_EARLY(d, op, (gemv_int_kernel<W, M, R, U, GATE>), gemv_grid(p, R), dim3(GEMV_THREADS),
                 sizeof(x_chunks<M, W::UNITS, U>), *p, *x, gemv_prefetch_of<W>(d, p, R));
}

template <class W, bool GATE> void launch_rows(gpu_dev *d, const char *op, const packed_gemm *p, const quantised *x)
{
    if (p->M <= 1)
        launch<W, 1, GATE>(d, op, p, x);
    else if (p->M <= 2)
        launch<W, 2, GATE>(d, op, p, x);
    else if (p->M <= 4)
        launch<W, 4, GATE>(d, op, p, x);
    else
        launch<W, 8, GATE>(d, op, p, x);
}

} // namespace

void gemv_int(gpu_dev *d, const char *op, enum dtype t, const packed_gemm *p, const quantised *x)
{
    assert(p->M <= GEMV_ROWS_INT && (t == DT_I8 || t == DT_I4) && p->row_bytes % 16 == 0);
    if (t == DT_I8)
        p->gate ? launch_rows<int8_weights, true>(d, op, p, x) : launch_rows<int8_weights, false>(d, op, p, x);
    else
        p->gate ? launch_rows<int4_weights, true>(d, op, p, x) : launch_rows<int4_weights, false>(d, op, p, x);
}

} // namespace GPU_NAMESPACE
