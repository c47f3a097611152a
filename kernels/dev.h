/* Shared by the devices and ops.c; not included from outside kernels/. */
#ifndef TANDEM_KERNELS_DEV_H
#define TANDEM_KERNELS_DEV_H

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each returns NULL, with a sentence in why[], when the device cannot be opened. */
struct dev *ref_open(char why[160]);
struct dev *cpu_open(const char *level, int threads, char why[160]); /* level NULL: the best the machine has */

#ifdef TANDEM_SIMT
struct dev *simt_open(int index, const struct dev_config *, char why[160]);
/* For tests: counts since the process began, and an injected failure: after `after` more launches, one fails
 * permanently (-1: none). */
struct simt_counts {
    uint64_t syncs, graphs, replays; /* waits for a stream; graphs recorded; graphs launched */
    uint64_t launches;               /* of kernels, including those recorded into graphs */
    uint64_t memory;                 /* allocations and frees of device memory */
    uint64_t event_waits;            /* waits for an event: the work enqueued after the wait has not run yet */
};
struct simt_counts simt_counts(void);
void simt_fail_launch(long after);
/* Resets the simulated runtime to the state of a new process: no error, no memory, no streams. No device may be
 * open. */
void simt_new_process(void);
/* Limits the size of one allocation; SIZE_MAX, the initial value: no limit. */
void simt_limit_allocation(size_t bytes);
#endif
#ifdef TANDEM_CUDA
struct dev *cuda_open(int index, const struct dev_config *, char why[160]); /* index: CUDA's device number */
#endif

/* Fills the NULL slots of a device's own table with compositions of basic ops. */
void compose_fill(struct dev_ops *);

/* A row is quantised with the step amax / 127; below this amax the inverse of the step would overflow, and the row
 * counts as zeros (see linear_args). */
#define QUANT_AMAX_MIN 0x1p-100f
/* A row whose amax is above this many times the mean of its |x| is quantised twice (see linear_args). */
#define QUANT_OUTLIER 64.0f

#ifdef __cplusplus
}
#endif

#endif
