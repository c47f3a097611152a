/* The neon level of the cpu device. */
#include "kernels/cpu/vec_neon.h"

#include "kernels/cpu/isa_impl.h"
