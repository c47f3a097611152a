/* Attention of whole sequences for training, forward and backward, and rope.
 *
 * Heads of up to 128 use the tensor cores (attn_train_mma.cuh). Larger ones are computed here, in f32 throughout. */
#include "kernels/cuda/rope.cuh"
#include "kernels/cuda/train/attn_train.cuh"

namespace GPU_NAMESPACE {
namespace {

/* ---- rope -------------------------------------------------------------------------------------------------------- */

enum { ROPE_WARPS = 4 };

__global__ void __launch_bounds__(ROPE_WARPS * 32) rope_kernel(struct rope_args a)
{
    int lane = (int)threadIdx.x % 32, h = (int)(blockIdx.y * ROPE_WARPS + threadIdx.x / 32), half = a.rot / 2;
    if (h >= a.heads + a.kv_heads) return;
    float *x = static_cast<float *>(a.qkv.p) + (size_t)blockIdx.x * (size_t)a.qkv.ld + (size_t)h * (size_t)a.head_dim;
    rope_head(x, lane, half, a.cos, a.sin, (size_t)a.pos[blockIdx.x] * (size_t)half, a.back ? -1 : 1);
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* A block is 16 x 16 threads. Of a tile of scores thread (ty, tx) has rows ty * ROWS + i and columns tx + 16 j, of a
 * tile of features the same rows and columns 4 tx + 64 j .. + 3. The scores of a row are held by one half of a warp. */
enum { TRAIN_THREADS = 256, SIDE = 16 };

__device__ inline int ty()
{
    return (int)threadIdx.x / SIDE;
}
__device__ inline int tx()
{
    return (int)threadIdx.x % SIDE;
}

/* N rows of DIM features; the padding avoids bank conflicts. */
template <int N, int DIM> struct feature_tile {
    float x[N][DIM + 4];
};

/* Loads rows row0 .. row0 + N - 1 of a head whose sequence begins at p and has n rows; zeros past its end and past
 * dim. vec: 16-byte copies are possible. Belongs to the current cp.async group. */
template <int N, int DIM>
__device__ void load_tile(feature_tile<N, DIM> &t, const float *p, size_t ld, int row0, int n, int dim, bool vec)
{
    if (vec) {
        for (int i = (int)threadIdx.x; i < N * DIM / 4; i += TRAIN_THREADS) {
            int r = i / (DIM / 4), col = i % (DIM / 4) * 4;
            bool in = row0 + r < n && col < dim;
            cp_async16(&t.x[r][col], in ? p + (size_t)(row0 + r) * ld + col : p, in);
        }
        return;
    }
    for (int i = (int)threadIdx.x; i < N * DIM; i += TRAIN_THREADS) {
        int r = i / DIM, col = i % DIM;
        t.x[r][col] = row0 + r < n && col < dim ? p[(size_t)(row0 + r) * ld + (size_t)col] : 0;
    }
}

__device__ inline void tiles_ready()
{
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
}

/* acc = a b^T: this thread's scores. */
template <int M, int N, int DIM>
__device__ void multiply_nt(float (&acc)[M / SIDE][N / SIDE], const feature_tile<M, DIM> &a,
                            const feature_tile<N, DIM> &b)
{
    constexpr int ROWS = M / SIDE, COLS = N / SIDE;
    int row = ty() * ROWS, col = tx();
#pragma unroll(WHOLE)
    for (int i = 0; i < ROWS; i++)
#pragma unroll(WHOLE)
        for (int j = 0; j < COLS; j++) acc[i][j] = 0;
#pragma unroll 2
    for (int k = 0; k < DIM; k += 4) {
        float4 x[ROWS], y[COLS];
#pragma unroll(WHOLE)
        for (int i = 0; i < ROWS; i++) x[i] = *reinterpret_cast<const float4 *>(&a.x[row + i][k]);
#pragma unroll(WHOLE)
        for (int j = 0; j < COLS; j++) y[j] = *reinterpret_cast<const float4 *>(&b.x[col + SIDE * j][k]);
#pragma unroll(WHOLE)
        for (int i = 0; i < ROWS; i++)
#pragma unroll(WHOLE)
            for (int j = 0; j < COLS; j++) {
                float sum = fmaf(x[i].y, y[j].y, fmaf(x[i].x, y[j].x, acc[i][j]));
                acc[i][j] = fmaf(x[i].w, y[j].w, fmaf(x[i].z, y[j].z, sum));
            }
    }
}

/* acc += w b: this thread's features. w: scores that its own half warp wrote. */
template <int M, int N, int DIM>
__device__ void multiply_add(float4 (&acc)[M / SIDE][DIM / 64], const float (&w)[M][N + 4],
                             const feature_tile<N, DIM> &b)
{
    constexpr int ROWS = M / SIDE, COLS = DIM / 64;
    int row = ty() * ROWS, col = tx() * 4;
#pragma unroll 1
    for (int k = 0; k < N; k += 4) {
        float4 x[ROWS];
#pragma unroll(WHOLE)
        for (int i = 0; i < ROWS; i++) x[i] = *reinterpret_cast<const float4 *>(&w[row + i][k]);
#pragma unroll(WHOLE)
        for (int l = 0; l < 4; l++)
#pragma unroll(WHOLE)
            for (int j = 0; j < COLS; j++) {
                float4 y = *reinterpret_cast<const float4 *>(&b.x[k + l][col + 64 * j]);
#pragma unroll(WHOLE)
                for (int i = 0; i < ROWS; i++) {
                    float f = l == 0 ? x[i].x : l == 1 ? x[i].y : l == 2 ? x[i].z : x[i].w;
                    acc[i][j].x = fmaf(f, y.x, acc[i][j].x);
                    acc[i][j].y = fmaf(f, y.y, acc[i][j].y);
                    acc[i][j].z = fmaf(f, y.z, acc[i][j].z);
                    acc[i][j].w = fmaf(f, y.w, acc[i][j].w);
                }
            }
    }
}

/* Writes this thread's features, times `by` of their row, to rows `row0 + ...` of a head; add: accumulates. */
template <int M, int DIM>
__device__ void store_tile(float *p, size_t ld, int row0, int n, int dim, const float4 (&acc)[M / SIDE][DIM / 64],
                           const float (&by)[M / SIDE], bool add)
{
#pragma unroll(WHOLE)
    for (int i = 0; i < M / SIDE; i++) {
        int r = row0 + ty() * (M / SIDE) + i;
#pragma unroll(WHOLE)
        for (int j = 0; j < DIM / 64; j++) {
            float v[4] = {acc[i][j].x, acc[i][j].y, acc[i][j].z, acc[i][j].w};
#pragma unroll(WHOLE)
            for (int l = 0; l < 4; l++) {
                int col = tx() * 4 + 64 * j + l;
                if (r >= n || col >= dim) continue;
                float *to = p + (size_t)r * ld + (size_t)col;
                float x = __fmul_rn(v[l], by[i]);
                *to = add ? *to + x : x;
            }
        }
    }
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

template <int M, int N, int DIM> struct seq_smem {
    feature_tile<M, DIM> q;
    feature_tile<N, DIM> kv; /* first keys, then values */
    float w[M][N + 4];
    seq_tile tile;
};

/* Converts a dot product to a base-2 score. */
__device__ inline float base_2(const train_call &c, float product)
{
    float x = __fmul_rn(product, c.by);
    return c.cap > 0 ? __fmul_rn(tanh_fast(x), c.cap) : x;
}

/* Turns a tile's scores into weights and updates the rows' states and earlier outputs. */
template <int M, int N, int DIM>
__device__ void seq_weights(float (&score)[M / SIDE][N / SIDE], float (&w)[M][N + 4], float (&top)[M / SIDE],
                            float (&sum)[M / SIDE], float4 (&acc)[M / SIDE][DIM / 64], const train_call &c, int row0,
                            int key0, int n)
{
    constexpr int ROWS = M / SIDE, COLS = N / SIDE;
    __syncwarp(); /* the half warp has read the previous tile's weights */
#pragma unroll(WHOLE)
    for (int i = 0; i < ROWS; i++) {
        int query = row0 + ty() * ROWS + i;
        float high = -INFINITY, total = 0;
#pragma unroll(WHOLE)
        for (int j = 0; j < COLS; j++) {
            bool in = seen_ahead(query, key0 + tx() + SIDE * j, n, c.a.window, c.ahead);
            score[i][j] = in ? base_2(c, score[i][j]) : -INFINITY;
            high = fmaxf(high, score[i][j]);
        }
        for (int m = SIDE / 2; m; m /= 2) high = fmaxf(high, __shfl_xor_sync(FULL_WARP, high, m));
        high = fmaxf(high, top[i]);
        float base = high == -INFINITY ? 0 : high, back = exp2_fast(top[i] - base);
#pragma unroll(WHOLE)
        for (int j = 0; j < COLS; j++) {
            float p = exp2_fast(score[i][j] - base);
            total += p;
            w[ty() * ROWS + i][tx() + SIDE * j] = p;
        }
        for (int m = SIDE / 2; m; m /= 2) total += __shfl_xor_sync(FULL_WARP, total, m);
        top[i] = high;
        sum[i] = fmaf(sum[i], back, total);
#pragma unroll(WHOLE)
        for (int j = 0; j < DIM / 64; j++)
            acc[i][j] = {acc[i][j].x * back, acc[i][j].y * back, acc[i][j].z * back, acc[i][j].w * back};
    }
    __syncwarp();
}

template <int M, int N, int DIM> __global__ void __launch_bounds__(TRAIN_THREADS, 1) seq_kernel(train_call c)
{
    typedef seq_smem<M, N, DIM> smem;
    SMEM(smem, s);
    const attn_back_args &a = c.a;
    if (!find_tile(a.q_start, a.n_seqs, M, (int)blockIdx.x, true, &s.tile)) return;
    const seq_tile t = s.tile;
    constexpr int ROWS = M / SIDE;
    int h = c.head0 + (int)blockIdx.y, g = h / (a.heads / a.kv_heads), D = a.head_dim;
    size_t ld = (size_t)a.qkv.ld;
    const float *k = head_at(a.qkv, t.start, a.heads + g, D), *v = k + (size_t)a.kv_heads * (size_t)D;
    float top[ROWS], sum[ROWS] = {};
    float4 acc[ROWS][DIM / 64] = {};
#pragma unroll(WHOLE)
    for (int i = 0; i < ROWS; i++) top[i] = -INFINITY;
    load_tile(s.q, head_at(a.qkv, t.start, h, D), ld, t.row0, t.n, D, c.vec);
    passing keys = keys_of<N>(t, M, a.window, c.ahead);
    for (int key0 = keys.first; key0 < keys.end; key0 += N) {
        float score[ROWS][N / SIDE];
        __syncthreads();
        load_tile(s.kv, k, ld, key0, t.n, D, c.vec);
        tiles_ready();
        multiply_nt<M, N, DIM>(score, s.q, s.kv);
        __syncthreads();
        load_tile(s.kv, v, ld, key0, t.n, D, c.vec); /* the copy overlaps the computation of weights */
        seq_weights<M, N, DIM>(score, s.w, top, sum, acc, c, t.row0, key0, t.n);
        tiles_ready();
        multiply_add<M, N, DIM>(acc, s.w, s.kv);
    }
    float inv[ROWS];
#pragma unroll(WHOLE)
    for (int i = 0; i < ROWS; i++) {
        int r = t.row0 + ty() * ROWS + i;
        float back = add_sink(c, h, &top[i], &sum[i]);
        inv[i] = back / sum[i];
        if (tx() == 0 && r < t.n) *head_at(a.lse, t.start + r, h, 1) = top[i] * LN_2 + logf(sum[i]);
    }
    store_tile<M, DIM>(head_at(a.out, t.start, h, D), (size_t)a.out.ld, t.row0, t.n, D, acc, inv, false);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* One warp per row and head: sums (T, heads) = dout . out. */
__global__ void __launch_bounds__(TRAIN_THREADS) delta_kernel(train_call c)
{
    const attn_back_args &a = c.a;
    int lane = (int)threadIdx.x % 32, i = (int)(blockIdx.y * (TRAIN_THREADS / 32) + threadIdx.x / 32);
    if (i >= c.n_heads) return;
    int row = (int)blockIdx.x, h = c.head0 + i, D = a.head_dim;
    const float *x = head_at(a.dout, row, h, D), *y = head_at(a.out, row, h, D);
    float sum = 0;
    for (int d = lane; d < D; d += 32) sum += x[d] * y[d];
    sum = warp_sum(sum);
    if (lane == 0) c.sums[(size_t)row * (size_t)a.heads + (size_t)h] = sum;
}

/* Tiles of M rows that stay with the block and of N rows that it walks over. */
template <int M, int N, int DIM> struct back_smem {
    feature_tile<M, DIM> stay1, stay2; /* q and dout, or k and v */
    feature_tile<N, DIM> pass1, pass2; /* k and v, or q and dout */
    float w1[M][N + 4], w2[M][N + 4];  /* gradients of scores; weights, for dv */
    float lse[M > N ? M : N], delta[M > N ? M : N];
    seq_tile tile;
};

/* Loads lse and delta of queries row0 .. row0 + n_rows - 1 of head h; lse in base 2. */
__device__ void load_sums(const train_call &c, float *lse, float *delta, const seq_tile &t, int row0, int n_rows, int h)
{
    for (int i = (int)threadIdx.x; i < n_rows; i += TRAIN_THREADS) {
        bool in = row0 + i < t.n;
        int row = t.start + row0 + i;
        lse[i] = in ? *head_at(c.a.lse, row, h, 1) * LOG2_E : 0;
        delta[i] = in ? c.sums[(size_t)row * (size_t)c.a.heads + (size_t)h] : 0;
    }
}

/* Turns scores and dot products with values into gradients of scores (w1) and, when keys stay, weights (w2). */
template <int M, int N, int DIM, bool BY_KEYS>
__device__ void back_weights(back_smem<M, N, DIM> &s, const train_call &c, const float (&score)[M / SIDE][N / SIDE],
                             const float (&dp)[M / SIDE][N / SIDE], const seq_tile &t, int pass0)
{
    const attn_back_args &a = c.a;
#pragma unroll(WHOLE)
    for (int i = 0; i < M / SIDE; i++)
#pragma unroll(WHOLE)
        for (int j = 0; j < N / SIDE; j++) {
            int r = ty() * (M / SIDE) + i, col = tx() + SIDE * j, query = BY_KEYS ? col : r;
            bool in =
                BY_KEYS ? seen(pass0 + col, t.row0 + r, t.n, a.window) : seen(t.row0 + r, pass0 + col, t.n, a.window);
            float capped = c.cap > 0 ? base_2(c, score[i][j]) : 0, scale = a.scale;
            float power = c.cap > 0 ? capped - s.lse[query] : fmaf(score[i][j], c.by, -s.lse[query]);
            if (c.cap > 0) scale *= cap_slope(c, capped);
            float p = in ? exp2_fast(power) : 0;
            s.w1[r][col] = in ? p * (dp[i][j] - s.delta[query]) * scale : 0;
            if (BY_KEYS) s.w2[r][col] = p;
        }
    __syncwarp();
}

/* BY_KEYS: dk and dv of a tile of keys, for one query head after the other, each accumulated onto the previous ones.
 * Else dq of a tile of queries. */
template <int M, int N, int DIM, bool BY_KEYS>
__global__ void __launch_bounds__(TRAIN_THREADS, 1) back_kernel(train_call c)
{
    typedef back_smem<M, N, DIM> smem;
    SMEM(smem, s);
    const attn_back_args &a = c.a;
    if (!find_tile(a.q_start, a.n_seqs, M, (int)blockIdx.x, !BY_KEYS, &s.tile)) return;
    const seq_tile t = s.tile;
    int group = a.heads / a.kv_heads, D = a.head_dim, y = (int)blockIdx.y;
    int g = BY_KEYS ? c.kv0 + y : (c.head0 + y) / group, h0 = BY_KEYS ? max(c.head0, g * group) : c.head0 + y;
    int h1 = BY_KEYS ? min(c.head0 + c.n_heads, (g + 1) * group) : h0 + 1;
    size_t ld = (size_t)a.qkv.ld, dout_ld = (size_t)a.dout.ld, to_ld = (size_t)a.dqkv.ld;
    const float *k = head_at(a.qkv, t.start, a.heads + g, D), *v = k + (size_t)a.kv_heads * (size_t)D;
    float one[M / SIDE];
#pragma unroll(WHOLE)
    for (int i = 0; i < M / SIDE; i++) one[i] = 1;
    load_tile(s.stay1, BY_KEYS ? k : head_at(a.qkv, t.start, h0, D), ld, t.row0, t.n, D, c.vec);
    load_tile(s.stay2, BY_KEYS ? v : head_at(a.dout, t.start, h0, D), BY_KEYS ? ld : dout_ld, t.row0, t.n, D, c.vec);
    if (!BY_KEYS) load_sums(c, s.lse, s.delta, t, t.row0, M, h0);
    passing pass = BY_KEYS ? queries_of<N>(t, M, a.window) : keys_of<N>(t, M, a.window);
    for (int h = h0; h < h1; h++) {
        float4 acc1[M / SIDE][DIM / 64] = {}, acc2[M / SIDE][DIM / 64] = {};
        const float *q = head_at(a.qkv, t.start, h, D), *dout = head_at(a.dout, t.start, h, D);
        for (int pass0 = pass.first; pass0 < pass.end; pass0 += N) {
            float score[M / SIDE][N / SIDE], dp[M / SIDE][N / SIDE];
            __syncthreads();
            load_tile(s.pass1, BY_KEYS ? q : k, ld, pass0, t.n, D, c.vec);
            load_tile(s.pass2, BY_KEYS ? dout : v, BY_KEYS ? dout_ld : ld, pass0, t.n, D, c.vec);
            if (BY_KEYS) load_sums(c, s.lse, s.delta, t, pass0, N, h);
            tiles_ready();
            multiply_nt<M, N, DIM>(score, s.stay1, s.pass1);
            multiply_nt<M, N, DIM>(dp, s.stay2, s.pass2);
            back_weights<M, N, DIM, BY_KEYS>(s, c, score, dp, t, pass0);
            multiply_add<M, N, DIM>(acc1, s.w1, s.pass1);
            if (BY_KEYS) multiply_add<M, N, DIM>(acc2, s.w2, s.pass2);
        }
        bool add = BY_KEYS && h % group != 0;
        float *to = head_at(a.dqkv, t.start, BY_KEYS ? a.heads + g : h, D);
        store_tile<M, DIM>(to, to_ld, t.row0, t.n, D, acc1, one, add);
        if (BY_KEYS) store_tile<M, DIM>(to + (size_t)a.kv_heads * (size_t)D, to_ld, t.row0, t.n, D, acc2, one, add);
    }
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Whether cp.async can copy the rows 16 bytes at a time. */
bool aligned(const struct mat *m, int dim)
{
    return reinterpret_cast<uintptr_t>(m->p) % 16 == 0 && m->ld % 4 == 0 && dim % 4 == 0;
}

train_call call_of(const attn_back_args &a)
{
    train_call c = {};
    int group = a.heads / a.kv_heads;
    c.a = a;
    c.head0 = a.n_heads ? a.head0 : 0;
    c.n_heads = a.n_heads ? a.n_heads : a.heads;
    c.kv0 = c.head0 / group;
    c.n_kv = (c.head0 + c.n_heads - 1) / group - c.kv0 + 1;
    c.cap = a.softcap * LOG2_E;
    c.by = a.softcap > 0 ? a.scale / a.softcap : a.scale * LOG2_E;
    c.vec = aligned(&a.qkv, a.head_dim) && (!a.dout.p || aligned(&a.dout, a.head_dim));
    return c;
}

template <int M, int N, int DIM> void seq_launch(gpu_dev *d, const train_call *c)
{
    LAUNCH(d, "attn_seq", (seq_kernel<M, N, DIM>),
           dim3(most_tiles(c->a.qkv.rows, c->a.n_seqs, M), (unsigned)c->n_heads), dim3(TRAIN_THREADS),
           sizeof(seq_smem<M, N, DIM>), *c);
}

template <int M, int N, int DIM> void back_launch(gpu_dev *d, train_call *c)
{
    unsigned T = (unsigned)c->a.qkv.rows, tiles = most_tiles((int)T, c->a.n_seqs, M);
    size_t bytes = (size_t)T * (size_t)c->a.heads * sizeof(float);
    if (!(c->sums = static_cast<float *>(gpu_scratch(d, "attn_back", AREA_ATTN, bytes)))) return;
    LAUNCH(d, "attn_back", delta_kernel, dim3(T, blocks_for((size_t)c->n_heads, TRAIN_THREADS / 32)),
           dim3(TRAIN_THREADS), 0, *c);
    LAUNCH(d, "attn_back", (back_kernel<M, N, DIM, false>), dim3(tiles, (unsigned)c->n_heads), dim3(TRAIN_THREADS),
           sizeof(back_smem<M, N, DIM>), *c);
    LAUNCH(d, "attn_back", (back_kernel<M, N, DIM, true>), dim3(tiles, (unsigned)c->n_kv), dim3(TRAIN_THREADS),
           sizeof(back_smem<M, N, DIM>), *c);
}

} // namespace

void gpu_rope(struct dev *head, const struct rope_args *a)
{
    if (a->qkv.rows == 0 || a->rot == 0) return;
    LAUNCH(gpu_of(head), "rope", rope_kernel,
           dim3((unsigned)a->qkv.rows, blocks_for((size_t)(a->heads + a->kv_heads), ROPE_WARPS)), dim3(ROPE_WARPS * 32),
           0, *a);
}

void gpu_attn_seq(struct dev *head, const struct attn_seq_args *a)
{
    gpu_dev *d = gpu_of(head);
    if (a->qkv.rows == 0) return;
    train_call c = call_of({.out = a->out,
                            .lse = a->lse,
                            .qkv = a->qkv,
                            .heads = a->heads,
                            .kv_heads = a->kv_heads,
                            .head_dim = a->head_dim,
                            .window = a->window,
                            .scale = a->scale,
                            .n_seqs = a->n_seqs,
                            .q_start = a->q_start,
                            .head0 = a->head0,
                            .n_heads = a->n_heads,
                            .softcap = a->softcap});
    c.sinks = a->sinks;
    if (a->both_sides) c.ahead = a->window ? a->window - 1 : a->qkv.rows;
    if (a->head_dim <= MMA_HEAD_MAX)
        head->bf16_x ? attn_seq_bf16(d, &c) : attn_seq_f32(d, &c);
    else if (a->head_dim <= 256)
        seq_launch<32, 32, 256>(d, &c);
    else if (a->head_dim <= TRAIN_HEAD_MAX)
        seq_launch<32, 32, 512>(d, &c);
    else
        dev_fail(head, "attn_seq", "head_dim is %d", a->head_dim);
}

void gpu_attn_back(struct dev *head, const struct attn_back_args *a)
{
    gpu_dev *d = gpu_of(head);
    if (a->qkv.rows == 0) return;
    train_call c = call_of(*a);
    if (a->head_dim <= MMA_HEAD_MAX)
        head->bf16_x ? attn_back_bf16(d, &c) : attn_back_f32(d, &c);
    else if (a->head_dim <= 256)
        back_launch<32, 16, 256>(d, &c);
    else if (a->head_dim <= TRAIN_HEAD_MAX)
        back_launch<16, 16, 512>(d, &c);
    else
        dev_fail(head, "attn_back", "head_dim is %d", a->head_dim);
}

} // namespace GPU_NAMESPACE
