/* The avx512 level of the cpu device. */
#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/isa_impl.h"
