/* The i8mm level of the cpu device: neon with products of int8 matrices, and of unsigned with signed bytes. */
#include "kernels/cpu/vec_neon.h"

#include "kernels/cpu/isa_impl.h"
