/* What bounds a model's speed on this machine besides the program: the settings of the system, the limits on this process,
 * the state of the GPUs; and what to change.  Read without rights from /proc, /sys and the GPU driver's library. */
#ifndef TANDEM_SERVER_OPS_MACHINE_H
#define TANDEM_SERVER_OPS_MACHINE_H

#include "server/ops/nvml.h"

/* Numbers that are not known are -1, texts "". */
struct machine {
    char processor[96], driver[80];  /* model name; version of the NVIDIA driver */
    char level[16], best_level[16];  /* instruction sets: of this build for this processor, and the processor's best */
    int processors, cores, threads;  /* online; allowed to this process; --threads, 0: as many as there is time for */
    double time_limit;               /* of the control groups: processors' worth of time; 0: none */
    char governor[24];               /* of the processors' clock: the first that is not "performance" */
    int governed;                    /* processors with another governor than "performance" */
    double throttled;                /* times that a core was slowed down for its temperature, since the system started */
    int nodes, balancing;            /* NUMA nodes with memory; whether the system moves pages between them */
    char huge_pages[16];             /* transparent huge pages: "always", "madvise", "never" */
    char clock_source[24];
    double stolen;                   /* share of the processors' time that the host gave to others, since the system started */
    double load;                     /* runnable processes, mean of the last minute */
    double processor_pressure;       /* share of the last minute in which a process waited for a processor */
    double memory, memory_available; /* bytes */
    double memory_limit;             /* of the control groups: bytes; 0: none */
    double memory_pressure;          /* share of the last minute in which a process waited for memory */
    double swap_used;                /* bytes */
    long long killed;                /* processes of the control group that were killed for want of memory */
    int overcommit;                  /* vm.overcommit_memory */
    double files;                    /* hard limit of open files */
    int gpus_seen;                   /* NVIDIA devices on the PCI bus */
    bool gpu_tried;                  /* whether gpu_refusal says anything */
    char gpu_refusal[160];           /* why the device cuda does not open; "": it does */
    int n_devices;                   /* that the driver gives access to */
    struct device_condition devices[NVML_DEVICES];
};

/* Fills all but processor, level, best_level, threads, gpu_tried and gpu_refusal, which it sets to nothing.  root: put before the paths of
 * /proc and /sys, "" but in tests; what the C library and the driver say is not read from there.  nvml_path: as nvml_open. */
void machine_read(struct machine *, const char *root, const char *nvml_path);

enum finding_state { FINDING_UNKNOWN, FINDING_GOOD, FINDING_CHANGE };

struct finding {
    const char *name;  /* static: what was looked at */
    enum finding_state state;
    char found[200];
    const char *advice; /* static; "" unless there is something to change */
};

enum { MACHINE_FINDINGS_MAX = 24 + 8 * NVML_DEVICES };

/* Pure.  @return the number of findings, at most MACHINE_FINDINGS_MAX. */
int machine_judge(const struct machine *, struct finding *);

#endif
