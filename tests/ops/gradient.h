/* Gradients against finite differences. */
#ifndef TANDEM_TESTS_OPS_GRADIENT_H
#define TANDEM_TESTS_OPS_GRADIENT_H

#include "tests/ops/harness.h"

/* `dx` (n, host) is what a backward op says of a loss by x (n, memory of a device with host_memory, changed here and
 * put back).  `loss` runs the forward op on x and returns the loss in double.  At most `most` elements, drawn at
 * random, are compared with (loss(x + step) - loss(x - step)) / (2 step), within tolerance times the largest |dx|.
 * Losses come from f32 results: a step near 2^-7 balances their rounding against the curvature; of a linear function
 * any step is exact, and a large one best. */
struct gradient_check {
    const char *label;
    float *x;
    const float *dx;
    size_t n;
    int most;
    double (*loss)(void *ctx);
    void *ctx;
    double step, tolerance;
};
void gradient_check(struct gradient_check);

/* The loss whose gradient by y is dy: sum dy y in double.  Both (rows, cols), dy dense. */
double gradient_loss(const struct mat *y, const float *dy);

#endif
