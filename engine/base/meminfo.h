/* The machine's memory, as Linux has it. */
#ifndef TANDEM_ENGINE_BASE_MEMINFO_H
#define TANDEM_ENGINE_BASE_MEMINFO_H

#include <stddef.h>

/* Bytes that this process may still take: what the kernel says is available, or less where a container is limited. */
size_t memory_available(void);

#endif
