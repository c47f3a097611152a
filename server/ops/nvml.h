/* Memory and utilization of NVIDIA devices, from the driver's library (libnvidia-ml.so.1), which is optional.
 * nvml_open may take a second and nvml_sample may hang with a broken device, so call both on a pool thread; one call at
 * a time. */
#ifndef TANDEM_SERVER_OPS_NVML_H
#define TANDEM_SERVER_OPS_NVML_H

#include "engine/base/buf.h"

#include <stdbool.h>

enum { NVML_DEVICES = 32 };

struct device_use {
    char name[96], uuid[96];
    double memory_total, memory_used; /* bytes */
    double utilization; /* 0 .. 1: share of the last sample period with a kernel running; -1: unknown, also below */
    double watts, celsius;
};

struct device_sample {
    int n;
    struct device_use v[NVML_DEVICES];
};

struct nvml;

/* @return NULL when there is no library or no device.  path NULL: libnvidia-ml.so.1 on the system's search path. */
struct nvml *nvml_open(const char *path);
/* Only at the end of the process, which releases the driver library's resources: its shutdown call may hang with a
 * broken device, and this function runs on the loop.  NULL is allowed. */
void nvml_close(struct nvml *);
void nvml_sample(struct nvml *, struct device_sample *);

/* What limits a device's speed. */
struct device_condition {
    char name[96];
    unsigned long long slowed; /* nvmlClocksEventReasons*: why its clock is below the highest now; 0: it is not */
    double celsius, slowdown_celsius;  /* now; from which on it slows itself down */
    double power_limit, power_default; /* watts */
    double memory_total, memory_used;  /* bytes */
    double memory_own;                 /* of it, what processes named tandem hold; as far as it is known, else 0 */
    double utilization;                /* 0 .. 1 */
    int link_width, link_width_max;    /* PCIe lanes */
    int persistence;                   /* 1: the driver stays loaded while nothing uses the device */
    double errors;                     /* of its memory, since the driver was loaded, which ECC could not correct */
};

/* Numbers that the driver does not tell are -1.  @return devices written to out[NVML_DEVICES]. */
int nvml_inspect(struct nvml *, char *driver, size_t driver_bytes, struct device_condition *out);

void nvml_render(const struct device_sample *, struct buf *);

#endif
