/* Dense GEMMs of the training ops: cuBLASLt's, and a kernel for shapes that are small or badly aligned for it; also
 * helpers that other GEMMs share. */
#ifndef TANDEM_KERNELS_CUDA_GEMM_DENSE_GEMM_H
#define TANDEM_KERNELS_CUDA_GEMM_DENSE_GEMM_H

#include "kernels/cuda/gemm/lt.h"

namespace GPU_NAMESPACE {

/* Least N and K (with ta also M) of a bf16 GEMM: below it rounding the operands costs more than it saves. */
enum { HALF_LEAST = 64 };

/* Like lt_multiply for DT_F32 or DT_BF16 (a and b then 16-byte aligned, lda and ldb multiples of 8), but uses the
 * kernel of gemm.cu where N or K is small, or where B is no large matrix and one of the three is not aligned to 16
 * bytes. The choice depends on N, K and the matrices' alignment alone, with ta also on M; in the kernel, without ta,
 * a row of C is the same sum for any M. */
bool gpu_dense_gemm(gpu_dev *, const char *op, const struct lt_args *);

/* Row stride, in elements, of a bf16 matrix of `cols` columns that round_bf16 writes. */
static inline int half_ld(int cols)
{
    return (cols + 7) / 8 * 8;
}

/* to (rows, half_ld(cols)) = x (rows, cols) f32 rounded to bf16, zeros past cols. */
void round_bf16(gpu_dev *, const char *op, uint16_t *to, const float *x, int rows, int cols, int ld);

/* C (M, N) = alpha * (the sum of the `splits` matrices (M, N) at part, in order) + beta C + bias. M N below 2^32 -
 * 256. */
struct splits_args {
    const float *part;
    int splits, M, N;
    float *c;
    int ldc;
    float alpha, beta;
    const float *bias; /* (N), of each column; NULL: none */
};
void add_splits(gpu_dev *, const char *op, const struct splits_args *);

} // namespace GPU_NAMESPACE

#endif
