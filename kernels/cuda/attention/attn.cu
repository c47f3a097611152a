/* Op attn: its launcher, the merging of splits, and the f32 kernel for f32 caches and for heads that the tensor-core
 * kernels (attn_mma.cuh) do not support. See attn.cuh for the algorithm. */
#include "kernels/cuda/attention/attn.cuh"
#include "kernels/cuda/softcap.cuh"

namespace GPU_NAMESPACE {
namespace {

/* ---- merging ----------------------------------------------------------------------------------------------------- */

enum { MERGE_LOADS = 4 }; /* splits whose loads are in flight */

__device__ inline float4 fold_four(float4 total, float a, float4 part, float b)
{
    return {attn_fold_out(total.x, a, part.x, b), attn_fold_out(total.y, a, part.y, b),
            attn_fold_out(total.z, a, part.z, b), attn_fold_out(total.w, a, part.w, b)};
}

/* Row r of the unit, columns col .. col + 3: folds the splits in the order in which the walking kernels do. */
__device__ void merge_row(const attn_call &c, const attn_item &it, int r, int col)
{
    attn_state total = attn_begin(c, it, r);
    float4 out = {};
    int n = it.split1 - it.split0;
    size_t at = (size_t)it.slot * (size_t)c.tile + (size_t)r;
    for (int k0 = 0; k0 < n; k0 += MERGE_LOADS) {
        float4 part[MERGE_LOADS];
        attn_state state[MERGE_LOADS];
#pragma unroll(WHOLE)
        for (int k = 0; k < MERGE_LOADS; k++) {
            size_t row = at + (size_t)min(k0 + k, n - 1) * (size_t)c.tile;
            part[k] = *reinterpret_cast<const float4 *>(c.part + row * (size_t)c.part_ld + col);
            float2 s = *reinterpret_cast<const float2 *>(c.part_state + row * 2);
            state[k] = {s.x, s.y};
        }
#pragma unroll(WHOLE)
        for (int k = 0; k < MERGE_LOADS; k++) {
            float a, b;
            if (k0 + k >= n) break;
            attn_fold(&total, state[k], &a, &b);
            out = fold_four(out, a, part[k], b);
        }
    }
    if (col == 0) attn_store_lse(c, it, r, total);
    float inv = 1 / total.sum, v[4] = {out.x * inv, out.y * inv, out.z * inv, out.w * inv};
    float *to = attn_out(c, it, r) + col;
#pragma unroll(WHOLE)
    for (int i = 0; i < 4; i++)
        if (col + i < c.dim) to[i] = v[i];
}

/* One warp for each row of the units that were split. */
__global__ void __launch_bounds__(ATTN_THREADS) merge_kernel(attn_call c)
{
    SMEM_BYTES(shared);
    launch_next();
    attn_index x = attn_count(c, shared, true);
    int lane = (int)threadIdx.x % 32, rows = attn_items(c, x) * c.tile;
    int i = (int)(blockIdx.x * ATTN_WARPS + threadIdx.x / 32);
    attn_item it;
    if (i < rows) attn_item_of(c, x, i / c.tile, true, &it);
    wait_for_previous();
    for (bool first = true; i < rows; i += (int)gridDim.x * ATTN_WARPS, first = false) {
        if (!first) attn_item_of(c, x, i / c.tile, true, &it);
        if (i % c.tile >= it.n_rows) continue;
        for (int col = lane * 4; col < c.dim; col += 128) merge_row(c, it, i % c.tile, col);
    }
}

} // namespace

void attn_merge(gpu_dev *d, const attn_call *c)
{
    if (c->max_slots == 0) return;
    int blocks = min(2 * d->n_sm, (c->max_slots * c->tile + ATTN_WARPS - 1) / ATTN_WARPS);
    LAUNCH_EARLY(d, "attn", merge_kernel, dim3((unsigned)blocks), dim3(ATTN_THREADS), attn_index_bytes(*c), *c);
}

/* Upper bound of the units, from the host's args: the tiles of every KV head, plus one partial tile per sequence. */
static int64_t units_most(const attn_call *c, const struct attn_args *a)
{
    return ((int64_t)a->out.rows * c->group / c->tile + a->n_seqs) * c->kv_heads;
}

bool attn_room(gpu_dev *d, attn_call *c, const struct attn_args *a, enum area area, int slots)
{
    int64_t splits = ((int64_t)a->pages_ld + ATTN_SPLIT_PAGES - 1) / ATTN_SPLIT_PAGES;
    int64_t most = units_most(c, a) * (splits + 1); /* a window may begin and end within splits */
    if (most < slots) slots = (int)most;
    c->max_slots = splits > 1 ? slots : 0;
    c->part_ld = (c->dim + 3) / 4 * 4;
    if (c->max_slots == 0) return true;
    size_t rows = (size_t)c->max_slots * (size_t)c->tile;
    c->part = static_cast<float *>(gpu_scratch(d, "attn", area, rows * (size_t)(c->part_ld + 2) * sizeof(float)));
    c->part_state = c->part + rows * (size_t)c->part_ld;
    return c->part;
}

unsigned attn_blocks(const attn_call *c, const struct attn_args *a, int most)
{
    int64_t items = units_most(c, a) + c->max_slots;
    return (unsigned)(items < most ? items : most);
}

/* ---- in f32 ------------------------------------------------------------------------------------------------------ */

namespace {

/* rows of a tile; lanes that share a row's scores, each with one key of the page */
enum { F32_ROWS = 16, F32_HALF = 16 };

template <int DIM, int STAGES> struct f32_smem {
    float q[F32_ROWS][DIM], k[STAGES][KV_PAGE][DIM + 4], v[STAGES][KV_PAGE][DIM];
    float p[F32_ROWS][KV_PAGE];
    float a[F32_ROWS], b[F32_ROWS], inv[F32_ROWS]; /* a: also the factor by which a page rescales the outputs */
};

/* element i of a row of the cache */
__device__ inline float cache_value(const uint8_t *row, enum dtype t, int i, float step)
{
    if (t == DT_I8) return (float)reinterpret_cast<const int8_t *>(row)[i] * step;
    return load_float(row, t, (size_t)i);
}

/* Loads the page at position pos0: keys and values, zeros past the end of the sequence and of a row. */
template <int DIM, int STAGES>
__device__ void f32_load(const attn_call &c, const attn_item &it, f32_smem<DIM, STAGES> &s, int stage, int pos0)
{
    const uint8_t *block = attn_block(c, it, pos0);
    size_t row_bytes = c.v_at / KV_PAGE;
    for (int i = (int)threadIdx.x; i < KV_PAGE * DIM / 4; i += ATTN_THREADS) {
        int key = i / (DIM / 4), col = i % (DIM / 4) * 4;
        bool there = pos0 + key < it.len;
        const uint8_t *k = block + (size_t)key * row_bytes, *v = k + c.v_at;
        if (c.t == DT_F32) {
            bool in = there && col < c.dim_pad;
            cp_async16(&s.k[stage][key][col], in ? k + col * 4 : c.blocks, in);
            cp_async16(&s.v[stage][key][col], in ? v + col * 4 : c.blocks, in);
            continue;
        }
        const float *steps = reinterpret_cast<const float *>(block + c.scale_at) + key;
        float step_k = c.t == DT_I8 && there ? steps[0] : 0, step_v = c.t == DT_I8 && there ? steps[KV_PAGE] : 0;
        for (int j = col; j < col + 4; j++) {
            s.k[stage][key][j] = there && j < c.dim ? cache_value(k, c.t, j, step_k) : 0;
            s.v[stage][key][j] = there && j < c.dim ? cache_value(v, c.t, j, step_v) : 0;
        }
    }
    cp_async_commit();
}

template <int DIM, int STAGES>
__device__ void f32_query(const attn_call &c, const attn_item &it, f32_smem<DIM, STAGES> &s)
{
    for (int i = (int)threadIdx.x; i < F32_ROWS * DIM; i += ATTN_THREADS) {
        int r = i / DIM, col = i % DIM;
        float q = r < it.n_rows && col < c.dim ? attn_query(c, it, r)[col] : 0;
        s.q[r][col] = c.t == DT_BF16 ? bf16_to_f32(f32_to_bf16(q)) : q;
    }
}

/* The scores of one key with rows r and r + 1, and the update of the rows' states, which the 16 lanes of the rows
 * share. Leaves the weights in p and the factors for the earlier outputs in a. */
template <int DIM, int STAGES>
__device__ void f32_scores(const attn_call &c, const attn_item &it, f32_smem<DIM, STAGES> &s, int stage, int pos0,
                           attn_state (&state)[2])
{
    int key = (int)threadIdx.x % F32_HALF, r = (int)threadIdx.x / F32_HALF * 2, pos = pos0 + key;
    float dot[2] = {};
#pragma unroll 4
    for (int i = 0; i < DIM; i += 4) {
        float4 k = *reinterpret_cast<const float4 *>(&s.k[stage][key][i]);
#pragma unroll(WHOLE)
        for (int j = 0; j < 2; j++) {
            float4 q = *reinterpret_cast<const float4 *>(&s.q[r + j][i]);
            dot[j] = fmaf(q.w, k.w, fmaf(q.z, k.z, fmaf(q.y, k.y, fmaf(q.x, k.x, dot[j]))));
        }
    }
#pragma unroll(WHOLE)
    for (int j = 0; j < 2; j++) {
        int at = attn_pos(c, it, r + j);
        float score = __fmul_rn(dot[j], c.scale);
        if (c.cap > 0) score = __fmul_rn(tanh_fast(score), c.cap);
        if (pos > at || pos < attn_first(c, at)) score = -INFINITY;
        float max = score;
        for (int m = F32_HALF / 2; m; m /= 2) max = fmaxf(max, __shfl_xor_sync(FULL_WARP, max, m));
        max = fmaxf(max, state[j].max);
        float base = attn_base(max), p = exp2_fast(score - base), sum = p, a = exp2_fast(state[j].max - base);
        for (int m = F32_HALF / 2; m; m /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, m);
        state[j] = {max, fmaf(state[j].sum, a, sum)};
        s.p[r + j][key] = p;
        if (key == 0) s.a[r + j] = a;
    }
}

/* The outputs of a thread: ROWS rows from `row` on, four columns from col on. */
template <int DIM> struct f32_outputs {
    static constexpr int ROWS = DIM / 32;
    int row, col;
    __device__ f32_outputs() : row((int)threadIdx.x / (DIM / 4) * ROWS), col((int)threadIdx.x % (DIM / 4) * 4) {}
};

template <int DIM, int STAGES> __device__ void f32_values(f32_smem<DIM, STAGES> &s, int stage, float4 (&acc)[DIM / 32])
{
    f32_outputs<DIM> at;
#pragma unroll(WHOLE)
    for (int i = 0; i < at.ROWS; i++) {
        float a = s.a[at.row + i];
        acc[i] = {acc[i].x * a, acc[i].y * a, acc[i].z * a, acc[i].w * a};
    }
#pragma unroll 4
    for (int key = 0; key < KV_PAGE; key++) {
        float4 v = *reinterpret_cast<const float4 *>(&s.v[stage][key][at.col]);
#pragma unroll(WHOLE)
        for (int i = 0; i < at.ROWS; i++) {
            float p = s.p[at.row + i][key];
            acc[i] = {fmaf(p, v.x, acc[i].x), fmaf(p, v.y, acc[i].y), fmaf(p, v.z, acc[i].z), fmaf(p, v.w, acc[i].w)};
        }
    }
}

/* Ends a split: stores its result in its slot, or folds it into the total, which is kept in `out` until the last
 * split divides it by the sum. */
template <int DIM, int STAGES>
__device__ void f32_end(const attn_call &c, const attn_item &it, f32_smem<DIM, STAGES> &s, int split,
                        const attn_state (&state)[2], attn_state (&total)[2], const float4 (&acc)[DIM / 32])
{
    int key = (int)threadIdx.x % F32_HALF, r = (int)threadIdx.x / F32_HALF * 2;
    bool first = split == it.split0, last = split == it.split1 - 1;
    __syncthreads(); /* the page's values of `a` have been read */
#pragma unroll(WHOLE)
    for (int j = 0; j < 2; j++) {
        float a, b;
        if (it.slot >= 0 && key == 0) {
            float *to = c.part_state + ((size_t)it.slot * F32_ROWS + (size_t)(r + j)) * 2;
            to[0] = state[j].max;
            to[1] = state[j].sum;
        }
        attn_fold(&total[j], state[j], &a, &b);
        if (key == 0) {
            s.a[r + j] = a;
            s.b[r + j] = b;
            s.inv[r + j] = 1 / total[j].sum;
            if (last && it.slot < 0 && r + j < it.n_rows) attn_store_lse(c, it, r + j, total[j]);
        }
    }
    __syncthreads();
    f32_outputs<DIM> at;
#pragma unroll(WHOLE)
    for (int i = 0; i < at.ROWS; i++) {
        int row = at.row + i;
        float v[4] = {acc[i].x, acc[i].y, acc[i].z, acc[i].w};
        float *part = it.slot < 0 ? nullptr : c.part + ((size_t)it.slot * F32_ROWS + (size_t)row) * (size_t)c.part_ld;
        float *out = row < it.n_rows ? attn_out(c, it, row) : nullptr;
#pragma unroll(WHOLE)
        for (int j = 0; j < 4; j++) {
            int col = at.col + j;
            if (part && col < c.part_ld) part[col] = v[j];
            if (part || !out || col >= c.dim) continue;
            float sum = attn_fold_out(first ? 0 : out[col], s.a[row], v[j], s.b[row]);
            out[col] = last ? sum * s.inv[row] : sum;
        }
    }
}

template <int DIM, int STAGES>
__device__ void f32_item(const attn_call &c, const attn_item &it, f32_smem<DIM, STAGES> &s)
{
    int page0 = max(it.split0 * ATTN_SPLIT_PAGES, it.first / KV_PAGE);
    int page1 = min(it.split1 * ATTN_SPLIT_PAGES, it.last / KV_PAGE + 1);
    int r = (int)threadIdx.x / F32_HALF * 2;
    attn_state state[2] = {{-INFINITY, 0}, {-INFINITY, 0}}, total[2] = {attn_begin(c, it, r), attn_begin(c, it, r + 1)};
    float4 acc[DIM / 32] = {};
    __syncthreads(); /* all threads are done with the previous item */
    f32_query(c, it, s);
    if (STAGES > 1) f32_load(c, it, s, 0, page0 * KV_PAGE);
    for (int page = page0; page < page1; page++) {
        int stage = STAGES > 1 ? (page - page0) % 2 : 0;
        if (STAGES > 1) {
            cp_async_wait<0>();
            __syncthreads();
            if (page + 1 < page1) f32_load(c, it, s, 1 - stage, (page + 1) * KV_PAGE);
        } else {
            __syncthreads();
            f32_load(c, it, s, 0, page * KV_PAGE);
            cp_async_wait<0>();
            __syncthreads();
        }
        f32_scores(c, it, s, stage, page * KV_PAGE, state);
        __syncthreads();
        f32_values(s, stage, acc);
        if (page + 1 < page1 && (page + 1) % ATTN_SPLIT_PAGES) continue;
        f32_end(c, it, s, page / ATTN_SPLIT_PAGES, state, total, acc);
#pragma unroll(WHOLE)
        for (int i = 0; i < DIM / 32; i++) acc[i] = {};
        state[0] = state[1] = {-INFINITY, 0};
    }
}

template <int DIM, int STAGES> __global__ void __launch_bounds__(ATTN_THREADS, 1) f32_kernel(attn_call c)
{
    typedef f32_smem<DIM, STAGES> smem;
    SMEM_BYTES(shared);
    launch_next_and_wait();
    attn_index x = attn_count(c, shared + sizeof(smem), false);
    for (int i = (int)blockIdx.x; i < attn_items(c, x); i += (int)gridDim.x) {
        attn_item it;
        if (attn_item_of(c, x, i, false, &it)) f32_item(c, it, *reinterpret_cast<smem *>(shared));
    }
}

template <int DIM, int STAGES> void f32_launch(gpu_dev *d, const attn_call *c, const struct attn_args *a)
{
    LAUNCH_EARLY(d, "attn", (f32_kernel<DIM, STAGES>), dim3(attn_blocks(c, a, 8 * d->n_sm)), dim3(ATTN_THREADS),
                 sizeof(f32_smem<DIM, STAGES>) + attn_index_bytes(*c), *c);
}

void attn_f32(gpu_dev *d, attn_call *c, const struct attn_args *a)
{
    c->tile = F32_ROWS;
    c->rows_min = 1;
    c->rows_max = INT32_MAX;
    if (!attn_room(d, c, a, AREA_ATTN, 32 * d->n_sm)) return;
    if (c->dim <= 32)
        f32_launch<32, 2>(d, c, a);
    else if (c->dim <= 64)
        f32_launch<64, 2>(d, c, a);
    else if (c->dim <= 128)
        f32_launch<128, 2>(d, c, a);
    else if (c->dim <= 256)
        f32_launch<256, 2>(d, c, a);
    else
        f32_launch<512, 1>(d, c, a);
    attn_merge(d, c);
}

} // namespace

void gpu_attn(struct dev *head, const struct attn_args *a)
{
    gpu_dev *d = gpu_of(head);
    const gpu_kv *kv = kv_of(a->kv);
    if (a->out.rows == 0 || a->n_seqs == 0) return;
    attn_call c = {};
    c.out = a->out;
    c.lse = a->lse;
    c.qkv = a->qkv;
    c.q_start = a->q_start;
    c.kv_len = a->kv_len;
    c.pages = a->pages;
    c.pages_ld = a->pages_ld;
    c.n_seqs = a->n_seqs;
    c.blocks = kv->data + (size_t)a->layer * (size_t)kv->shape.pages * (size_t)kv->shape.kv_heads * kv->block_bytes;
    c.v_at = kv->v_at;
    c.scale_at = kv->scale_at;
    c.block_bytes = kv->block_bytes;
    c.t = kv->shape.t;
    c.cap = a->softcap * 1.44269504f; /* log2(e) */
    c.scale = a->softcap > 0 ? a->scale / a->softcap : a->scale * 1.44269504f;
    c.sinks = a->sinks;
    c.heads = a->heads;
    c.kv_heads = a->kv_heads;
    c.group = a->heads / a->kv_heads;
    c.dim = a->head_dim;
    c.dim_pad = kv->dim_pad;
    c.window = a->window;
    if (c.t == DT_BF16 && attn_bf16(d, &c, a)) return;
    if (c.t == DT_F16 && attn_f16(d, &c, a)) return;
    if (c.t == DT_I8 && attn_i8(d, &c, a)) return;
    attn_f32(d, &c, a);
}

} // namespace GPU_NAMESPACE
