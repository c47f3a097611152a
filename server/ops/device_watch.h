/* The GPUs of this machine as their driver sees them (nvml.h): asked on the pool, by one thread at most, because a
 * driver may hang with its device.  Loop thread. */
#ifndef TANDEM_SERVER_OPS_DEVICE_WATCH_H
#define TANDEM_SERVER_OPS_DEVICE_WATCH_H

#include <stdbool.h>

struct bridge;
struct device_sample;
struct device_watch;

/* Looks for devices on the pool. */
struct device_watch *device_watch_open(struct bridge *);
/* After the bridge has closed.  NULL is allowed. */
void device_watch_close(struct device_watch *);
/* There are devices, and no request to the driver is running. */
bool device_watch_idle(const struct device_watch *);
/* Asks the driver; done(arg) when it has answered.  Only while idle. */
void device_watch_ask(struct device_watch *, void (*done)(void *), void *arg);
/* What it answered last; NULL: there are no devices, or they have not been found yet. */
const struct device_sample *device_watch_sample(const struct device_watch *);

#endif
