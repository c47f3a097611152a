/* Shared parts of the kernels for few rows. A warp computes R outputs for all of up to M rows of x: each lane reads
 * the 16 (or 8) bytes of every 32nd vector of the weight's rows, with U loads of each row in flight, and
 * keeps its partial sum of each (row, output) pair in a register; at the end the pairs are summed over the lanes. x
 * is staged through shared memory, a chunk of columns at a time.
 *
 * The kernels are launched early (programmatic dependent launch): while the preceding kernels end, the first loads
 * of weights are in flight, and the following ones are prefetched into L2.
 *
 * The order of a sum over k depends on the vector and the lane alone, not on M or R: the kernels are batch-invariant.
 *
 * Estimated, not measured, for one row in the shapes of llama-3.1-8b on an H200 (132 SMs, 4.8 TB/s: with a memory
 * latency of 0.8 us each SM needs 29 KiB in flight), from the registers that ptxas reports:
 *
 *                                      int4          int8          bf16
 *     registers, warps an SM            72, 28        64, 32        80, 24
 *     KiB in flight in registers       112           128           96
 *     qkv, 768 blocks: waves; MB       0.83; 13      0.73; 25      0.97; 50
 *     o, 512                           0.55; 8.4     0.48; 17      0.65; 34
 *     gate and up, 3584                3.9; 59       3.4; 117      4.5; 235
 *     down, 512                        0.55; 29      0.48; 59      0.65; 117
 *
 * A kernel of 512 blocks has 62 KiB in flight. A lane reads 32 bytes of x for 32 weights (int8: 16), from shared
 * memory without bank conflicts: under a third of its bandwidth, and about a quarter of the instruction rate. So the
 * time of a layer beyond reading its weights (26 us in int4 at 4.2 TB/s) is the chain of dependent kernels between
 * GEMMs, some 1.3 us each, less what the weights in flight meanwhile make up for. */
#ifndef TANDEM_KERNELS_CUDA_GEMM_GEMV_CUH
#define TANDEM_KERNELS_CUDA_GEMM_GEMV_CUH

#include "kernels/cuda/act.cuh"
#include "kernels/cuda/gemm/packed_gemm.h"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {

enum { GEMV_THREADS = 128 };

/* Sums V values (a power of two) over the lanes and distributes the results: afterwards lane l holds value l / (32 /
 * V) in v[0], or for V > 32 the values l * V / 32 + j in v[j]. The order of additions is that of a plain butterfly
 * reduction, whatever V. */
template <class T, int V, int n = V, int mask = 16> __device__ inline void reduce_scatter(T (&v)[V])
{
    if constexpr (mask > 0 && n > 1) {
        bool high = (int)threadIdx.x & mask;
        UNROLL for (int i = 0; i < n / 2; i++)
        {
            T send = high ? v[i] : v[i + n / 2], keep = high ? v[i + n / 2] : v[i];
            v[i] = keep + __shfl_xor_sync(FULL_WARP, send, mask);
        }
        reduce_scatter<T, V, n / 2, mask / 2>(v);
    } else if constexpr (mask > 0) {
        v[0] += __shfl_xor_sync(FULL_WARP, v[0], mask);
        reduce_scatter<T, V, n, mask / 2>(v);
    }
}

/* Which of the V values of M x R a lane holds in v[j] after reduce_scatter, and whether this lane is the one that
 * writes it. */
template <int V, int R> struct scattered {
    static constexpr int PER = V > 32 ? V / 32 : 1, COPIES = V > 32 ? 1 : 32 / V;
    int lane;
    __device__ explicit scattered() : lane((int)threadIdx.x % 32) {}
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

/* The weight row of output r of the warp's R; with GATE the gate and up rows of an output alternate. */
template <int R, bool GATE> __device__ inline int weight_row(const packed_gemm &p, int unit, int r)
{
    int n = GATE ? unit * (R / 2) + r / 2 : unit * R + r;
    n = n < p.N ? n : p.N - 1; /* past the end: a duplicate that is not written */
    return GATE && (r & 1) ? p.N + n : n;
}

/* v[j]: the finished outputs, bias included, distributed as in `scattered`. */
template <int V, int R, bool GATE>
__device__ inline void write_outputs(const packed_gemm &p, int unit, const float (&v)[scattered<V, R>::PER])
{
    scattered<V, R> s;
    UNROLL for (int j = 0; j < s.PER; j++)
    {
        int m = s.row(j), r = s.output(j);
        float up = 0;
        if constexpr (GATE && s.PER == 1) up = __shfl_xor_sync(FULL_WARP, v[0], s.COPIES);
        if constexpr (GATE && s.PER > 1) up = v[j ^ 1];
        int n = GATE ? unit * (R / 2) + r / 2 : unit * R + r;
        if (m >= p.M || n >= p.N || !s.writes() || (GATE && (r & 1))) continue;
        p.y[(size_t)m * (size_t)p.ldy + (size_t)n] = GATE ? __fmul_rn(act_value(v[j], p.act), act_up(up, p.act)) : v[j];
    }
}

/* The order in which STREAM, which derives from this, loads its `vectors` by load(slot, vector): U in flight, every
 * 32nd. */
template <class STREAM, int U> struct stream_order {
    int vectors;

    __device__ void begin()
    {
        UNROLL for (int u = 0; u < U; u++) static_cast<STREAM *>(this)->load(u, (int)threadIdx.x % 32 + u * 32);
    }

    /* Piece k has been used: loads the next one; with `around`, after the last the first again, for a second pass. */
    __device__ void next(int u, int k, bool around)
    {
        k += 32 * U;
        if (around && k >= vectors) k = (int)threadIdx.x % 32 + u * 32;
        static_cast<STREAM *>(this)->load(u, k);
    }
};

/* The loads of a warp's R rows of weights that this lane has in flight: U vectors of each row, refilled as they are
 * used. W: `vector`, what a lane loads at a time; `scale`, the type of the scales, each of which covers
 * 2^shift vectors; SCALED: whether there are scales. */
template <class W, int R, int U> struct weight_stream : stream_order<weight_stream<W, R, U>, U> {
    using stream_order<weight_stream<W, R, U>, U>::vectors;
    typedef typename W::vector vector;
    typedef typename W::scale scale;

    const vector *w[R];
    const scale *scales;
    unsigned scale_at[R]; /* index of the first scale of a row */
    int shift;
    vector at[U][R] = {};
    scale by[U][R] = {};

    template <bool GATE> __device__ void open(const packed_gemm &p, int unit, int vectors_, int shift_)
    {
        vectors = vectors_;
        shift = shift_;
        scales = static_cast<const scale *>(p.scale);
        UNROLL for (int r = 0; r < R; r++)
        {
            int row = weight_row<R, GATE>(p, unit, r);
            w[r] = reinterpret_cast<const vector *>(p.w + (size_t)row * p.row_bytes);
            scale_at[r] = (unsigned)row * (unsigned)p.n_groups;
        }
    }

    __device__ void load(int u, int k)
    {
        if (k >= vectors) return;
        UNROLL for (int r = 0; r < R; r++)
        {
            at[u][r] = load_stream(w[r] + k);
            if constexpr (W::SCALED) by[u][r] = scales[scale_at[r] + (unsigned)(k >> shift)];
        }
    }

    /* Prefetches the n vectors after the first U into L2. */
    __device__ void prefetch(int n)
    {
        int lane = (int)threadIdx.x % 32;
        n = min(vectors - 32 * U, n);
        UNROLL for (int r = 0; r < R; r++) if (lane == r && n > 0)
            prefetch_l2(w[r] + 32 * U, (unsigned)n * (unsigned)sizeof(vector));
    }
};

/* What a kernel prefetches into L2 before it waits: `own` vectors of each row, and `other` bytes per block of the
 * weight that the next GEMM reads. */
struct gemv_prefetch {
    int own;
    unsigned other;
};

__device__ inline void prefetch_after(const packed_gemm &p, const gemv_prefetch &prefetch)
{
    if (threadIdx.x == 0 && prefetch.other) prefetch_l2(p.after + (size_t)blockIdx.x * prefetch.other, prefetch.other);
}

/* Double buffer for rows of x: two chunks of VECTORS vectors of a row. A vector of x is the UNITS * 16 bytes that are
 * multiplied by one vector of the weight. The units of a vector are stored apart, so that neighbouring lanes read
 * neighbouring addresses. */
template <int M, int UNITS, int U> struct x_chunks {
    static constexpr int FIT = 8192 / (M * UNITS * 16), VECTORS = FIT > 32 * U ? FIT : 32 * U;
    uint4 v[2][M][UNITS][VECTORS];

    /* Starts the copy of chunk c of `rows` rows of `vectors` vectors, ld bytes apart. */
    __device__ void copy(const void *x, size_t ld, int rows, int vectors, int c)
    {
        const char *from = static_cast<const char *>(x) + (size_t)c * (VECTORS * UNITS * 16);
        int n = min(vectors - c * VECTORS, VECTORS) * UNITS;
#pragma unroll 1
        for (int m = 0; m < rows; m++)
#pragma unroll 1
            for (int i = (int)threadIdx.x; i < n; i += GEMV_THREADS)
                cp_async16_cached(&v[c % 2][m][i % UNITS][i / UNITS], from + (size_t)m * ld + (size_t)i * 16);
        cp_async_commit();
    }

    /* Calls f(u, k, half, at) for each vector k of this lane, in order; u is its slot in the weight stream, and the
     * matching x of row m is v[half][m][..][at]. The copy of chunk 0 must have been started. Ends with a barrier. */
    template <class F> __device__ void walk(const void *x, size_t ld, int rows, int vectors, F f)
    {
        int lane = (int)threadIdx.x % 32;
#pragma unroll 1
        for (int c = 0; c * VECTORS < vectors; c++) {
            copy(x, ld, rows, vectors, c + 1);
            cp_async_wait<1>();
            __syncthreads();
            int from = c * VECTORS, end = min(vectors, from + VECTORS);
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

/* Grid for N outputs, R (or R / 2 gate and up pairs) per warp. */
static inline dim3 gemv_grid(const packed_gemm *p, int R)
{
    size_t units = ((size_t)p->N + (size_t)(p->gate ? R / 2 : R) - 1) / (size_t)(p->gate ? R / 2 : R);
    return dim3(blocks_for(units, GEMV_THREADS / 32));
}

/* Prefetch sizes: of the rows of the first wave of blocks a third of L2; where the whole weight is smaller than
 * that, also the beginning of the next weight, up to half of L2. Prefetching more would evict what has not been read
 * yet. */
template <class W> gemv_prefetch gemv_prefetch_of(const gpu_dev *d, const packed_gemm *p, int R)
{
    const size_t resident = (size_t)d->n_sm * 8 * (GEMV_THREADS / 32) * (size_t)R, vector = sizeof(typename W::vector);
    size_t rows = (size_t)p->N * (p->gate ? 2 : 1), bytes = rows * p->row_bytes, fit = d->l2_bytes / 3,
           most = d->l2_bytes / 2;
    size_t own = fit / (rows < resident ? rows : resident), blocks = gemv_grid(p, R).x, other = 0;
    own = own < p->row_bytes ? own : p->row_bytes;
    if (p->after && bytes < fit) other = (most - bytes < p->after_bytes ? most - bytes : p->after_bytes) / blocks;
    return {(int)(own / 16 * 16 / vector), (unsigned)(other / 16 * 16)};
}

} // namespace GPU_NAMESPACE

#endif
