/* Attention of whole sequences for training: what its kernels share.
 *
 * A block has a tile of rows of one head (queries, or keys for dk and dv) and goes over the tiles of the other kind, as
 * in FlashAttention-2 (Dao, 2023): forward keeps the online softmax's state, backward recomputes the weights from the
 * log of their sum, once by queries for dq, once by keys for dk and dv, so that every sum is one thread's, in one
 * order.  Tiles are counted from a sequence's first row: its bits are its own. */
#ifndef TANDEM_KERNELS_CUDA_TRAIN_ATTN_TRAIN_CUH
#define TANDEM_KERNELS_CUDA_TRAIN_ATTN_TRAIN_CUH

#include "kernels/cuda/device.h"
#include "kernels/cuda/softcap.cuh"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {

/* What a kernel is told.  Query heads head0 .. head0 + n_heads - 1, which are of KV heads kv0 .. kv0 + n_kv - 1. */
struct train_call {
    struct attn_back_args a; /* of attn_seq: out, lse, qkv and what follows */
    int head0, n_heads, kv0, n_kv;
    float cap;   /* softcap with log2(e); 0: none */
    float by;    /* of scores: with log2(e), an exponent to the base 2; with cap what tanh takes */
    bool vec;    /* rows of qkv and dout may be read 16 bytes at a time */
    float *sums; /* backward: what each row's sums are, see the kernels that make them */
    /* by tensor cores alone */
    uint4 *half; /* rounded heads, see round_kernel */
    float *part; /* dk and dv (2, n_heads, T, D) of heads that do not begin a group; NULL: added where they belong */
};

/* attn_train_mma.cuh: heads of at most MMA_HEAD_MAX.  bf16: operands rounded to it; f32: with f32's precision. */
enum { MMA_HEAD_MAX = 128 };
void attn_seq_bf16(gpu_dev *, train_call *);
void attn_back_bf16(gpu_dev *, train_call *);
void attn_seq_f32(gpu_dev *, train_call *);
void attn_back_f32(gpu_dev *, train_call *);

namespace {

#define LOG2_E 1.44269504f
#define LN_2 0.693147181f

/* ---- which tile -------------------------------------------------------------------------------------------------- */

/* of a sequence: its first row and number of rows; the tile's first row in it */
struct seq_tile {
    int start, n, row0;
};

/* The block's tile, number `index` over all sequences, to shared memory; false: there are fewer.  Ends with a barrier.
 */
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

/* Rows [first, end) of a sequence that a tile meets: the keys of `rows` queries from row0 on, or the queries of such
 * keys; the first at the beginning of a tile of N rows. */
struct passing {
    int first, end;
};

template <int N> __device__ inline passing keys_of(const seq_tile &t, int rows, int window)
{
    int first = window && t.row0 - window + 1 > 0 ? t.row0 - window + 1 : 0;
    return {first / N * N, min(t.row0 + rows, t.n)};
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

/* The slope of a capped score; of -infinity, which a row does not see, 0. */
__device__ inline float cap_slope(const train_call &c, float score)
{
    float share = __fdividef(fmaxf(score, -c.cap), c.cap);
    return fmaf(-share, share, 1.0f);
}

__device__ inline float *head_at(const struct mat &m, int row, int head, int dim)
{
    return static_cast<float *>(m.p) + (size_t)row * (size_t)m.ld + (size_t)head * (size_t)dim;
}

} // namespace
} // namespace GPU_NAMESPACE

#endif
