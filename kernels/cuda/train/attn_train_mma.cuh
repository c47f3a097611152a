/* Tensor-core attention for training, for heads of at most MMA_HEAD_MAX.
 *
 * All three kernels are one walk: the rows of one tile stay with a block, 16 or 32 in each of its warps, while tiles
 * of the other kind pass. Scores are the matrix product of a warp's rows with those that pass. Converted to weights,
 * and backward to gradients of scores, they remain in the warp's registers as the left operand of the next mma.
 *
 * Operands are bf16, in PARTS: either 1, rounded, as ops.h allows with bf16_x; or 3, whose sum is the f32 value to
 * 24 bits. Then six multiplications of parts are made and those below 2^-24 of the value omitted, which gives the
 * precision of f32. (Three multiplications in tf32 would take as long, and bf16 can be transposed by ldmatrix.)
 * Heads that are used in many tiles are rounded once beforehand, into scratch. The scale of scores and log2(e) are
 * folded into the rounded queries, so that a score is a base-2 exponent; with a cap it is the argument of tanh
 * instead. */
#ifndef TANDEM_KERNELS_CUDA_TRAIN_ATTN_TRAIN_MMA_CUH
#define TANDEM_KERNELS_CUDA_TRAIN_ATTN_TRAIN_MMA_CUH

#include "kernels/cuda/train/attn_train.cuh"

namespace GPU_NAMESPACE {
namespace {

enum { MMA_WARPS = 4, MMA_THREADS = MMA_WARPS * 32, ROUND_THREADS = 256 };
enum { FULL_BLOCKS = 4 }; /* blocks for dk and dv per SM from which on each head needs no block of its own */

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* Splits x and y into packed pairs of bf16, the largest part first. */
template <int PARTS> __device__ inline void split_pair(float x, float y, unsigned (&part)[PARTS])
{
#pragma unroll(WHOLE)
    for (int i = 0; i < PARTS; i++) {
        part[i] = pack_bf16(x, y);
        if (i + 1 == PARTS) break;
        x -= __uint_as_float(part[i] << 16);
        y -= __uint_as_float(part[i] & 0xffff0000u);
    }
}

/* Eight values at p, times `by`; those from `left` on are 0. */
template <int PARTS>
__device__ inline void split_eight(const float *p, int left, bool vec, float by, unsigned (&part)[PARTS][4])
{
    vec4 v[2] = {};
#pragma unroll(WHOLE)
    for (int i = 0; i < 2; i++)
        if (left > 4 * i) v[i] = vec ? load4<true>(p + 4 * i, 4) : load4<false>(p + 4 * i, left - 4 * i);
#pragma unroll(WHOLE)
    for (int i = 0; i < 4; i++) {
        unsigned pair[PARTS];
        split_pair(v[i / 2].v[i % 2 * 2] * by, v[i / 2].v[i % 2 * 2 + 1] * by, pair);
#pragma unroll(WHOLE)
        for (int k = 0; k < PARTS; k++) part[k][i] = pair[k];
    }
}

/* ---- rounding beforehand ----------------------------------------------------------------------------------------- */

/* Rounded heads in scratch: [PARTS][slot][T][DIM], zeros past head_dim. Slots: keys, values; backward also queries
 * (times train_call.by) and gradients of the output. */
struct half_heads {
    int slots, keys, values, queries, douts;

    __host__ __device__ half_heads(const train_call &c, bool back)
    {
        keys = 0, values = c.n_kv, queries = 2 * c.n_kv, douts = queries + c.n_heads;
        slots = back ? douts + c.n_heads : queries;
    }
};

/* Index, in vectors of eight values, of row `row` of a slot of the first part. */
__device__ inline size_t half_at(const train_call &c, int slot, int row, int dim)
{
    return ((size_t)slot * (size_t)c.a.qkv.rows + (size_t)row) * (size_t)(dim / 8);
}

/* Rounds keys, values and, backward, queries; eight values per thread. */
template <int DIM, int PARTS>
__global__ void __launch_bounds__(ROUND_THREADS) round_heads_kernel(train_call c, bool back)
{
    half_heads at(c, back);
    unsigned slots = (unsigned)(back ? at.douts : at.queries), i = blockIdx.x * ROUND_THREADS + threadIdx.x;
    int col = (int)(i % (DIM / 8)) * 8, slot = (int)(i / (DIM / 8) % slots), row = (int)(i / (DIM / 8) / slots);
    if (row >= c.a.qkv.rows) return;
    int head = slot < at.values    ? c.a.heads + c.kv0 + slot
               : slot < at.queries ? c.a.heads + c.a.kv_heads + c.kv0 + slot - at.values
                                   : c.head0 + slot - at.queries;
    unsigned part[PARTS][4];
    float by = slot < at.queries ? 1 : c.by;
    split_eight(head_at(c.a.qkv, row, head, c.a.head_dim) + col, c.a.head_dim - col, c.vec, by, part);
#pragma unroll(WHOLE)
    for (int k = 0; k < PARTS; k++)
        c.half[half_at(c, k * at.slots + slot, row, DIM) + (size_t)(col / 8)] = {part[k][0], part[k][1], part[k][2],
                                                                                 part[k][3]};
}

/* One warp per row and head: rounds dout and writes sums (2, n_heads, T): the row's lse in base 2, and dout . out. */
template <int DIM, int PARTS> __global__ void __launch_bounds__(ROUND_THREADS) round_dout_kernel(train_call c)
{
    const attn_back_args &a = c.a;
    int lane = (int)threadIdx.x % 32, i = (int)(blockIdx.y * (ROUND_THREADS / 32) + threadIdx.x / 32);
    if (i >= c.n_heads) return;
    half_heads at(c, true);
    int row = (int)blockIdx.x, h = c.head0 + i, D = a.head_dim;
    const float *x = head_at(a.dout, row, h, D), *y = head_at(a.out, row, h, D);
    float sum = 0;
#pragma unroll(WHOLE)
    for (int col = lane * 2; col < DIM; col += 64) {
        float x0 = col < D ? x[col] : 0, x1 = col + 1 < D ? x[col + 1] : 0;
        sum += x0 * (col < D ? y[col] : 0) + x1 * (col + 1 < D ? y[col + 1] : 0);
        unsigned part[PARTS];
        split_pair(x0, x1, part);
#pragma unroll(WHOLE)
        for (int k = 0; k < PARTS; k++)
            reinterpret_cast<unsigned *>(c.half + half_at(c, k * at.slots + at.douts + i, row, DIM))[col / 2] = part[k];
    }
    sum = warp_sum(sum);
    if (lane != 0) return;
    float *to = c.sums + (size_t)i * (size_t)a.qkv.rows + (size_t)row;
    to[0] = head_at(a.lse, row, h, 1)[0] * LOG2_E;
    to[(size_t)c.n_heads * (size_t)a.qkv.rows] = sum;
}

/* ---- matrix multiplication -------------------------------------------------------------------------------------- */

/* Multiplies 16 features of the left operand by two tiles of eight columns of the right one; the smallest parts
 * first. */
template <int PARTS, int SLABS, int N>
__device__ inline void multiply_parts(float (&acc)[SLABS][N][4], int n, const unsigned (&a)[PARTS][SLABS][4],
                                      const unsigned (&b)[PARTS][4])
{
#pragma unroll(WHOLE)
    for (int low = PARTS - 1; low >= 0; low--)
#pragma unroll(WHOLE)
        for (int i = 0; i < PARTS; i++)
#pragma unroll(WHOLE)
            for (int j = 0; j < 2; j++) {
                if (i > low) continue;
                const unsigned right[2] = {b[low - i][2 * j], b[low - i][2 * j + 1]};
#pragma unroll(WHOLE)
                for (int m = 0; m < SLABS; m++) mma_bf16_16816(acc[m][n + j], a[i][m], right);
            }
}

/* acc = a b^T: a warp's rows, from row0 on, of the tile that stays by N rows that pass. */
template <int SLABS, int M, int N, int LD, int PARTS>
__device__ inline void multiply_rows(float (&acc)[SLABS][N / 8][4], const uint4 (&a)[PARTS][M][LD], int row0,
                                     const uint4 (&b)[PARTS][N][LD])
{
    int lane = (int)threadIdx.x % 32;
    const uint4 *from_a = &a[0][row0 + lane % 16][lane / 16];
    const uint4 *from_b = &b[0][lane / 16 * 8 + lane % 8][lane / 8 % 2];
#pragma unroll(WHOLE)
    for (int m = 0; m < SLABS; m++)
#pragma unroll(WHOLE)
        for (int n = 0; n < N / 8; n++)
#pragma unroll(WHOLE)
            for (int i = 0; i < 4; i++) acc[m][n][i] = 0;
#pragma unroll(PARTS > 1 ? 1 : 2)
    for (int d = 0; d < LD - 1; d += 2) {
        unsigned left[PARTS][SLABS][4];
#pragma unroll(WHOLE)
        for (int k = 0; k < PARTS; k++)
#pragma unroll(WHOLE)
            for (int m = 0; m < SLABS; m++) ldmatrix_x4(left[k][m], from_a + (k * M + m * 16) * LD + d);
#pragma unroll(WHOLE)
        for (int n = 0; n < N / 8; n += 2) {
            unsigned right[PARTS][4];
#pragma unroll(WHOLE)
            for (int k = 0; k < PARTS; k++) ldmatrix_x4(right[k], from_b + (k * N + n * 8) * LD + d);
            multiply_parts<PARTS, SLABS, N / 8>(acc, n, left, right);
        }
    }
}

/* acc += w b: scores, or weights or gradients computed from them, by the rows that pass. */
template <int SLABS, int N, int LD, int PARTS>
__device__ inline void multiply_add(float (&acc)[SLABS][LD - 1][4], const float (&w)[SLABS][N / 8][4],
                                    const uint4 (&b)[PARTS][N][LD])
{
    int lane = (int)threadIdx.x % 32;
    const uint4 *from = &b[0][lane % 16][lane / 16];
#pragma unroll(WHOLE)
    for (int k = 0; k < N; k += 16) {
        unsigned left[PARTS][SLABS][4];
#pragma unroll(WHOLE)
        for (int m = 0; m < SLABS; m++)
#pragma unroll(WHOLE)
            for (int i = 0; i < 4; i++) {
                const float *x = w[m][k / 8 + i / 2] + i % 2 * 2;
                unsigned pair[PARTS];
                split_pair(x[0], x[1], pair);
#pragma unroll(WHOLE)
                for (int part = 0; part < PARTS; part++) left[part][m][i] = pair[part];
            }
#pragma unroll(WHOLE)
        for (int n = 0; n < LD - 1; n += 2) {
            if (PARTS > 1) __syncwarp(); /* limits how many operands are loaded in advance, or registers would spill */
            unsigned right[PARTS][4];
#pragma unroll(WHOLE)
            for (int part = 0; part < PARTS; part++) ldmatrix_x4_trans(right[part], from + (part * N + k) * LD + n);
            multiply_parts<PARTS, SLABS, LD - 1>(acc, n, left, right);
        }
    }
}

/* ---- the walk ---------------------------------------------------------------------------------------------------- */

enum walk_kind { SEQ, BACK_Q, BACK_KV };

/* Which tiles stay and which pass: queries, and keys with values (SEQ); queries with dout, and keys with values
 * (BACK_Q); keys with values, and queries with dout (BACK_KV). */
template <walk_kind KIND_, int DIM_, int PARTS_, bool CAPPED_ = false> struct walk_form {
    static constexpr walk_kind KIND = KIND_;
    static constexpr bool CAPPED = CAPPED_; /* separate for the backward, whose registers do not suffice for caps */
    static constexpr int DIM = DIM_, PARTS = PARTS_;
    /* vectors of eight values; the padding keeps ldmatrix's rows in different banks */
    static constexpr int LD = DIM / 8 + 1;
    static constexpr int SLABS = PARTS > 1 || CAPPED || (KIND == BACK_KV && DIM > 64) ? 1
                                                                                      : 2; /* of 16 rows, a warp's */
    static constexpr int ROWS = SLABS * 16, M = MMA_WARPS * ROWS; /* rows that stay: of a warp, of a block */
    static constexpr int N = KIND == SEQ && DIM <= 64 && PARTS == 1 ? 64
                             : KIND != SEQ && DIM > 64 && PARTS > 1 ? 16
                                                                    : 32;
    typedef float scores[SLABS][N / 8][4];
    typedef float features[SLABS][DIM / 8][4];

    struct smem {
        uint4 stay[KIND == SEQ ? 1 : 2][PARTS][M][LD];
        uint4 pass[2][2][PARTS][N][LD];                                              /* [stage][first and second] */
        alignas(16) float sums[KIND == BACK_KV ? 2 : 1][2][KIND == BACK_KV ? N : M]; /* of the queries */
        seq_tile tile;
        passing range;
    };
};

template <int N, int LD, int PARTS>
__device__ inline void load_half(uint4 (&x)[PARTS][N][LD], const uint4 *from, size_t part, int row0, int n)
{
    constexpr int CHUNKS = LD - 1;
#pragma unroll(WHOLE)
    for (int k = 0; k < PARTS; k++)
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < N * CHUNKS; i += MMA_THREADS) {
            int r = i / CHUNKS, col = i % CHUNKS;
            bool in = row0 + r < n;
            cp_async16(&x[k][r][col], in ? from + k * part + (size_t)((row0 + r) * CHUNKS + col) : from, in);
        }
}

/* A warp's part of a block's work on a tile. */
template <class FORM> struct walk {
    typedef typename FORM::smem smem;
    typedef typename FORM::scores scores;
    typedef typename FORM::features features;
    static constexpr int DIM = FORM::DIM, PARTS = FORM::PARTS, N = FORM::N, M = FORM::M, SLABS = FORM::SLABS;
    static constexpr bool BY_KEYS = FORM::KIND == BACK_KV;
    static constexpr int SUM_STAGES = sizeof smem::sums / sizeof *smem::sums;

    const train_call &c;
    smem &s;
    const seq_tile &t;   /* in shared memory, as is everything per block outside the inner loops: registers are few */
    const passing &pass; /* the range of rows that will pass */
    half_heads half;
    int lane, row0, kv;               /* row0: the warp's first row, in the tile; kv: the KV head, from kv0 */
    int next_head, next_row, fetched; /* the next tiles to be copied; heads from head0 */
    int last_head;

    __device__ walk(const train_call &call, smem &shared, int head, int heads)
        : c(call), s(shared), t(s.tile), pass(s.range), half(call, FORM::KIND != SEQ)
    {
        lane = (int)threadIdx.x % 32;
        row0 = (int)threadIdx.x / 32 * FORM::ROWS;
        kv = (c.head0 + head) / (c.a.heads / c.a.kv_heads) - c.kv0;
        if (threadIdx.x == 0)
            s.range = BY_KEYS ? queries_of<N>(t, M, c.a.window) : keys_of<N>(t, M, c.a.window, ahead());
        __syncthreads();
        next_head = head, last_head = head + heads - 1;
        next_row = pass.first, fetched = 0;
    }

    /* The row that stays of this lane's element i of slab m; the row that passes of its element i of tile n. */
    __device__ int stay_row(int m, int i) const
    {
        return row0 + m * 16 + lane / 4 + i / 2 * 8;
    }
    __device__ int pass_row(int n, int i) const
    {
        return n * 8 + lane % 4 * 2 + i % 2;
    }

    __device__ const uint4 *slot(int which) const
    {
        return c.half + half_at(c, which, t.start, DIM);
    }
    __device__ size_t part_size() const
    {
        return half_at(c, half.slots, 0, DIM);
    }

    /* Loads the tile that stays from scratch; belongs to the cp.async group of the first tiles that pass. */
    __device__ void load_stay(int first, int second)
    {
        load_half(s.stay[0], slot(first), part_size(), t.row0, t.n);
        load_half(s.stay[FORM::KIND == SEQ ? 0 : 1], slot(second), part_size(), t.row0, t.n);
    }

    /* Loads the sums of a head's rows from `row` on. */
    template <int ROWS> __device__ void load_sums(float (&to)[2][ROWS], int head, int row)
    {
        for (int i = (int)threadIdx.x; i < 2 * ROWS; i += MMA_THREADS) {
            int which = i / ROWS, r = row + i % ROWS;
            size_t at = ((size_t)which * (size_t)c.n_heads + (size_t)head) * (size_t)c.a.qkv.rows;
            cp_async4(&to[which][i % ROWS], c.sums + (r < t.n ? at + (size_t)(t.start + r) : 0), r < t.n);
        }
    }

    /* Starts the copies of the next tiles that pass. */
    __device__ void fetch()
    {
        if (next_head <= last_head) {
            int stage = fetched % 2, first = BY_KEYS ? half.queries + next_head : half.keys + kv,
                second = BY_KEYS ? half.douts + next_head : half.values + kv;
            load_half(s.pass[stage][0], slot(first), part_size(), next_row, t.n);
            load_half(s.pass[stage][1], slot(second), part_size(), next_row, t.n);
            if (BY_KEYS) load_sums(s.sums[stage % SUM_STAGES], next_head, next_row);
            next_row += N;
            if (next_row >= pass.end) next_row = pass.first, next_head++;
        }
        cp_async_commit();
        fetched++;
    }

    /* Waits for the tiles fetched last and until all warps are done with the previous ones. Returns their stage. */
    __device__ int arrive()
    {
        cp_async_wait<0>();
        __syncthreads();
        fetch();
        return fetched % 2;
    }

    __device__ int ahead() const
    {
        return FORM::KIND == SEQ ? c.ahead : 0;
    }

    /* Whether some of the warp's rows see some of the tile at `at`; *all: whether all see all. */
    __device__ bool meets(int at, bool *all) const
    {
        int mine = t.row0 + row0, query = BY_KEYS ? at : mine, key = BY_KEYS ? mine : at, window = c.a.window;
        int last_query = query + (BY_KEYS ? N : FORM::ROWS) - 1, last_key = key + (BY_KEYS ? FORM::ROWS : N) - 1;
        *all = last_key <= query + ahead() && max(last_query, last_key) < t.n && (!window || key > last_query - window);
        return query < t.n && key <= min(last_query + ahead(), t.n - 1) && (!window || last_key > query - window);
    }

    /* Turns dot products into capped scores. */
    __device__ void cap(scores &x) const
    {
#pragma unroll(WHOLE)
        for (int m = 0; m < SLABS; m++)
#pragma unroll(WHOLE)
            for (int n = 0; n < N / 8; n++) {
                __syncwarp(); /* limits how many are computed in parallel, or registers would spill */
#pragma unroll(WHOLE)
                for (int i = 0; i < 4; i++) x[m][n][i] = __fmul_rn(tanh_fast(x[m][n][i]), c.cap);
            }
    }

    /* Sets masked scores to -infinity. */
    __device__ void mask(scores &x, int at) const
    {
#pragma unroll(WHOLE)
        for (int m = 0; m < SLABS; m++)
#pragma unroll(WHOLE)
            for (int n = 0; n < N / 8; n++)
#pragma unroll(WHOLE)
                for (int i = 0; i < 4; i++) {
                    int mine = t.row0 + stay_row(m, i), other = at + pass_row(n, i);
                    bool in = FORM::KIND == SEQ ? seen_ahead(mine, other, t.n, c.a.window, c.ahead)
                                                : seen(BY_KEYS ? other : mine, BY_KEYS ? mine : other, t.n, c.a.window);
                    if (!in) x[m][n][i] = -INFINITY;
                }
    }

    __device__ void clear(features &acc) const
    {
#pragma unroll(WHOLE)
        for (int m = 0; m < SLABS; m++)
#pragma unroll(WHOLE)
            for (int n = 0; n < DIM / 8; n++)
#pragma unroll(WHOLE)
                for (int i = 0; i < 4; i++) acc[m][n][i] = 0;
    }

    /* Writes features, times `by` of their row, to rows of a head that begins at p; add: accumulates. */
    __device__ void store(float *p, size_t ld, const features &acc, const float (&by)[SLABS][2], bool add) const
    {
        int dim = c.a.head_dim;
#pragma unroll(WHOLE)
        for (int m = 0; m < SLABS; m++)
#pragma unroll(WHOLE)
            for (int i = 0; i < 4; i += 2) {
                int row = t.row0 + stay_row(m, i);
                float *to = p + (size_t)row * ld;
                bool two = (dim | (int)ld) % 2 == 0 && reinterpret_cast<uintptr_t>(p) % sizeof(float2) == 0;
                if (row >= t.n) continue;
#pragma unroll(WHOLE)
                for (int n = 0; n < DIM / 8; n++) {
                    int col = pass_row(n, 0);
                    /* all of acc is set: NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage) */
                    float x = __fmul_rn(acc[m][n][i], by[m][i / 2]), y = __fmul_rn(acc[m][n][i + 1], by[m][i / 2]);
                    if (two && col < dim && !add) {
                        *reinterpret_cast<float2 *>(to + col) = {x, y};
                        continue;
                    }
                    if (col < dim) to[col] = add ? to[col] + x : x;
                    if (col + 1 < dim) to[col + 1] = add ? to[col + 1] + y : y;
                }
            }
    }
};

/* ---- forward ----------------------------------------------------------------------------------------------------- */

template <class FORM> struct walk_seq : walk<FORM> {
    typedef walk<FORM> base;
    using base::c, base::s, base::t, base::lane, base::SLABS, base::N, base::DIM, base::M, base::PARTS;
    float top[base::SLABS][2], sum[base::SLABS][2]; /* per row: the largest score, the lane's partial sum */
    typename FORM::features acc;

    __device__ walk_seq(const train_call &call, typename FORM::smem &shared, int head) : base(call, shared, head, 1)
    {
        this->clear(acc);
#pragma unroll(WHOLE)
        for (int m = 0; m < SLABS; m++) top[m][0] = top[m][1] = -INFINITY, sum[m][0] = sum[m][1] = 0;
    }

    /* Queries are read only once, so they are rounded here. */
    __device__ void load_queries(int h)
    {
        constexpr int CHUNKS = DIM / 8;
        const float *from = head_at(c.a.qkv, t.start, h, c.a.head_dim);
#pragma unroll 2
        for (int i = (int)threadIdx.x; i < M * CHUNKS; i += MMA_THREADS) {
            int r = i / CHUNKS, col = i % CHUNKS * 8, row = min(t.row0 + r, t.n - 1);
            unsigned part[PARTS][4];
            split_eight(from + (size_t)row * (size_t)c.a.qkv.ld + col, c.a.head_dim - col, c.vec, c.by, part);
#pragma unroll(WHOLE)
            for (int k = 0; k < PARTS; k++) s.stay[0][k][r][col / 8] = {part[k][0], part[k][1], part[k][2], part[k][3]};
        }
    }

    /* Turns scores into weights and updates the rows' states and outputs. */
    __device__ void weigh(typename FORM::scores &x)
    {
#pragma unroll(WHOLE)
        for (int m = 0; m < SLABS; m++) {
            float back[2];
#pragma unroll(WHOLE)
            for (int i = 0; i < 2; i++) {
                float high = -INFINITY, now = 0;
#pragma unroll(WHOLE)
                for (int n = 0; n < N / 8; n++)
#pragma unroll(WHOLE)
                    for (int j = 2 * i; j < 2 * i + 2; j++) high = fmaxf(high, x[m][n][j]);
                high = fmaxf(high, __shfl_xor_sync(FULL_WARP, high, 1));
                high = fmaxf(high, __shfl_xor_sync(FULL_WARP, high, 2));
                high = fmaxf(high, top[m][i]);
                float to = high == -INFINITY ? 0 : high;
#pragma unroll(WHOLE)
                for (int n = 0; n < N / 8; n++)
#pragma unroll(WHOLE)
                    for (int j = 2 * i; j < 2 * i + 2; j++) now += x[m][n][j] = exp2_fast(x[m][n][j] - to);
                back[i] = exp2_fast(top[m][i] - to);
                top[m][i] = high;
                sum[m][i] = fmaf(sum[m][i], back[i], now);
            }
            if (!__any_sync(FULL_WARP, back[0] != 1 || back[1] != 1)) continue;
#pragma unroll(WHOLE)
            for (int n = 0; n < DIM / 8; n++)
#pragma unroll(WHOLE)
                for (int i = 0; i < 4; i++) acc[m][n][i] *= back[i / 2];
        }
    }

    __device__ void run(int h)
    {
        this->fetch();
        load_queries(h);
        for (int at = this->pass.first; at < this->pass.end; at += N) {
            int stage = this->arrive();
            bool all;
            if (!this->meets(at, &all)) continue;
            typename FORM::scores x;
            multiply_rows<SLABS>(x, s.stay[0], this->row0, s.pass[stage][0]);
            if (c.cap > 0) this->cap(x);
            if (!all) this->mask(x, at);
            weigh(x);
            multiply_add<SLABS>(acc, x, s.pass[stage][1]);
        }
        end(h);
    }

    __device__ void end(int h)
    {
#pragma unroll(WHOLE)
        for (int m = 0; m < SLABS; m++)
#pragma unroll(WHOLE)
            for (int i = 0; i < 2; i++) {
                float &v = sum[m][i];
                v += __shfl_xor_sync(FULL_WARP, v, 1);
                v += __shfl_xor_sync(FULL_WARP, v, 2);
                float back = add_sink(c, h, &top[m][i], &v);
                int row = t.row0 + this->stay_row(m, 2 * i);
                if (lane % 4 == 0 && row < t.n) *head_at(c.a.lse, t.start + row, h, 1) = top[m][i] * LN_2 + logf(v);
                v = back / v;
            }
        this->store(head_at(c.a.out, t.start, h, c.a.head_dim), (size_t)c.a.out.ld, acc, sum, false);
    }
};

template <int DIM, int PARTS>
__global__ void __launch_bounds__(MMA_THREADS, PARTS > 1 ? 1 : 2) mma_seq_kernel(train_call c)
{
    typedef walk_form<SEQ, DIM, PARTS> form;
    SMEM(typename form::smem, s);
    if (find_tile(c.a.q_start, c.a.n_seqs, form::M, (int)blockIdx.x, true, &s.tile))
        walk_seq<form>(c, s, (int)blockIdx.y).run(c.head0 + (int)blockIdx.y);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

template <class FORM> struct walk_back : walk<FORM> {
    typedef walk<FORM> base;
    typedef typename FORM::scores scores;
    using base::base;
    using base::c, base::s, base::t, base::SLABS, base::N, base::BY_KEYS;

    /* The tiles at `at`: writes weights to x, and the gradients of their exponents to y. @return false when the
     * warp's rows see none of them. */
    __device__ bool weigh(scores &x, scores &y, int at, int stage)
    {
        bool all;
        if (!this->meets(at, &all)) return false;
        multiply_rows<SLABS>(x, s.stay[0], this->row0, s.pass[stage][0]);
        if (FORM::CAPPED) this->cap(x);
        if (!all) this->mask(x, at);
        multiply_rows<SLABS>(y, s.stay[1 % (sizeof s.stay / sizeof *s.stay)], this->row0, s.pass[stage][1]);
        const auto &sums = s.sums[BY_KEYS ? stage : 0];
#pragma unroll(WHOLE)
        for (int n = 0; n < N / 8; n++)
#pragma unroll(WHOLE)
            for (int m = 0; m < SLABS; m++) {
                if (FORM::CAPPED) __syncwarp(); /* as in cap */
#pragma unroll(WHOLE)
                for (int i = 0; i < 4; i++) {
                    int query = BY_KEYS ? this->pass_row(n, i) : this->stay_row(m, i);
                    float slope = FORM::CAPPED ? cap_slope(c, x[m][n][i]) : 1;
                    x[m][n][i] = exp2_fast(x[m][n][i] - sums[0][query]);
                    y[m][n][i] = x[m][n][i] * (y[m][n][i] - sums[1][query]);
                    if (FORM::CAPPED) y[m][n][i] *= slope;
                }
            }
        return true;
    }

    __device__ void begin(int head)
    {
        const half_heads &half = this->half;
        this->load_stay(BY_KEYS ? half.keys + this->kv : half.queries + head,
                        BY_KEYS ? half.values + this->kv : half.douts + head);
        if (!BY_KEYS) this->load_sums(s.sums[0], head, t.row0);
        this->fetch();
    }
};

__device__ inline void fill_by(float (&by)[1][2], float x)
{
    by[0][0] = by[0][1] = x;
}
__device__ inline void fill_by(float (&by)[2][2], float x)
{
    by[0][0] = by[0][1] = by[1][0] = by[1][1] = x;
}

template <int DIM, int PARTS, bool CAPPED>
__global__ void __launch_bounds__(MMA_THREADS, PARTS > 1 ? 1 : 2) mma_back_q_kernel(train_call c)
{
    typedef walk_form<BACK_Q, DIM, PARTS, CAPPED> form;
    SMEM(typename form::smem, s);
    if (!find_tile(c.a.q_start, c.a.n_seqs, form::M, (int)blockIdx.x, true, &s.tile)) return;
    int head = (int)blockIdx.y;
    walk_back<form> w(c, s, head, 1);
    typename form::features dq;
    w.clear(dq);
    w.begin(head);
    for (int at = w.pass.first; at < w.pass.end; at += form::N) {
        int stage = w.arrive();
        typename form::scores x, y;
        if (w.weigh(x, y, at, stage)) multiply_add<form::SLABS>(dq, y, s.pass[stage][0]);
    }
    float by[form::SLABS][2];
    fill_by(by, c.a.scale);
    w.store(head_at(c.a.dqkv, s.tile.start, c.head0 + head, c.a.head_dim), (size_t)c.a.dqkv.ld, dq, by, false);
}

/* Destination of dk of a head, of rows from `row` on; dv is *to_v elements further. */
__device__ inline float *dk_at(const train_call &c, int head, int row, size_t *ld, size_t *to_v, bool *add)
{
    int group = c.a.heads / c.a.kv_heads, h = c.head0 + head, D = c.a.head_dim;
    *add = h % group != 0;
    if (*add && c.part) {
        *add = false, *ld = (size_t)D, *to_v = (size_t)c.n_heads * (size_t)c.a.qkv.rows * (size_t)D;
        return c.part + ((size_t)head * (size_t)c.a.qkv.rows + (size_t)row) * (size_t)D;
    }
    *ld = (size_t)c.a.dqkv.ld, *to_v = (size_t)c.a.kv_heads * (size_t)D;
    return head_at(c.a.dqkv, row, c.a.heads + h / group, D);
}

/* dk and dv of a tile of keys: for one query head, or for those of a group one after the other, each accumulated
 * onto the previous ones. */
template <int DIM, int PARTS, bool CAPPED>
__global__ void __launch_bounds__(MMA_THREADS, PARTS > 1 ? 1 : 2) mma_back_kv_kernel(train_call c)
{
    typedef walk_form<BACK_KV, DIM, PARTS, CAPPED> form;
    SMEM(typename form::smem, s);
    if (!find_tile(c.a.q_start, c.a.n_seqs, form::M, (int)blockIdx.x, false, &s.tile)) return;
    int group = c.a.heads / c.a.kv_heads, first = (int)blockIdx.y, last = first;
    if (!c.part) {
        int g = c.kv0 + (int)blockIdx.y;
        first = max(g * group - c.head0, 0), last = min((g + 1) * group - c.head0, c.n_heads) - 1;
    }
    walk_back<form> w(c, s, first, last - first + 1);
    w.begin(first);
    for (int head = first; head <= last; head++) {
        typename form::features dk, dv;
        w.clear(dk), w.clear(dv);
        for (int at = w.pass.first; at < w.pass.end; at += form::N) {
            int stage = w.arrive();
            typename form::scores x, y;
            if (!w.weigh(x, y, at, stage)) continue;
            multiply_add<form::SLABS>(dk, y, s.pass[stage][0]);
            multiply_add<form::SLABS>(dv, x, s.pass[stage][1]);
        }
        size_t ld, to_v;
        bool add;
        float by[form::SLABS][2], *to = dk_at(c, head, s.tile.start, &ld, &to_v, &add);
        /* the factor contained in the rounded queries besides the scale of scores */
        fill_by(by, CAPPED ? c.a.softcap : LN_2);
        w.store(to, ld, dk, by, add);
        fill_by(by, 1);
        w.store(to + to_v, ld, dv, by, add);
    }
}

/* Adds the separate dk and dv of a group's heads, in the order of the heads. */
__global__ void __launch_bounds__(ROUND_THREADS) add_heads_kernel(train_call c)
{
    int group = c.a.heads / c.a.kv_heads, D = c.a.head_dim, g = c.kv0 + (int)blockIdx.y, which = (int)blockIdx.z;
    unsigned i = blockIdx.x * ROUND_THREADS + threadIdx.x;
    int row = (int)(i / (unsigned)D), col = (int)(i % (unsigned)D);
    if (row >= c.a.qkv.rows) return;
    float *to = head_at(c.a.dqkv, row, c.a.heads + which * c.a.kv_heads + g, D) + col, x = *to;
    size_t head_size = (size_t)c.a.qkv.rows * (size_t)D;
    const float *from = c.part + (size_t)which * (size_t)c.n_heads * head_size + (size_t)row * (size_t)D + col;
    for (int h = max(g * group, c.head0); h < min((g + 1) * group, c.head0 + c.n_heads); h++)
        if (h % group) x += from[(size_t)(h - c.head0) * head_size];
    *to = x;
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

template <int DIM, int PARTS> bool round_heads(gpu_dev *d, const char *op, train_call *c, bool back)
{
    half_heads at(*c, back);
    size_t T = (size_t)c->a.qkv.rows, n = T * (size_t)(back ? at.douts : at.queries) * (DIM / 8);
    size_t bytes = T * (size_t)at.slots * DIM * PARTS * sizeof(uint16_t);
    assert(n <= UINT32_MAX - ROUND_THREADS);
    if (!(c->half = static_cast<uint4 *>(gpu_scratch(d, op, AREA_X, bytes)))) return false;
    LAUNCH(d, op, (round_heads_kernel<DIM, PARTS>), dim3(blocks_for(n, ROUND_THREADS)), dim3(ROUND_THREADS), 0, *c,
           back);
    return true;
}

template <int DIM, int PARTS> void mma_seq(gpu_dev *d, train_call *c)
{
    typedef walk_form<SEQ, DIM, PARTS> form;
    if (!round_heads<DIM, PARTS>(d, "attn_seq", c, false)) return;
    LAUNCH(d, "attn_seq", (mma_seq_kernel<DIM, PARTS>),
           dim3(most_tiles(c->a.qkv.rows, c->a.n_seqs, form::M), (unsigned)c->n_heads), dim3(MMA_THREADS),
           sizeof(typename form::smem), *c);
}

/* Allocates separate dk and dv when the heads of a group get blocks of their own. The bits are the same either way. */
template <class form> bool part_room(gpu_dev *d, train_call *c, unsigned tiles)
{
    size_t T = (size_t)c->a.qkv.rows, n = (size_t)c->n_heads, group = (size_t)(c->a.heads / c->a.kv_heads);
    size_t rows = n * T, most = (size_t)FULL_BLOCKS * (size_t)d->n_sm * form::M * group;
    c->part = nullptr;
    if (group == 1) return true;
    bool few = (size_t)tiles * (size_t)c->n_kv < (size_t)FULL_BLOCKS * (size_t)d->n_sm;
    if (!few && !d->measuring) return true;
    if (!few && rows > most) rows = most; /* in reserve: upper bound for a call with fewer rows or heads */
    c->part =
        static_cast<float *>(gpu_scratch(d, "attn_back", AREA_SUM, 2 * rows * (size_t)c->a.head_dim * sizeof(float)));
    return c->part;
}

template <int DIM, int PARTS, bool CAPPED> void mma_back_of(gpu_dev *d, train_call *c)
{
    typedef walk_form<BACK_Q, DIM, PARTS, CAPPED> form_q;
    typedef walk_form<BACK_KV, DIM, PARTS, CAPPED> form_kv;
    unsigned T = (unsigned)c->a.qkv.rows, n = (unsigned)c->n_heads, n_kv = (unsigned)c->n_kv;
    unsigned q_tiles = most_tiles((int)T, c->a.n_seqs, form_q::M),
             kv_tiles = most_tiles((int)T, c->a.n_seqs, form_kv::M);
    size_t sums = 2 * (size_t)T * (size_t)n * sizeof(float);
    if (!(c->sums = static_cast<float *>(gpu_scratch(d, "attn_back", AREA_ATTN, sums)))) return;
    if (!round_heads<DIM, PARTS>(d, "attn_back", c, true) || !part_room<form_kv>(d, c, kv_tiles)) return;
    LAUNCH(d, "attn_back", (round_dout_kernel<DIM, PARTS>), dim3(T, blocks_for(n, ROUND_THREADS / 32)),
           dim3(ROUND_THREADS), 0, *c);
    LAUNCH(d, "attn_back", (mma_back_q_kernel<DIM, PARTS, CAPPED>), dim3(q_tiles, n), dim3(MMA_THREADS),
           sizeof(typename form_q::smem), *c);
    LAUNCH(d, "attn_back", (mma_back_kv_kernel<DIM, PARTS, CAPPED>), dim3(kv_tiles, c->part ? n : n_kv),
           dim3(MMA_THREADS), sizeof(typename form_kv::smem), *c);
    if (c->part)
        LAUNCH(d, "attn_back", add_heads_kernel,
               dim3(blocks_for((size_t)T * (size_t)c->a.head_dim, ROUND_THREADS), n_kv, 2), dim3(ROUND_THREADS), 0, *c);
}

template <int DIM, int PARTS> void mma_back(gpu_dev *d, train_call *c)
{
    c->cap > 0 ? mma_back_of<DIM, PARTS, true>(d, c) : mma_back_of<DIM, PARTS, false>(d, c);
}

} // namespace
} // namespace GPU_NAMESPACE

#endif
