/* Calibration: what the inputs of a model's matrix products look like, so that quantising can spare what matters.
 *
 * The unquantised model runs over a text, one given or one it writes itself, and for every product (the `product` of a
 * struct stack) H = X^T X over the rows x of its input is summed.  From H comes the error feedback that quantize.c
 * uses. Columns are taken in blocks of at most FEEDBACK_BLOCK, H between blocks counts as zero: memory and time grow
 * with the width and not with its square.
 *
 * Owned by who makes it; read-only once made; any thread. */
#ifndef TANDEM_ENGINE_MODEL_CALIBRATE_H
#define TANDEM_ENGINE_MODEL_CALIBRATE_H

#include "engine/base/err.h"
#include "engine/model/model.h"
#include "engine/model/quantize.h"

#include <stddef.h>
#include <stdint.h>

/* Models of up to this many weights are calibrated on their own text whenever they are quantised: they lose most by it,
 * and it takes about a second. */
enum { CALIBRATE_SELF_MAX = 16 << 20 };

struct moments {
    int cols;
    int64_t rows;
    float *h; /* for each block of columns, one after the other: (len, len), of which j >= i is filled */
};

void moments_open(struct moments *, int cols);
void moments_close(struct moments *);
/* h += x^T x, x (T, cols) f32 on the host, rows ld apart; the same bits on any number of threads */
void moments_add(struct moments *, const float *x, int rows, int ld, int threads);
/* The feedback for H + damp * mean(diag H) * 1.  *out is owned: feedback_close. */
void feedback_open(struct feedback *out, const struct moments *, double damp);
void feedback_close(struct feedback *);

/* How much the identity counts beside H.  The rows of a tied table are looked up as well, and there every direction
 * matters: its share is twice H's.  Measured on the two models of docs/performance.md, where a factor of three either
 * way hardly shows. */
#define DAMP 0.1
#define DAMP_TIED 2.0

struct calibration {
    int n; /* products: 4 layers + 1 */
    struct feedback *v;
    int64_t tokens;
};

/* From a text; reads at most CALIBRATE_TOKENS tokens of it.  ERR_INVALID when it has fewer than 2 or the model gives no
 * finite numbers. */
enum { CALIBRATE_TOKENS = 32768 };
int calibration_from_text(struct calibration *, const char *dir, const char *device, int threads, const char *text,
                          size_t n, struct err *e);
/* From text the model writes, starting each of 64 texts with a random token and sampling from its own distribution; the
 * same text on every call. */
int calibration_from_itself(struct calibration *, const char *dir, const char *device, int threads, struct err *e);
/* What quantising to `type` (an enum dtype) does when nothing was asked for: calibration_from_itself for a small model,
 * else nothing (n == 0).  On the cpu device whatever the model will run on, so that the weights are the same on all. */
int calibration_default(struct calibration *, const char *dir, const struct model_config *, int type, int threads,
                        struct err *e);
void calibration_close(struct calibration *);

/* NULL where there is none */
const struct feedback *calibration_feedback(const struct calibration *, int product);

#endif
