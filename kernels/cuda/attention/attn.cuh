/* Paged attention, the parts that its kernels share: finding the work on the device, and the arithmetic that makes a
 * row's result batch-invariant.
 *
 * The context is divided at fixed positions into splits, each split into tiles of keys, and a row (token, query
 * head) goes through a tile by online softmax (Milakov and Gimelshein, 2018; FlashAttention, Dao et al., 2022). The
 * result of each split (largest score, sum, unnormalised output) is folded into a total, in order. Masked keys count
 * as scores of -infinity, which leave every bit of the row's state unchanged. So it does not matter which rows share
 * a tile, where a tile of rows ends, or whether one block walks all splits or each split has its own block and
 * merge_kernel folds the results. A row's result depends on its query, its context and the cache's type alone, not
 * on how its prompt was chunked nor on the rest of the batch. (One exception: a NaN or infinity in the values of a
 * later token of the same tile of rows reaches the earlier ones, as 0 times NaN.)
 *
 * The number of rows of each sequence is in device memory: every block begins by counting the work, one warp over
 * all sequences, and takes its items from that index. The host wrote these numbers and the page tables, so the count
 * need not wait for preceding kernels (LAUNCH_EARLY). */
#ifndef TANDEM_KERNELS_CUDA_ATTENTION_ATTN_CUH
#define TANDEM_KERNELS_CUDA_ATTENTION_ATTN_CUH

#include "kernels/cuda/device.h"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {

enum { ATTN_SPLIT = 256, ATTN_SPLIT_PAGES = ATTN_SPLIT / KV_PAGE, ATTN_THREADS = 128, ATTN_WARPS = ATTN_THREADS / 32 };

/* Parameters of the attention kernels. A tile is `tile` rows (token, head of the group) of one KV head of a
 * sequence; a kernel handles the sequences that have rows_min .. rows_max such rows. */
struct attn_call {
    struct mat out, qkv, lse;
    const int32_t *q_start, *kv_len, *pages;
    const uint8_t *blocks; /* of the layer */
    size_t v_at, scale_at, block_bytes;
    float *part, *part_state; /* (max_slots, tile, part_ld) outputs, (max_slots, tile, 2) largest score and sum */
    enum dtype t;
    float scale; /* of scores, in base 2; with cap: of the argument of tanh */
    float cap;   /* softcap in base 2; 0: none */
    const float *sinks;
    int heads, kv_heads, group, dim, dim_pad, window, n_seqs, pages_ld;
    int tile, rows_min, rows_max, max_slots, part_ld;
    int prefetch_pages; /* pages that a block may prefetch into L2 before it waits */
};

/* Sequence s from the point of view of this kernel. */
struct attn_span {
    int n, pos0, rows, units, splits; /* units: tiles of all KV heads; 0: another kernel handles it */
};

__device__ inline int attn_first(const attn_call &c, int pos)
{
    return c.window && pos - c.window + 1 > 0 ? pos - c.window + 1 : 0;
}

__device__ inline attn_span attn_span_of(const attn_call &c, int s)
{
    attn_span p = {};
    int len = c.kv_len[s];
    p.n = c.q_start[s + 1] - c.q_start[s];
    p.pos0 = len - p.n;
    p.rows = p.n * c.group;
    if (p.rows < c.rows_min || p.rows > c.rows_max) return p;
    p.units = (p.rows + c.tile - 1) / c.tile * c.kv_heads;
    p.splits = (len - 1) / ATTN_SPLIT - attn_first(c, p.pos0) / ATTN_SPLIT + 1;
    return p;
}

/* Work index in shared memory, after the kernel's own: for each sequence the end of its items, and its first slot
 * for results of splits, or -1 when each of its blocks walks all splits. */
struct attn_index {
    int32_t *end, *slot;
};

static inline size_t attn_index_bytes(const attn_call &c)
{
    return 2 * (size_t)c.n_seqs * sizeof(int32_t);
}

/* Counts the items: a unit whose block walks all splits is one item, otherwise each of its splits is one. When
 * merging, an item is a unit that was split. Sequences are split while there are free slots for their results. Ends
 * with a barrier. */
__device__ inline attn_index attn_count(const attn_call &c, unsigned char *shared, bool merging)
{
    attn_index x = {reinterpret_cast<int32_t *>(shared), reinterpret_cast<int32_t *>(shared) + c.n_seqs};
    int lane = (int)threadIdx.x;
    int items = 0, slots = 0;
    for (int s0 = 0; s0 < c.n_seqs && lane < 32; s0 += 32) {
        int s = s0 + lane;
        attn_span p = {};
        if (s < c.n_seqs) p = attn_span_of(c, s);
        int64_t splits = (int64_t)p.units * p.splits, room = c.max_slots + (int64_t)1;
        int want = p.units && p.splits > 1 ? (int)min(splits, room) : 0;
        int until = slots + warp_scan(want, lane);
        bool split = want && until <= c.max_slots;
        int end = items + warp_scan(merging ? (split ? p.units : 0) : split ? want : p.units, lane);
        if (s < c.n_seqs) {
            x.end[s] = end;
            x.slot[s] = split ? until - want : -1;
        }
        items = __shfl_sync(FULL_WARP, end, 31);
        slots = min(__shfl_sync(FULL_WARP, until, 31), c.max_slots + 1);
    }
    __syncthreads();
    return x;
}

struct attn_item {
    const int32_t *pages;
    int token0, pos0, row0, n_rows, kv_head; /* token0, pos0: of the sequence; row0: of the tile in the sequence */
    int first, last, len;                    /* positions that the tile sees; tokens of the sequence */
    int split0, split1;                      /* this block's splits: split0 .. split1 - 1 */
    int slot;                                /* slot of the result of split0; -1: this block folds all splits itself */
};

/* Item i, longest items first; when merging: all splits of a unit, with the slot of the first. @return false when
 * there is no item i. */
__device__ inline bool attn_item_of(const attn_call &c, const attn_index &x, int i, bool merging, attn_item *it)
{
    i = x.end[c.n_seqs - 1] - 1 - i;
    int low = 0, high = c.n_seqs - 1; /* the first sequence whose items end after i */
    while (low < high) {
        int mid = (low + high) / 2;
        if (x.end[mid] > i)
            high = mid;
        else
            low = mid + 1;
    }
    attn_span p = attn_span_of(c, low);
    int unit = i - (low ? x.end[low - 1] : 0), split_at = 0, slot = x.slot[low];
    if (slot >= 0 && !merging) {
        slot += unit;
        split_at = unit % p.splits; /* only split units have a slot: NOLINT(clang-analyzer-core.DivideZero) */
        unit /= p.splits;
    } else if (slot >= 0) {
        slot += unit * p.splits;
    }
    it->pages = c.pages + (size_t)low * (size_t)c.pages_ld;
    it->token0 = c.q_start[low];
    it->pos0 = p.pos0;
    it->len = p.pos0 + p.n;
    it->kv_head = unit % c.kv_heads;
    it->row0 = unit / c.kv_heads * c.tile;
    it->n_rows = min(c.tile, p.rows - it->row0);
    it->first = attn_first(c, p.pos0 + it->row0 / c.group);
    it->last = p.pos0 + (it->row0 + it->n_rows - 1) / c.group;
    it->split0 = it->first / ATTN_SPLIT;
    it->split1 = it->last / ATTN_SPLIT + 1;
    it->slot = slot;
    if (slot < 0) return true;
    int base = attn_first(c, p.pos0) / ATTN_SPLIT; /* slots are numbered from this split on */
    if (merging) {
        it->slot += it->split0 - base;
        return true;
    }
    int split = base + split_at;
    bool ours = split >= it->split0 && split < it->split1;
    it->split0 = split;
    it->split1 = split + 1;
    return ours;
}

__device__ inline int attn_items(const attn_call &c, const attn_index &x)
{
    return x.end[c.n_seqs - 1];
}

/* Position, query and output of row r of the tile. */
__device__ inline int attn_pos(const attn_call &c, const attn_item &it, int r)
{
    return it.pos0 + (it.row0 + r) / c.group;
}

__device__ inline size_t attn_at(const attn_call &c, const attn_item &it, int r, int ld)
{
    int row = it.row0 + r;
    return (size_t)(it.token0 + row / c.group) * (size_t)ld +
           (size_t)(it.kv_head * c.group + row % c.group) * (size_t)c.dim;
}

__device__ inline const float *attn_query(const attn_call &c, const attn_item &it, int r)
{
    return static_cast<const float *>(c.qkv.p) + attn_at(c, it, r, c.qkv.ld);
}

__device__ inline float *attn_out(const attn_call &c, const attn_item &it, int r)
{
    return static_cast<float *>(c.out.p) + attn_at(c, it, r, c.out.ld);
}

/* The block of the page that holds position pos; any valid address of the cache when the sequence is shorter. */
__device__ inline const uint8_t *attn_block(const attn_call &c, const attn_item &it, int pos)
{
    size_t page = pos < it.len ? (size_t)it.pages[pos / KV_PAGE] : 0;
    return c.blocks + (page * (size_t)c.kv_heads + (size_t)it.kv_head) * c.block_bytes;
}

/* Prefetches the item's pages into L2, except the last, which is being written. Each thread of the block prefetches
 * at most one page. */
__device__ inline void attn_prefetch(const attn_call &c, const attn_item &it)
{
    int page = it.split0 * ATTN_SPLIT_PAGES + (int)threadIdx.x,
        end = min(it.split1 * ATTN_SPLIT_PAGES, it.last / KV_PAGE);
    if ((int)threadIdx.x < c.prefetch_pages && page < end)
        prefetch_l2(attn_block(c, it, page * KV_PAGE), (unsigned)c.block_bytes);
}

/* ---- the arithmetic ---------------------------------------------------------------------------------------------- */

/* A row's state: largest score (base 2) and sum of 2^(score - largest); -infinity and 0 before any key was seen. */
struct attn_state {
    float max, sum;
};

/* The base of 2^(score - base): the maximum, or any finite number for a row that has seen no key yet. */
__device__ inline float attn_base(float max)
{
    return max == -INFINITY ? 0 : max;
}

/* The state of row r of the tile before its first split: nothing seen but the head's sink. */
__device__ inline attn_state attn_begin(const attn_call &c, const attn_item &it, int r)
{
    if (!c.sinks) return {-INFINITY, 0};
    float sink = c.sinks[it.kv_head * c.group + (it.row0 + r) % c.group];
    return {__fmul_rn(sink, 1.44269504f), 1}; /* log2(e) */
}

/* Stores the log-sum-exp of row r of the tile, where it is wanted, once its last split is in the total. */
__device__ inline void attn_store_lse(const attn_call &c, const attn_item &it, int r, attn_state total)
{
    int row = it.row0 + r;
    if (!c.lse.p) return;
    float *to = static_cast<float *>(c.lse.p) + (size_t)(it.token0 + row / c.group) * (size_t)c.lse.ld;
    to[it.kv_head * c.group + row % c.group] = 0.693147180559945f * (total.max + log2f(total.sum)); /* ln 2 */
}

/* Folds a split's state into the total; *a, *b: the factors for the total's and the split's outputs. */
__device__ inline void attn_fold(attn_state *total, attn_state part, float *a, float *b)
{
    float max = fmaxf(total->max, part.max), base = attn_base(max);
    *a = exp2_fast(total->max - base);
    *b = exp2_fast(part.max - base);
    total->sum = fmaf(part.sum, *b, __fmul_rn(total->sum, *a));
    total->max = max;
}

__device__ inline float attn_fold_out(float total, float a, float part, float b)
{
    return fmaf(part, b, __fmul_rn(total, a));
}

/* Tensor-core kernels (attn_mma.cuh), one function for each cache type. @return false when the heads are too large. */
bool attn_bf16(gpu_dev *, attn_call *, const struct attn_args *);
bool attn_f16(gpu_dev *, attn_call *, const struct attn_args *);
bool attn_i8(gpu_dev *, attn_call *, const struct attn_args *);

/* Allocates the slots for results of splits in a scratch area, for tiles of c->tile rows: at most `slots`. @return
 * false when the device has failed. */
bool attn_room(gpu_dev *, attn_call *, const struct attn_args *, enum area, int slots);
/* Launches merge_kernel if any unit can have been split. */
void attn_merge(gpu_dev *, const attn_call *);
/* Number of blocks for a kernel over the call's items: at most `most`. */
unsigned attn_blocks(const attn_call *, const struct attn_args *, int most);

} // namespace GPU_NAMESPACE

#endif
