/* The machine's memory, as reported by Linux. */
#ifndef TANDEM_ENGINE_BASE_MEMINFO_H
#define TANDEM_ENGINE_BASE_MEMINFO_H

#include <stddef.h>

/* Bytes that this process can still allocate: what the kernel reports as available, or less under a cgroup limit. */
size_t memory_available(void);

#endif
