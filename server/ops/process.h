/* The kernel's statistics of this process for /metrics, under the names of Prometheus' client libraries
 * (https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics).  Any thread; reads /proc. */
#ifndef TANDEM_SERVER_OPS_PROCESS_H
#define TANDEM_SERVER_OPS_PROCESS_H

#include "engine/base/buf.h"

/* start_unix: seconds since the epoch. */
void process_render(struct buf *, double start_unix);
/* @return bytes that the process may use: the smallest limit of its control groups, or the machine's memory. */
double process_memory_limit(void);
/* Raises the soft limit of file descriptors, as far as the hard limit allows, to the number that max_connections and
 * the process's own files need; warns when that is not possible.  Loop thread. */
void process_files(int max_connections);
/* @return the default budget of requests in bytes (reservation.h), given `model` bytes for weights and KV cache: from
 * process_memory_limit, or from RLIMIT_AS where that leaves less. */
size_t process_request_memory(size_t model);

#endif
