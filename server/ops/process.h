/* What the kernel says of this process, for /metrics: under the names that Prometheus' client libraries have
 * (https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics).  Any thread; reads /proc. */
#ifndef TANDEM_SERVER_OPS_PROCESS_H
#define TANDEM_SERVER_OPS_PROCESS_H

#include "engine/base/buf.h"

/* start_unix: seconds since the epoch. */
void process_render(struct buf *, double start_unix);
/* Bytes that the process may take: the least limit of its control groups, or the machine's memory. */
double process_memory_limit(void);
/* Raises the soft limit of file descriptors, as far as the hard one allows, to what so many connections and the
 * process's own files take; warns where it is not enough.  Loop thread. */
void process_files(int max_connections);
/* What requests may hold by default (reservation.h), with `model` bytes for weights and KV cache: of that limit, or of
 * RLIMIT_AS where it leaves less. */
size_t process_request_memory(size_t model);

#endif
