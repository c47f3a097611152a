/* Ops that go row by row: embedding, norms, sums, activations, moving rows. */
#include "kernels/cuda/act.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/products.h"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE
{
namespace
{

enum { ROW_THREADS = 256 };

/* ---- norm -------------------------------------------------------------------------------------------------------- */

struct norm_smem {
    block_part<float> part;
};

/* One block a row.  y: what is added to x first; NULL: nothing. */
__global__ void norm_kernel(struct mat out, struct mat x, struct mat y, const float *w, const float *b, float eps,
                            enum norm_kind kind)
{
    SMEM(norm_smem, s);
    int n = x.cols;
    float *row = static_cast<float *>(x.p) + (size_t)blockIdx.x * (size_t)x.ld;
    float *to = static_cast<float *>(out.p) + (size_t)blockIdx.x * (size_t)out.ld;
    const float *more = y.p ? static_cast<const float *>(y.p) + (size_t)blockIdx.x * (size_t)y.ld : nullptr;
    float sum = 0;
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) {
        if (more) row[i] += more[i];
        sum += row[i];
    }
    float mean = kind == NORM_LAYER ? block_sum(sum, s.part) / (float)n : 0, square = 0;
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) square += (row[i] - mean) * (row[i] - mean);
    float inv = 1 / sqrtf(block_sum(square, s.part) / (float)n + eps);
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
        to[i] = (row[i] - mean) * inv * w[i] + (b ? b[i] : 0);
}

} // namespace

void gpu_norm(struct dev *head, const struct norm_args *a)
{
    gpu_dev *d = gpu_of(head);
    if (a->x.rows == 0) return;
    LAUNCH(d, "norm", norm_kernel, dim3((unsigned)a->x.rows), dim3(ROW_THREADS), sizeof(norm_smem), a->out, a->x,
           (struct mat){}, a->w, a->b, a->eps, a->kind);
}

void gpu_add_norm(struct dev *head, const struct add_norm_args *a)
{
    gpu_dev *d = gpu_of(head);
    if (a->x.rows == 0) return;
    LAUNCH(d, "add_norm", norm_kernel, dim3((unsigned)a->x.rows), dim3(ROW_THREADS), sizeof(norm_smem), a->out, a->x,
           a->y, a->w, a->b, a->eps, a->kind);
}

namespace
{

/* one warp a head of a row */
__global__ void head_norm_kernel(struct mat x, int col, int heads, int dim, const float *w, float eps)
{
    int lane = (int)threadIdx.x % 32, h = (int)(blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32);
    if (h >= heads) return;
    float *p = static_cast<float *>(x.p) + (size_t)blockIdx.x * (size_t)x.ld + col + h * dim;
    float square = 0;
    for (int i = lane; i < dim; i += 32) square += p[i] * p[i];
    float inv = 1 / sqrtf(warp_sum(square) / (float)dim + eps);
    for (int i = lane; i < dim; i += 32) p[i] = p[i] * inv * w[i];
}

/* ---- one element each -------------------------------------------------------------------------------------------- */

/* A thread for each element of (rows, cols): its row, and its column or -1 past the end. */
struct place {
    size_t row;
    int col;
};
__device__ inline place place_of(int cols)
{
    int col = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    return {blockIdx.x, col < cols ? col : -1};
}

__global__ void embed_kernel(struct mat out, struct mat table, struct mat pos_table, const int32_t *id, const int32_t *pos)
{
    place at = place_of(out.cols);
    if (at.col < 0) return;
    float v = load_float(table.p, table.t, (size_t)id[at.row] * (size_t)table.ld + (size_t)at.col);
    if (pos_table.p)
        v += load_float(pos_table.p, pos_table.t, (size_t)pos[at.row] * (size_t)pos_table.ld + (size_t)at.col);
    static_cast<float *>(out.p)[at.row * (size_t)out.ld + (size_t)at.col] = v;
}

__global__ void add_kernel(struct mat x, struct mat y)
{
    place at = place_of(x.cols);
    if (at.col < 0) return;
    static_cast<float *>(x.p)[at.row * (size_t)x.ld + (size_t)at.col] +=
        static_cast<const float *>(y.p)[at.row * (size_t)y.ld + (size_t)at.col];
}

__global__ void act_kernel(struct mat x, enum act_kind act)
{
    place at = place_of(x.cols);
    if (at.col < 0) return;
    float *p = static_cast<float *>(x.p) + at.row * (size_t)x.ld + at.col;
    *p = act_value(*p, act);
}

__global__ void act_mul_kernel(struct mat out, struct mat gu, enum act_kind act)
{
    place at = place_of(out.cols);
    if (at.col < 0) return;
    const float *g = static_cast<const float *>(gu.p) + at.row * (size_t)gu.ld + at.col;
    static_cast<float *>(out.p)[at.row * (size_t)out.ld + (size_t)at.col] = act_value(*g, act) * g[out.cols];
}

__global__ void rows_kernel(struct mat out, struct mat x, const int32_t *row)
{
    place at = place_of(out.cols);
    if (at.col < 0) return;
    static_cast<float *>(out.p)[at.row * (size_t)out.ld + (size_t)at.col] =
        static_cast<const float *>(x.p)[(size_t)row[at.row] * (size_t)x.ld + (size_t)at.col];
}

dim3 element_grid(const struct mat *m)
{
    return dim3((unsigned)m->rows, blocks_for((size_t)m->cols, ROW_THREADS));
}

} // namespace

void gpu_head_norm(struct dev *head, const struct head_norm_args *a)
{
    if (a->x.rows == 0) return;
    LAUNCH(gpu_of(head), "head_norm", head_norm_kernel,
           dim3((unsigned)a->x.rows, blocks_for((size_t)a->heads, ROW_THREADS / 32)), dim3(ROW_THREADS), 0, a->x, a->col,
           a->heads, a->head_dim, a->w, a->eps);
}

void gpu_embed(struct dev *head, const struct embed_args *a)
{
    if (a->out.rows == 0) return;
    if (a->w) return embed_packed(gpu_of(head), a);
    LAUNCH(gpu_of(head), "embed", embed_kernel, element_grid(&a->out), dim3(ROW_THREADS), 0, a->out, a->table,
           a->pos_table, a->id, a->pos);
}

void gpu_add(struct dev *head, const struct add_args *a)
{
    if (a->x.rows == 0) return;
    LAUNCH(gpu_of(head), "add", add_kernel, element_grid(&a->x), dim3(ROW_THREADS), 0, a->x, a->y);
}

void gpu_act(struct dev *head, const struct act_args *a)
{
    if (a->x.rows == 0) return;
    LAUNCH(gpu_of(head), "act", act_kernel, element_grid(&a->x), dim3(ROW_THREADS), 0, a->x, a->act);
}

void gpu_act_mul(struct dev *head, const struct act_mul_args *a)
{
    if (a->out.rows == 0) return;
    LAUNCH(gpu_of(head), "act_mul", act_mul_kernel, element_grid(&a->out), dim3(ROW_THREADS), 0, a->out, a->gu, a->act);
}

void gpu_rows(struct dev *head, const struct rows_args *a)
{
    if (a->out.rows == 0) return;
    LAUNCH(gpu_of(head), "rows", rows_kernel, element_grid(&a->out), dim3(ROW_THREADS), 0, a->out, a->x, a->row);
}

} // namespace GPU_NAMESPACE
