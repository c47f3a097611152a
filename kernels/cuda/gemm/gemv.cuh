/* What the kernels of few rows share.  A warp owns R outputs for all of up to M rows of x: each lane takes the 16 (or
 * 8) bytes of every 32nd piece of the weight's rows, U pieces of each row on their way, and its part of each (row,
 * output) pair stays in a register; at the end the pairs are summed over the lanes.  x comes through shared memory, a
 * chunk of columns at a time.
 *
 * The kernels are launched early: their first pieces are on their way, and the second ones on theirs to the
 * L2, while the kernels before them end.
 *
 * The order of a sum over k depends on the piece and the lane alone, not on M or R: a row's bits are the same in any
 * company.
 *
 * Reckoned, not measured, for one row in the shapes of llama-3.1-8b on an H200 (132 SMs, 4.8 TB/s: at 0.8 us
 * from memory 29 KiB have to be on their way to each SM), from the registers that ptxas reports:
 *
 *                                      int4          int8          bf16
 *     registers, warps an SM            72, 28        64, 32        80, 24
 *     KiB on their way in registers    112           128           96
 *     qkv, 768 blocks: waves; MB       0.83; 13      0.73; 25      0.97; 50
 *     o, 512                           0.55; 8.4     0.48; 17      0.65; 34
 *     gate and up, 3584                3.9; 59       3.4; 117      4.5; 235
 *     down, 512                        0.55; 29      0.48; 59      0.65; 117
 *
 * A kernel of 512 blocks has 62 KiB on their way.  A lane's x is 32 bytes for 32 of weights (int8: 16), from shared
 * memory without conflicts: under a third of its rate, and about a quarter of the instructions' rate.  So what a layer
 * costs beyond its reading (26 us in int4 at 4.2 TB/s) is the chain of dependent kernels between products, some 1.3 us
 * each, as far as the weights on their way meanwhile do not make up for it. */
#ifndef TANDEM_KERNELS_CUDA_GEMM_GEMV_CUH
#define TANDEM_KERNELS_CUDA_GEMM_GEMV_CUH

#include "kernels/cuda/act.cuh"
#include "kernels/cuda/gemm/packed_gemm.h"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {

enum { GEMV_THREADS = 128 };

/* Sums V values (a power of two) over the lanes, spread over them: afterwards lane l holds value l / (32 / V) in v[0],
 * or for V > 32 the values l * V / 32 + j in v[j].  In the order of the plain butterfly, whatever V. */
template <class T, int V, int n = V, int mask = 16> __device__ inline void spread_sum(T (&v)[V])
{
    if constexpr (mask > 0 && n > 1) {
        bool high = (int)threadIdx.x & mask;
        UNROLL for (int i = 0; i < n / 2; i++)
        {
            T send = high ? v[i] : v[i + n / 2], keep = high ? v[i + n / 2] : v[i];
            v[i] = keep + __shfl_xor_sync(FULL_WARP, send, mask);
        }
        spread_sum<T, V, n / 2, mask / 2>(v);
    } else if constexpr (mask > 0) {
        v[0] += __shfl_xor_sync(FULL_WARP, v[0], mask);
        spread_sum<T, V, n, mask / 2>(v);
    }
}

/* Which of V values of M x R a lane holds in v[j] after spread_sum, and whether it is the lane to write it. */
template <int V, int R> struct spread {
    static constexpr int PER = V > 32 ? V / 32 : 1, COPIES = V > 32 ? 1 : 32 / V;
    int lane;
    __device__ explicit spread() : lane((int)threadIdx.x % 32) {}
    __device__ int row(int j) const
    {
        return (lane / COPIES * PER + j) / R;
    }
    __device__ int output(int j) const
    {
        return (lane / COPIES * PER + j) % R;
    }
    __device__ bool writes() const
    {
        return lane % COPIES == 0;
    }
};

/* The weight's row that is output r of the warp's R: gate and up of one output lie beside each other. */
template <int R, bool GATE> __device__ inline int weight_row(const product &p, int unit, int r)
{
    int n = GATE ? unit * (R / 2) + r / 2 : unit * R + r;
    n = n < p.N ? n : p.N - 1; /* past the end: computed again and not written */
    return GATE && (r & 1) ? p.N + n : n;
}

/* v[j]: the finished products, bias included, as spread says */
template <int V, int R, bool GATE>
__device__ inline void write_products(const product &p, int unit, const float (&v)[spread<V, R>::PER])
{
    spread<V, R> s;
    UNROLL for (int j = 0; j < s.PER; j++)
    {
        int m = s.row(j), r = s.output(j);
        float up = 0;
        if constexpr (GATE && s.PER == 1) up = __shfl_xor_sync(FULL_WARP, v[0], s.COPIES);
        if constexpr (GATE && s.PER > 1) up = v[j ^ 1];
        int n = GATE ? unit * (R / 2) + r / 2 : unit * R + r;
        if (m >= p.M || n >= p.N || !s.writes() || (GATE && (r & 1))) continue;
        p.y[(size_t)m * (size_t)p.ldy + (size_t)n] = GATE ? __fmul_rn(act_value(v[j], p.act), up) : v[j];
    }
}

/* The pieces of a warp's R rows of weights that this lane has on their way: U of each row, the next where one was used.
 * W: `piece`, what a lane takes at a time; `scale`, the type of the scales, of which one serves 2^shift pieces; SCALED:
 * there are any. */
template <class W, int R, int U> struct weight_stream {
    typedef typename W::piece piece;
    typedef typename W::scale scale;

    const piece *w[R];
    const scale *scales;
    unsigned scale_at[R]; /* where the scales of a row begin */
    int pieces, shift;
    piece at[U][R] = {};
    scale by[U][R] = {};

    template <bool GATE> __device__ void open(const product &p, int unit, int pieces_, int shift_)
    {
        pieces = pieces_;
        shift = shift_;
        scales = static_cast<const scale *>(p.scale);
        UNROLL for (int r = 0; r < R; r++)
        {
            int row = weight_row<R, GATE>(p, unit, r);
            w[r] = reinterpret_cast<const piece *>(p.w + (size_t)row * p.row_bytes);
            scale_at[r] = (unsigned)row * (unsigned)p.n_groups;
        }
    }

    __device__ void load(int u, int k)
    {
        if (k >= pieces) return;
        UNROLL for (int r = 0; r < R; r++)
        {
            at[u][r] = load_stream(w[r] + k);
            if constexpr (W::SCALED) by[u][r] = scales[scale_at[r] + (unsigned)(k >> shift)];
        }
    }

    __device__ void begin()
    {
        UNROLL for (int u = 0; u < U; u++) load(u, (int)threadIdx.x % 32 + u * 32);
    }

    /* Piece k has been used: the one after it, and after the last the first again, for a second time. */
    __device__ void next(int u, int k, bool around)
    {
        k += 32 * U;
        if (around && k >= pieces) k = (int)threadIdx.x % 32 + u * 32;
        load(u, k);
    }

    /* n pieces after the first U */
    __device__ void prefetch(int n)
    {
        int lane = (int)threadIdx.x % 32;
        n = min(pieces - 32 * U, n);
        UNROLL for (int r = 0; r < R; r++) if (lane == r && n > 0)
            prefetch_l2(w[r] + 32 * U, (unsigned)n * (unsigned)sizeof(piece));
    }
};

/* What a kernel brings to L2 before it waits: `own` pieces of each row, and of what is read after
 * this product `other` bytes a block. */
struct gemv_ahead {
    int own;
    unsigned other;
};

__device__ inline void prefetch_after(const product &p, const gemv_ahead &ahead)
{
    if (threadIdx.x == 0 && ahead.other) prefetch_l2(p.after + (size_t)blockIdx.x * ahead.other, ahead.other);
}

/* Rows of x on their way: two chunks, of PIECES pieces of a row, each UNITS times 16 bytes, what meets a piece of the
 * weight.  The units lie apart, so that lanes side by side read side by side. */
template <int M, int UNITS, int U> struct x_chunks {
    static constexpr int FIT = 8192 / (M * UNITS * 16), PIECES = FIT > 32 * U ? FIT : 32 * U;
    uint4 v[2][M][UNITS][PIECES];

    /* Begins to copy chunk c of `rows` rows of `pieces` pieces, ld bytes apart. */
    __device__ void copy(const void *x, size_t ld, int rows, int pieces, int c)
    {
        const char *from = static_cast<const char *>(x) + (size_t)c * (PIECES * UNITS * 16);
        int n = min(pieces - c * PIECES, PIECES) * UNITS;
#pragma unroll 1
        for (int m = 0; m < rows; m++)
#pragma unroll 1
            for (int i = (int)threadIdx.x; i < n; i += GEMV_THREADS)
                cp_async16_cached(&v[c % 2][m][i % UNITS][i / UNITS], from + (size_t)m * ld + (size_t)i * 16);
        cp_async_commit();
    }

    /* f(u, k, half, at) for each piece k of this lane, in order, u its place in the stream; what meets it of row m is
     * v[half][m][..][at].  The copying of chunk 0 has begun.  Ends with a barrier. */
    template <class F> __device__ void walk(const void *x, size_t ld, int rows, int pieces, F f)
    {
        int lane = (int)threadIdx.x % 32;
#pragma unroll 1
        for (int c = 0; c * PIECES < pieces; c++) {
            copy(x, ld, rows, pieces, c + 1);
            cp_async_wait<1>();
            __syncthreads();
            int from = c * PIECES, end = min(pieces, from + PIECES);
#pragma unroll 1
            for (int k0 = from + lane; k0 < end; k0 += 32 * U) {
                UNROLL for (int u = 0; u < U; u++)
                {
                    int k = k0 + u * 32;
                    if (k >= end) break;
                    f(u, k, c % 2, k - from);
                }
            }
            __syncthreads();
        }
    }
};

/* Blocks for N outputs, R (or R / 2 pairs) a warp. */
static inline dim3 gemv_grid(const product *p, int R)
{
    size_t units = ((size_t)p->N + (size_t)(p->gate ? R / 2 : R) - 1) / (size_t)(p->gate ? R / 2 : R);
    return dim3(blocks_for(units, GEMV_THREADS / 32));
}

/* Of the rows of the blocks that begin at once a third of the cache; and where all of a weight is less than that, of
 * the next one what fills half the cache.  What lies further ahead would push out what is not read yet. */
template <class W> gemv_ahead gemv_ahead_of(const gpu_dev *d, const product *p, int R)
{
    const size_t resident = (size_t)d->n_sm * 8 * (GEMV_THREADS / 32) * (size_t)R, piece = sizeof(typename W::piece);
    size_t rows = (size_t)p->N * (p->gate ? 2 : 1), bytes = rows * p->row_bytes, fit = d->l2_bytes / 3,
           most = d->l2_bytes / 2;
    size_t own = fit / (rows < resident ? rows : resident), blocks = gemv_grid(p, R).x, other = 0;
    own = own < p->row_bytes ? own : p->row_bytes;
    if (p->after && bytes < fit) other = (most - bytes < p->after_bytes ? most - bytes : p->after_bytes) / blocks;
    return {(int)(own / 16 * 16 / piece), (unsigned)(other / 16 * 16)};
}

} // namespace GPU_NAMESPACE

#endif
