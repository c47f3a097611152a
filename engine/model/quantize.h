/* Weight quantisation: float matrices to the canonical int8 and int4 forms of kernels/ops.h, and whole models.
 *
 *   int8  symmetric, one scale per output row: rounded at amax / 127, then the scale is set by least squares.
 *   int4  groups of 32 inputs, f16 scale, values -8..7.  The scale of a group is the one, among candidates around
 *         amax / 8 of either sign, whose rounded values fit the group best when the scale is then set by least squares.
 *         With a calibration (calibrate.h) the error of each column is also propagated to those that follow.
 *   nf4   bitsandbytes' 4-bit type with double quantisation (nf4.h, weights_bnb.h). */
#ifndef TANDEM_ENGINE_MODEL_QUANTIZE_H
#define TANDEM_ENGINE_MODEL_QUANTIZE_H

#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>

/* declared here only, so that users of quantize_model need not include kernels/num.h and ops.h */
struct weight_src;
struct calibration;
struct tensor_source;

enum { INT4_GROUP = 32, FEEDBACK_BLOCK = 1024 };

/* How rounding errors affect a GEMM's output: for each block of FEEDBACK_BLOCK columns (the last may be shorter) H =
 * X^T X + damping (len, len), row-major, and an upper triangular U with H^-1 = U^T U.  Made by calibrate.c. */
struct feedback {
    int cols;
    float *h, *u; /* the blocks end to end */
};

/* Options for rounding one matrix. */
struct quantize_fit {
    int type;                        /* enum dtype: DT_I8, DT_I4, or DT_NF4 (always rounded to nearest; nf4.h) */
    bool nearest;                    /* plain round-to-nearest at amax / 127 or amax / 7, for comparison */
    const struct feedback *feedback; /* for as many columns as the matrix has; NULL: weights are rounded independently.
                                        Not used with nearest */
};

/* Options for quantising a whole model. */
struct quantize_how {
    int type; /* DT_NONE: keep the file's type */
    bool nearest;
    const struct calibration *calibration; /* NULL: none */
};

/* Quantises src (float type) on up to `threads` threads.  *out's data and scale are allocated: free both.  ERR_NOMEM,
 * or ERR_INVALID when a weight is not finite (the message has row and column). */
int quantize_matrix(const struct weight_src *src, const struct quantize_fit *fit, int threads, struct weight_src *out,
                    struct err *e);

struct quantize_text {
    const char *text; /* n bytes to calibrate with; NULL: text that the model generates */
    size_t n;
};

/* Of the calibration; zeros without one. */
struct quantize_summary {
    int experts, unseen; /* experts of all layers; those that no token chose: rounded without calibration */
};

struct quantize_options {
    const char *type;                      /* "int8", "int4" or "nf4" (bitsandbytes' format; layout is ignored) */
    const char *layout;                    /* NULL or "packed": as the cpu device computes with it, mapped when served;
                                              "canonical" */
    const struct quantize_text *calibrate; /* NULL: as loading with that type would (calibration_default) */
    bool no_calibration;                   /* no default calibration either */
    void (*progress)(void *arg, int done, int total); /* matrices; may be NULL */
    void *arg;
    struct quantize_summary *summary;    /* filled when the model was calibrated; may be NULL */
    const struct tensor_source *weights; /* quantize_gguf: in place of the model's own tensors, borrowed; or NULL */
    bool untie;                          /* quantize_gguf: those have a head beside the embedding table, whatever the
                                            configuration says */
};

/* Reads the model in `dir` and writes `out` (created; must not hold a model yet): quantised matrices, the other tensors
 * as they are, tokenizer and configs copied.  Keeps one stack of matrices in memory.  If the process is killed, `out`
 * holds either the whole model or no model.safetensors. */
int quantize_model(const char *dir, const char *out, const struct quantize_options *, struct err *e);

/* Reads the model in `dir` and writes the GGUF file `out`, which must not exist: matrices of whole blocks in
 * options->type, "q8_0" or "q4_0", embedding and head in q8_0, the other tensors as floats, configuration and tokenizer
 * as keys.  Keeps one matrix in memory; `out` is complete or not there.  ERR_UNSUPPORTED, naming it, for what the
 * format cannot say. */
int quantize_gguf(const char *dir, const char *out, const struct quantize_options *, struct err *e);

/* Reads every byte of the weights in `dir` and compares with the checksums in the file.  The message names the tensor;
 * ERR_UNSUPPORTED where the file has no checksums. */
int quantize_verify(const char *dir, struct err *e);

#endif
