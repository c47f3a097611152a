/* GEMMs of activations with packed weights: the interface between linear.cu and the kernels of each kind. */
#ifndef TANDEM_KERNELS_CUDA_GEMM_PACKED_GEMM_H
#define TANDEM_KERNELS_CUDA_GEMM_PACKED_GEMM_H

#include "kernels/cuda/gemm/block.h"

namespace GPU_NAMESPACE {

/* y (M, N) = x W^T + bias over rows of a weight. With gate, W has 2 N rows and y = act(gate) * up, of the outputs of
 * rows n and N + n (bias is (2 N) then). Passed to kernels by value; all pointers are to device memory. */
struct packed_gemm {
    const uint8_t *w; /* of output 0 */
    size_t row_bytes;
    const void *scale; /* of output 0: f32 (N) of int8, f16 (N, n_groups) of int4, f32 (N, n_groups) of nf4 and fp8 */
    int group, n_groups;
    int M, N, K, first, whole; /* whole: outputs of the weight, of which these are the N from `first` on */
    const float *bias;         /* NULL: none */
    float *y;
    int ldy;
    bool gate;
    enum act_kind act;
    const uint8_t *after; /* what the next GEMM will read first, after_bytes long, for prefetching; NULL: not known */
    size_t after_bytes;
    block_form block; /* of block: its arrays from output 0 on; `scale` is not used then */
};

/* Rows of x quantised as linear_args says. The integers of row m begin at q + m * ld, ld a multiple of 128, with
 * zeros from K on. The residual of an outlier row is in `rest` in the same layout, which is undefined for other
 * rows. */
struct quantised {
    int8_t *q, *rest;
    float *step, *rest_step;
    int *outlier;
    int ld;
};

/* The sixteen values of nf4 (num.h), as a kernel parameter: device code cannot read a host table. */
struct nf4_table {
    float v[16];
};

static inline nf4_table nf4_values()
{
    nf4_table t;
    for (int i = 0; i < 16; i++) t.v[i] = nf4_code[i];
    return t;
}

#ifdef __CUDACC__
enum { MANY_LT_ROWS = 256 };
#else
enum { MANY_LT_ROWS = 48 };
#endif

/* Most rows that the kernels for few rows take: with float weights, with bf16 over rounded rows, with int8, int4 and
 * block. */
enum { GEMV_ROWS = 16, GEMV_ROWS_ROUNDED = 8, GEMV_ROWS_INT = 8 };
/* Most rows of mma_nf4. With more, each weight is read by many blocks, and dequantising it once to bf16 costs less:
 * estimated, not measured. */
enum { MMA_ROWS_NF4 = 256 };

/* Quantises x (M, K) into AREA_X, or uses what a norm has quantised already. even_odd: of each eight columns the
 * four even ones come first, the order in which a word of int4 weights unpacks. order: column k of q is of column
 * order[k] of x; NULL: k. @return false when the device has failed. */
bool quantise_rows(gpu_dev *, const char *op, const struct mat *x, bool even_odd, const uint32_t *order, quantised *);
/* Whether a norm that writes x for a GEMM with w (or NULL) may quantise its rows. If true, it must do so, to `out`
 * in AREA_NORM, even_odd for int4, where quantise_rows will find them. */
bool prequantise(gpu_dev *, const char *op, const struct mat *x, const gpu_weight *w, quantised *out);

/* M <= GEMV_ROWS, or GEMV_ROWS_ROUNDED with round_x. t: type of the weights, f32, bf16, f16, nf4 or fp8; x (M, K) f32.
 * round_x: rounds x to bf16 first. Uses AREA_X. */
void gemv_float(gpu_dev *, const char *op, enum dtype t, const packed_gemm *, const struct mat *x, bool round_x);
/* M <= GEMV_ROWS_INT.  t: int8, or int4 over even_odd activations. */
void gemv_int(gpu_dev *, const char *op, enum dtype t, const packed_gemm *, const quantised *);
/* M <= GEMV_ROWS_INT; block weights of one form */
void gemv_block(gpu_dev *, const char *op, const packed_gemm *, const quantised *);
/* any M; no gate */
void mma_block(gpu_dev *, const char *op, const packed_gemm *, const quantised *);
void mma_int(gpu_dev *, const char *op, enum dtype t, const packed_gemm *, const quantised *);
/* The second pass of int8 alone: adds the residuals of outlier rows to y, which has the first pass without a bias,
 * and then the bias. */
void mma_int_rests(gpu_dev *, const char *op, const packed_gemm *, const quantised *);
/* mma_int, or for int8 with MANY_LT_ROWS and more rows cuBLASLt where that is faster: the same bits. Uses AREA_W. */
void many_int(gpu_dev *, const char *op, enum dtype t, const packed_gemm *, const quantised *);

/* M <= MMA_ROWS_NF4 (in reserve any M, capped to it); nf4 weights, x (M, K) f32, rounded to bf16; no gate. Uses
 * AREA_X and AREA_SUM. */
void mma_nf4(gpu_dev *, const char *op, const packed_gemm *, const struct mat *x);

/* op embed with a packed table (embed.cu) */
void embed_packed(gpu_dev *, const struct embed_args *);

} // namespace GPU_NAMESPACE

#endif
