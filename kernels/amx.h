/* Whether this processor multiplies int8 and bf16 on tile registers (AMX), and the kernel lets this process use them.  Any thread. */
#ifndef TANDEM_KERNELS_AMX_H
#define TANDEM_KERNELS_AMX_H

#include <stdbool.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Asks for the permission: it is the process's from then on, and enlarges the state that a signal saves (Linux 5.16;
 * Documentation/arch/x86/xstate.rst). */
static inline bool amx_permitted(void)
{
#if defined(__x86_64__) && defined(SYS_arch_prctl)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1) && /* AMX-BF16, AMX-TILE */
           (d >> 25 & 1) &&                                                                  /* AMX-INT8 */
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

#endif
