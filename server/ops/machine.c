#include "server/ops/machine.h"

#include "engine/base/cgroup.h"

#include <ctype.h>
#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { PATH_BYTES = 600 };

/* ---- small files ------------------------------------------------------------------------------------------------- */

static FILE *open_at(const char *root, const char *path)
{
    char full[PATH_BYTES];
    snprintf(full, sizeof full, "%.200s%.380s", root, path);
    return fopen(full, "re");
}

/* The first line without its newline; "" when there is none. */
static void read_line(const char *root, const char *path, char *out, size_t size)
{
    FILE *f = open_at(root, path);
    out[0] = 0;
    if (f && !fgets(out, (int)size, f)) out[0] = 0;
    if (f) fclose(f);
    out[strcspn(out, "\n")] = 0;
}

static double read_value(const char *root, const char *path)
{
    char line[64], *end;
    read_line(root, path, line, sizeof line);
    double v = strtod(line, &end);
    return end == line ? -1 : v;
}

/* The word in brackets of a line such as "always [madvise] never". */
static void read_chosen(const char *root, const char *path, char *out, size_t size)
{
    char line[128];
    read_line(root, path, line, sizeof line);
    const char *open = strchr(line, '['), *close = open ? strchr(open, ']') : NULL;
    snprintf(out, size, "%.*s", close ? (int)(close - open - 1) : 0, open ? open + 1 : "");
}

/* avg60 of the line "some", as a share (https://docs.kernel.org/accounting/psi.html). */
static double read_pressure(const char *root, const char *path)
{
    char line[160];
    double percent;
    read_line(root, path, line, sizeof line);
    const char *at = strstr(line, "avg60=");
    return at && sscanf(at, "avg60=%lf", &percent) == 1 ? percent / 100 : -1;
}

/* Calls fn with each entry of a directory whose name is `prefix` and a number. */
static void each_numbered(const char *root, const char *dir, const char *prefix,
                          void (*fn)(struct machine *, const char *root, const char *path), struct machine *m)
{
    char full[PATH_BYTES], path[PATH_BYTES];
    size_t n = strlen(prefix);
    snprintf(full, sizeof full, "%.200s%.380s", root, dir);
    DIR *d = opendir(full);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, prefix, n) != 0 || !isdigit((unsigned char)e->d_name[n])) continue;
        snprintf(path, sizeof path, "%.300s/%.60s", dir, e->d_name);
        fn(m, root, path);
    }
    if (d) closedir(d);
}

/* ---- processors -------------------------------------------------------------------------------------------------- */

static void add_processor(struct machine *m, const char *root, const char *dir)
{
    char path[PATH_BYTES], governor[24];
    snprintf(path, sizeof path, "%.500s/cpufreq/scaling_governor", dir);
    read_line(root, path, governor, sizeof governor);
    if (*governor && strcmp(governor, "performance") != 0) {
        if (!m->governed++) snprintf(m->governor, sizeof m->governor, "%s", governor);
    } else if (*governor && !m->governed) {
        snprintf(m->governor, sizeof m->governor, "%s", governor);
    }
    snprintf(path, sizeof path, "%.500s/thermal_throttle/core_throttle_count", dir);
    double times = read_value(root, path);
    if (times >= 0) m->throttled = (m->throttled < 0 ? 0 : m->throttled) + times;
    m->processors++;
}

static void add_node(struct machine *m, const char *root, const char *dir)
{
    char path[PATH_BYTES], line[128];
    unsigned long long kib = 0;
    snprintf(path, sizeof path, "%.500s/meminfo", dir);
    read_line(root, path, line, sizeof line);
    const char *total = strstr(line, "MemTotal:");
    if (total && sscanf(total, "MemTotal: %llu", &kib) == 1 && kib > 0) m->nodes++;
}

/* https://docs.kernel.org/filesystems/proc.html: user nice system idle iowait irq softirq steal, in ticks */
static double read_stolen(const char *root)
{
    char line[256];
    double v[8], all = 0;
    read_line(root, "/proc/stat", line, sizeof line);
    if (sscanf(line, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", v, v + 1, v + 2, v + 3, v + 4, v + 5, v + 6, v + 7) != 8)
        return -1;
    for (int i = 0; i < 8; i++) all += v[i];
    return all > 0 ? v[7] / all : -1;
}

static void read_processors(struct machine *m, const char *root)
{
    cpu_set_t allowed;
    char line[64];
    m->cores = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : -1;
    m->throttled = -1;
    each_numbered(root, "/sys/devices/system/cpu", "cpu", add_processor, m);
    each_numbered(root, "/sys/devices/system/node", "node", add_node, m);
    m->balancing = (int)read_value(root, "/proc/sys/kernel/numa_balancing");
    m->time_limit = cgroup_processor_limit(root);
    m->stolen = read_stolen(root);
    read_line(root, "/proc/loadavg", line, sizeof line);
    m->load = *line ? strtod(line, NULL) : -1;
    m->processor_pressure = read_pressure(root, "/proc/pressure/cpu");
    read_line(root, "/sys/devices/system/clocksource/clocksource0/current_clocksource", m->clock_source,
              sizeof m->clock_source);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void read_memory(struct machine *m, const char *root)
{
    char line[128];
    unsigned long long kib, swap = 0, swap_free = 0;
    m->memory = m->memory_available = -1;
    FILE *f = open_at(root, "/proc/meminfo");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "MemTotal: %llu", &kib) == 1) m->memory = (double)kib * 1024;
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1) m->memory_available = (double)kib * 1024;
        if (sscanf(line, "SwapTotal: %llu", &kib) == 1) swap = kib;
        if (sscanf(line, "SwapFree: %llu", &kib) == 1) swap_free = kib;
    }
    if (f) fclose(f);
    m->swap_used = swap > swap_free ? (double)(swap - swap_free) * 1024 : 0;
    m->memory_limit = cgroup_memory_limit(root);
    m->memory_pressure = read_pressure(root, "/proc/pressure/memory");
    m->killed = cgroup_oom_kills(root);
    m->overcommit = (int)read_value(root, "/proc/sys/vm/overcommit_memory");
    read_chosen(root, "/sys/kernel/mm/transparent_hugepage/enabled", m->huge_pages, sizeof m->huge_pages);
}

/* ---- GPUs -------------------------------------------------------------------------------------------------------- */

/* Vendor 0x10de is NVIDIA; classes 0x0300xx and 0x0302xx are displays and 3D controllers (PCI Code and ID Assignment).
 */
static int count_gpus(const char *root)
{
    static const char bus[] = "/sys/bus/pci/devices";
    char full[PATH_BYTES], path[PATH_BYTES], vendor[16], class[16];
    int n = 0;
    snprintf(full, sizeof full, "%.200s%s", root, bus);
    DIR *d = opendir(full);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%.60s/vendor", bus, e->d_name);
        read_line(root, path, vendor, sizeof vendor);
        snprintf(path, sizeof path, "%s/%.60s/class", bus, e->d_name);
        read_line(root, path, class, sizeof class);
        n += strcmp(vendor, "0x10de") == 0 && strncmp(class, "0x03", 4) == 0;
    }
    if (d) closedir(d);
    return n;
}

void machine_read(struct machine *m, const char *root, const char *nvml_path)
{
    struct rlimit files;
    *m = (struct machine){0};
    read_processors(m, root);
    read_memory(m, root);
    m->files = getrlimit(RLIMIT_NOFILE, &files) ? -1 : files.rlim_max == RLIM_INFINITY ? 1e18 : (double)files.rlim_max;
    m->gpus_seen = count_gpus(root);
    struct nvml *nvml = nvml_open(nvml_path);
    if (!nvml) return;
    m->n_devices = nvml_inspect(nvml, m->driver, sizeof m->driver, m->devices);
    nvml_close(nvml);
}
