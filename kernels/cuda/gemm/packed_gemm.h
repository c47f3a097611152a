/* Products of activations with packed weights: what linear.cu hands to the kernels of each kind. */
#ifndef TANDEM_KERNELS_CUDA_GEMM_PACKED_GEMM_H
#define TANDEM_KERNELS_CUDA_GEMM_PACKED_GEMM_H

#include "kernels/cuda/device.h"

namespace GPU_NAMESPACE {

/* y (M, N) = x W^T + bias over rows of a weight; with gate W has 2 N rows, and y = act(gate) * up of the products with
 * row n and row N + n (bias (2 N) then).  Passed to kernels by value; everything in it is on the device. */
struct product {
    const uint8_t *w; /* of output 0 */
    size_t row_bytes;
    const void *scale; /* of output 0: f32 (N) of int8, f16 (N, n_groups) of int4, f32 (N, n_groups) of nf4 */
    int group, n_groups;
    int M, N, K, first, whole; /* whole: outputs of the weight, of which these are N from the first on */
    const float *bias;         /* NULL: none */
    float *y;
    int ldy;
    bool gate;
    enum act_kind act;
    const uint8_t *after; /* what the product after this one will read first, of after_bytes; NULL: not known */
    size_t after_bytes;
};

/* Rows of x quantised as linear_args says.  The integers of row m begin at q + m * ld, ld a multiple of 128, zeros
 * from K on.  An outlier row's rest is in `rest` likewise; of other rows that is not written. */
struct quantised {
    int8_t *q, *rest;
    float *step, *rest_step;
    int *outlier;
    int ld;
};

/* The sixteen values of nf4 (num.h), for a kernel's parameters: a host's table is not the device's. */
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

/* the most rows that the kernels of few rows take: of floats, of bf16 over rounded rows, of int8 and int4 */
enum { GEMV_ROWS = 16, GEMV_ROWS_ROUNDED = 8, GEMV_ROWS_INT = 8 };
/* The most rows of mma_nf4.  With more, each weight is read by many blocks, and to write it out once as bf16 costs
 * less: by reckoning, not measured. */
enum { MMA_ROWS_NF4 = 256 };

/* Quantises x (M, K) into AREA_X, or finds it quantised ahead.  even_odd: of each eight columns the four even ones come
 * first, which is how a word of int4 weights unpacks.  false: the device has failed. */
bool quantise_rows(gpu_dev *, const char *op, const struct mat *x, bool even_odd, quantised *);
/* Whether a norm that writes x for a product with w (or NULL) may quantise its rows; then it must, to `out` in
 * AREA_NORM, even_odd for int4, and quantise_rows will find them there. */
bool quantise_ahead(gpu_dev *, const char *op, const struct mat *x, const gpu_weight *w, quantised *out);

/* M <= GEMV_ROWS, or GEMV_ROWS_ROUNDED.  t: of the weights, f32, bf16, f16 or nf4; x (M, K) f32.  round_x: to bf16
 * first. Uses AREA_X. */
void gemv_float(gpu_dev *, const char *op, enum dtype t, const product *, const struct mat *x, bool round_x);
/* M <= GEMV_ROWS_INT.  t: int8, or int4 over even_odd activations. */
void gemv_int(gpu_dev *, const char *op, enum dtype t, const product *, const quantised *);
/* any M; no gate */
void mma_int(gpu_dev *, const char *op, enum dtype t, const product *, const quantised *);
/* Of int8 the second product alone: outlier rows of y, which have the first and no bias yet, get it and the bias. */
void mma_int_rests(gpu_dev *, const char *op, const product *, const quantised *);
/* mma_int, or for int8 of MANY_LT_ROWS and more cuBLASLt where that is faster: the same bits.  Uses AREA_W. */
void many_int(gpu_dev *, const char *op, enum dtype t, const product *, const quantised *);

/* M <= MMA_ROWS_NF4 (in reserve any: that many are asked for then); nf4 weights, x (M, K) f32, rounded to bf16; no
 * gate. Uses AREA_X and AREA_SUM. */
void mma_nf4(gpu_dev *, const char *op, const product *, const struct mat *x);

/* op embed with a packed table (embed.cu) */
void embed_packed(gpu_dev *, const struct embed_args *);

} // namespace GPU_NAMESPACE

#endif
