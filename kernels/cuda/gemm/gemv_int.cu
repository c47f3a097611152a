/* GEMV with int8 and int4 weights over int8 activations, for up to eight rows: four multiply-adds per instruction
 * (dp4a).
 *
 * int4 weights are multiplied by the same int8 activations as on every other device: one definition, exact integers,
 * and twice the rate of bf16. A word of eight nibbles becomes two words of four bytes, its even and its odd columns,
 * each byte 16 * (nibble - 8): the nibble moves to the high half of a byte, and the top bit is flipped. The factor
 * of sixteen goes into the scale, exactly. */
#include "kernels/cuda/gemm/gemv_int.cuh"

namespace GPU_NAMESPACE {
namespace {

__device__ inline unsigned even_columns(unsigned w)
{
    return and_xor(w << 4, 0xf0f0f0f0u, 0x80808080u);
}

__device__ inline unsigned odd_columns(unsigned w)
{
    return and_xor(w, 0xf0f0f0f0u, 0x80808080u);
}

/* Multiplies one vector of a weight row by one of a row of activations. */
__device__ inline void multiply_vector(int &sum, const uint4 &w, const uint4 (&a)[1], uint16_t)
{
    sum += dot16(w, a[0]);
}

/* 32 columns, all in one group. */
__device__ inline void multiply_vector(float &sum, const uint4 &w, const uint4 (&a)[2], uint16_t scale)
{
    uint4 lo = {even_columns(w.x), odd_columns(w.x), even_columns(w.y), odd_columns(w.y)};
    uint4 hi = {even_columns(w.z), odd_columns(w.z), even_columns(w.w), odd_columns(w.w)};
    sum = fmaf((float)(dot16(lo, a[0]) + dot16(hi, a[1])), half_to_float(scale) * 0.0625f, sum);
}

/* W: int8_weights or int4_weights. */
template <class W, int R, int U> struct int_stream : weight_stream<W, R, U> {
    template <bool GATE> __device__ void open(const packed_gemm &p, int unit)
    {
        weight_stream<W, R, U>::template open<GATE>(p, unit, (int)(p.row_bytes / 16),
                                                    p.group / 64); /* 1, 2 or 4 vectors per group */
    }

    template <int M, class GET> __device__ void multiply(typename W::sum (&sum)[M * R], int u, GET get)
    {
        UNROLL for (int m = 0; m < M; m++)
        {
            uint4 a[W::UNITS];
            UNROLL for (int i = 0; i < W::UNITS; i++) a[i] = get(m, i);
            UNROLL for (int r = 0; r < R; r++) multiply_vector(sum[m * R + r], this->at[u][r], a, this->by[u][r]);
        }
    }
};

struct int8_weights {
    typedef int sum; /* of the whole row */
    typedef uint4 vector;
    typedef uint16_t scale;
    static constexpr bool SCALED = false, ROW_SCALE = true;
    static constexpr int UNITS = 1, FLIGHT = 8; /* a warp has 4 KiB in flight */
    static constexpr int blocks(int M)
    {
        return M <= 1 ? 7 : M <= 2 ? 5 : M <= 4 ? 4 : 3;
    }
    template <int R, int U> using stream = int_stream<int8_weights, R, U>;
};

struct int4_weights {
    typedef float sum;
    typedef uint4 vector;
    typedef uint16_t scale;
    static constexpr bool SCALED = true, ROW_SCALE = false;
    static constexpr int UNITS = 2, FLIGHT = 8;
    static constexpr int blocks(int M)
    {
        return M <= 1 ? 7 : M <= 2 ? 5 : M <= 4 ? 3 : 2;
    }
    template <int R, int U> using stream = int_stream<int4_weights, R, U>;
};

} // namespace

void gemv_int(gpu_dev *d, const char *op, enum dtype t, const packed_gemm *p, const quantised *x)
{
    assert(p->M <= GEMV_ROWS_INT && (t == DT_I8 || t == DT_I4) && p->row_bytes % 16 == 0);
    if (t == DT_I8)
        gemv_int_rows<int8_weights>(d, op, p, x);
    else
        gemv_int_rows<int4_weights>(d, op, p, x);
}

} // namespace GPU_NAMESPACE
