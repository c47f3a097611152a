/* The part of the reference device that lives in its second file. */
#ifndef TANDEM_KERNELS_REF_H
#define TANDEM_KERNELS_REF_H

#include "kernels/ops.h"

void ref_sample(struct dev *, const struct sample_args *);

#endif
