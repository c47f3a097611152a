#include "engine/base/meminfo.h"

#include <stdio.h>
#include <string.h>

/* The number behind `name` in a file of "name number" lines, or the file's first word where name is "".  0: not found.
 */
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

/* A cgroup's usage includes the page cache, which the kernel reclaims when memory is needed. */
size_t memory_available(void)
{
    static const char stat[] = "/sys/fs/cgroup/memory.stat";
    unsigned long long bytes = read_number("/proc/meminfo", "MemAvailable:") * 1024;
    unsigned long long limit = read_number("/sys/fs/cgroup/memory.max", ""); /* 0 for "max" */
    unsigned long long used = read_number("/sys/fs/cgroup/memory.current", "");
    unsigned long long cached = read_number(stat, "inactive_file ") + read_number(stat, "active_file ");
    used = used > cached ? used - cached : 0;
    if (!bytes) bytes = 1ull << 30;
    unsigned long long left = limit > used ? limit - used : 0;
    if (limit && left < bytes) bytes = left;
    return (size_t)bytes;
}
