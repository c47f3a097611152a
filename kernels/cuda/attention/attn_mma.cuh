/* Attention on tensor cores: bf16 caches with heads of up to 256 features, f16 and int8 caches up to 128.
 *
 * Two kernels with the same arithmetic. FEW has tiles of 16 rows, whose keys its four warps divide among them
 * (decoding: the query heads of one group for a token, so that K and V are read once). MANY has tiles of 64 rows, 16
 * per warp (prompts; for the largest heads 32 rows, 16 for two warps). Both multiply the same fragments in the same
 * order, so a row has the same bits from either.
 *
 * Operands. bf16 caches: as ops.h allows, q and the softmax weights are rounded to bf16. f16 caches: q and the
 * weights are each split into a high and a low f16 part. int8 caches: the integers are converted to bf16, their
 * scales multiply scores and weights, and q and the weights are split into two bf16 parts. */
#ifndef TANDEM_KERNELS_CUDA_ATTENTION_ATTN_MMA_CUH
#define TANDEM_KERNELS_CUDA_ATTENTION_ATTN_MMA_CUH

#include "kernels/cuda/attention/attn.cuh"
#include "kernels/cuda/softcap.cuh"

namespace GPU_NAMESPACE {
namespace {

enum { KEYS = 64, SPLIT_TILES = ATTN_SPLIT / KEYS, FEW_ROWS = 16 };

/* DIM: head_dim rounded up to the next compiled size; T: the cache's type; MANY: which kernel; CAPPED: with softcap,
 * a variant of its own because its arithmetic needs more registers. */
template <int DIM, dtype T, bool MANY, bool CAPPED> struct mma_smem {
    /* One warp would need too many registers for all features. */
    static constexpr bool WIDE = DIM > 128 || (DIM == 128 && T == DT_F16) || (CAPPED && DIM >= 96);
    static constexpr int SHARE = !MANY ? ATTN_WARPS : WIDE ? 2 : 1; /* warps that share the same rows */
    static constexpr int ROWS = ATTN_WARPS / SHARE * 16, PARTS = T == DT_BF16 ? 1 : 2;
    static constexpr int RING = DIM >= 128 && T != DT_I8 ? 3 : 4; /* tiles of keys or values in flight */
    static constexpr int ROW_BYTES = T == DT_I8 ? DIM : 2 * DIM;  /* of the cache */
    static constexpr int LD = DIM + 8, P_LD = KEYS + 8;           /* padding against bank conflicts of ldmatrix */

    uint4 ring[RING][KEYS][ROW_BYTES / 16 + 1];
    uint4 wide[T == DT_I8 ? KEYS : 1][LD / 8];              /* int8: a tile converted to bf16 */
    alignas(16) float step[T == DT_I8 ? RING : 1][2][KEYS]; /* int8: scales of keys and values, by the keys' slot */
    alignas(16) unsigned q[PARTS][ROWS][LD / 2];
    alignas(16) unsigned p[PARTS][MANY ? 1 : FEW_ROWS][P_LD / 2]; /* FEW: softmax weights, shared by all warps */
    float max[ATTN_WARPS][FEW_ROWS], sum[ATTN_WARPS][FEW_ROWS][4];
};

/* ---- operands ---------------------------------------------------------------------------------------------------- */

template <dtype T> __device__ inline unsigned pack(float low, float high)
{
    return T == DT_F16 ? pack_f16(low, high) : pack_bf16(low, high);
}

/* The residuals of two values after rounding to 16 bits, packed. */
template <dtype T> __device__ inline unsigned pack_rest(float low, float high, unsigned packed)
{
    uint16_t l = (uint16_t)packed, h = (uint16_t)(packed >> 16);
    if (T == DT_F16) return pack_f16(low - half_to_float(l), high - half_to_float(h));
    return pack_bf16(low - bf16_to_f32(l), high - bf16_to_f32(h));
}

template <dtype T> __device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    const unsigned b[2] = {b0, b1};
    if (T == DT_F16)
        mma_f16_16816(c, a, b);
    else
        mma_bf16_16816(c, a, b);
}

/* The address of this lane's row of a 16 x 16 operand at x; x and ld count pairs. */
__device__ inline const unsigned *a_row(const unsigned *x, int ld)
{
    int lane = (int)threadIdx.x % 32;
    return x + (lane % 16) * ld + lane / 16 * 4;
}

/* s = q k^T for 16 rows and N tiles of eight keys: features in order, the high part before the low. */
template <int DIM, dtype T, int N, int PARTS>
__device__ inline void multiply_keys(float (&s)[N][4], const unsigned *q, int part, const uint16_t *k, int ld)
{
    int lane = (int)threadIdx.x % 32;
    const unsigned *from_q = a_row(q, ld / 2);
    const uint16_t *from_k = k + (lane / 16 * 8 + lane % 8) * ld + lane / 8 % 2 * 8;
#pragma unroll(WHOLE)
    for (int n = 0; n < N; n++)
#pragma unroll(WHOLE)
        for (int i = 0; i < 4; i++) s[n][i] = 0;
#pragma unroll(DIM > 128 ? 1 : 2)
    for (int d = 0; d < DIM; d += 16) {
        unsigned a[PARTS][4];
#pragma unroll(WHOLE)
        for (int i = 0; i < PARTS; i++) ldmatrix_x4(a[i], from_q + i * part + d / 2);
#pragma unroll(WHOLE)
        for (int n = 0; n < N; n += 2) {
            unsigned b[4];
            ldmatrix_x4(b, from_k + n * 8 * ld + d);
#pragma unroll(WHOLE)
            for (int i = 0; i < PARTS; i++) {
                multiply<T>(s[n], a[i], b[0], b[1]);
                multiply<T>(s[n + 1], a[i], b[2], b[3]);
            }
        }
    }
}

/* acc += p v for 16 rows and N tiles of eight features, with values at v: keys in order, the high part before the
 * low. p: fragments of 16 keys each. */
template <dtype T, int N, int PARTS>
__device__ inline void multiply_values(float (&acc)[N][4], const unsigned (&p)[PARTS][KEYS / 16][4], const uint16_t *v,
                                       int ld)
{
    constexpr int TOGETHER = N > 16 ? 2 : N % 4 == 0 ? 4 : N;
    const uint16_t *from = v + (int)threadIdx.x % 32 * ld;
#pragma unroll(WHOLE)
    for (int k = 0; k < KEYS; k += 32)
#pragma unroll(WHOLE)
        for (int n = 0; n < N; n += TOGETHER) {
            unsigned b[TOGETHER][4];
#pragma unroll(WHOLE)
            for (int j = 0; j < TOGETHER; j++) ldmatrix_x4_trans(b[j], from + k * ld + (n + j) * 8);
#pragma unroll(WHOLE)
            for (int l = 0; l < 2; l++)
#pragma unroll(WHOLE)
                for (int i = 0; i < PARTS; i++)
#pragma unroll(WHOLE)
                    for (int j = 0; j < TOGETHER; j++)
                        multiply<T>(acc[n + j], p[i][k / 16 + l], b[j][2 * l], b[j][2 * l + 1]);
        }
}

/* ---- loads from the cache --------------------------------------------------------------------------------------- */

/* Copies tile `tile` of the context, keys or values, to a slot; with int8 keys the scales of keys and values too.
 * Zeros past the end of the sequence. */
template <int DIM, dtype T, bool MANY, bool CAPPED>
__device__ inline void load_slot(const attn_call &c, const attn_item &it, mma_smem<DIM, T, MANY, CAPPED> &s, int slot,
                                 int tile, bool values)
{
    constexpr int CHUNKS = mma_smem<DIM, T, MANY, CAPPED>::ROW_BYTES / 16;
    int row_bytes = (int)(c.v_at / KV_PAGE);
#pragma unroll(DIM > 128 ? 1 : 4)
    for (int i = (int)threadIdx.x; i < KEYS * CHUNKS; i += ATTN_THREADS) {
        int key = i / CHUNKS, at = i % CHUNKS * 16, pos = tile * KEYS + key;
        bool in = pos < it.len && at < row_bytes;
        const uint8_t *from = c.blocks;
        if (in) from = attn_block(c, it, pos) + (values ? c.v_at : 0) + pos % KV_PAGE * row_bytes + at;
        cp_async16(&s.ring[slot][key][at / 16], from, in);
    }
    if (T != DT_I8 || values || threadIdx.x >= 2 * KEYS / 4) return;
    int which = (int)threadIdx.x / (KEYS / 4), key = (int)threadIdx.x % (KEYS / 4) * 4, pos = tile * KEYS + key;
    bool in = pos < it.len;
    const uint8_t *from = c.blocks;
    if (in) from = attn_block(c, it, pos) + c.scale_at + (which * KV_PAGE + pos % KV_PAGE) * (int)sizeof(float);
    cp_async16(&s.step[slot][which][key], from, in);
}

/* Two int8 values, bytes i and i + 1 of x with their sign bits flipped, converted to bf16 exactly by way of 2^23 +
 * byte. */
__device__ inline unsigned i8_pair_to_bf16(unsigned x, int i)
{
    float low = __uint_as_float(0x4b000000u | (x >> 8 * i & 255u)) - (0x1p23f + 128);
    float high = __uint_as_float(0x4b000000u | (x >> 8 * (i + 1) & 255u)) - (0x1p23f + 128);
    return __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000u);
}

/* int8: converts the slot to bf16, into `wide`. */
template <int DIM, dtype T, bool MANY, bool CAPPED>
__device__ inline void slot_to_bf16(mma_smem<DIM, T, MANY, CAPPED> &s, int slot)
{
#pragma unroll 2
    for (int i = (int)threadIdx.x; i < KEYS * DIM / 16; i += ATTN_THREADS) {
        int key = i / (DIM / 16), at = i % (DIM / 16) * 16;
        uint4 x = s.ring[slot][key][at / 16];
        unsigned w[4] = {x.x ^ 0x80808080u, x.y ^ 0x80808080u, x.z ^ 0x80808080u, x.w ^ 0x80808080u};
        uint4 *to = &s.wide[key][at / 8];
        to[0] = {i8_pair_to_bf16(w[0], 0), i8_pair_to_bf16(w[0], 2), i8_pair_to_bf16(w[1], 0),
                 i8_pair_to_bf16(w[1], 2)};
        to[1] = {i8_pair_to_bf16(w[2], 0), i8_pair_to_bf16(w[2], 2), i8_pair_to_bf16(w[3], 0),
                 i8_pair_to_bf16(w[3], 2)};
    }
}

template <int DIM, dtype T, bool MANY, bool CAPPED>
__device__ inline void load_query(const attn_call &c, const attn_item &it, mma_smem<DIM, T, MANY, CAPPED> &s)
{
    typedef mma_smem<DIM, T, MANY, CAPPED> smem;
    for (int r = (int)threadIdx.x / 32; r < smem::ROWS; r += ATTN_WARPS) {
        const float *q = attn_query(c, it, min(r, it.n_rows - 1));
        for (int col = (int)threadIdx.x % 32 * 2; col < DIM; col += 64) {
            float x = r < it.n_rows && col < c.dim ? q[col] : 0, y = r < it.n_rows && col + 1 < c.dim ? q[col + 1] : 0;
            unsigned high = pack<T>(x, y);
            s.q[0][r][col / 2] = high;
            if (smem::PARTS > 1) s.q[smem::PARTS - 1][r][col / 2] = pack_rest<T>(x, y, high);
        }
    }
}

/* ---- one item ---------------------------------------------------------------------------------------------------- */

/* A warp's work on a tile of rows. MANY: 16 rows with all keys, and all features or, for large heads, half of them;
 * another warp that computes the same scores has the other half. FEW: all 16 rows, with a quarter of the keys for
 * the scores and a quarter of the features for the output. A lane has rows row[0] and row[1]. */
template <int DIM, dtype T, bool MANY, bool CAPPED> struct mma_item {
    typedef mma_smem<DIM, T, MANY, CAPPED> smem;
    static constexpr int PARTS = smem::PARTS, RING = smem::RING, SHARE = smem::SHARE;
    static constexpr int KEY_TILES = MANY ? KEYS / 8 : KEYS / 8 / ATTN_WARPS;
    static constexpr int OUT_TILES = DIM / 8 / SHARE;
    static constexpr int SUMS = KEY_TILES / 2; /* one sum for each 16 keys, as in FEW */

    const attn_call &c;
    const attn_item &it;
    smem &s;
    int lane, warp, row0, row[2], last[2];           /* last: the last position that a row sees */
    int warp_first, warp_last, warp_end, warp_begin; /* some row sees first .. last; all see begin .. end */
    int key0, col0;                                  /* first key of a tile and first feature of this warp */
    int tile0, tile1;
    float max[2], sum[2][SUMS];
    attn_state total[2];
    float acc[OUT_TILES][4];

    __device__ mma_item(const attn_call &call, const attn_item &item, smem &shared) : c(call), it(item), s(shared)
    {
        open();
        clear();
    }

    __device__ void open()
    {
        lane = (int)threadIdx.x % 32;
        warp = (int)threadIdx.x / 32;
        row0 = MANY ? warp / SHARE * 16 : 0;
#pragma unroll(WHOLE)
        for (int i = 0; i < 2; i++) {
            row[i] = row0 + lane / 4 + 8 * i;
            last[i] = attn_pos(c, it, row[i]);
            total[i] = attn_begin(c, it, row[i]);
        }
        int end = min(it.n_rows, row0 + 16);
        warp_end = attn_pos(c, it, row0);
        warp_first = attn_first(c, warp_end);
        warp_last = row0 < end ? attn_pos(c, it, end - 1) : -1;
        warp_begin = attn_first(c, attn_pos(c, it, row0 + 15));
        key0 = MANY ? 0 : warp * KEY_TILES * 8;
        col0 = warp % SHARE * OUT_TILES * 8;
        tile0 = ::max(it.split0 * SPLIT_TILES, it.first / KEYS);
        tile1 = min(it.split1 * SPLIT_TILES, it.last / KEYS + 1);
    }

    __device__ void clear()
    {
#pragma unroll(WHOLE)
        for (int i = 0; i < 2; i++) {
            max[i] = -INFINITY;
#pragma unroll(WHOLE)
            for (int j = 0; j < SUMS; j++) sum[i][j] = 0;
        }
#pragma unroll(WHOLE)
        for (int n = 0; n < OUT_TILES; n++)
#pragma unroll(WHOLE)
            for (int i = 0; i < 4; i++) acc[n][i] = 0;
    }

    /* Starts the copy of element e of the item's tiles; keys and values alternate. */
    __device__ void fetch(int e)
    {
        if (e < 2 * (tile1 - tile0)) load_slot(c, it, s, e % RING, tile0 + e / 2, e % 2);
        cp_async_commit();
    }

    /* Waits until element e has arrived for all threads, and all are done with the one before; returns its rows. */
    __device__ const uint16_t *arrive(int e)
    {
        cp_async_wait<RING - 2>();
        __syncthreads();
        fetch(e + RING - 1);
        if constexpr (T == DT_I8) {
            slot_to_bf16(s, e % RING);
            __syncthreads();
            return reinterpret_cast<const uint16_t *>(s.wide);
        } else {
            return reinterpret_cast<const uint16_t *>(s.ring[e % RING]);
        }
    }

    /* The factor for the dot products of key `key` of this warp's part of the tile. */
    __device__ float scale_of(int slot, int key) const
    {
        return T == DT_I8 ? __fmul_rn(c.scale, s.step[slot][0][key0 + key]) : c.scale;
    }

    /* Turns dot products into their tanh (softcap). */
    __device__ void cap(float (&x)[KEY_TILES][4], int slot)
    {
#pragma unroll(WHOLE)
        for (int n = 0; n < KEY_TILES; n++) {
            __syncwarp(); /* limits how many are computed in parallel, or registers would spill */
#pragma unroll(WHOLE)
            for (int i = 0; i < 4; i++)
                x[n][i] = tanh_fast(__fmul_rn(x[n][i], scale_of(slot, n * 8 + lane % 4 * 2 + i % 2)));
        }
    }

    /* Turns dot products into base-2 scores, -infinity where masked; `high`: the largest of this warp. */
    __device__ void mask(float (&x)[KEY_TILES][4], int pos0, int slot, float (&high)[2])
    {
        bool all = pos0 >= warp_begin && pos0 + KEY_TILES * 8 - 1 <= warp_end;
        if (CAPPED) cap(x, slot);
        high[0] = high[1] = -INFINITY;
#pragma unroll(WHOLE)
        for (int n = 0; n < KEY_TILES; n++)
#pragma unroll(WHOLE)
            for (int i = 0; i < 4; i++) {
                int key = n * 8 + lane % 4 * 2 + i % 2, pos = pos0 + key;
                x[n][i] = __fmul_rn(x[n][i], CAPPED ? c.cap : scale_of(slot, key));
                if (!all && (pos > last[i / 2] || pos < attn_first(c, last[i / 2]))) x[n][i] = -INFINITY;
                high[i / 2] = fmaxf(high[i / 2], x[n][i]);
            }
#pragma unroll(WHOLE)
        for (int i = 0; i < 2; i++) {
            high[i] = fmaxf(high[i], __shfl_xor_sync(FULL_WARP, high[i], 1));
            high[i] = fmaxf(high[i], __shfl_xor_sync(FULL_WARP, high[i], 2));
        }
    }

    /* Turns scores into weights, in place; rescales the sums and adds the weights to them. */
    __device__ void weigh(float (&x)[KEY_TILES][4], const float (&high)[2], int slot)
    {
        float back[2];
#pragma unroll(WHOLE)
        for (int i = 0; i < 2; i++) {
            float now = fmaxf(max[i], high[i]), base = attn_base(now);
            back[i] = exp2_fast(max[i] - base);
            max[i] = now;
#pragma unroll(WHOLE)
            for (int j = 0; j < SUMS; j++) {
                float *a = x[2 * j] + 2 * i, *b = x[2 * j + 1] + 2 * i;
                a[0] = exp2_fast(a[0] - base), a[1] = exp2_fast(a[1] - base);
                b[0] = exp2_fast(b[0] - base), b[1] = exp2_fast(b[1] - base);
                sum[i][j] = fmaf(sum[i][j], back[i], (a[0] + a[1]) + (b[0] + b[1]));
            }
        }
#pragma unroll(WHOLE)
        for (int n = 0; n < OUT_TILES; n++)
#pragma unroll(WHOLE)
            for (int i = 0; i < 4; i++) acc[n][i] *= back[i / 2];
        if constexpr (T == DT_I8) {
#pragma unroll(WHOLE)
            for (int n = 0; n < KEY_TILES; n++)
#pragma unroll(WHOLE)
                for (int i = 0; i < 4; i++) { /* the scale of a key past the sequence is undefined */
                    float step = s.step[slot][1][key0 + n * 8 + lane % 4 * 2 + i % 2];
                    x[n][i] = x[n][i] == 0 ? 0 : x[n][i] * step;
                }
        }
    }

    /* MANY: the weights already have the layout of mma fragments. */
    __device__ void many_tile(int tile, int e)
    {
        const uint16_t *k = arrive(e);
        unsigned p[PARTS][KEYS / 16][4];
        bool mine = tile * KEYS <= warp_last && tile * KEYS + KEYS > warp_first;
        if (mine) {
            float x[KEY_TILES][4], high[2];
            multiply_keys<DIM, T, KEY_TILES, PARTS>(x, s.q[0][row0], smem::ROWS * smem::LD / 2, k, smem::LD);
            mask(x, tile * KEYS, e % RING, high);
            weigh(x, high, e % RING);
#pragma unroll(WHOLE)
            for (int j = 0; j < KEYS / 16; j++)
#pragma unroll(WHOLE)
                for (int i = 0; i < 4; i++) {
                    const float *w = x[2 * j + i / 2] + i % 2 * 2;
                    p[0][j][i] = pack<T>(w[0], w[1]);
                    if (PARTS > 1) p[PARTS - 1][j][i] = pack_rest<T>(w[0], w[1], p[0][j][i]);
                }
        }
        const uint16_t *v = arrive(e + 1);
        if (mine) multiply_values<T, OUT_TILES, PARTS>(acc, p, v + col0, smem::LD);
    }

    /* FEW: the warps exchange the largest score, and share their weights through shared memory. */
    __device__ void few_tile(int tile, int e)
    {
        const uint16_t *k = arrive(e);
        float x[KEY_TILES][4], high[2];
        multiply_keys<DIM, T, KEY_TILES, PARTS>(x, s.q[0][0], smem::ROWS * smem::LD / 2, k + key0 * smem::LD, smem::LD);
        mask(x, tile * KEYS + key0, e % RING, high);
        if (lane % 4 == 0) s.max[warp][row[0]] = high[0], s.max[warp][row[1]] = high[1];
        __syncthreads();
#pragma unroll(WHOLE)
        for (int i = 0; i < 2; i++)
#pragma unroll(WHOLE)
            for (int w = 0; w < ATTN_WARPS; w++) high[i] = fmaxf(high[i], s.max[w][row[i]]);
        weigh(x, high, e % RING);
#pragma unroll(WHOLE)
        for (int n = 0; n < KEY_TILES; n++)
#pragma unroll(WHOLE)
            for (int i = 0; i < 2; i++) {
                unsigned packed = pack<T>(x[n][2 * i], x[n][2 * i + 1]);
                int col = key0 + n * 8 + lane % 4 * 2;
                s.p[0][row[i]][col / 2] = packed;
                if (PARTS > 1) s.p[PARTS - 1][row[i]][col / 2] = pack_rest<T>(x[n][2 * i], x[n][2 * i + 1], packed);
            }
        const uint16_t *v = arrive(e + 1);
        unsigned p[PARTS][KEYS / 16][4];
#pragma unroll(WHOLE)
        for (int i = 0; i < PARTS; i++)
#pragma unroll(WHOLE)
            for (int j = 0; j < KEYS / 16; j++) ldmatrix_x4(p[i][j], a_row(s.p[i][0], smem::P_LD / 2) + j * 8);
        multiply_values<T, OUT_TILES, PARTS>(acc, p, v + col0, smem::LD);
    }

    /* A row's sum over the split: first for each 16 keys, then over the lanes. */
    __device__ float row_sum(int i)
    {
        float v = sum[i][0];
#pragma unroll(WHOLE)
        for (int j = 1; j < SUMS; j++) v += sum[i][j];
        if constexpr (MANY) {
            v += __shfl_xor_sync(FULL_WARP, v, 1);
            return v + __shfl_xor_sync(FULL_WARP, v, 2);
        } else {
            float part[4];
#pragma unroll(WHOLE)
            for (int l = 0; l < 4; l++) {
                part[l] = s.sum[0][row[i]][l];
#pragma unroll(WHOLE)
                for (int w = 1; w < ATTN_WARPS; w++) part[l] += s.sum[w][row[i]][l];
            }
            return (part[0] + part[1]) + (part[2] + part[3]);
        }
    }

    /* Ends a split: stores its result in its slot, or folds it into the total, which is kept in `out` until the last
     * split divides it by the sum. */
    __device__ void end_split(int split)
    {
        if constexpr (!MANY) {
#pragma unroll(WHOLE)
            for (int i = 0; i < 2; i++) s.sum[warp][row[i]][lane % 4] = sum[i][0];
            __syncthreads();
        }
#pragma unroll(WHOLE)
        for (int i = 0; i < 2; i++) {
            attn_state now = {max[i], row_sum(i)};
            bool there = row[i] < it.n_rows;
            if (it.slot >= 0) {
                size_t at = (size_t)it.slot * smem::ROWS + (size_t)row[i];
                if (there && lane % 4 == 0 && warp % SHARE == 0)
                    *reinterpret_cast<float2 *>(c.part_state + at * 2) = {now.max, now.sum};
                if (there) store_part(c.part + at * (size_t)c.part_ld, i);
                continue;
            }
            float a, b;
            attn_fold(&total[i], now, &a, &b);
            if (!there) continue;
            bool ends = split == it.split1 - 1;
            store_out(attn_out(c, it, row[i]), i, a, b, split == it.split0, ends);
            if (ends && lane % 4 == 0 && warp % SHARE == 0) attn_store_lse(c, it, row[i], total[i]);
        }
        clear();
    }

    __device__ void store_part(float *to, int i)
    {
#pragma unroll(WHOLE)
        for (int n = 0; n < OUT_TILES; n++) {
            int col = col0 + n * 8 + lane % 4 * 2;
            if (col < c.part_ld) *reinterpret_cast<float2 *>(to + col) = {acc[n][2 * i], acc[n][2 * i + 1]};
        }
    }

    __device__ void store_out(float *to, int i, float a, float b, bool begins, bool ends)
    {
        float by = ends ? 1 / total[i].sum : 1;
#pragma unroll(WHOLE)
        for (int n = 0; n < OUT_TILES; n++) {
#pragma unroll(WHOLE)
            for (int j = 0; j < 2; j++) {
                int col = col0 + n * 8 + lane % 4 * 2 + j;
                if (col >= c.dim) continue;
                float x = attn_fold_out(begins ? 0 : to[col], a, acc[n][2 * i + j], b);
                to[col] = ends ? x * by : x;
            }
        }
    }

    __device__ void run()
    {
        __syncthreads(); /* all threads are done with the previous item */
        for (int e = 0; e < RING - 1; e++) fetch(e);
        load_query(c, it, s);
        for (int tile = tile0; tile < tile1; tile++) {
            int e = 2 * (tile - tile0);
            if constexpr (MANY)
                many_tile(tile, e);
            else
                few_tile(tile, e);
            if (tile + 1 == tile1 || (tile + 1) % SPLIT_TILES == 0) end_split(tile / SPLIT_TILES);
        }
        cp_async_wait<0>();
    }
};

template <int DIM, dtype T, bool MANY, bool CAPPED>
__global__ void __launch_bounds__(ATTN_THREADS, 1) mma_kernel(attn_call c)
{
    typedef mma_smem<DIM, T, MANY, CAPPED> smem;
    SMEM_BYTES(shared);
    launch_next();
    attn_index x = attn_count(c, shared + sizeof(smem), false);
    attn_item it;
    int i = (int)blockIdx.x;
    bool ours = i < attn_items(c, x) && attn_item_of(c, x, i, false, &it);
    if (!MANY && ours) attn_prefetch(c, it);
    wait_for_previous();
    while (i < attn_items(c, x)) {
        if (ours) mma_item<DIM, T, MANY, CAPPED>(c, it, *reinterpret_cast<smem *>(shared)).run();
        i += (int)gridDim.x;
        ours = i < attn_items(c, x) && attn_item_of(c, x, i, false, &it);
    }
}

template <int DIM, dtype T, bool MANY, bool CAPPED>
void mma_launch(gpu_dev *d, attn_call *c, const struct attn_args *a, enum area area)
{
    typedef mma_smem<DIM, T, MANY, CAPPED> smem;
    c->tile = smem::ROWS;
    c->rows_min = MANY ? FEW_ROWS + 1 : 1;
    c->rows_max = MANY ? INT32_MAX : FEW_ROWS;
    int most = a->most_rows ? a->most_rows : a->out.rows;
    if (MANY ? (int64_t)most * c->group <= FEW_ROWS : c->group > FEW_ROWS) return;
    if (!attn_room(d, c, a, area, (MANY ? 4 : 32) * d->n_sm)) return;
    unsigned blocks = attn_blocks(c, a, (MANY ? 4 : 6) * d->n_sm);
    c->prefetch_pages = (int)(d->l2_bytes / 3 / blocks / c->block_bytes);
    LAUNCH_EARLY(d, "attn", (mma_kernel<DIM, T, MANY, CAPPED>), dim3(blocks), dim3(ATTN_THREADS),
                 sizeof(smem) + attn_index_bytes(*c), *c);
    attn_merge(d, c);
}

template <int DIM, dtype T, bool CAPPED> bool mma_few_many(gpu_dev *d, attn_call *c, const struct attn_args *a)
{
    mma_launch<DIM, T, false, CAPPED>(d, c, a, AREA_ATTN);
    mma_launch<DIM, T, true, CAPPED>(d, c, a, AREA_X);
    return true;
}

template <int DIM, dtype T> bool mma_both(gpu_dev *d, attn_call *c, const struct attn_args *a)
{
    return c->cap > 0 ? mma_few_many<DIM, T, true>(d, c, a) : mma_few_many<DIM, T, false>(d, c, a);
}

template <dtype T> bool mma_dims(gpu_dev *d, attn_call *c, const struct attn_args *a)
{
    if (c->dim <= 32) return mma_both<32, T>(d, c, a);
    if (c->dim <= 64) return mma_both<64, T>(d, c, a);
    if (c->dim <= 96) return mma_both<96, T>(d, c, a);
    if (c->dim <= 128) return mma_both<128, T>(d, c, a);
    if constexpr (T == DT_BF16) /* two parts of q with 256 features would not fit a warp's registers */
        if (c->dim <= 256) return mma_both<256, T>(d, c, a);
    return false;
}

} // namespace
} // namespace GPU_NAMESPACE

#endif
