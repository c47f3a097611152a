/* A matrix on two devices, for tests of training ops. */
#ifndef TANDEM_TESTS_OPS_TWIN_H
#define TANDEM_TESTS_OPS_TWIN_H

#include "tests/ops/harness.h"

/* The same contents on both; columns past `cols` must stay as they were. */
struct twin {
    struct mat dev, ref;
    float *host;
    size_t n;
};

/* Of random contents, with rows cols + gap apart. */
struct twin twin_make(struct dev *dev, struct dev *ref, int rows, int cols, int gap);
void twin_free(struct dev *dev, struct dev *ref, struct twin *t);
/* The device's values against those of ref, row by row.  bf16: how far rounding may move a value; 0: in units of the
 * row's largest. */
void twin_compare(const char *label, struct dev *dev, struct dev *ref, const struct twin *t, double bf16);

#endif
