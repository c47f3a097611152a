/* The portable level of the cpu device. */
#include "kernels/cpu/vec_portable.h"

#include "kernels/cpu/isa_impl.h"
