/* GEMMs of many rows with int8 and int4 weights on the int8 tensor cores.
 *
 * A block computes BM rows by BN outputs and walks over k in tiles of 128 columns, with STAGES of them in flight by
 * cp.async. A lane's eight bytes of a row serve as its k 0..3 and 16..19 of one mma, for the activations and for
 * int8 weights alike: the order of columns does not matter as long as both operands agree. With int4 the eight come
 * from one word (see gemv_int.cu for how it unpacks, and why int4 is multiplied over int8), and the activations are
 * stored even columns first.
 *
 * int8: the sum over k is one exact integer, so a row has the bits that gemv_int gives it. int4: the integer sum of
 * each group times its scale, added in order of groups. (gemv_int sums 32 columns at a time and then over lanes: a
 * row in a batch of more than GEMV_ROWS_INT may differ in the last bits from the same row in a small one.) The
 * integer sums start at the bit pattern of 1.5 * 2^23, so that the final bits are a float: a subtraction replaces a
 * slower conversion.
 *
 * Rows with outliers: a block that has one goes over k a second time with the residuals; or does only that pass,
 * when cuBLASLt computed the first (many_int.cu). */
#include "kernels/cuda/gemm/packed_gemm.h"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {
namespace {

enum {
    TILE_K = 128, /* the largest group */
    STEPS = TILE_K / 32,
    A_LINE = TILE_K + 32,      /* row stride in shared memory, padded against bank conflicts */
    W8_LINE = TILE_K + 32,     /* of int8 weights */
    W4_LINE = TILE_K / 2 + 16, /* of int4 weights */
    SCALES = TILE_K / 32,      /* most groups of a tile */
    PREFETCH_TILES = 32,       /* distance, in tiles, at which weights are prefetched into L2 */
    PREFETCH_STEP = 8          /* tiles prefetched at a time */
};

#define FLOAT_BITS 0x4b400000 /* 1.5 * 2^23 */

template <bool INT4, int BM, int BN, int STAGES> struct mma_smem {
    uint8_t a[STAGES][BM][A_LINE];
    uint8_t w[STAGES][BN][INT4 ? W4_LINE : W8_LINE];
    float scale[INT4 ? STAGES : 1][SCALES][BN];
};

template <bool INT4, int BM, int BN, int WM, int WN, int STAGES> struct mma_block {
    static constexpr int ROWS = BM, WARPS_N = BN / WN, WARPS = BM / WM * WARPS_N, THREADS = WARPS * 32;
    static constexpr int MI = WM / 16, NI = WN / 8;
    static constexpr int W_CHUNKS = INT4 ? TILE_K / 32 : TILE_K / 16; /* 16-byte chunks in a row of a tile */
    static constexpr int LINE = W_CHUNKS * 16;                        /* bytes of a row of a tile */
    static constexpr int PENDING = (SCALES * BN + THREADS - 1) / THREADS;
    typedef mma_smem<INT4, BM, BN, STAGES> smem;

    const packed_gemm &p;
    smem &s;
    const int8_t *a;          /* (M, ld) */
    int ld, m0, n0, distance; /* distance: prefetch distance: PREFETCH_TILES, or what the cache has room for */
    int sum[MI][NI][4];
    float total[INT4 ? MI : 1][INT4 ? NI : 1][4];
    float pending[PENDING];

    __device__ mma_block(const packed_gemm &p_, smem &s_, int m0_, int n0_) : p(p_), s(s_), m0(m0_), n0(n0_) {}

    /* Start the copies of tile kt: of activations, and of weights. */
    __device__ void load_a(int kt, int tiles)
    {
        if (kt >= tiles) return;
        for (int i = (int)threadIdx.x; i < BM * (TILE_K / 16); i += THREADS) {
            int r = i / (TILE_K / 16), c = i % (TILE_K / 16) * 16;
            bool in = m0 + r < p.M; /* tiles are always whole: ld is a multiple of TILE_K */
            const int8_t *from = a + (size_t)(in ? m0 + r : m0) * (size_t)ld + (size_t)kt * TILE_K + c;
            cp_async16(&s.a[kt % STAGES][r][c], from, in);
        }
    }

    __device__ void load_w(int kt, int tiles)
    {
        if (kt >= tiles) return;
        for (int i = (int)threadIdx.x; i < BN * W_CHUNKS; i += THREADS) {
            int r = i / W_CHUNKS, c = i % W_CHUNKS * 16;
            size_t at = (size_t)kt * LINE + (size_t)c;
            bool in = n0 + r < p.N && at < p.row_bytes;
            cp_async16(&s.w[kt % STAGES][r][c], p.w + (in ? (size_t)(n0 + r) * p.row_bytes + at : 0), in);
        }
    }

    /* Prefetches n tiles of weights, from kt on, into L2. Only one of the blocks that share them does so. */
    __device__ void prefetch(int kt, int n)
    {
        int r = (int)threadIdx.x;
        size_t at = (size_t)kt * LINE, left = p.row_bytes > at ? p.row_bytes - at : 0;
        if (m0 || r >= BN || n0 + r >= p.N || !left || distance < STAGES) return;
        size_t want = (size_t)n * LINE;
        prefetch_l2(p.w + (size_t)(n0 + r) * p.row_bytes + at, (unsigned)(want < left ? want : left));
    }

    /* Starts loading the scales of tile kt into registers; zeros past the weight's end, where the nibbles are
     * undefined. */
    __device__ void load_scales(int kt)
    {
        if constexpr (INT4) {
            int groups = TILE_K / p.group;
            UNROLL for (int i = 0; i < PENDING; i++)
            {
                int at = (int)threadIdx.x + i * THREADS, n = n0 + at / SCALES, g = kt * groups + at % SCALES;
                bool in = at < SCALES * BN && n < p.N && at % SCALES < groups && g < p.n_groups;
                pending[i] = in ? half_to_float(static_cast<const uint16_t *>(
                                      p.scale)[(size_t)n * (size_t)p.n_groups + (size_t)g]) *
                                      0.0625f
                                : 0;
            }
        }
    }

    __device__ void store_scales(int kt)
    {
        if constexpr (INT4) {
            UNROLL for (int i = 0; i < PENDING; i++)
            {
                int at = (int)threadIdx.x + i * THREADS;
                if (at < SCALES * BN) s.scale[kt % STAGES][at % SCALES][at / SCALES] = pending[i];
            }
        }
    }

    __device__ void start_sums()
    {
        UNROLL for (int i = 0; i < MI; i++) UNROLL for (int j = 0; j < NI; j++) UNROLL for (int c = 0; c < 4; c++)
            sum[i][j][c] = INT4 ? FLOAT_BITS : 0;
    }

    /* Adds the group's integer sums, times its scale, to the totals. */
    __device__ void end_group(const float *scale, int column)
    {
        if constexpr (INT4) {
            UNROLL for (int j = 0; j < NI; j++)
            {
                float by[2] = {scale[column + j * 8], scale[column + j * 8 + 1]};
                UNROLL for (int i = 0; i < MI; i++) UNROLL for (int c = 0; c < 4; c++) total[i][j][c] =
                    fmaf(__uint_as_float((unsigned)sum[i][j][c]) - 12582912.0f, by[c % 2], total[i][j][c]);
            }
            start_sums();
        }
    }

    __device__ void multiply_tile(int stage)
    {
        int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
        int row = warp / WARPS_N * WM + g, column = warp % WARPS_N * WN, steps = INT4 ? p.group / 32 : STEPS;
        UNROLL for (int k = 0; k < STEPS; k++)
        {
            unsigned x[MI][4];
            UNROLL for (int i = 0; i < MI; i++)
            {
                uint2 lo = *reinterpret_cast<const uint2 *>(&s.a[stage][row + i * 16][k * 32 + t * 8]);
                uint2 hi = *reinterpret_cast<const uint2 *>(&s.a[stage][row + i * 16 + 8][k * 32 + t * 8]);
                x[i][0] = lo.x, x[i][1] = hi.x, x[i][2] = lo.y, x[i][3] = hi.y;
            }
            UNROLL for (int j = 0; j < NI; j++)
            {
                const uint8_t *line = s.w[stage][column + j * 8 + g];
                unsigned w[2];
                if constexpr (INT4) {
                    unsigned v = *reinterpret_cast<const unsigned *>(line + k * 16 + t * 4);
                    w[0] = (v << 4 & 0xf0f0f0f0u) ^ 0x80808080u;
                    w[1] = (v & 0xf0f0f0f0u) ^ 0x80808080u;
                } else {
                    uint2 v = *reinterpret_cast<const uint2 *>(line + k * 32 + t * 8);
                    w[0] = v.x, w[1] = v.y;
                }
                UNROLL for (int i = 0; i < MI; i++) mma_s8_16832(sum[i][j], x[i], w);
            }
            if (INT4 && (k + 1) % steps == 0) end_group(s.scale[stage][(k + 1) / steps - 1], column + t * 2);
        }
    }

    /* Loads the first tiles of weights, which need no wait for preceding kernels. */
    __device__ void begin()
    {
        for (int kt = 0; kt < STAGES - 1; kt++) {
            load_w(kt, ld / TILE_K);
            load_scales(kt);
            store_scales(kt);
        }
    }

    /* Sums over all of k with the activations q; call begin first. */
    __device__ void multiply(const int8_t *q)
    {
        int tiles = ld / TILE_K;
        a = q;
        start_sums();
        if constexpr (INT4) {
            UNROLL for (int i = 0; i < MI; i++) UNROLL for (int j = 0; j < NI; j++) UNROLL for (int c = 0; c < 4; c++)
                total[i][j][c] = 0;
        }
        for (int kt = 0; kt < STAGES - 1; kt++) {
            load_a(kt, tiles);
            cp_async_commit();
        }
        for (int kt = 0; kt < tiles; kt++) {
            cp_async_wait<STAGES - 2>();
            __syncthreads(); /* tile kt has arrived, and all warps are done with tile kt - 1 */
            load_a(kt + STAGES - 1, tiles);
            load_w(kt + STAGES - 1, tiles);
            cp_async_commit();
            if (kt % PREFETCH_STEP == 0) prefetch(kt + distance, PREFETCH_STEP);
            load_scales(kt + STAGES - 1);
            multiply_tile(kt % STAGES);
            store_scales(kt + STAGES - 1);
        }
        cp_async_wait<0>();
        __syncthreads();
    }

    /* Writes the results of the first pass, or adds those of the second to outlier rows; the bias is added last.
     * alone: leaves rows without outliers as they are, another kernel has written them. */
    __device__ void write(const quantised &x, bool second, bool last, bool alone)
    {
        int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
        int row = m0 + warp / WARPS_N * WM + lane / 4, column = n0 + warp % WARPS_N * WN + lane % 4 * 2;
        UNROLL for (int i = 0; i < MI; i++) UNROLL for (int h = 0; h < 2; h++)
        {
            int m = row + i * 16 + h * 8;
            if (m >= p.M) continue;
            bool adds = second && x.outlier[m];
            if (alone && !adds) continue;
            float step = second ? (adds ? x.rest_step[m] : 0) : x.step[m];
            UNROLL for (int j = 0; j < NI; j++) UNROLL for (int c = 0; c < 2; c++)
            {
                int n = column + j * 8 + c;
                if (n >= p.N) continue;
                float *y = p.y + (size_t)m * (size_t)p.ldy + n, v;
                if constexpr (INT4)
                    v = total[i][j][h * 2 + c];
                else
                    v = __fmul_rn((float)sum[i][j][h * 2 + c], static_cast<const float *>(p.scale)[n]);
                v = __fmul_rn(v, step);
                if (second) v = adds ? __fadd_rn(*y, v) : *y;
                *y = last && p.bias ? __fadd_rn(v, p.bias[n]) : v;
            }
        }
    }
};

/* Whether a row of the block has outliers; the same result on every warp. */
template <class B> __device__ inline bool any_outlier(const B &b, const quantised &x)
{
    int any = 0;
    for (int m = b.m0 + (int)threadIdx.x % 32; m < b.m0 + B::ROWS && m < b.p.M; m += 32) any |= x.outlier[m];
    return __any_sync(FULL_WARP, any);
}

template <bool INT4, int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(mma_block<INT4, BM, BN, WM, WN, STAGES>::THREADS, BM == 16 ? 5 : 0)
    mma_int_kernel(packed_gemm p, quantised x, int distance)
{
    typedef mma_block<INT4, BM, BN, WM, WN, STAGES> block;
    SMEM(typename block::smem, s);
    block b(p, s, (int)blockIdx.x * BM, (int)blockIdx.y * BN);
    b.ld = x.ld;
    b.distance = distance;
    launch_next();
    b.begin();
    b.prefetch(STAGES - 1, distance - STAGES + 1);
    wait_for_previous();
    bool again = any_outlier(b, x);
    b.multiply(x.q);
    b.write(x, false, !again, false);
    if (!again) return;
    b.begin();
    b.multiply(x.rest);
    b.write(x, true, true, false);
}

template <int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(mma_block<false, BM, BN, WM, WN, STAGES>::THREADS)
    mma_rests_kernel(packed_gemm p, quantised x)
{
    typedef mma_block<false, BM, BN, WM, WN, STAGES> block;
    SMEM(typename block::smem, s);
    block b(p, s, (int)blockIdx.x * BM, (int)blockIdx.y * BN);
    b.ld = x.ld;
    b.distance = 0;
    if (!any_outlier(b, x)) return;
    b.begin();
    b.multiply(x.rest);
    b.write(x, true, true, true);
}

template <bool INT4, int BM, int BN, int WM, int WN, int STAGES>
void launch(gpu_dev *d, const char *op, const packed_gemm *p, const quantised *x)
{
    typedef mma_block<INT4, BM, BN, WM, WN, STAGES> block;
    size_t rows = (size_t)d->n_sm * 3 * BN; /* rows of the blocks that run at the same time, approximately */
    size_t fit = d->l2_bytes / 3 / ((rows < (size_t)p->N ? rows : (size_t)p->N) * block::LINE);
    /* Rows are the fast grid dimension: blocks of the same outputs run together and share the weights in L2. */
    dim3 grid(blocks_for((size_t)p->M, BM), blocks_for((size_t)p->N, BN));
    LAUNCH_EARLY(d, op, (mma_int_kernel<INT4, BM, BN, WM, WN, STAGES>), grid, dim3(block::THREADS),
                 sizeof(typename block::smem), *p, *x, fit < PREFETCH_TILES ? (int)fit : (int)PREFETCH_TILES);
}

template <int BM, int BN, int WM, int WN, int STAGES>
void launch_rests(gpu_dev *d, const char *op, const packed_gemm *p, const quantised *x)
{
    typedef mma_block<false, BM, BN, WM, WN, STAGES> block;
    dim3 grid(blocks_for((size_t)p->M, BM), blocks_for((size_t)p->N, BN));
    LAUNCH(d, op, (mma_rests_kernel<BM, BN, WM, WN, STAGES>), grid, dim3(block::THREADS), sizeof(typename block::smem),
           *p, *x);
}

/* Whether the tiles for many rows fit into shared memory. */
template <bool INT4> bool large_tiles(const gpu_dev *d)
{
    return d->shared_max >= sizeof(mma_smem<INT4, 128, 128, 4>);
}

template <bool INT4> void launch_rows(gpu_dev *d, const char *op, const packed_gemm *p, const quantised *x)
{
    if (p->M <= 16)
        launch<INT4, 16, 32, 16, 8, 8>(d, op, p, x);
    else if (p->M <= 32)
        launch<INT4, 32, 32, 16, 16, 6>(d, op, p, x);
    else if (p->M <= 64 && blocks_for((size_t)p->N, 64) < (unsigned)d->n_sm)
        launch<INT4, 64, 32, 32, 8, 6>(d, op, p, x);
    else if (p->M <= 64 || !large_tiles<INT4>(d))
        launch<INT4, 64, 64, 32, 16, 4>(d, op, p, x);
    else
        launch<INT4, 128, 128, 64, 32, 4>(d, op, p, x);
}

} // namespace

void mma_int(gpu_dev *d, const char *op, enum dtype t, const packed_gemm *p, const quantised *x)
{
    assert((t == DT_I8 || t == DT_I4) && !p->gate && x->ld % TILE_K == 0 && p->row_bytes % 16 == 0);
    if (t == DT_I8)
        launch_rows<false>(d, op, p, x);
    else
        launch_rows<true>(d, op, p, x);
}

void mma_int_rests(gpu_dev *d, const char *op, const packed_gemm *p, const quantised *x)
{
    if (large_tiles<false>(d))
        launch_rests<128, 128, 64, 32, 4>(d, op, p, x);
    else
        launch_rests<64, 64, 32, 16, 4>(d, op, p, x);
}

} // namespace GPU_NAMESPACE
