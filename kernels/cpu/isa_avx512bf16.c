/* The avx512bf16 level of the cpu device: avx512 with the bf16 dot product. */
#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/isa_impl.h"
