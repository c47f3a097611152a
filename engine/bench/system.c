/* Describes the machine for a report: its ceilings, and what Linux reports about it.  Unknown fields stay empty. */
#include "engine/bench/bench.h"

#include "engine/base/meminfo.h"
#include "kernels/cpu_level.h"
#include "kernels/ops.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

static const char *const wanted[] = {"avx2",     "fma",      "f16c",        "avx_vnni",    "avx512f",  "avx512bw",
                                     "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16",
                                     "asimddp",  "i8mm",     "bf16",        "sve"};

/* @return the value after "name<blanks>:" if the line begins so; else NULL.  Removes the newline. */
static char *value_of(char *line, const char *name)
{
    size_t n = strlen(name);
    char *colon = strchr(line, ':');
    if (strncmp(line, name, n) != 0 || !colon) return NULL;
    for (const char *p = line + n; p < colon; p++)
        if (*p != ' ' && *p != '\t') return NULL;
    colon[strcspn(colon, "\n")] = 0;
    return colon + 1 + strspn(colon + 1, " \t");
}

static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; (p = strstr(p, word)); p += n)
        if ((p == list || p[-1] == ' ') && (p[n] == ' ' || p[n] == 0)) return true;
    return false;
}

static void keep_flags(struct bench_system *s, const char *all)
{
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        size_t n = strlen(s->flags);
        if (has_word(all, wanted[i])) snprintf(s->flags + n, sizeof s->flags - n, "%s%s", n ? " " : "", wanted[i]);
    }
}

static void read_cpu(struct bench_system *s)
{
    char *line = NULL, *v;
    size_t size = 0;
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && getline(&line, &size, f) > 0) {
        if (!*s->cpu && (v = value_of(line, "model name"))) snprintf(s->cpu, sizeof s->cpu, "%s", v);
        if (!*s->flags && ((v = value_of(line, "flags")) || (v = value_of(line, "Features")))) keep_flags(s, v);
        if (*s->cpu && *s->flags) break;
    }
    free(line);
    if (f) fclose(f);
}

static void read_rest(struct bench_system *s)
{
    struct utsname u;
    unsigned long long kib = 0;
    char line[128];
    if (uname(&u) == 0) snprintf(s->kernel, sizeof s->kernel, "%.20s %.60s", u.sysname, u.release);
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemTotal: %llu", &kib) == 1) break;
    if (f) fclose(f);
    s->memory_bytes = (size_t)kib * 1024;
    f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (f && fgets(line, sizeof line, f)) {
        const char *chosen = strchr(line, '[');
        if (chosen) sscanf(chosen, "[%15[a-z]", s->huge_pages);
    }
    if (f) fclose(f);
    if (getloadavg(&s->load, 1) != 1) s->load = 0;
}

void bench_system_read(struct bench_system *s)
{
    *s = (struct bench_system){0};
    cpu_set_t set;
    s->cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    read_cpu(s);
    read_rest(s);
    char why[160];
    struct dev *best = dev_open(&(struct dev_config){.name = "cpu", .threads = 1}, why);
    if (best) snprintf(s->best_level, sizeof s->best_level, "%s", best->level);
    dev_close(best);
    snprintf(s->fastest_level, sizeof s->fastest_level, "%s", cpu_best_level());
}

bool bench_opens(const char *device, char why[160])
{
    struct dev *d = dev_open(&(struct dev_config){.name = device, .threads = 1}, why);
    bool opens = d != NULL;
    dev_close(d);
    return opens;
}

int bench_measure(struct dev *d, struct ceilings *out, struct err *e)
{
    size_t bytes = CEILINGS_READ_WANTED, room = memory_available() / 2;
    while (bytes > CEILINGS_READ_MIN && bytes > room) bytes /= 2;
    while (dev_ceilings(d, bytes, out))
        if ((bytes /= 2) < CEILINGS_READ_MIN)
            return err_set(e, ERR_NOMEM, "no memory to measure reading: a buffer of %d MiB", CEILINGS_READ_MIN >> 20);
    return 0;
}
