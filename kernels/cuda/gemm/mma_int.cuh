/* GEMMs of many rows with integer weights on the int8 tensor cores; W is a type of weights:
 *
 *     GROUPED      groups of columns have scales; else an output has one, which `write` applies
 *     SIXTEENS     there may be groups of 16 columns
 *     MINIMA       groups have minima, and codes a zero (p.block)
 *     SCALES       most groups of a tile
 *     LINE         bytes of a row of a tile, of which FIRST are in the row's first plane of plane(p) bytes
 *     PITCH        row stride in shared memory, padded against bank conflicts
 *     BLOCKS_16    blocks per SM of the kernel for 16 rows, for __launch_bounds__
 *     chunk        where in a row bytes c .. c + 15 of tile kt begin
 *     fragment     columns 32 k + 8 t ... of a row of a tile as int8, four in a word
 *     scales       of output n, group g
 *
 * A block computes BM rows by BN outputs and walks over k in tiles of 128 columns, with STAGES of them in flight by
 * cp.async. A lane's eight bytes of a row serve as its k 0..3 and 16..19 of one mma, for the activations and for the
 * weights alike: the order of columns does not matter as long as both operands agree.
 *
 * Groups: the integer sum of each times its scale, added in order of groups. The integer sums start at the bit pattern
 * of 1.5 * 2^23 (dot.cuh). The sums of a group's activations, for its minimum and for the zero of its codes, come from
 * one more mma with ones.
 *
 * Rows with outliers: a block that has one goes over k a second time with the residuals; or does only that pass,
 * when cuBLASLt computed the first (many_int.cu). */
#ifndef TANDEM_KERNELS_CUDA_GEMM_MMA_INT_CUH
#define TANDEM_KERNELS_CUDA_GEMM_MMA_INT_CUH

#include "kernels/cuda/gemm/block.cuh"
#include "kernels/cuda/gemm/dot.cuh"
#include "kernels/cuda/gemm/packed_gemm.h"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {

enum {
    TILE_K = 128, /* the largest group */
    STEPS = TILE_K / 32,
    A_LINE = TILE_K + 32, /* row stride in shared memory, padded against bank conflicts */
    PREFETCH_TILES = 32,  /* distance, in tiles, at which weights are prefetched into L2 */
    PREFETCH_STEP = 8     /* tiles prefetched at a time */
};

template <class W, int BM, int BN, int STAGES> struct mma_smem {
    uint8_t a[STAGES][BM][A_LINE];
    uint8_t w[STAGES][BN][W::PITCH];
    float scale[W::GROUPED ? STAGES : 1][W::SCALES][BN];
    float minimum[W::MINIMA ? STAGES : 1][W::MINIMA ? W::SCALES : 1][W::MINIMA ? BN : 1];
};

template <class W, int BM, int BN, int WM, int WN, int STAGES> struct mma_tiles {
    static constexpr int ROWS = BM, WARPS_N = BN / WN, WARPS = BM / WM * WARPS_N, THREADS = WARPS * 32;
    static constexpr int MI = WM / 16, NI = WN / 8;
    static constexpr int LINE = W::LINE, W_CHUNKS = LINE / 16; /* 16-byte chunks in a row of a tile */
    static constexpr int PENDING = (W::SCALES * BN + THREADS - 1) / THREADS;
    typedef mma_smem<W, BM, BN, STAGES> smem;

    const packed_gemm &p;
    smem &s;
    const int8_t *a;          /* (M, ld) */
    int ld, m0, n0, distance; /* distance: prefetch distance: PREFETCH_TILES, or what the cache has room for */
    int sum[MI][NI][4];
    int all[W::MINIMA ? MI : 1][4]; /* sums of the activations, the same in every column */
    float total[W::GROUPED ? MI : 1][W::GROUPED ? NI : 1][4];
    block_scales pending[PENDING];

    __device__ mma_tiles(const packed_gemm &p_, smem &s_, int m0_, int n0_) : p(p_), s(s_), m0(m0_), n0(n0_) {}

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
            size_t at = W::chunk(p, kt, c);
            bool in = n0 + r < p.N && at < p.row_bytes;
            cp_async16(&s.w[kt % STAGES][r][c], p.w + (in ? (size_t)(n0 + r) * p.row_bytes + at : 0), in);
        }
    }

    /* Prefetches n tiles of weights (of the first plane), from kt on, into L2. Only one of the blocks that share them
     * does so. */
    __device__ void prefetch(int kt, int n)
    {
        int r = (int)threadIdx.x;
        size_t at = (size_t)kt * W::FIRST, plane = W::plane(p), left = plane > at ? plane - at : 0;
        if (m0 || r >= BN || n0 + r >= p.N || !left || distance < STAGES) return;
        size_t want = (size_t)n * W::FIRST;
        prefetch_l2(p.w + (size_t)(n0 + r) * p.row_bytes + at, (unsigned)(want < left ? want : left));
    }

    /* Starts loading the scales of tile kt into registers; zeros past the weight's end, where the codes are
     * undefined. */
    __device__ void load_scales(int kt)
    {
        if constexpr (W::GROUPED) {
            int groups = TILE_K / p.group;
            UNROLL for (int i = 0; i < PENDING; i++)
            {
                int at = (int)threadIdx.x + i * THREADS, n = n0 + at / W::SCALES, g = kt * groups + at % W::SCALES;
                bool in = at < W::SCALES * BN && n < p.N && at % W::SCALES < groups && g < p.n_groups;
                pending[i] = in ? W::scales(p, n, g) : block_scales{0, 0};
            }
        }
    }

    __device__ void store_scales(int kt)
    {
        if constexpr (W::GROUPED) {
            UNROLL for (int i = 0; i < PENDING; i++)
            {
                int at = (int)threadIdx.x + i * THREADS, g = at % W::SCALES, n = at / W::SCALES;
                if (at >= W::SCALES * BN) continue;
                s.scale[kt % STAGES][g][n] = pending[i].scale;
                if constexpr (W::MINIMA) s.minimum[kt % STAGES][g][n] = pending[i].minimum;
            }
        }
    }

    __device__ void start_sums()
    {
        UNROLL for (int i = 0; i < MI; i++) UNROLL for (int j = 0; j < NI; j++) UNROLL for (int c = 0; c < 4; c++)
            sum[i][j][c] = W::GROUPED ? FLOAT_BITS : 0;
        if constexpr (W::MINIMA) {
            UNROLL for (int i = 0; i < MI; i++) UNROLL for (int c = 0; c < 4; c++) all[i][c] = FLOAT_BITS;
        }
    }

    /* Adds the integer sums of group g of a tile, times its scale, to the totals; then less the activations' sums times
     * its minimum. */
    __device__ void end_group(int stage, int g, int column)
    {
        if constexpr (W::GROUPED) {
            float start[MI][2], minus[MI][2]; /* of rows g and g + 8: with the part of the zero; without */
            UNROLL for (int i = 0; i < MI; i++) UNROLL for (int h = 0; h < 2; h++)
            {
                start[i][h] = FLOAT_START;
                if constexpr (W::MINIMA) {
                    minus[i][h] = -float_of_sum(all[i][h * 2]);
                    start[i][h] = fmaf((float)p.block.zero, minus[i][h], FLOAT_START); /* exact */
                }
            }
            UNROLL for (int j = 0; j < NI; j++)
            {
                const float *scale = &s.scale[stage][g][column + j * 8];
                float by[2] = {scale[0], scale[1]};
                UNROLL for (int i = 0; i < MI; i++) UNROLL for (int c = 0; c < 4; c++) total[i][j][c] =
                    fmaf(float_of_sum(sum[i][j][c], start[i][c / 2]), by[c % 2], total[i][j][c]);
                if constexpr (W::MINIMA) {
                    const float *minimum = &s.minimum[stage][g][column + j * 8];
                    UNROLL for (int i = 0; i < MI; i++) UNROLL for (int c = 0; c < 4; c++) total[i][j][c] =
                        fmaf(minus[i][c / 2], minimum[c % 2], total[i][j][c]);
                }
            }
            start_sums();
        }
    }

    __device__ void multiply_step(const unsigned (&x)[MI][4], const unsigned (&w)[NI][2])
    {
        UNROLL for (int j = 0; j < NI; j++) UNROLL for (int i = 0; i < MI; i++) mma_s8_16832(sum[i][j], x[i], w[j]);
        if constexpr (W::MINIMA) {
            const unsigned ones[2] = {0x01010101u, 0x01010101u};
            UNROLL for (int i = 0; i < MI; i++) mma_s8_16832(all[i], x[i], ones);
        }
    }

    __device__ void multiply_tile(int stage)
    {
        int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
        int row = warp / WARPS_N * WM + g, column = warp % WARPS_N * WN, steps = W::GROUPED ? p.group / 32 : STEPS;
        UNROLL for (int k = 0; k < STEPS; k++)
        {
            unsigned x[MI][4], w[NI][2];
            UNROLL for (int i = 0; i < MI; i++)
            {
                uint2 lo = *reinterpret_cast<const uint2 *>(&s.a[stage][row + i * 16][k * 32 + t * 8]);
                uint2 hi = *reinterpret_cast<const uint2 *>(&s.a[stage][row + i * 16 + 8][k * 32 + t * 8]);
                x[i][0] = lo.x, x[i][1] = hi.x, x[i][2] = lo.y, x[i][3] = hi.y;
            }
            UNROLL for (int j = 0; j < NI; j++) W::fragment(w[j], p, s.w[stage][column + j * 8 + g], k, t);
            if (W::SIXTEENS && steps == 0) { /* of the lanes of a row two have each group of sixteen */
                UNROLL for (int half = 0; half < 2; half++)
                {
                    unsigned part[MI][4], mask = t / 2 == half ? 0xffffffffu : 0;
                    UNROLL for (int i = 0; i < MI; i++) UNROLL for (int c = 0; c < 4; c++) part[i][c] = x[i][c] & mask;
                    multiply_step(part, w);
                    end_group(stage, 2 * k + half, column + t * 2);
                }
                continue;
            }
            multiply_step(x, w);
            if (W::GROUPED && (k + 1) % steps == 0) end_group(stage, (k + 1) / steps - 1, column + t * 2);
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
        if constexpr (W::GROUPED) {
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
                if constexpr (W::GROUPED)
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

template <class W, int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(mma_tiles<W, BM, BN, WM, WN, STAGES>::THREADS, BM == 16 ? W::BLOCKS_16 : 0)
    mma_int_kernel(packed_gemm p, quantised x, int distance)
{
    typedef mma_tiles<W, BM, BN, WM, WN, STAGES> block;
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

template <class W, int BM, int BN, int WM, int WN, int STAGES>
void mma_launch(gpu_dev *d, const char *op, const packed_gemm *p, const quantised *x)
{
    typedef mma_tiles<W, BM, BN, WM, WN, STAGES> block;
    size_t rows = (size_t)d->n_sm * 3 * BN; /* rows of the blocks that run at the same time, approximately */
    size_t fit = d->l2_bytes / 3 / ((rows < (size_t)p->N ? rows : (size_t)p->N) * W::FIRST);
    /* Rows are the fast grid dimension: blocks of the same outputs run together and share the weights in L2. */
    dim3 grid(blocks_for((size_t)p->M, BM), blocks_for((size_t)p->N, BN));
    LAUNCH_EARLY(d, op, (mma_int_kernel<W, BM, BN, WM, WN, STAGES>), grid, dim3(block::THREADS),
                 sizeof(typename block::smem), *p, *x, fit < PREFETCH_TILES ? (int)fit : (int)PREFETCH_TILES);
}

} // namespace GPU_NAMESPACE

#endif
