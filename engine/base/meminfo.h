/* The machine's memory, as reported by Linux. */
#ifndef TANDEM_ENGINE_BASE_MEMINFO_H
#define TANDEM_ENGINE_BASE_MEMINFO_H

#include <stddef.h>

/* Bytes that this process can still allocate: what the kernel reports as available, or less under a cgroup limit. */
size_t memory_available(void);

/* Resident bytes of this process at their highest; 0: unknown. */
size_t memory_peak(void);
/* Resident bytes of this process that are no file's; 0: unknown. */
size_t memory_private(void);
/* Lets memory_peak start again from what is resident now, where the kernel permits it. */
void memory_peak_forget(void);

#endif
