/* The ops of training, for now as ref has them. */
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

#define X(op)                                                                                                          \
    void cpu_##op(struct dev *d, const struct op##_args *a)                                                            \
    {                                                                                                                  \
        ref_##op(d, a);                                                                                                \
    }
TRAIN_OPS(X)
#undef X
