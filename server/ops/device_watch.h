/* Samples of this machine's GPUs from their driver (nvml.h).  Queried on the pool, by one thread at most, because a
 * driver may hang with its device.  Loop thread. */
#ifndef TANDEM_SERVER_OPS_DEVICE_WATCH_H
#define TANDEM_SERVER_OPS_DEVICE_WATCH_H

#include <stdbool.h>

struct bridge;
struct device_sample;
struct device_watch;

/* Starts a search for devices on the pool. */
struct device_watch *device_watch_open(struct bridge *);
/* After the bridge has closed.  NULL is allowed. */
void device_watch_close(struct device_watch *);
/* @return whether there are devices and no driver query is running. */
bool device_watch_idle(const struct device_watch *);
/* Queries the driver; calls done(arg) when it has answered.  Only while idle. */
void device_watch_query(struct device_watch *, void (*done)(void *), void *arg);
/* @return the latest sample; NULL: no devices, or none found yet. */
const struct device_sample *device_watch_sample(const struct device_watch *);

#endif
