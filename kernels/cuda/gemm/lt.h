/* GEMMs by cuBLASLt: descriptors and algorithms are cached by shape; the algorithms are autotuned and stored on
 * disk.
 *
 * The library is opened by name when the device is (never linked), so that one binary runs with and without it. An
 * algorithm belongs to a class of shapes, given by each extent rounded up to one of four values per octave, and by
 * the alignments of pointers and lines: a prompt of any length uses one that was tuned for its class. reserve tunes
 * each class that it is shown by timing the library's first few suggestions. For a class without an algorithm the
 * first GEMM tunes it, which synchronises the stream; but not during graph capture, and not with a beta, because
 * tuning would change C: then the first suggestion is used. Results are kept in $XDG_CACHE_HOME/tandem (or
 * ~/.cache/tandem), in a file named after device and library: the most recently used classes, of all models that ran
 * there. A GEMM that the library rejects is computed, slowly, by a tile kernel of our own (lt_plain.cu), and its
 * class is remembered as rejected while the process lives.
 *
 * The bits of a GEMM depend on the algorithm, hence on the class of its shape, but not on the values of other rows.
 * These are the GEMMs of many rows; single rows go to kernels of our own (linear.cu). */
#ifndef TANDEM_KERNELS_CUDA_GEMM_LT_H
#define TANDEM_KERNELS_CUDA_GEMM_LT_H

#include "kernels/cuda/device.h"

namespace GPU_NAMESPACE {

/* C (M, N) = alpha op(A) op(B) + beta C + bias, row-major, lds in elements. op(A) (M, K) is A, or with ta the
 * transpose of A (K, M); op(B) (K, N) is B, or with tb the transpose of B (N, K). t is the type of A and B:
 *  - DT_F32 (full precision, no TF32), DT_BF16, DT_F16: C is f32, sums in f32
 *  - DT_I8: C is int32; alpha 1, beta 0, no bias. The library has it for !ta, tb, K, lda and ldb multiples of 16,
 *    N and ldc of 4, A and B aligned to 16 bytes
 *
 * Pointers are aligned to an element. With beta 0 C is not read. C overlaps neither A nor B.
 *
 * The bias comes last (the library's epilogue): with alpha 1 and beta 0 the sum over k is rounded to f32, then the
 * bias is added and the result rounded. The bits are those of adding the bias afterwards to the same algorithm's
 * output. */
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
    /* N of the full weight when this is a slice of it, so that all slices use one algorithm; 0: no slice */
    int whole;
    const float *bias; /* (N), of each column; NULL: none */
};

/* Enqueues the GEMM; in reserve records its class for tuning. @return false when the device has failed, in op. */
bool lt_multiply(gpu_dev *, const char *op, const struct lt_args *);

/* Whether lt_multiply would use the library and not the tile kernel. May tune, and write C, as lt_multiply does. */
bool lt_offers(gpu_dev *, const char *op, const struct lt_args *);

/* A shape (M, N, K) that two implementations, 0 and 1, compute with the same bits. run enqueues one of them, with
 * its matrices in `bytes` bytes of memory. */
struct lt_race {
    int M, N, K;
    size_t bytes;
    void (*run)(gpu_dev *, const char *op, const struct lt_race *, uint8_t *memory, int way);
};
/* The faster implementation, or -1 while unknown. In reserve records the shape: it is timed there, and the result is
 * stored with the algorithms, by class of the three extents. */
int lt_faster(gpu_dev *, const struct lt_race *);

/* The same by a tile kernel of our own, without the library: any form, alignment and type; ignores the bias. */
void lt_plain(gpu_dev *, const char *op, const struct lt_args *);
void lt_add_bias(gpu_dev *, const char *op, const struct lt_args *); /* adds the bias to C */

/* For reserve. lt_requests_clear drops the list of requested autotuning shapes. lt_tune autotunes those whose class
 * has no algorithm yet, the largest first, in memory that it frees again, for about so long at most. What is left is
 * tuned at its first use. */
void lt_requests_clear(gpu_dev *);
void lt_tune(gpu_dev *, double seconds);

/* Opens the library, allocates its workspace and loads the file of tuned classes into d->lt. @return false, with a
 * sentence in why, without the library or memory. */
bool lt_open(gpu_dev *, const char *device_name, char why[160]);
void lt_close(gpu_dev *); /* may be called after a failed lt_open or without one */

} // namespace GPU_NAMESPACE

#endif
