/* The pure half of machine.h: thresholds, and the rules that turn facts into advice. */
#include "server/ops/machine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double STOLEN_MOST = 0.02;          /* share of time given to other machines */
static const double PROCESSOR_WAIT_MOST = 0.2;   /* share of time in which a process waits for a processor */
static const double MEMORY_WAIT_MOST = 0.02;     /* share of time in which a process waits for memory */
static const double LOAD_MOST = 1.5;             /* runnable processes per core */
static const double MEMORY_LEAST = 0.1;          /* share of the memory that is available */
static const double SWAPPED_MOST = 0.01;         /* of the memory */
static const double FILES_LEAST = 4096;          /* connections, and what the daemon itself opens (process_files) */
static const double NEAR_SLOWDOWN = 5;           /* kelvin below the temperature at which a GPU slows down */
static const double MEMORY_OF_OTHERS_MOST = 0.1; /* share of a GPU's memory that others than tandem use */

/* Bits of nvmlDeviceGetCurrentClocksThrottleReasons (NVIDIA's NVML API reference, nvmlClocksEventReasons). */
enum { SLOWED_BY_POWER = 0x04 | 0x80, SLOWED_BY_HEAT = 0x20 | 0x40, SLOWED_BY_HARDWARE = 0x08 };

static double gib(double bytes)
{
    return bytes / (1 << 30);
}

static enum finding_state change_if(bool change)
{
    return change ? FINDING_CHANGE : FINDING_GOOD;
}

/* ---- the machine ------------------------------------------------------------------------------------------------- */

static enum finding_state look_at_instructions(const struct machine *m, char *found, size_t size)
{
    snprintf(found, size, "%s%s%s", m->processor, *m->processor ? ", " : "", m->level);
    if (strcmp(m->level, m->best_level) == 0) return FINDING_GOOD;
    snprintf(found, size, "%s in use, %s is the processor's best", m->level, m->best_level);
    return FINDING_CHANGE;
}

static enum finding_state look_at_threads(const struct machine *m, char *found, size_t size)
{
    double time = m->time_limit > 0 && m->time_limit < m->cores ? m->time_limit : m->cores;
    int most = (int)ceil(time), threads = m->threads ? m->threads : most;
    if (m->cores < 1) return FINDING_UNKNOWN;
    if (m->time_limit > 0)
        snprintf(found, size, "%d; %d cores, and time for %.2g of them", threads, m->cores, m->time_limit);
    else
        snprintf(found, size, "%d; %d cores", threads, m->cores);
    return change_if(threads > most);
}

static enum finding_state look_at_governor(const struct machine *m, char *found, size_t size)
{
    if (!*m->governor) return FINDING_UNKNOWN;
    snprintf(found, size, "%s", m->governor);
    if (m->governed) snprintf(found, size, "%s on %d of %d processors", m->governor, m->governed, m->processors);
    return change_if(m->governed > 0);
}

static enum finding_state look_at_heat(const struct machine *m, char *found, size_t size)
{
    if (m->throttled < 0) return FINDING_UNKNOWN;
    snprintf(found, size, "slowed down %.0f times since the system started", m->throttled);
    return change_if(m->throttled > 0);
}

static enum finding_state look_at_host(const struct machine *m, char *found, size_t size)
{
    if (m->stolen < 0) return FINDING_UNKNOWN;
    snprintf(found, size, "the host gave %.1f %% of the time to others since the system started", 100 * m->stolen);
    return change_if(m->stolen > STOLEN_MOST);
}

static enum finding_state look_at_load(const struct machine *m, char *found, size_t size)
{
    if (m->load < 0 || m->cores < 1) return FINDING_UNKNOWN;
    int n = snprintf(found, size, "%.1f processes to run in the last minute", m->load);
    if (m->processor_pressure >= 0)
        snprintf(found + n, size - (size_t)n, ", some waited %.0f %% of it", 100 * m->processor_pressure);
    return change_if(m->load > LOAD_MOST * m->cores || m->processor_pressure > PROCESSOR_WAIT_MOST);
}

static enum finding_state look_at_nodes(const struct machine *m, char *found, size_t size)
{
    if (m->nodes < 1) return FINDING_UNKNOWN;
    snprintf(found, size, "%d", m->nodes);
    return change_if(m->nodes > 1);
}

static enum finding_state look_at_balancing(const struct machine *m, char *found, size_t size)
{
    if (m->balancing < 0) return FINDING_UNKNOWN;
    snprintf(found, size, "%s", m->balancing ? "on" : "off");
    return change_if(m->balancing && m->nodes > 1);
}

static enum finding_state look_at_huge_pages(const struct machine *m, char *found, size_t size)
{
    if (!*m->huge_pages) return FINDING_UNKNOWN;
    snprintf(found, size, "%s", m->huge_pages);
    return change_if(strcmp(m->huge_pages, "never") == 0);
}

static enum finding_state look_at_clock(const struct machine *m, char *found, size_t size)
{
    static const char *const quick[] = {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"};
    if (!*m->clock_source) return FINDING_UNKNOWN;
    snprintf(found, size, "%s", m->clock_source);
    for (size_t i = 0; i < sizeof quick / sizeof *quick; i++)
        if (strcmp(m->clock_source, quick[i]) == 0) return FINDING_GOOD;
    return FINDING_CHANGE;
}

static enum finding_state look_at_memory(const struct machine *m, char *found, size_t size)
{
    if (m->memory <= 0 || m->memory_available < 0) return FINDING_UNKNOWN;
    snprintf(found, size, "%.1f of %.1f GiB available", gib(m->memory_available), gib(m->memory));
    return change_if(m->memory_available < MEMORY_LEAST * m->memory);
}

static enum finding_state look_at_memory_limit(const struct machine *m, char *found, size_t size)
{
    if (m->memory_limit <= 0 || (m->memory > 0 && m->memory_limit >= m->memory))
        snprintf(found, size, "none");
    else
        snprintf(found, size, "%.1f GiB by the control group", gib(m->memory_limit));
    size_t n = strlen(found);
    if (m->killed > 0) snprintf(found + n, size - n, "; %lld processes were killed for want of memory", m->killed);
    return change_if(m->killed > 0);
}

static enum finding_state look_at_swap(const struct machine *m, char *found, size_t size)
{
    if (m->memory <= 0) return FINDING_UNKNOWN;
    snprintf(found, size, "%.2g GiB in use", gib(m->swap_used));
    return change_if(m->swap_used > SWAPPED_MOST * m->memory);
}

static enum finding_state look_at_memory_wait(const struct machine *m, char *found, size_t size)
{
    if (m->memory_pressure < 0) return FINDING_UNKNOWN;
    snprintf(found, size, "%.0f %% of the last minute", 100 * m->memory_pressure);
    return change_if(m->memory_pressure > MEMORY_WAIT_MOST);
}

static enum finding_state look_at_overcommit(const struct machine *m, char *found, size_t size)
{
    if (m->overcommit < 0) return FINDING_UNKNOWN;
    snprintf(found, size, "%d", m->overcommit);
    return change_if(m->overcommit == 2);
}

static enum finding_state look_at_files(const struct machine *m, char *found, size_t size)
{
    if (m->files < 0) return FINDING_UNKNOWN;
    if (m->files >= 1e18)
        snprintf(found, size, "no limit");
    else
        snprintf(found, size, "at most %.0f", m->files);
    return change_if(m->files < FILES_LEAST);
}

static enum finding_state look_at_driver(const struct machine *m, char *found, size_t size)
{
    if (m->n_devices)
        snprintf(found, size, "%d, driver %s", m->n_devices, *m->driver ? m->driver : "unknown");
    else if (m->gpus_seen > 0)
        snprintf(found, size, "%d on the bus, and no driver that answers", m->gpus_seen);
    else
        snprintf(found, size, "none");
    return change_if(!m->n_devices && m->gpus_seen > 0);
}

static enum finding_state look_at_cuda(const struct machine *m, char *found, size_t size)
{
    const char *says = !m->gpu_tried ? "not tried without a GPU" : *m->gpu_refusal ? m->gpu_refusal : "opens";
    snprintf(found, size, "%s", says);
    return change_if(m->gpu_tried && *m->gpu_refusal);
}

static const struct check {
    const char *name;
    enum finding_state (*look)(const struct machine *, char *found, size_t size);
    const char *advice;
} checks[] = {
    {"instructions", look_at_instructions,
     "build for this processor: scripts/build, or meson configure -Dlevels= with its best level; leave --device at "
     "auto"},
    {"threads", look_at_threads,
     "threads beyond that are halted together: leave --threads at 0, or raise the limit (CPUQuota=, docker --cpus)"},
    {"clock governor", look_at_governor,
     "cpupower frequency-set -g performance (as root) keeps the clock high between steps"},
    {"processor heat", look_at_heat, "the processor slows down when it is hot: cool it better, or lower --threads"},
    {"time of the host", look_at_host, "other machines use these processors: ask for dedicated cores"},
    {"other work", look_at_load, "stop what else runs here, give it other cores (--cpus), or lower --threads"},
    {"NUMA nodes", look_at_nodes,
     "memory of the other node is slow: one daemon per node, numactl --cpunodebind=N --membind=N tandem serve"},
    {"NUMA balancing", look_at_balancing, "sysctl kernel.numa_balancing=0 (as root): moving pages halts the threads"},
    {"huge pages", look_at_huge_pages,
     "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root): reading weights becomes faster"},
    {"clock source", look_at_clock,
     "reading the time is a system call with this one: boot with tsc, or kvm-clock in a machine of KVM"},
    {"memory", look_at_memory,
     "little is left for weights and KV cache: end other processes, or --quantize int8 or int4"},
    {"memory limit", look_at_memory_limit,
     "raise the limit (MemoryMax=, docker --memory), or give less to the KV cache, or --quantize int8 or int4"},
    {"swap", look_at_swap,
     "what is swapped out is read from disk in the middle of a step: use less memory, then swapoff -a"},
    {"wait for memory", look_at_memory_wait, "processes wait until memory is freed: use less of it"},
    {"overcommit", look_at_overcommit,
     "sysctl vm.overcommit_memory=0 (as root): 2 refuses to reserve memory that is never used"},
    {"open files", look_at_files, "each connection is a file: raise the hard limit (LimitNOFILE=, ulimit -Hn)"},
    {"NVIDIA GPUs", look_at_driver,
     "install the driver, nvidia-smi must list the GPU; in a container: docker run --gpus all"},
    {"device cuda", look_at_cuda,
     "the GPU is not used; without CUDA in the program, scripts/deps cuda and scripts/build put it there"},
};

/* ---- a GPU ------------------------------------------------------------------------------------------------------- */

static enum finding_state look_at_gpu_memory(const struct device_condition *d, char *found, size_t size)
{
    if (d->memory_total <= 0) return FINDING_UNKNOWN;
    int n = snprintf(found, size, "%.1f of %.1f GiB in use", gib(d->memory_used), gib(d->memory_total));
    if (d->memory_own > 0) snprintf(found + n, size - (size_t)n, ", %.1f GiB by tandem", gib(d->memory_own));
    return change_if(d->memory_used - d->memory_own > MEMORY_OF_OTHERS_MOST * d->memory_total);
}

static enum finding_state look_at_gpu_clock(const struct device_condition *d, char *found, size_t size)
{
    bool power = d->slowed & SLOWED_BY_POWER, heat = d->slowed & SLOWED_BY_HEAT, other = d->slowed & SLOWED_BY_HARDWARE;
    snprintf(found, size, "slowed down for %s%s%s", power ? "its power limit" : "", power && heat ? " and " : "",
             heat ? "its temperature" : "");
    if (!power && !heat) snprintf(found, size, "%s", other ? "slowed down by the hardware" : "not slowed down");
    return change_if(power || heat || other);
}

static enum finding_state look_at_gpu_heat(const struct device_condition *d, char *found, size_t size)
{
    if (d->celsius < 0) return FINDING_UNKNOWN;
    int n = snprintf(found, size, "%.0f degrees Celsius", d->celsius);
    if (d->slowdown_celsius < 0) return FINDING_GOOD;
    snprintf(found + n, size - (size_t)n, ", slows down at %.0f", d->slowdown_celsius);
    return change_if(d->celsius > d->slowdown_celsius - NEAR_SLOWDOWN);
}

static enum finding_state look_at_gpu_power(const struct device_condition *d, char *found, size_t size)
{
    if (d->power_limit < 0 || d->power_default < 0) return FINDING_UNKNOWN;
    snprintf(found, size, "limit %.0f W, made for %.0f W", d->power_limit, d->power_default);
    return change_if(d->power_limit < 0.99 * d->power_default);
}

static enum finding_state look_at_gpu_link(const struct device_condition *d, char *found, size_t size)
{
    if (d->link_width < 1 || d->link_width_max < 1) return FINDING_UNKNOWN;
    snprintf(found, size, "%d of %d PCIe lanes", d->link_width, d->link_width_max);
    return change_if(d->link_width < d->link_width_max);
}

static enum finding_state look_at_gpu_persistence(const struct device_condition *d, char *found, size_t size)
{
    if (d->persistence < 0) return FINDING_UNKNOWN;
    snprintf(found, size, "%s", d->persistence ? "on" : "off");
    return change_if(!d->persistence);
}

static enum finding_state look_at_gpu_errors(const struct device_condition *d, char *found, size_t size)
{
    if (d->errors < 0) return FINDING_UNKNOWN;
    snprintf(found, size, "%.0f not corrected", d->errors);
    return change_if(d->errors > 0);
}

static const struct device_check {
    const char *name;
    enum finding_state (*look)(const struct device_condition *, char *found, size_t size);
    const char *advice;
} device_checks[] = {
    {"GPU memory", look_at_gpu_memory,
     "other programs hold it, nvidia-smi lists them: --gpu-memory-fraction is of the whole"},
    {"GPU clock", look_at_gpu_clock, "cool it better, or raise the power limit: nvidia-smi -pl WATTS (as root)"},
    {"GPU temperature", look_at_gpu_heat, "it is about to slow down: cool it better"},
    {"GPU power", look_at_gpu_power, "the limit was lowered: nvidia-smi -pl WATTS (as root) raises it"},
    {"GPU link", look_at_gpu_link, "loading weights and checkpoints is slower: try another slot, reseat the card"},
    {"GPU persistence", look_at_gpu_persistence,
     "nvidia-smi -pm 1 (as root): starting is quicker while nothing else uses the GPU"},
    {"GPU memory errors", look_at_gpu_errors,
     "results may be wrong: restart the machine; if errors return, replace the card"},
};

enum { N_CHECKS = sizeof checks / sizeof *checks, N_DEVICE_CHECKS = sizeof device_checks / sizeof *device_checks };
_Static_assert(N_CHECKS + N_DEVICE_CHECKS * NVML_DEVICES <= MACHINE_FINDINGS_MAX, "findings");

static void finish(struct finding *f, const char *advice)
{
    if (f->state == FINDING_CHANGE) f->advice = advice;
    if (f->state == FINDING_UNKNOWN) snprintf(f->found, sizeof f->found, "not known here");
}

int machine_judge(const struct machine *m, struct finding *out)
{
    int n = 0;
    for (int i = 0; i < N_CHECKS; i++) {
        struct finding *f = &out[n++];
        *f = (struct finding){.name = checks[i].name, .advice = ""};
        f->state = checks[i].look(m, f->found, sizeof f->found);
        finish(f, checks[i].advice);
    }
    for (int k = 0; k < m->n_devices && k < NVML_DEVICES; k++)
        for (int i = 0; i < N_DEVICE_CHECKS; i++) {
            struct finding *f = &out[n++];
            int at = snprintf(f->found, sizeof f->found, "%d: ", k);
            f->name = device_checks[i].name;
            f->advice = "";
            f->state = device_checks[i].look(&m->devices[k], f->found + at, sizeof f->found - (size_t)at);
            finish(f, device_checks[i].advice);
        }
    return n;
}
