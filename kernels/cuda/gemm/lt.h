/* Matrix products by cuBLASLt: descriptors and algorithms kept by shape, the algorithms found by trying and remembered
 * between runs.
 *
 * The library is opened by name when the device is (never linked), so that one binary runs with and without it.  An
 * algorithm belongs to a class of shapes, each extent rounded up to one of four values an octave, and the alignments of
 * pointers and lines: a prompt of any length takes one that was found for its class.  reserve tries the library's first
 * few suggestions for each class that it is shown.  In a class that has none yet the first product tries them, which
 * waits for them; not while the stream is captured, and not when it has a beta, since to try would change C: then the
 * first suggestion is taken.  What was found is kept in $XDG_CACHE_HOME/tandem (or ~/.cache/tandem) in a file by the
 * names of device and library: the classes asked for last, of all models that ran there.  What the library refuses is
 * multiplied by tiles of ours (lt_plain.cu), slowly, and its class remembered while the process lives.
 *
 * A product's bits depend on the algorithm, so on the class of its shape, and not on the rest of the rows: these are
 * the products of many rows, and a row alone goes to kernels of ours (linear.cu). */
#ifndef TANDEM_KERNELS_CUDA_GEMM_LT_H
#define TANDEM_KERNELS_CUDA_GEMM_LT_H

#include "kernels/cuda/device.h"

namespace GPU_NAMESPACE {

/* C (M, N) = alpha op(A) op(B) + beta C + bias, row-major, lds in elements.  op(A) (M, K) is A, or with ta the
 * transpose of A (K, M); op(B) (K, N) is B, or with tb the transpose of B (N, K).  t is of A and B:
 *  - DT_F32 (full precision, no TF32), DT_BF16, DT_F16: C is f32, sums in f32
 *  - DT_I8: C is int32; alpha 1, beta 0, no bias.  The library has it for !ta, tb, K, lda and ldb multiples of 16,
 *    N and ldc of 4, A and B aligned to 16 bytes
 *
 * Pointers are aligned to an element.  With beta 0 what C held is not read.  C overlaps neither A nor B.
 *
 * The bias comes last (the library's epilogue): with alpha 1 and beta 0 the sum over k, rounded to f32, plus the bias,
 * rounded, the bits of adding it afterwards to what the same algorithm sums. */
struct lt_args {
    enum dtype t;
    int M, N, K;
    const void *a;
    int lda;
    bool ta;
    const void *b;
    int ldb;
    bool tb;
    void *c;
    int ldc;
    float alpha, beta;
    int whole;         /* N of what this is a slice of, so that slices get one algorithm; 0: no slice */
    const float *bias; /* (N), of each column; NULL: none */
};

/* Enqueues the product; in reserve notes its class.  false: the device has failed, in op. */
bool lt_multiply(gpu_dev *, const char *op, const struct lt_args *);

/* Whether lt_multiply would not have to do it by tiles of our own; may try, and write C, as that does. */
bool lt_offers(gpu_dev *, const char *op, const struct lt_args *);

/* A shape (M, N, K) that two ways compute, 0 and 1, with the same bits.  run enqueues it in a way, its matrices in that
 * many bytes of memory. */
struct lt_race {
    int M, N, K;
    size_t bytes;
    void (*run)(gpu_dev *, const char *op, const struct lt_race *, uint8_t *memory, int way);
};
/* The faster way, or -1 where that is not known.  In reserve notes the shape: then they are timed there, and what comes
 * out is kept with the algorithms, by class of the three extents. */
int lt_faster(gpu_dev *, const struct lt_race *);

/* The same by tiles of our own: any form, alignment and type, without the library, and without the bias. */
void lt_plain(gpu_dev *, const char *op, const struct lt_args *);
void lt_add_bias(gpu_dev *, const char *op, const struct lt_args *); /* to what is in C */

/* For reserve: forgets which products it was shown; and tries those that no algorithm is known for, the largest first,
 * in memory that it gives back, for about so long at most.  What is left is tried when it comes. */
void lt_forget_wishes(gpu_dev *);
void lt_tune(gpu_dev *, double seconds);

/* The library, its workspace and what earlier runs found: d->lt.  false, and a sentence in why, without the library or
 * memory. */
bool lt_open(gpu_dev *, const char *device_name, char why[160]);
void lt_close(gpu_dev *); /* may be called after a failed or without any lt_open */

} // namespace GPU_NAMESPACE

#endif
