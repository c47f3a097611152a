/* What the devices share with ops.c and with each other; nothing outside kernels/ includes this. */
#ifndef TANDEM_KERNELS_DEV_H
#define TANDEM_KERNELS_DEV_H

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each returns NULL with a sentence in why[] when it cannot. */
struct dev *ref_open(char why[160]);
struct dev *cpu_open(const char *level, int threads, char why[160]); /* level NULL: the best the machine has */

#ifdef TANDEM_SIMT
struct dev *simt_open(const struct dev_config *, char why[160]);
/* For tests: counts since the process began, and the launch after `after` more that fails for good (-1: none). */
struct simt_counts {
    uint64_t syncs, graphs, replays; /* waits for a stream; graphs recorded; graphs launched */
    uint64_t launches;               /* of kernels, also of those that are recorded */
    uint64_t memory;                 /* pieces of the device's memory that were taken or given back */
    uint64_t event_waits;            /* waits for an event: what was enqueued after it has not run then */
};
struct simt_counts simt_counts(void);
void simt_fail_launch(long after);
/* What another process would find: no error, no memory, no streams.  No device may be open. */
void simt_new_process(void);
/* The system gives no piece of memory that is larger; SIZE_MAX, as at first: any. */
void simt_largest_piece(size_t bytes);
#endif
#ifdef TANDEM_CUDA
struct dev *cuda_open(int index, const struct dev_config *, char why[160]); /* index: as CUDA counts */
#endif

/* Puts compositions of basic ops into the NULL slots of a device's own table. */
void compose_fill(struct dev_ops *);

/* A row is quantised with the step amax / 127; below this amax the step's inverse would overflow and the row counts
 * as zeros (see linear_args). */
#define QUANT_AMAX_MIN 0x1p-100f
/* A row whose amax is above this many times the mean of its |x| is quantised twice (see linear_args). */
#define QUANT_OUTLIER 64.0f

#ifdef __cplusplus
}
#endif

#endif
