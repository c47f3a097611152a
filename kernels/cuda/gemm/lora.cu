/* Op lora: adds the outputs of adapters beside a served weight, for all groups and parts in two launches: u = x a^T
 * into scratch, then y += scale * u b^T, where a block owns columns of y and handles the parts in order. Where there
 * are thousands of groups, as adapters of experts have them, those whose lists fit LISTS_BYTES at a time.
 *
 * The order of each sum of a row is fixed, whatever the row's group and the number of groups: over k by the 256
 * threads of a block, each with four neighbouring elements and a stride of 1024, then by a butterfly within a warp,
 * then warp by warp; over ranks by one thread. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/warp.cuh"

#include <cstdlib>

namespace GPU_NAMESPACE {
namespace {

const int LORA_THREADS = 256, WARPS = LORA_THREADS / 32;
const int MANY = 8;  /* rows of a tile where some group has more than one row */
const int RANKS = 8; /* ranks per block of the first kernel */

/* The lists that both kernels read. Rows row0 .. row0 + rows - 1 have the parts part0 .. part0 + parts - 1; the
 * first row's u begins at u, rows of u are u_ld floats apart, and part p's columns begin at p.u. */
struct row_tile {
    size_t u;
    int row0, rows, part0, parts, u_ld;
};
struct part {
    const float *a, *b;
    int r, col, n, u;
    float scale;
    bool vec_b; /* rows of b are aligned to 16 bytes */
};

/* ---- u = x a^T ----------------------------------------------------------------------------------------------------
 */

/* Sums N values, a power of two up to 32, over a warp; lane l gets that of value l N / 32. Each sum is a butterfly:
 * lanes 16 apart (LANES), then 8 ...: the same bits for any N. */
template <int N, int LANES = 16> __device__ inline float warp_sums(const float (&v)[N])
{
    if constexpr (N == 1) {
        float sum = v[0] + __shfl_xor_sync(FULL_WARP, v[0], LANES);
        if constexpr (LANES == 1)
            return sum;
        else
            return warp_sums<1, LANES / 2>({sum});
    } else {
        bool upper = (int)threadIdx.x & LANES;
        float half[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            float keep = upper ? v[i + N / 2] : v[i], give = upper ? v[i] : v[i + N / 2];
            half[i] = keep + __shfl_xor_sync(FULL_WARP, give, LANES);
        }
        if constexpr (LANES == 1)
            return half[0];
        else
            return warp_sums<N / 2, LANES / 2>(half);
    }
}

template <bool VEC> __device__ inline float4 load4(const float *row, int k, int K)
{
    if constexpr (VEC) {
        return *reinterpret_cast<const float4 *>(row + k);
    } else {
        return {row[k], k + 1 < K ? row[k + 1] : 0, k + 2 < K ? row[k + 2] : 0, k + 3 < K ? row[k + 3] : 0};
    }
}

template <int ROWS> struct down_smem {
    float part[WARPS][ROWS * RANKS];
};

/* Block (x, y): row tile x, and of its parts the y-th RANKS ranks. */
template <int ROWS, bool VEC>
__global__ void __launch_bounds__(LORA_THREADS)
    down_kernel(const row_tile *tiles, const part *parts, struct mat x, float *u)
{
    SMEM(down_smem<ROWS>, s);
    const int N = ROWS * RANKS < 32 ? ROWS * RANKS : 32, tid = (int)threadIdx.x, K = x.cols;
    row_tile t = tiles[blockIdx.x];
    int p = 0, rank = (int)blockIdx.y * RANKS;
    while (p < t.parts && rank >= parts[t.part0 + p].r) {
        rank -= (parts[t.part0 + p].r + RANKS - 1) / RANKS * RANKS;
        p++;
    }
    if (p == t.parts) return;
    const part *of = parts + t.part0 + p;
    int r = of->r, at = of->u;
    const float *a = of->a + (size_t)rank * (size_t)K;
    const float *from = static_cast<const float *>(x.p) + (size_t)t.row0 * (size_t)x.ld;
    float acc[ROWS][RANKS] = {};
    for (int k = tid * 4; k < K; k += LORA_THREADS * 4) {
        float4 xv[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) xv[i] = load4<VEC>(from + (size_t)(i < t.rows ? i : 0) * (size_t)x.ld, k, K);
#pragma unroll
        for (int j = 0; j < RANKS; j++) {
            float4 av = load4<VEC>(a + (size_t)(rank + j < r ? j : 0) * (size_t)K, k, K);
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                acc[i][j] =
                    fmaf(xv[i].w, av.w, fmaf(xv[i].z, av.z, fmaf(xv[i].y, av.y, fmaf(xv[i].x, av.x, acc[i][j]))));
        }
    }
#pragma unroll
    for (int first = 0; first < ROWS * RANKS; first += N) {
        float v[N];
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = acc[(first + i) / RANKS][(first + i) % RANKS];
        float sum = warp_sums(v);
        if (tid % (32 / N) == 0) s.part[tid / 32][first + tid % 32 * N / 32] = sum;
    }
    __syncthreads();
    int row = tid / RANKS, j = tid % RANKS;
    if (row >= t.rows || row >= ROWS || rank + j >= r) return;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += s.part[w][tid];
    u[t.u + (size_t)row * (size_t)t.u_ld + (size_t)(at + rank + j)] = sum;
}

/* ---- y += scale u b^T ---------------------------------------------------------------------------------------------
 */

/* A thread's column of one part for the tile's rows: sum[i] = u[i] . b, both of length r; u's rows are `stride`
 * floats apart in shared memory, with zeros past r. */
template <int ROWS, bool VEC>
__device__ inline void dot_ranks(float (&sum)[ROWS], const float *u, int stride, const float *b, int r)
{
#pragma unroll
    for (int i = 0; i < ROWS; i++) sum[i] = 0;
#pragma unroll 4
    for (int k = 0; k < r; k += 4) {
        float4 bv = load4<VEC>(b, k, r);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float4 uv = *reinterpret_cast<const float4 *>(u + i * stride + k);
            sum[i] = fmaf(uv.w, bv.w, fmaf(uv.z, bv.z, fmaf(uv.y, bv.y, fmaf(uv.x, bv.x, sum[i]))));
        }
    }
}

/* Block (x, y): row tile x, LORA_THREADS columns of y, one per thread. stride: of u's rows in shared memory. */
template <int ROWS>
__global__ void __launch_bounds__(LORA_THREADS)
    up_kernel(const row_tile *tiles, const part *parts, struct mat y, const float *u, int stride)
{
    SMEM_BYTES(memory);
    float *us = reinterpret_cast<float *>(memory);
    const int tid = (int)threadIdx.x, first = (int)blockIdx.y * LORA_THREADS, col = first + tid;
    row_tile t = tiles[blockIdx.x];
    float *to = static_cast<float *>(y.p) + (size_t)t.row0 * (size_t)y.ld + col;
    float sum[ROWS], acc[ROWS] = {};
    bool touched = false;
    for (int p = 0; p < t.parts; p++) {
        part of = parts[t.part0 + p];
        if (of.col >= first + LORA_THREADS || of.col + of.n <= first) continue;
        __syncthreads();
        for (int i = tid; i < ROWS * stride; i += LORA_THREADS) {
            int row = i / stride, k = i % stride;
            us[i] = row < t.rows && k < of.r ? u[t.u + (size_t)row * (size_t)t.u_ld + (size_t)(of.u + k)] : 0;
        }
        __syncthreads();
        bool in = col >= of.col && col < of.col + of.n;
        const float *b = of.b + (size_t)(in ? col - of.col : 0) * (size_t)of.r;
        if (of.vec_b)
            dot_ranks<ROWS, true>(sum, us, stride, b, of.r);
        else
            dot_ranks<ROWS, false>(sum, us, stride, b, of.r);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (in && !touched) acc[i] = i < t.rows ? to[(size_t)i * (size_t)y.ld] : 0;
            if (in) acc[i] += of.scale * sum[i];
        }
        touched = touched || in;
    }
    if (!touched) return;
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (i < t.rows) to[(size_t)i * (size_t)y.ld] = acc[i];
}

/* ---- the launcher -------------------------------------------------------------------------------------------------
 */

struct plan {
    int tile_rows, tiles, parts, rank_tiles, rank; /* rank_tiles: of one group at most; rank: the largest */
    size_t u;                                      /* floats */
    bool vec;
};

bool aligned(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

struct plan plan_of(const struct lora_args *a)
{
    struct plan p = {.tile_rows = 1, .vec = a->x.cols % 4 == 0 && a->x.ld % 4 == 0 && aligned(a->x.p)};
    for (int i = 0; i < a->n_groups; i++)
        if (a->group[i].rows > 1) p.tile_rows = MANY;
    for (int i = 0; i < a->n_groups; i++) {
        const struct lora_group *g = a->group + i;
        int tiles = 0, ranks = 0;
        if (g->rows == 0 || g->n_parts == 0) continue;
        for (int k = 0; k < g->n_parts; k++) {
            const struct lora_part *of = g->part + k;
            tiles += (of->r + RANKS - 1) / RANKS;
            ranks += of->r;
            if (of->r > p.rank) p.rank = of->r;
            p.vec = p.vec && aligned(of->a);
        }
        p.tiles += (g->rows + p.tile_rows - 1) / p.tile_rows;
        p.parts += g->n_parts;
        p.u += (size_t)g->rows * (size_t)ranks;
        if (tiles > p.rank_tiles) p.rank_tiles = tiles;
    }
    return p;
}

void write_lists(const struct lora_args *a, const struct plan *p, row_tile *tile, part *list)
{
    size_t u = 0;
    int n = 0;
    for (int i = 0; i < a->n_groups; i++) {
        const struct lora_group *g = a->group + i;
        int ranks = 0, part0 = n;
        if (g->rows == 0 || g->n_parts == 0) continue;
        for (int k = 0; k < g->n_parts; k++) {
            const struct lora_part *of = g->part + k;
            list[n++] = {of->a, of->b, of->r, of->col, of->n, ranks, of->scale, aligned(of->b) && of->r % 4 == 0};
            ranks += of->r;
        }
        for (int row = 0; row < g->rows; row += p->tile_rows) {
            int rows = g->rows - row < p->tile_rows ? g->rows - row : p->tile_rows;
            *tile++ = {u + (size_t)row * (size_t)ranks, g->row0 + row, rows, part0, g->n_parts, ranks};
        }
        u += (size_t)g->rows * (size_t)ranks;
    }
}

template <int ROWS>
void launch(gpu_dev *d, const struct lora_args *a, const struct plan *p, const row_tile *tiles, const part *parts,
            float *u)
{
    int stride = (p->rank + 3) / 4 * 4;
    dim3 down((unsigned)p->tiles, (unsigned)p->rank_tiles);
    dim3 up((unsigned)p->tiles, blocks_for((size_t)a->y.cols, LORA_THREADS));
    if (p->vec)
        LAUNCH(d, "lora", (down_kernel<ROWS, true>), down, dim3(LORA_THREADS), sizeof(down_smem<ROWS>), tiles, parts,
               a->x, u);
    else
        LAUNCH(d, "lora", (down_kernel<ROWS, false>), down, dim3(LORA_THREADS), sizeof(down_smem<ROWS>), tiles, parts,
               a->x, u);
    LAUNCH(d, "lora", up_kernel<ROWS>, up, dim3(LORA_THREADS), (size_t)(ROWS * stride) * sizeof(float), tiles, parts,
           a->y, u, stride);
}

/* Of the lists of one pair of launches, unless one group alone has more: far below GPU_STAGE_MOST, which a group of 4
 * million rows reaches, and enough rows to fill a GPU. */
const size_t LISTS_BYTES = GPU_STAGE_MOST / 64;

/* @return the end of the groups from `from` on whose lists fit. */
int slice_end(const struct lora_args *a, int from)
{
    size_t bytes = 0;
    int end = from;
    for (; end < a->n_groups; end++) {
        const struct lora_group *g = a->group + end;
        bytes += (size_t)((g->rows + MANY - 1) / MANY) * sizeof(row_tile) + (size_t)g->n_parts * sizeof(part);
        if (end > from && bytes > LISTS_BYTES) break;
    }
    return end;
}

void run_slice(gpu_dev *d, const struct lora_args *a)
{
    struct plan p = plan_of(a);
    if (p.tiles == 0) return;
    assert(p.rank_tiles <= 65535);
    size_t tile_bytes = (size_t)p.tiles * sizeof(row_tile), bytes = tile_bytes + (size_t)p.parts * sizeof(part);
    static_assert(sizeof(row_tile) % alignof(part) == 0, "the parts follow the tiles");
    uint8_t *host = static_cast<uint8_t *>(malloc(bytes));
    float *u = static_cast<float *>(gpu_scratch(d, "lora", AREA_Y, p.u * sizeof(float)));
    if (!host) dev_fail(&d->head, "lora", "out of memory");
    if (host && u) {
        write_lists(a, &p, reinterpret_cast<row_tile *>(host), reinterpret_cast<part *>(host + tile_bytes));
        const void *list = gpu_stage(d, "lora", host, bytes);
        const row_tile *tiles = static_cast<const row_tile *>(list);
        const part *parts = reinterpret_cast<const part *>(tiles + p.tiles);
        if (list && p.tile_rows == 1) launch<1>(d, a, &p, tiles, parts, u);
        if (list && p.tile_rows == MANY) launch<MANY>(d, a, &p, tiles, parts, u);
    }
    free(host);
}

} // namespace

void gpu_lora(struct dev *head, const struct lora_args *a)
{
    for (int from = 0, end; from < a->n_groups && !head->error.op; from = end) {
        end = slice_end(a, from);
        struct lora_args some = {a->y, a->x, a->group + from, end - from};
        run_slice(gpu_of(head), &some);
    }
}

} // namespace GPU_NAMESPACE
