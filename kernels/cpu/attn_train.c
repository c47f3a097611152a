/* The drivers of attention in training, for now as ref has them. */
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

void cpu_attn_seq(struct dev *d, const struct attn_seq_args *a)
{
    ref_attn_seq(d, a);
}

void cpu_attn_back(struct dev *d, const struct attn_back_args *a)
{
    ref_attn_back(d, a);
}
