/* Which level of the cpu device fits this processor.  Any thread. */
#ifndef TANDEM_KERNELS_CPU_LEVEL_H
#define TANDEM_KERNELS_CPU_LEVEL_H

/* The name of the level that is fastest here, whether this build has it or not. */
const char *cpu_best_level(void);

#endif
