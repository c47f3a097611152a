/* The avxvnni level of the cpu device: avx2 with the int8 dot product. */
#include "kernels/cpu/vec_avx2.h"

#include "kernels/cpu/isa_impl.h"
