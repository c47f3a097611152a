/* The parts of the reference device that live in its other files. */
#ifndef TANDEM_KERNELS_REF_H
#define TANDEM_KERNELS_REF_H

#include "kernels/ops.h"

enum { REF_HEAD_MAX = 1024 }; /* of head_dim */

double ref_act_value(double x, enum act_kind);

void ref_sample(struct dev *, const struct sample_args *);

#define X(op) void ref_##op(struct dev *, const struct op##_args *);
TRAIN_OPS(X)
#undef X

#endif
