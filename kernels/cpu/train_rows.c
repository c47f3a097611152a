/* The ops of training, for now as ref has them. */
#include "kernels/cpu/cpu.h"

#define X(op)                                                                                                          \
    void ref_##op(struct dev *, const struct op##_args *);                                                             \
    void cpu_##op(struct dev *d, const struct op##_args *a)                                                            \
    {                                                                                                                  \
        ref_##op(d, a);                                                                                                \
    }
X(norm_back)
X(rope) X(attn_seq) X(attn_back) X(head_norm_back) X(act_mul_back) X(act_back) X(cross_entropy) X(dropout)
    X(square_sum) X(adamw)
#undef X
