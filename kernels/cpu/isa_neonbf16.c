/* The neonbf16 level of the cpu device: i8mm with multiply-adds of bf16. */
#include "kernels/cpu/vec_neon.h"

#include "kernels/cpu/isa_impl.h"
