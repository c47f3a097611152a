/* Elements of rows, four to a thread. */
#ifndef TANDEM_KERNELS_CUDA_ROWS_ROWS_CUH
#define TANDEM_KERNELS_CUDA_ROWS_ROWS_CUH

#include "kernels/cuda/device.h"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {

/* A thread's four elements of (rows, cols), from column `col` on; left: number of columns from there to the end. */
struct vec4_at {
    size_t row;
    int col, left;
};
__device__ inline vec4_at vec4_at_of(int cols)
{
    int col = (int)(blockIdx.y * blockDim.x + threadIdx.x) * 4;
    return {blockIdx.x, col, cols - col};
}

/* Grid for blocks of row_threads(cols) threads. */
static inline dim3 grid4(int rows, int cols)
{
    return dim3((unsigned)rows, blocks_for((size_t)cols, row_threads(cols) * 4));
}

__device__ inline float *at4(const struct mat &m, const vec4_at &p)
{
    return static_cast<float *>(m.p) + p.row * (size_t)m.ld + p.col;
}

} // namespace GPU_NAMESPACE

#endif
