/* GEMMs of many rows with nf4 weights on the bf16 tensor cores, over rows of x rounded to bf16.
 *
 * A block computes BM rows by BN outputs over its split of k, which it walks in tiles of 128 columns, with STAGES of
 * them in flight by cp.async, the weights still packed. A lane's eight bytes of a group of 64 columns are sixteen
 * neighbouring columns, four for each of four mma: the order of columns does not matter as long as both operands
 * agree, so the columns of x are permuted to that order when they are rounded. Values are unpacked in registers
 * (nf4.cuh): the sixteen values of nf4 rounded to bf16, without the scale, which multiplies the group's sum in f32.
 *
 * A group's sum is four mma; groups are summed in order within a split, then the splits in order. The bounds of
 * splits depend on the weight's size alone, so that a row has the same bits for every number of rows and every
 * slice.
 *
 * Bottleneck, estimated for an H100, not measured: up to some 64 rows reading weights and x, beyond that the tensor
 * cores, closely followed by instruction issue: for each 32 columns a warp of 64 rows and 32 outputs has 32 mma, 84
 * instructions of unpacking, 8 ldmatrix and 32 multiply-adds with scales. */
#include "kernels/cuda/gemm/dense_gemm.h"
#include "kernels/cuda/gemm/nf4.cuh"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {
namespace {

enum {
    GROUP = 64,
    TILE_K = 128,
    GROUPS = TILE_K / GROUP,
    X_LINE = TILE_K + 8,      /* bf16 row stride in shared memory, padded against bank conflicts */
    W_LINE = TILE_K / 2 + 32, /* bytes, likewise */
    TILE_N = 128,
    SPLIT_TILES = 128, /* target for output tiles times splits: about the number of SMs of a GPU */
    SPLIT_LEAST = 512, /* least columns of a split */
    SPLITS_MAX = 8,
    LIGHT_THREADS = 256 /* threads of round_lanes_kernel */
};

/* The kernel's rounded x and the destination of its sums. */
struct nf4_job {
    packed_gemm p;
    const uint16_t *x; /* (M, K), bf16, by round_lanes_kernel */
    int chunk;         /* columns of k in a split: a multiple of TILE_K, or all */
    float *part;       /* (splits, M, N), or NULL: one split, whose sums are y */
    nf4_bytes codes;
};

/* to (M, K) = x rounded to bf16, each 64 columns permuted to the order of mma: eight times two columns from each
 * lane's sixteen. A thread writes eight values. vec: pairs of x may be read at once. */
__global__ void __launch_bounds__(LIGHT_THREADS) round_lanes_kernel(uint16_t *to, struct mat x, bool vec)
{
    unsigned i = blockIdx.x * LIGHT_THREADS + threadIdx.x, across = (unsigned)x.cols / 8, at = i % across;
    if (i >= (unsigned)x.rows * across) return;
    const float *from = static_cast<const float *>(x.p) + (size_t)(i / across) * (size_t)x.ld;
    from += at / 8 * GROUP + at % 8 * 2;
    unsigned pair[4];
    UNROLL for (int t = 0; t < 4; t++)
    {
        const float *p = from + t * 16;
        float2 v = vec ? *reinterpret_cast<const float2 *>(p) : float2{p[0], p[1]};
        pair[t] = pack_bf16(v.x, v.y);
    }
    reinterpret_cast<uint4 *>(to)[i] = uint4{pair[0], pair[1], pair[2], pair[3]};
}

template <int BM, int BN, int STAGES> struct nf4_smem {
    uint16_t x[STAGES][BM][X_LINE];
    uint8_t w[STAGES][BN][W_LINE];
    float scale[STAGES][GROUPS][BN];
    nf4_bytes codes;
};

template <int BM, int BN, int WM, int WN, int STAGES> struct nf4_block {
    static constexpr int WARPS_N = BN / WN, WARPS = BM / WM * WARPS_N, THREADS = WARPS * 32;
    static constexpr int MI = WM / 16, NI = WN / 8;
    static constexpr int X_CHUNKS = TILE_K / 8, W_CHUNKS = TILE_K / 32; /* 16-byte chunks in a row of a tile */
    static_assert(BM * X_CHUNKS % THREADS == 0 && BN * W_CHUNKS % THREADS == 0 && BN * GROUPS % THREADS == 0);
    typedef nf4_smem<BM, BN, STAGES> smem;

    const nf4_job &job;
    smem &s;
    int m0, n0, k0, k_end;
    const uint16_t *x; /* first of the block's rows and outputs */
    const uint8_t *w;
    const float *scale;
    nf4_bytes codes;
    float sum[MI][NI][4], total[MI][NI][4];

    __device__ nf4_block(const nf4_job &j, smem &s_)
        : job(j), s(s_), m0((int)blockIdx.x * BM), n0((int)blockIdx.y * BN), k0((int)blockIdx.z * j.chunk),
          k_end(j.p.K - k0 > j.chunk ? k0 + j.chunk : j.p.K), x(j.x + (size_t)m0 * (size_t)j.p.K),
          w(j.p.w + (size_t)n0 * j.p.row_bytes),
          scale(static_cast<const float *>(j.p.scale) + (size_t)n0 * (size_t)j.p.n_groups)
    {
    }

    /* Loads the table by way of shared memory: as a kernel parameter it would be fetched again for each use. */
    __device__ void load_codes()
    {
        if (threadIdx.x < 4) {
            s.codes.low[threadIdx.x] = job.codes.low[threadIdx.x];
            s.codes.high[threadIdx.x] = job.codes.high[threadIdx.x];
        }
        __syncthreads();
        codes = s.codes;
    }

    /* Starts the copies of tile kt of `tiles`; zeros past the ends. */
    __device__ void load_tile(int kt, int tiles)
    {
        const packed_gemm &p = job.p;
        int stage = kt % STAGES, t = (int)threadIdx.x, k = k0 + kt * TILE_K;
        if (kt < tiles) {
            UNROLL for (int i = 0; i < BM * X_CHUNKS / THREADS; i++)
            {
                int r = t / X_CHUNKS + i * (THREADS / X_CHUNKS), c = k + t % X_CHUNKS * 8;
                bool in = r < p.M - m0 && c < k_end;
                cp_async16(&s.x[stage][r][t % X_CHUNKS * 8], x + (in ? r * p.K + c : 0), in);
            }
            UNROLL for (int i = 0; i < BN * W_CHUNKS / THREADS; i++)
            {
                int r = t / W_CHUNKS + i * (THREADS / W_CHUNKS), c = k / 2 + t % W_CHUNKS * 16;
                bool in = r < p.N - n0 && c < k_end / 2;
                cp_async16(&s.w[stage][r][t % W_CHUNKS * 16], w + (in ? r * (int)p.row_bytes + c : 0), in);
            }
            UNROLL for (int i = 0; i < BN * GROUPS / THREADS; i++)
            {
                int r = t / GROUPS + i * (THREADS / GROUPS), c = k / GROUP + t % GROUPS;
                bool in = r < p.N - n0 && c < k_end / GROUP;
                cp_async4(&s.scale[stage][t % GROUPS][r], scale + (in ? r * p.n_groups + c : 0), in);
            }
        }
        cp_async_commit();
    }

    /* Adds the group's sums, times its scales, to the totals. */
    __device__ void end_group(const float *by_column)
    {
        UNROLL for (int j = 0; j < NI; j++)
        {
            float2 by = *reinterpret_cast<const float2 *>(by_column + j * 8);
            UNROLL for (int i = 0; i < MI; i++) UNROLL for (int c = 0; c < 4; c++) total[i][j][c] =
                fmaf(sum[i][j][c], c % 2 ? by.y : by.x, total[i][j][c]);
        }
    }

    __device__ void multiply_tile(int stage)
    {
        int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
        int column = warp % WARPS_N * WN;
        const uint16_t *from = &s.x[stage][warp / WARPS_N * WM + lane % 16][lane / 16 * 8]; /* for ldmatrix */
#pragma unroll 1 /* unrolled, more than one group's fragments would not fit the registers */
        for (int group = 0; group < GROUPS; group++) {
            uint2 four[NI];
            UNROLL for (int j = 0; j < NI; j++) four[j] =
                *reinterpret_cast<const uint2 *>(&s.w[stage][column + j * 8 + g][group * (GROUP / 2) + t * 8]);
            UNROLL for (int h = 0; h < 2; h++) /* two mma for each word of the weights */
            {
                unsigned a[2][MI][4], v[4];
                UNROLL for (int i = 0; i < MI; i++) UNROLL for (int q = 0; q < 2; q++)
                    ldmatrix_x4(a[q][i], from + i * 16 * X_LINE + group * GROUP + h * 32 + q * 16);
                UNROLL for (int j = 0; j < NI; j++)
                {
                    nf4_unpack(v, h ? four[j].y : four[j].x, codes);
                    const unsigned first[2] = {v[0], v[1]}, second[2] = {v[2], v[3]};
                    UNROLL for (int i = 0; i < MI; i++)
                    {
                        if (h)
                            mma_bf16_16816(sum[i][j], a[0][i], first);
                        else
                            mma_bf16_16816_first(sum[i][j], a[0][i], first);
                    }
                    UNROLL for (int i = 0; i < MI; i++) mma_bf16_16816(sum[i][j], a[1][i], second);
                }
            }
            end_group(&s.scale[stage][group][column + t * 2]);
        }
    }

    __device__ void multiply()
    {
        int tiles = (k_end - k0 + TILE_K - 1) / TILE_K;
        UNROLL for (int i = 0; i < MI; i++) UNROLL for (int j = 0; j < NI; j++) UNROLL for (int c = 0; c < 4; c++)
            total[i][j][c] = 0;
        for (int kt = 0; kt < STAGES - 1; kt++) load_tile(kt, tiles);
        for (int kt = 0; kt < tiles; kt++) {
            cp_async_wait<STAGES - 2>();
            __syncthreads(); /* tile kt has arrived, and all warps are done with tile kt - 1 */
            load_tile(kt + STAGES - 1, tiles);
            multiply_tile(kt % STAGES);
        }
    }

    __device__ void write()
    {
        const packed_gemm &p = job.p;
        int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
        int row = m0 + warp / WARPS_N * WM + lane / 4, column = n0 + warp % WARPS_N * WN + lane % 4 * 2;
        const float *bias = job.part ? nullptr : p.bias;
        float *y = job.part ? job.part + (size_t)blockIdx.z * (size_t)p.M * (size_t)p.N : p.y;
        size_t ld = (size_t)(job.part ? p.N : p.ldy);
        UNROLL for (int i = 0; i < MI; i++) UNROLL for (int h = 0; h < 2; h++)
        {
            int m = row + i * 16 + h * 8;
            if (m >= p.M) continue;
            UNROLL for (int j = 0; j < NI; j++) UNROLL for (int c = 0; c < 2; c++)
            {
                int n = column + j * 8 + c;
                float v = total[i][j][h * 2 + c];
                if (n < p.N) y[(size_t)m * ld + (size_t)n] = bias ? __fadd_rn(v, bias[n]) : v;
            }
        }
    }
};

template <int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(nf4_block<BM, BN, WM, WN, STAGES>::THREADS) mma_nf4_kernel(nf4_job job)
{
    typedef nf4_block<BM, BN, WM, WN, STAGES> block;
    SMEM(typename block::smem, s);
    block b(job, s);
    b.load_codes();
    b.multiply();
    b.write();
}

/* ---- launching -----------------------------------------------------------------------------------------------------
 */

/* Columns of a split: where there are few output tiles, several blocks divide the k of each. */
int split_chunk(const packed_gemm *p)
{
    int tiles = (p->whole + TILE_N - 1) / TILE_N, steps = (p->K + TILE_K - 1) / TILE_K;
    int splits = SPLIT_TILES / tiles, most = p->K / SPLIT_LEAST;
    if (splits > most) splits = most;
    if (splits > SPLITS_MAX) splits = SPLITS_MAX;
    return splits < 2 ? p->K : (steps + splits - 1) / splits * TILE_K;
}

template <int BM, int BN, int WM, int WN, int STAGES>
void launch(gpu_dev *d, const char *op, const nf4_job *job, unsigned splits)
{
    typedef nf4_block<BM, BN, WM, WN, STAGES> block;
    /* Rows are the fast grid dimension: blocks of the same outputs run together and share the weights in L2. */
    dim3 grid(blocks_for((size_t)job->p.M, BM), blocks_for((size_t)job->p.N, BN), splits);
    LAUNCH(d, op, (mma_nf4_kernel<BM, BN, WM, WN, STAGES>), grid, dim3(block::THREADS), sizeof(typename block::smem),
           *job);
}

} // namespace

void mma_nf4(gpu_dev *d, const char *op, const packed_gemm *p, const struct mat *x)
{
    assert(!p->gate && p->K % GROUP == 0 && p->row_bytes == (size_t)p->K / 2 && x->rows == p->M);
    nf4_job job = {*p, nullptr, split_chunk(p), nullptr, nf4_bf16()};
    int rows = p->M < MMA_ROWS_NF4 ? p->M : MMA_ROWS_NF4; /* more only in reserve, where the maximum is recorded */
    unsigned splits = blocks_for((size_t)p->K, job.chunk);
    size_t n = (size_t)rows * (size_t)p->K, sums = (size_t)rows * (size_t)p->N * splits;
    uint16_t *to = static_cast<uint16_t *>(gpu_scratch(d, op, AREA_X, n * sizeof *to));
    if (splits > 1) job.part = static_cast<float *>(gpu_scratch(d, op, AREA_SUM, sums * sizeof(float)));
    if (!to || (splits > 1 && !job.part)) return;
    job.x = to;
    bool vec = reinterpret_cast<uintptr_t>(x->p) % sizeof(float2) == 0 && x->ld % 2 == 0;
    LAUNCH(d, op, round_lanes_kernel, dim3(blocks_for(n / 8, LIGHT_THREADS)), dim3(LIGHT_THREADS), 0, to, *x, vec);
    if (p->M <= 32)
        launch<32, 128, 32, 32, 4>(d, op, &job, splits);
    else if (p->M <= 64 || d->shared_max < sizeof(nf4_smem<128, 128, 3>))
        launch<64, 128, 64, 32, 3>(d, op, &job, splits);
    else
        launch<128, 128, 64, 32, 3>(d, op, &job, splits);
    struct splits_args sum = {job.part, (int)splits, rows, p->N, p->y, p->ldy, 1, 0, p->bias};
    if (splits > 1) add_splits(d, op, &sum);
}

} // namespace GPU_NAMESPACE
