#include "engine/base/meminfo.h"

#include "engine/base/cgroup.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The number behind `name` in a file of "name number" lines.  0: not found. */
static unsigned long long read_number(const char *path, const char *name)
{
    unsigned long long v = 0;
    char line[128];
    size_t n = strlen(name);
    FILE *f = fopen(path, "r");
    while (f && !v && fgets(line, sizeof line, f))
        if (strncmp(line, name, n) == 0) sscanf(line + n, "%llu", &v);
    if (f) fclose(f);
    return v;
}

size_t memory_available(void)
{
    double bytes = (double)read_number("/proc/meminfo", "MemAvailable:") * 1024, left = cgroup_memory_left("");
    if (bytes <= 0) bytes = 1 << 30;
    return (size_t)(left >= 0 && left < bytes ? left : bytes);
}

size_t memory_peak(void)
{
    return (size_t)read_number("/proc/self/status", "VmHWM:") * 1024;
}

size_t memory_private(void)
{
    return (size_t)read_number("/proc/self/status", "RssAnon:") * 1024;
}

void memory_peak_forget(void)
{
    int f = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (f < 0) return;
    ssize_t n = write(f, "5", 1);
    (void)n; /* not permitted: the peak stays an upper bound */
    close(f);
}
