/* Types and names are those of NVIDIA's NVML API reference, as far as they are used here. */
#include "server/ops/nvml.h"

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/metrics/prometheus_text.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct nvmlDevice_st *device_handle;

struct memory_info { /* nvmlMemory_t */
    unsigned long long total, free, used;
};

struct process_info { /* nvmlProcessInfo_t: ids are those of this process's namespace; memory ~0: not known */
    unsigned id;
    unsigned long long memory;
    unsigned instances[2];
};

struct utilization { /* nvmlUtilization_t: percent of the last sample period */
    unsigned gpu, memory;
};

enum {
    NVML_SUCCESS = 0,
    NVML_TEMPERATURE_GPU = 0,
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1,
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1,
    NVML_VOLATILE_ECC = 0
};

struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *);
    int (*handle)(unsigned index, device_handle *);
    int (*name)(device_handle, char *, unsigned);
    int (*uuid)(device_handle, char *, unsigned);
    int (*memory)(device_handle, struct memory_info *);
    int (*use)(device_handle, struct utilization *);
    int (*power)(device_handle, unsigned *milliwatts);
    int (*temperature)(device_handle, int sensor, unsigned *celsius);
    /* for nvml_inspect */
    int (*driver)(char *, unsigned);
    int (*slowed)(device_handle, unsigned long long *reasons);
    int (*threshold)(device_handle, int which, unsigned *celsius);
    int (*power_limit)(device_handle, unsigned *milliwatts);
    int (*power_default)(device_handle, unsigned *milliwatts);
    int (*width)(device_handle, unsigned *lanes);
    int (*width_max)(device_handle, unsigned *lanes);
    int (*persistence)(device_handle, int *mode);
    int (*errors)(device_handle, int type, int counter, unsigned long long *);
    int (*processes)(device_handle, unsigned *n, struct process_info *);
    unsigned n;
};

/* Copies the address with memcpy: C has no conversion from data to function pointers. */
static bool find(struct nvml *m, const char *name, void *fn, size_t size)
{
    void *p = dlsym(m->library, name);
    if (p) memcpy(fn, &p, size);
    return p != NULL;
}

#define FIND(m, field, name) find(m, name, &(m)->field, sizeof(m)->field)

static bool find_all(struct nvml *m)
{
    FIND(m, use, "nvmlDeviceGetUtilizationRates"); /* partitioned (MIG) devices lack the last three */
    FIND(m, power, "nvmlDeviceGetPowerUsage");
    FIND(m, temperature, "nvmlDeviceGetTemperature");
    FIND(m, driver, "nvmlSystemGetDriverVersion");
    FIND(m, slowed, "nvmlDeviceGetCurrentClocksThrottleReasons"); /* the name that older drivers have as well */
    FIND(m, threshold, "nvmlDeviceGetTemperatureThreshold");
    FIND(m, power_limit, "nvmlDeviceGetEnforcedPowerLimit");
    FIND(m, power_default, "nvmlDeviceGetPowerManagementDefaultLimit");
    FIND(m, width, "nvmlDeviceGetCurrPcieLinkWidth");
    FIND(m, width_max, "nvmlDeviceGetMaxPcieLinkWidth");
    FIND(m, persistence, "nvmlDeviceGetPersistenceMode");
    FIND(m, errors, "nvmlDeviceGetTotalEccErrors");
    FIND(m, processes, "nvmlDeviceGetComputeRunningProcesses_v3");
    return FIND(m, init, "nvmlInit_v2") && FIND(m, shutdown, "nvmlShutdown") &&
           FIND(m, count, "nvmlDeviceGetCount_v2") && FIND(m, handle, "nvmlDeviceGetHandleByIndex_v2") &&
           FIND(m, name, "nvmlDeviceGetName") && FIND(m, uuid, "nvmlDeviceGetUUID") &&
           FIND(m, memory, "nvmlDeviceGetMemoryInfo");
}

struct nvml *nvml_open(const char *path)
{
    void *library = dlopen(path ? path : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return NULL;
    struct nvml *m = mem_zalloc(sizeof *m);
    m->library = library;
    if (find_all(m) && m->init() == NVML_SUCCESS) {
        if (m->count(&m->n) == NVML_SUCCESS && m->n > 0) return m;
        m->shutdown();
    }
    log_debug("nvml: no devices to be watched");
    dlclose(library);
    free(m);
    return NULL;
}

void nvml_close(struct nvml *m)
{
    if (!m) return;
#ifdef TANDEM_SANITIZED /* the leak checker would report the library's memory */
    m->shutdown();
    dlclose(m->library);
#endif
    free(m);
}

static void sample_one(struct nvml *m, device_handle h, struct device_use *d)
{
    struct memory_info memory = {0};
    struct utilization use;
    unsigned value;
    *d = (struct device_use){.utilization = -1, .watts = -1, .celsius = -1};
    if (m->name(h, d->name, sizeof d->name) != NVML_SUCCESS) d->name[0] = 0;
    if (m->uuid(h, d->uuid, sizeof d->uuid) != NVML_SUCCESS) d->uuid[0] = 0;
    if (m->memory(h, &memory) == NVML_SUCCESS) {
        d->memory_total = (double)memory.total;
        d->memory_used = (double)memory.used;
    }
    if (m->use && m->use(h, &use) == NVML_SUCCESS) d->utilization = use.gpu / 100.0;
    if (m->power && m->power(h, &value) == NVML_SUCCESS) d->watts = value / 1000.0;
    if (m->temperature && m->temperature(h, NVML_TEMPERATURE_GPU, &value) == NVML_SUCCESS) d->celsius = value;
}

void nvml_sample(struct nvml *m, struct device_sample *out)
{
    device_handle h;
    out->n = 0;
    for (unsigned i = 0; i < m->n && out->n < NVML_DEVICES; i++)
        if (m->handle(i, &h) == NVML_SUCCESS) sample_one(m, h, &out->v[out->n++]);
}

static double watts(int (*get)(device_handle, unsigned *milliwatts), device_handle h)
{
    unsigned v;
    return get && get(h, &v) == NVML_SUCCESS ? v / 1000.0 : -1;
}

static int lanes(int (*get)(device_handle, unsigned *), device_handle h)
{
    unsigned v;
    return get && get(h, &v) == NVML_SUCCESS && v < 1024 ? (int)v : -1;
}

static bool is_tandem(unsigned process)
{
    char path[64], name[16] = "";
    snprintf(path, sizeof path, "/proc/%u/comm", process);
    FILE *f = fopen(path, "re");
    bool read = f && fgets(name, sizeof name, f);
    if (f) fclose(f);
    return read && strcmp(name, "tandem\n") == 0;
}

static double memory_own(struct nvml *m, device_handle h)
{
    enum { PROCESSES = 64 };
    struct process_info p[PROCESSES];
    unsigned n = PROCESSES;
    double bytes = 0;
    if (!m->processes || m->processes(h, &n, p) != NVML_SUCCESS || n > PROCESSES) return 0;
    for (unsigned i = 0; i < n; i++)
        if (p[i].memory != ~0ull && is_tandem(p[i].id)) bytes += (double)p[i].memory;
    return bytes;
}

static void inspect_one(struct nvml *m, device_handle h, struct device_condition *d)
{
    struct device_use use;
    unsigned celsius;
    unsigned long long count;
    sample_one(m, h, &use);
    *d = (struct device_condition){.celsius = use.celsius,
                                   .slowdown_celsius = -1,
                                   .power_limit = watts(m->power_limit, h),
                                   .power_default = watts(m->power_default, h),
                                   .memory_total = use.memory_total,
                                   .memory_used = use.memory_used,
                                   .memory_own = memory_own(m, h),
                                   .utilization = use.utilization,
                                   .link_width = lanes(m->width, h),
                                   .link_width_max = lanes(m->width_max, h),
                                   .persistence = -1,
                                   .errors = -1};
    memcpy(d->name, use.name, sizeof d->name);
    if (m->slowed && m->slowed(h, &count) == NVML_SUCCESS) d->slowed = count;
    if (m->threshold && m->threshold(h, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN, &celsius) == NVML_SUCCESS)
        d->slowdown_celsius = celsius;
    if (!m->persistence || m->persistence(h, &d->persistence) != NVML_SUCCESS) d->persistence = -1;
    if (m->errors && m->errors(h, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, &count) == NVML_SUCCESS)
        d->errors = (double)count;
}

int nvml_inspect(struct nvml *m, char *driver, size_t driver_bytes, struct device_condition *out)
{
    device_handle h;
    int n = 0;
    if (!m->driver || m->driver(driver, (unsigned)driver_bytes) != NVML_SUCCESS) driver[0] = 0;
    for (unsigned i = 0; i < m->n && n < NVML_DEVICES; i++)
        if (m->handle(i, &h) == NVML_SUCCESS) inspect_one(m, h, &out[n++]);
    return n;
}

static void put_gauge(const struct device_sample *s, const char *name, const char *help, size_t at, struct buf *out)
{
    char index[16];
    prometheus_head(out, name, "gauge", help);
    for (int i = 0; i < s->n; i++) {
        double v;
        memcpy(&v, (const char *)&s->v[i] + at, sizeof v);
        snprintf(index, sizeof index, "%d", i);
        if (v >= 0) prometheus_by(out, name, "device", index, v);
    }
}

void nvml_render(const struct device_sample *s, struct buf *out)
{
    static const char info[] = "tandem_device_info";
    if (!s->n) return;
    prometheus_head(out, info, "gauge", "NVIDIA devices by index; the value is always 1.");
    for (int i = 0; i < s->n; i++) {
        buf_printf(out, "%s{device=\"%d\",", info, i);
        prometheus_label(out, "name", s->v[i].name);
        buf_char(out, ',');
        prometheus_label(out, "uuid", s->v[i].uuid);
        buf_str(out, "} 1\n");
    }
    put_gauge(s, "tandem_device_memory_total_bytes", "Total memory of the device.",
              offsetof(struct device_use, memory_total), out);
    put_gauge(s, "tandem_device_memory_used_bytes", "Memory in use on the device, by all processes.",
              offsetof(struct device_use, memory_used), out);
    put_gauge(s, "tandem_device_utilization_ratio",
              "Fraction of the driver's last sample period in which a kernel ran, 0 to 1.",
              offsetof(struct device_use, utilization), out);
    put_gauge(s, "tandem_device_power_watts", "Power draw of the device.", offsetof(struct device_use, watts), out);
    put_gauge(s, "tandem_device_temperature_celsius", "Temperature of the device.",
              offsetof(struct device_use, celsius), out);
}
