/* Attention of whole sequences for training: the parts that its kernels share.
 *
 * A block holds a tile of rows of one head (queries, or keys for dk and dv) and walks over the tiles of the other
 * kind, as in FlashAttention-2 (Dao, 2023). Forward keeps the state of the online softmax; backward recomputes the
 * weights from lse, once by queries for dq and once by keys for dk and dv, so that every sum is made by one thread
 * in one order. Tiles are counted from a sequence's first row, so its bits do not depend on the other sequences. */
#ifndef TANDEM_KERNELS_CUDA_TRAIN_ATTN_TRAIN_CUH
#define TANDEM_KERNELS_CUDA_TRAIN_ATTN_TRAIN_CUH

#include "kernels/cuda/device.h"
#include "kernels/cuda/softcap.cuh"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {

/* Kernel parameters. Query heads head0 .. head0 + n_heads - 1, which belong to KV heads kv0 .. kv0 + n_kv - 1. */
struct train_call {
    struct attn_back_args a; /* for attn_seq: out, lse, qkv and what follows */
    int head0, n_heads, kv0, n_kv;
    int ahead;          /* attn_seq: positions behind its own that a query sees */
    float cap;          /* softcap with log2(e); 0: none */
    const float *sinks; /* attn_seq */
    float by;           /* scale of scores, for base 2 with log2(e); with cap for the argument of tanh */
    bool vec;           /* rows of qkv and dout may be read 16 bytes at a time */
    float *sums;        /* backward: per-row sums, see the kernels that write them */
    /* For the tensor-core kernels alone. */
    uint4 *half; /* rounded heads, see round_kernel */
    float *part; /* dk and dv (2, n_heads, T, D) of heads that are not the first of a group; NULL: added in place */
};

/* Tensor-core kernels (attn_train_mma.cuh), for heads of at most MMA_HEAD_MAX. bf16: operands rounded to it; f32:
 * with the precision of f32. */
enum { MMA_HEAD_MAX = 128 };
void attn_seq_bf16(gpu_dev *, train_call *);
void attn_back_bf16(gpu_dev *, train_call *);
void attn_seq_f32(gpu_dev *, train_call *);
void attn_back_f32(gpu_dev *, train_call *);

namespace {

#define LOG2_E 1.44269504f
#define LN_2 0.693147181f

/* ---- which tile -------------------------------------------------------------------------------------------------- */

/* A tile of a sequence: the sequence's first row and number of rows; the tile's first row within it. */
struct seq_tile {
    int start, n, row0;
};

/* Finds the block's tile, number `index` over all sequences, and writes it to shared memory. @return false when
 * there are fewer tiles. Ends with a barrier. */
__device__ inline bool find_tile(const int32_t *q_start, int n_seqs, int tile_rows, int index, bool last_first,
                                 seq_tile *t)
{
    int lane = (int)threadIdx.x;
    if (lane == 0) t->n = 0;
    __syncthreads();
    for (int s0 = 0, before = 0; s0 < n_seqs && lane < 32; s0 += 32) {
        int s = min(s0 + lane, n_seqs - 1), start = q_start[s], n = q_start[s + 1] - start;
        int tiles = s0 + lane < n_seqs ? (n + tile_rows - 1) / tile_rows : 0;
        int end = before + warp_scan(tiles, lane);
        if (index < end && index >= end - tiles) {
            int k = index - (end - tiles);
            *t = {start, n, (last_first ? tiles - 1 - k : k) * tile_rows};
        }
        before = __shfl_sync(FULL_WARP, end, 31);
        if (before > index) break;
    }
    __syncthreads();
    return t->n > 0;
}

static inline unsigned most_tiles(int rows, int n_seqs, int tile_rows)
{
    return (unsigned)(rows / tile_rows + n_seqs);
}

/* The rows [first, end) of a sequence that interact with a tile: the keys of `rows` queries from row0 on, or the
 * queries of such keys; `first` is rounded down to a tile of N rows. */
struct passing {
    int first, end;
};

template <int N> __device__ inline passing keys_of(const seq_tile &t, int rows, int window, int ahead = 0)
{
    int first = window && t.row0 - window + 1 > 0 ? t.row0 - window + 1 : 0;
    return {first / N * N, min(t.row0 + rows + ahead, t.n)};
}

template <int N> __device__ inline passing queries_of(const seq_tile &t, int rows, int window)
{
    int end = window && window < t.n - t.row0 - rows ? t.row0 + rows + window : t.n;
    return {t.row0 / N * N, end};
}

__device__ inline bool seen(int query, int key, int n, int window)
{
    return key <= query && query < n && (!window || key > query - window);
}

__device__ inline bool seen_ahead(int query, int key, int n, int window, int ahead)
{
    return key <= query + ahead && key < n && query < n && (!window || key > query - window);
}

/* The derivative of a capped score; 0 for a masked one (-infinity). */
__device__ inline float cap_slope(const train_call &c, float score)
{
    float share = __fdividef(fmaxf(score, -c.cap), c.cap);
    return fmaf(-share, share, 1.0f);
}

/* Ends a row's online softmax: adds the head's sink to its largest score (base 2) and its sum.  @return the factor for
 * what the row has summed. */
__device__ inline float add_sink(const train_call &c, int h, float *top, float *sum)
{
    if (!c.sinks) return 1;
    float sink = __fmul_rn(c.sinks[h], LOG2_E), high = fmaxf(sink, *top), back = exp2_fast(*top - high);
    *sum = fmaf(*sum, back, exp2_fast(sink - high));
    *top = high;
    return back;
}

__device__ inline float *head_at(const struct mat &m, int row, int head, int dim)
{
    return static_cast<float *>(m.p) + (size_t)row * (size_t)m.ld + (size_t)head * (size_t)dim;
}

} // namespace
} // namespace GPU_NAMESPACE

#endif
