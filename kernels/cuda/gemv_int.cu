/* Products of up to eight rows with int8 and int4 weights over int8 activations: four products an instruction.
 *
 * int4 is multiplied over the same int8 activations as on every other device: one definition, exact integers, and twice
 * the rate of bf16.  A word of eight nibbles becomes two of four bytes, its even and its odd columns, each 16 (nibble -
 * 8): the nibble in a byte's high half, the top bit turned.  The sixteen goes into the scale, exactly.
 *
 * A row that is an outlier takes the weights a second time, over what was left of it. */
#include "kernels/cuda/gemv.cuh"

namespace GPU_NAMESPACE {
namespace {

struct int8_weights {
    typedef int sum;                /* of the whole row */
    static constexpr int WORDS = 4; /* of activations that meet a piece of 16 bytes */
};

struct int4_weights {
    typedef float sum;
    static constexpr int WORDS = 8;
};

template <class W> constexpr bool is_int4 = W::WORDS == 8;

__device__ inline int dot16(const uint4 &w, const uint4 &a)
{
    int s = __dp4a((int)w.x, (int)a.x, 0);
    s = __dp4a((int)w.y, (int)a.y, s);
    s = __dp4a((int)w.z, (int)a.z, s);
    return __dp4a((int)w.w, (int)a.w, s);
}

__device__ inline unsigned even_columns(unsigned w)
{
    return (w << 4 & 0xf0f0f0f0u) ^ 0x80808080u;
}

__device__ inline unsigned odd_columns(unsigned w)
{
    return (w & 0xf0f0f0f0u) ^ 0x80808080u;
}

/* one piece of a weight row with one of a row of activations */
__device__ inline void multiply(int &sum, const uint4 &w, const int8_t *a, float)
{
    sum += dot16(w, *reinterpret_cast<const uint4 *>(a));
}

/* 32 columns, which are in one group */
__device__ inline void multiply(float &sum, const uint4 &w, const int8_t *a, float scale)
{
    const uint4 *at = reinterpret_cast<const uint4 *>(a);
    uint4 lo = {even_columns(w.x), odd_columns(w.x), even_columns(w.y), odd_columns(w.y)};
    uint4 hi = {even_columns(w.z), odd_columns(w.z), even_columns(w.w), odd_columns(w.w)};
    sum = fmaf((float)(dot16(lo, at[0]) + dot16(hi, at[1])), scale, sum);
}

/* The sums of a warp's rows and outputs over activations a (M, ld), as spread says. */
template <class W, int M, int R, int U, bool GATE>
__device__ inline void sum_products(typename W::sum (&sum)[M * R], const product &p, const int8_t *a, int ld, int unit)
{
    int pieces = (int)(p.row_bytes / 16), lane = (int)threadIdx.x % 32;
    int shift = p.group / 64; /* of int4: a group is 1, 2 or 4 pieces */
    const uint4 *w[R];
    const uint16_t *scale[R];
    UNROLL for (int r = 0; r < R; r++)
    {
        size_t row = (size_t)weight_row<R, GATE>(p, unit, r);
        w[r] = reinterpret_cast<const uint4 *>(p.w + row * p.row_bytes);
        scale[r] = static_cast<const uint16_t *>(p.scale) + row * (size_t)p.n_groups;
    }
    UNROLL for (int i = 0; i < M * R; i++) sum[i] = 0;
    for (int k0 = lane; k0 < pieces; k0 += 32 * U) {
        uint4 at[U][R];
        float by[U][R];
        UNROLL for (int u = 0; u < U; u++)
        {
            int k = k0 + u * 32, g = is_int4<W> ? k >> shift : 0;
            UNROLL for (int r = 0; r < R; r++)
            {
                at[u][r] = k < pieces ? load_stream(w[r] + k) : uint4{};
                by[u][r] = is_int4<W> && k < pieces ? half_to_float(scale[r][g]) * 0.0625f : 0;
            }
        }
        UNROLL for (int u = 0; u < U; u++)
        {
            int k = k0 + u * 32;
            if (k >= pieces) break;
            UNROLL for (int m = 0; m < M; m++)
            {
                const int8_t *row = a + (size_t)(m < p.M ? m : 0) * (size_t)ld + (size_t)k * W::WORDS * 4;
                UNROLL for (int r = 0; r < R; r++) multiply(sum[m * R + r], at[u][r], row, by[u][r]);
            }
        }
    }
    spread_sum<typename W::sum, M * R>(sum);
}

template <class W, int M, int R, int U, bool GATE>
__global__ void __launch_bounds__(GEMV_THREADS, M == 8 ? 3 : 0) gemv_int_kernel(product p, quantised x)
{
    constexpr int V = M * R;
    int unit = (int)(blockIdx.x * (GEMV_THREADS / 32) + threadIdx.x / 32);
    if (unit * (GATE ? R / 2 : R) >= p.N) return; /* the whole warp */
    typename W::sum sum[V];
    spread<V, R> s;
    float y[s.PER];
    bool again = false;
    UNROLL for (int m = 0; m < M; m++) again = again || (m < p.M && x.outlier[m]);
    for (int pass = 0; pass < (again ? 2 : 1); pass++) {
        sum_products<W, M, R, U, GATE>(sum, p, pass ? x.rest : x.q, x.ld, unit);
        UNROLL for (int j = 0; j < s.PER; j++)
        {
            int m = s.row(j), n = weight_row<R, GATE>(p, unit, s.output(j));
            if (m >= p.M) m = 0;
            float v = (float)sum[j];
            if constexpr (!is_int4<W>) v = __fmul_rn(v, static_cast<const float *>(p.scale)[n]);
            if (pass == 0)
                y[j] = __fmul_rn(v, x.step[m]);
            else if (x.outlier[m])
                y[j] = __fadd_rn(y[j], __fmul_rn(v, x.rest_step[m]));
        }
    }
    UNROLL for (int j = 0; j < s.PER; j++) if (p.bias) y[j] =
        __fadd_rn(y[j], p.bias[weight_row<R, GATE>(p, unit, s.output(j))]);
    write_products<V, R, GATE>(p, unit, y);
}

template <class W, int M, bool GATE> void launch(gpu_dev *d, const char *op, const product *p, const quantised *x)
{
    constexpr int R = M <= 2 ? 2 : 4, U = 8 / R;
    LAUNCH(d, op, (gemv_int_kernel<W, M, R, U, GATE>), gemv_grid(p, R), dim3(GEMV_THREADS), 0, *p, *x);
}

template <class W, bool GATE> void launch_rows(gpu_dev *d, const char *op, const product *p, const quantised *x)
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

void gemv_int(gpu_dev *d, const char *op, enum dtype t, const product *p, const quantised *x)
{
    assert(p->M <= GEMV_ROWS_INT && (t == DT_I8 || t == DT_I4) && p->row_bytes % 16 == 0);
    if (t == DT_I8)
        p->gate ? launch_rows<int8_weights, true>(d, op, p, x) : launch_rows<int8_weights, false>(d, op, p, x);
    else
        p->gate ? launch_rows<int4_weights, true>(d, op, p, x) : launch_rows<int4_weights, false>(d, op, p, x);
}

} // namespace GPU_NAMESPACE
