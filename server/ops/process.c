#include "server/ops/process.h"

#include "engine/base/cgroup.h"
#include "engine/base/log.h"
#include "server/memory/reservation.h"
#include "server/metrics/prometheus_text.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

/* The directory stays open, so that it can be read when no descriptor is left. */
static int count_fds(void)
{
    static DIR *d;
    int n = -2; /* "." and ".." */
    if (!d) d = opendir("/proc/self/fd");
    if (!d) return 0;
    rewinddir(d);
    while (readdir(d)) n++;
    return n;
}

void process_files(int max_connections)
{
    enum { OTHERS = 1024 }; /* the database, data sets, adapters, uploads, and what connections leave (listen.c) */
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    rlim_t wanted = (rlim_t)max_connections + OTHERS, most = limit.rlim_max;
    if (limit.rlim_cur < wanted) {
        limit.rlim_cur = wanted < most ? wanted : most;
        setrlimit(RLIMIT_NOFILE, &limit);
        getrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur < (rlim_t)max_connections + 128)
        log_warn("file descriptors will run out before max-connections: raise the hard limit (LimitNOFILE, ulimit -Hn) "
                 "limit=%llu max_connections=%d",
                 (unsigned long long)limit.rlim_cur, max_connections);
    count_fds();
}

/* @return the number after `name` at the start of a line, times 1024 where its unit is kB; -1: absent. */
static double read_number(const char *path, const char *name)
{
    char line[256];
    double v = -1;
    size_t n = strlen(name);
    FILE *f = fopen(path, "re");
    while (f && v < 0 && fgets(line, sizeof line, f)) {
        char *end;
        if (strncmp(line, name, n) != 0) continue;
        v = strtod(line + n, &end);
        if (end == line + n) v = -1; /* "max" */
        if (v >= 0 && strncmp(end, " kB", 3) == 0) v *= 1024;
    }
    if (f) fclose(f);
    return v;
}

double process_memory_limit(void)
{
    double machine = read_number("/proc/meminfo", "MemTotal:"), group = cgroup_memory_limit("");
    if (machine <= 0) return group;
    return group > 0 && group < machine ? group : machine;
}

size_t process_request_memory(size_t model)
{
    unsigned long virtual_pages = 0, resident_pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%lu %lu", &virtual_pages, &resident_pages) != 2) virtual_pages = resident_pages = 0;
    if (f) fclose(f);
    size_t page = (size_t)sysconf(_SC_PAGESIZE), used = resident_pages * page;
    struct rlimit space;
    size_t budget = reservation_default((size_t)process_memory_limit(), used > model ? used : model);
    if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
        size_t rest = reservation_default(space.rlim_cur, virtual_pages * page);
        if (rest < budget) budget = rest;
    }
    return budget;
}

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec * 1e-6;
}

static void put_resident(struct buf *out)
{
    static const char status[] = "/proc/self/status";
    static const char name[] = "tandem_resident_memory_bytes";
    static const struct {
        const char *kind, *line;
    } parts[] = {{"anonymous", "RssAnon:"}, {"file", "RssFile:"}, {"shared", "RssShmem:"}};
    prometheus_head(out, name, "gauge", "Resident memory by kind; memory-mapped weights count as file.");
    for (int i = 0; i < 3; i++) {
        double v = read_number(status, parts[i].line);
        prometheus_by(out, name, "kind", parts[i].kind, v < 0 ? 0 : v);
    }
}

void process_render(struct buf *out, double start_unix)
{
    unsigned long virtual_pages = 0, resident_pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%lu %lu", &virtual_pages, &resident_pages) != 2) virtual_pages = resident_pages = 0;
    if (f) fclose(f);
    double page = (double)sysconf(_SC_PAGESIZE), threads = read_number("/proc/self/status", "Threads:");
    struct rusage use;
    struct rlimit files, space;
    getrusage(RUSAGE_SELF, &use);
    getrlimit(RLIMIT_NOFILE, &files);
    getrlimit(RLIMIT_AS, &space);
    const struct prometheus_row rows[] = {
        {"process_resident_memory_bytes", "gauge", "Resident memory of the process.", (double)resident_pages * page},
        {"process_virtual_memory_bytes", "gauge", "Virtual memory of the process.", (double)virtual_pages * page},
        {"process_virtual_memory_max_bytes", "gauge", "Maximum virtual memory; -1: unlimited.",
         space.rlim_cur == RLIM_INFINITY ? -1 : (double)space.rlim_cur},
        {"process_cpu_seconds_total", "counter", "User and system CPU time.",
         seconds(use.ru_utime) + seconds(use.ru_stime)},
        {"process_open_fds", "gauge", "Open file descriptors.", count_fds()},
        {"process_max_fds", "gauge", "Maximum number of open file descriptors.", (double)files.rlim_cur},
        {"process_threads", "gauge", "Threads of the process.", threads},
        {"process_start_time_seconds", "gauge", "Start of the process, seconds since the epoch.", start_unix},
    };
    prometheus_rows(out, rows, (int)(sizeof rows / sizeof *rows));
    put_resident(out);
}
