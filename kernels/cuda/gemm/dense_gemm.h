/* Dense products of the training ops: cuBLASLt's, and a kernel for what is small or lies badly for it; what other
 * products share with them. */
#ifndef TANDEM_KERNELS_CUDA_GEMM_DENSE_GEMM_H
#define TANDEM_KERNELS_CUDA_GEMM_DENSE_GEMM_H

#include "kernels/cuda/gemm/lt.h"

namespace GPU_NAMESPACE {

/* A product of bf16 needs this much of N and of K (with ta of M too), or rounding costs more than it saves. */
enum { HALF_LEAST = 64 };

/* lt_multiply of DT_F32 or DT_BF16 (a and b 16-byte aligned then, lda and ldb multiples of 8), by the kernel of gemm.cu
 * where N or K is small, or B is no large matrix and one of the three is not aligned to 16 bytes.  Which one is chosen
 * by N, K and the matrices' alignment alone, with ta by M too; in the kernel a row of C, without ta, is the same sum
 * for any M. */
bool gpu_product(gpu_dev *, const char *op, const struct lt_args *);

/* Elements of a row of a matrix of `cols` bf16 values that round_bf16 writes. */
static inline int half_ld(int cols)
{
    return (cols + 7) / 8 * 8;
}

/* to (rows, half_ld(cols)) = x (rows, cols) f32 rounded to bf16, zeros past cols */
void round_bf16(gpu_dev *, const char *op, uint16_t *to, const float *x, int rows, int cols, int ld);

/* C (M, N) = alpha times the sum of `splits` matrices (M, N) at part, in order, + beta C + bias.  M N below 2^32 - 256.
 */
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
