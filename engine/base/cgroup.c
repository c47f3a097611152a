#include "engine/base/cgroup.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 800 };

/* Reads the first numbers of a file.  @return how many; a word such as "max" is none. */
static int read_numbers(const char *dir, const char *file, double v[2])
{
    char path[PATH_BYTES + 40], line[128];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *f = fopen(path, "re");
    int n = f && fgets(line, sizeof line, f) ? sscanf(line, "%lf %lf", &v[0], &v[1]) : 0;
    if (f) fclose(f);
    return n > 0 ? n : 0;
}

static double memory_of(const char *dir, int version)
{
    double v[2];
    return read_numbers(dir, version == 2 ? "memory.max" : "memory.limit_in_bytes", v) && v[0] > 0 ? v[0] : 0;
}

static double processors_of(const char *dir, int version)
{
    double v[2], period[2];
    if (version == 2) return read_numbers(dir, "cpu.max", v) == 2 && v[0] > 0 && v[1] > 0 ? v[0] / v[1] : 0;
    bool both = read_numbers(dir, "cpu.cfs_quota_us", v) && read_numbers(dir, "cpu.cfs_period_us", period);
    return both && v[0] > 0 && period[0] > 0 ? v[0] / period[0] : 0;
}

/* The least limit of the group `dir` and of its parents up to, and with, the mount point of `top` bytes. */
static double least_limit(char *dir, size_t top, int version, double (*limit_of)(const char *dir, int version))
{
    double least = 0;
    for (;;) {
        double v = limit_of(dir, version);
        if (v > 0 && (least == 0 || v < least)) least = v;
        char *slash = strrchr(dir, '/');
        if (strlen(dir) <= top || !slash) return least;
        *slash = 0;
    }
}

static bool is_listed(const char *list, size_t n, const char *name)
{
    size_t len = strlen(name);
    for (size_t i = 0; i + len <= n; i++)
        if (!strncmp(list + i, name, len) && (i == 0 || list[i - 1] == ',') && (i + len == n || list[i + len] == ','))
            return true;
    return false;
}

/* A line is "0::/path" in version 2, "4:cpu,cpuacct:/path" in version 1.
 * @return the version; 0: another controller's.  *mount: the folder below /sys/fs/cgroup. */
static int parse_line(char *line, const char *controller, const char **mount, const char **group)
{
    line[strcspn(line, "\n")] = 0;
    char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
    if (!path) return 0;
    *group = path + 1;
    if (strncmp(line, "0::", 3) == 0) {
        *mount = "";
        return 2;
    }
    *mount = controller;
    return is_listed(list + 1, (size_t)(path - list - 1), controller) ? 1 : 0;
}

static double find_least(const char *root, const char *controller, double (*limit_of)(const char *dir, int version))
{
    char path[PATH_BYTES], line[512], dir[PATH_BYTES];
    double least = 0;
    snprintf(path, sizeof path, "%.200s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        const char *mount, *group;
        int version = parse_line(line, controller, &mount, &group);
        if (!version) continue;
        int top = snprintf(dir, sizeof dir, "%.200s/sys/fs/cgroup%s%s", root, *mount ? "/" : "", mount);
        if (strcmp(group, "/") != 0) snprintf(dir + top, sizeof dir - (size_t)top, "%s", group);
        double v = least_limit(dir, (size_t)top, version, limit_of);
        if (v > 0 && (least == 0 || v < least)) least = v;
    }
    if (f) fclose(f);
    return least;
}

double cgroup_memory_limit(const char *root)
{
    return find_least(root, "memory", memory_of);
}

double cgroup_processor_limit(const char *root)
{
    return find_least(root, "cpu", processors_of);
}

/* The sum of the numbers behind two names in memory.stat. */
static double read_stat(const char *dir, const char *first, const char *second)
{
    char path[PATH_BYTES + 40], line[128], name[64];
    double sum = 0, v;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "%63s %lf", name, &v) == 2 && (!strcmp(name, first) || !strcmp(name, second))) sum += v;
    if (f) fclose(f);
    return sum;
}

/* One more than what is left, so that nothing left differs from no limit. */
static double left_of(const char *dir, int version)
{
    bool v2 = version == 2;
    double limit = memory_of(dir, version), v[2];
    if (limit == 0 || !read_numbers(dir, v2 ? "memory.current" : "memory.usage_in_bytes", v)) return 0;
    double cached = v2 ? read_stat(dir, "inactive_file", "active_file")
                       : read_stat(dir, "total_inactive_file", "total_active_file");
    double used = v[0] > cached ? v[0] - cached : 0;
    return limit > used ? limit - used + 1 : 1;
}

double cgroup_memory_left(const char *root)
{
    return find_least(root, "memory", left_of) - 1;
}

/* As a "limit", so that the group nearest to the process that has the file answers. */
static double kills_of(const char *dir, int version)
{
    char path[PATH_BYTES + 40], line[128];
    double kills = 0;
    if (version != 2) return 0;
    snprintf(path, sizeof path, "%s/memory.events", dir);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "oom_kill %lf", &kills) == 1) kills += 1; /* so that 0 differs from no file */
    if (f) fclose(f);
    return kills;
}

long long cgroup_oom_kills(const char *root)
{
    return (long long)find_least(root, "memory", kills_of) - 1;
}
