/* Memory and use of NVIDIA's devices, from the driver's own library (libnvidia-ml.so.1), which is opened when it is
 * there and never needed.  nvml_open may take a second and nvml_sample may hang with a broken device, so both belong on
 * a pool thread; one call at a time. */
#ifndef TANDEM_SERVER_OPS_NVML_H
#define TANDEM_SERVER_OPS_NVML_H

#include "engine/base/buf.h"

#include <stdbool.h>

enum { NVML_DEVICES = 32 };

struct device_use {
    char name[96], uuid[96];
    double memory_total, memory_used; /* bytes */
    double utilization;               /* 0 .. 1: of the last sample period a kernel ran; -1: unknown, as the next two */
    double watts, celsius;
};

struct device_sample {
    int n;
    struct device_use v[NVML_DEVICES];
};

struct nvml;

/* NULL: no library, or no device.  path NULL: libnvidia-ml.so.1 where the system finds it. */
struct nvml *nvml_open(const char *path);
/* At the end of the process, which gives back what the driver's library holds: it is not asked to, for with a broken
 * device that may hang, and this is called on the loop.  NULL is allowed. */
void nvml_close(struct nvml *);
void nvml_sample(struct nvml *, struct device_sample *);

void nvml_render(const struct device_sample *, struct buf *);

#endif
