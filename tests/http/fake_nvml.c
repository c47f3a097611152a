/* In the place of NVIDIA's libnvidia-ml.so.1 for test_metrics_full.py and test_doctor.py: two devices, the second
 * without the figures that a partition of a device does not have.  FAKE_NVML says how it fails: "init", "none" (no
 * devices), "slow" (a sample takes a second), "lost" (each device has fallen off the bus), "stuck" (it does not let
 * go); or "own": most memory of the first is the calling process's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct memory_info {
    unsigned long long total, free, used;
};

struct process_info {
    unsigned id;
    unsigned long long memory;
    unsigned instances[2];
};

struct utilization {
    unsigned gpu, memory;
};

enum { SUCCESS = 0, NOT_SUPPORTED = 3, UNKNOWN = 999, GPU_IS_LOST = 15 };

static int devices[2] = {0, 1};

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned *);
int nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
int nvmlDeviceGetName(void *, char *, unsigned);
int nvmlDeviceGetUUID(void *, char *, unsigned);
int nvmlDeviceGetMemoryInfo(void *, struct memory_info *);
int nvmlDeviceGetUtilizationRates(void *, struct utilization *);
int nvmlDeviceGetPowerUsage(void *, unsigned *);
int nvmlDeviceGetTemperature(void *, int, unsigned *);
int nvmlSystemGetDriverVersion(char *, unsigned);
int nvmlDeviceGetCurrentClocksThrottleReasons(void *, unsigned long long *);
int nvmlDeviceGetTemperatureThreshold(void *, int, unsigned *);
int nvmlDeviceGetEnforcedPowerLimit(void *, unsigned *);
int nvmlDeviceGetPowerManagementDefaultLimit(void *, unsigned *);
int nvmlDeviceGetCurrPcieLinkWidth(void *, unsigned *);
int nvmlDeviceGetMaxPcieLinkWidth(void *, unsigned *);
int nvmlDeviceGetPersistenceMode(void *, int *);
int nvmlDeviceGetTotalEccErrors(void *, int, int, unsigned long long *);
int nvmlDeviceGetComputeRunningProcesses_v3(void *, unsigned *, struct process_info *);

static int fails(const char *how)
{
    const char *asked = getenv("FAKE_NVML");
    return asked && strcmp(asked, how) == 0;
}

static int index_of(const void *device)
{
    return *(const int *)device;
}

int nvmlInit_v2(void)
{
    return fails("init") ? UNKNOWN : SUCCESS;
}

int nvmlShutdown(void)
{
    while (fails("stuck")) pause();
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = fails("none") ? 0 : 2;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **out)
{
    if (i >= 2 || fails("lost")) return GPU_IS_LOST;
    if (fails("slow")) sleep(1);
    *out = &devices[i];
    return SUCCESS;
}

int nvmlDeviceGetName(void *device, char *out, unsigned n)
{
    snprintf(out, n, "NVIDIA \"Fake\" %d", index_of(device));
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *device, char *out, unsigned n)
{
    snprintf(out, n, "GPU-00000000-0000-0000-0000-00000000000%d", index_of(device));
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory_info *out)
{
    out->total = 80ull << 30;
    out->used = (unsigned long long)(40 + index_of(device)) << 30;
    out->free = out->total - out->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, struct utilization *out)
{
    if (index_of(device)) return NOT_SUPPORTED;
    *out = (struct utilization){.gpu = 87, .memory = 31};
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
    *milliwatts = 345678;
    return index_of(device) ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius)
{
    *celsius = 64;
    return index_of(device) || sensor ? NOT_SUPPORTED : SUCCESS;
}

/* for tandem doctor: the first device is hot, and limited to 250 of its 300 W */

int nvmlSystemGetDriverVersion(char *out, unsigned n)
{
    snprintf(out, n, "580.00");
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons)
{
    *reasons = 0x20;
    return index_of(device) ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetTemperatureThreshold(void *device, int which, unsigned *celsius)
{
    *celsius = 66;
    return index_of(device) || which != 1 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts)
{
    *milliwatts = 250000;
    return index_of(device) ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetPowerManagementDefaultLimit(void *device, unsigned *milliwatts)
{
    *milliwatts = 300000;
    return index_of(device) ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *lanes)
{
    *lanes = index_of(device) ? 8 : 16;
    return SUCCESS;
}

int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *lanes)
{
    (void)device;
    *lanes = 16;
    return SUCCESS;
}

int nvmlDeviceGetPersistenceMode(void *device, int *mode)
{
    *mode = 1;
    return index_of(device) ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *n)
{
    *n = 0;
    return index_of(device) || type != 1 || counter != 0 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *n, struct process_info *out)
{
    const struct process_info all[] = {{.id = (unsigned)getpid(), .memory = 39ull << 30},
                                       {.id = 1, .memory = 1ull << 30},
                                       {.id = (unsigned)getpid(), .memory = ~0ull}};
    if (index_of(device) || !fails("own")) return NOT_SUPPORTED;
    *n = 3;
    memcpy(out, all, sizeof all);
    return SUCCESS;
}
