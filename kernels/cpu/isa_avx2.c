/* The avx2 level of the cpu device. */
#include "kernels/cpu/vec_avx2.h"

#include "kernels/cpu/isa_impl.h"
