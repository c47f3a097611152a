/* Calibration: statistics of the inputs of a model's GEMMs, so that quantisation keeps the error small where it
 * matters.
 *
 * The unquantised model runs over a text, a given one or one it generates, and for every GEMM (`gemm` of struct
 * stack) H = X^T X is summed over the rows x of its input; of an expert's GEMM over the rows of the tokens that chose
 * the expert.  The error feedback of quantize.c is computed from H.
 * Columns are processed in blocks of at most FEEDBACK_BLOCK and H between blocks is taken as zero, so memory and time
 * grow linearly with the width, not with its square.
 *
 * Owned by the caller that creates it; immutable afterwards; any thread. */
#ifndef TANDEM_ENGINE_MODEL_CALIBRATE_H
#define TANDEM_ENGINE_MODEL_CALIBRATE_H

#include "engine/base/err.h"
#include "engine/model/model.h"
#include "engine/model/quantize.h"

#include <stddef.h>
#include <stdint.h>

/* Models of up to this many weights are calibrated on text they generate whenever they are quantised: they lose most
 * accuracy by quantisation, and calibrating them takes about a second. */
enum { CALIBRATE_SELF_MAX = 16 << 20 };

struct moments {
    int cols;
    int64_t rows;
    float *h; /* (len, len) per block of columns, end to end; only the upper triangle (j >= i) is filled */
};

void moments_open(struct moments *, int cols);
void moments_close(struct moments *);
/* h += x^T x, x (T, cols) f32 on the host, rows ld apart; the result does not depend on the number of threads */
void moments_add(struct moments *, const float *x, int rows, int ld, int threads);
/* The feedback for H + damp * mean(diag H) * 1.  The caller closes *out with feedback_close. */
void feedback_open(struct feedback *out, const struct moments *, double damp);
void feedback_close(struct feedback *);

/* The weight of the identity relative to H.  The rows of a tied table are also used as embeddings, where every
 * direction matters, so its weight is twice H's.  Measured on the two models of docs/performance.md; a factor of three
 * either way changes little. */
#define DAMP 0.1
#define DAMP_TIED 2.0

struct calibration {
    int n; /* tensors_gemms */
    struct feedback *v;
    int64_t tokens;
    int experts, unseen; /* experts of all layers; those that no token chose, whose GEMMs have no feedback */
};

/* Calibrates on a text, of which at most CALIBRATE_TOKENS tokens are read.  ERR_INVALID when it has fewer than 2 tokens
 * or the model's outputs are not finite; ERR_NOMEM when the statistics of all GEMMs do not fit in memory. */
enum { CALIBRATE_TOKENS = 32768 };
int calibration_from_text(struct calibration *, const char *dir, const char *device, int threads, const char *text,
                          size_t n, struct err *e);
/* Calibrates on text that the model generates: 64 texts, each from a random first token, sampled from the model's
 * distribution.  The text is the same on every call. */
int calibration_from_itself(struct calibration *, const char *dir, const char *device, int threads, struct err *e);
/* The default for quantising to `type` (an enum dtype): calibration_from_itself for a small model without experts, else
 * none (n == 0).  It runs on the cpu device whatever device the model will run on, so that the quantised weights are
 * the same on all.
 */
int calibration_default(struct calibration *, const char *dir, const struct model_config *, int type, int threads,
                        struct err *e);
void calibration_close(struct calibration *);

/* NULL: none for this GEMM */
const struct feedback *calibration_feedback(const struct calibration *, int gemm);

#endif
