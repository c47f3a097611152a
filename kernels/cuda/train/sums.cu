/* Gradients that are summed over tokens outside GEMMs: of embedding tables and of biases. No atomics: each sum is
 * made by one owner, in an order that does not depend on the machine. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {
namespace {

const int SUM_THREADS = 256, WARPS = SUM_THREADS / 32;

/* ---- embed_back ---------------------------------------------------------------------------------------------------
 */

const int WIDE = 4, LOADS = 4; /* columns per thread; tokens whose rows are loaded at once */

/* Finds the next token from `at` on with this id, T when there is none. `left`: the unread matches among the 32
 * tokens from `base`. */
struct walk {
    unsigned left;
    int base;
};

__device__ inline int next_token(struct walk &w, const int32_t *id, int T, int32_t want)
{
    int lane = (int)threadIdx.x % 32;
    while (!w.left && w.base + 32 < T) {
        w.base += 32;
        w.left = __ballot_sync(FULL_WARP, w.base + lane < T && id[w.base + lane] == want);
    }
    if (!w.left) return T;
    int bit = __ffs((int)w.left) - 1;
    w.left &= w.left - 1;
    return w.base + bit;
}

/* Block (t, y): if token t is the first with its id, adds the rows of dx of all tokens with that id, times scale, to
 * columns of the table's row, in the order of tokens. Each warp searches for them itself. */
__global__ void __launch_bounds__(SUM_THREADS)
    embed_back_kernel(struct mat table, struct mat dx, const int32_t *id, float scale)
{
    int t = (int)blockIdx.x, T = dx.rows, lane = (int)threadIdx.x % 32;
    int32_t want = id[t];
    for (int i = 0; i < t; i += 32)
        if (__any_sync(FULL_WARP, i + lane < t && id[i + lane] == want)) return;
    float *to = static_cast<float *>(table.p) + (size_t)want * (size_t)table.ld;
    const float *from = static_cast<const float *>(dx.p);
    int col = (int)(blockIdx.y * SUM_THREADS * WIDE + threadIdx.x);
    float sum[WIDE];
#pragma unroll
    for (int i = 0; i < WIDE; i++) sum[i] = col + i * SUM_THREADS < dx.cols ? to[col + i * SUM_THREADS] : 0;
    struct walk w = {0, t / 32 * 32};
    w.left = __ballot_sync(FULL_WARP, w.base + lane >= t && w.base + lane < T && id[w.base + lane] == want);
    for (bool more = true; more;) {
        int token[LOADS] = {};
        float v[LOADS][WIDE];
#pragma unroll 1
        for (int k = 0; k < LOADS; k++) {
            int next = next_token(w, id, T, want);
#pragma unroll
            for (int i = 0; i < LOADS; i++)
                if (i == k) token[i] = next;
        }
#pragma unroll
        for (int k = 0; k < LOADS; k++)
#pragma unroll
            for (int i = 0; i < WIDE; i++)
                v[k][i] = token[k] < T && col + i * SUM_THREADS < dx.cols
                              ? from[(size_t)token[k] * (size_t)dx.ld + (size_t)(col + i * SUM_THREADS)]
                              : 0;
#pragma unroll
        for (int k = 0; k < LOADS; k++)
#pragma unroll
            for (int i = 0; i < WIDE; i++)
                if (token[k] < T) sum[i] += v[k][i] * scale;
        more = token[LOADS - 1] < T;
    }
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        if (col + i * SUM_THREADS < dx.cols) to[col + i * SUM_THREADS] = sum[i];
}

void add_rows(gpu_dev *d, const struct mat *table, const struct mat *dx, const int32_t *id, float scale)
{
    dim3 grid((unsigned)dx->rows, blocks_for((size_t)dx->cols, SUM_THREADS * WIDE));
    LAUNCH(d, "embed_back", embed_back_kernel, grid, dim3(SUM_THREADS), 0, *table, *dx, id, scale);
}

/* ---- col_sum ------------------------------------------------------------------------------------------------------
 */

const int CHUNK = 256; /* rows per block */

struct col_smem {
    float part[WARPS][32];
};

/* Block (x, y): sums columns 32 x ... of rows CHUNK y ... into part[y][column]; `add`: the only chunk, added to the
 * result. */
__global__ void __launch_bounds__(SUM_THREADS) col_sum_kernel(struct mat x, float *part, bool add)
{
    SMEM(col_smem, s);
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, col = (int)blockIdx.x * 32 + lane;
    int first = (int)blockIdx.y * CHUNK, end = x.rows - first < CHUNK ? x.rows : first + CHUNK;
    const float *p = static_cast<const float *>(x.p) + (col < x.cols ? col : 0);
    float sum = 0;
#pragma unroll 8
    for (int t = first + warp; t < end; t += WARPS) sum += p[(size_t)t * (size_t)x.ld];
    s.part[warp][lane] = sum;
    __syncthreads();
    if (warp || col >= x.cols) return;
#pragma unroll
    for (int i = 1; i < WARPS; i++) sum += s.part[i][lane];
    float *to = part + (size_t)blockIdx.y * (size_t)x.cols + col;
    *to = add ? *to + sum : sum;
}

__global__ void __launch_bounds__(SUM_THREADS) add_chunks_kernel(float *out, const float *part, int cols, int chunks)
{
    int col = (int)(blockIdx.x * SUM_THREADS + threadIdx.x);
    if (col >= cols) return;
    float sum = 0;
    for (int i = 0; i < chunks; i++) sum += part[(size_t)i * (size_t)cols + col];
    out[col] += sum;
}

} // namespace

void gpu_embed_back(struct dev *head, const struct embed_back_args *a)
{
    if (a->dx.rows == 0 || a->dx.cols == 0) return;
    add_rows(gpu_of(head), &a->dtable, &a->dx, a->id, a->scale == 0 ? 1 : a->scale);
    if (a->dpos.p) add_rows(gpu_of(head), &a->dpos, &a->dx, a->pos, 1);
}

void gpu_col_sum(struct dev *head, const struct col_sum_args *a)
{
    gpu_dev *d = gpu_of(head);
    if (a->x.rows == 0 || a->x.cols == 0) return;
    int chunks = (int)blocks_for((size_t)a->x.rows, CHUNK);
    assert(chunks <= 65535);
    float *part = a->out;
    if (chunks > 1)
        part = static_cast<float *>(
            gpu_scratch(d, "col_sum", AREA_SUM, (size_t)chunks * (size_t)a->x.cols * sizeof(float)));
    if (!part) return;
    LAUNCH(d, "col_sum", col_sum_kernel, dim3(blocks_for((size_t)a->x.cols, 32), (unsigned)chunks), dim3(SUM_THREADS),
           sizeof(col_smem), a->x, part, chunks == 1);
    if (chunks > 1)
        LAUNCH(d, "col_sum", add_chunks_kernel, dim3(blocks_for((size_t)a->x.cols, SUM_THREADS)), dim3(SUM_THREADS), 0,
               a->out, part, a->x.cols, chunks);
}

} // namespace GPU_NAMESPACE
