#include "engine/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static _Atomic int threshold = LOG_INFO;
static const char *const names[] = {"debug", "info", "warn", "error"};

void log_set_level(enum log_level level)
{
    atomic_store(&threshold, (int)level);
}

int log_parse_level(const char *name)
{
    for (int i = 0; i < 4; i++)
        if (strcmp(name, names[i]) == 0) return i;
    return -1;
}

void log_write(enum log_level level, const char *fmt, ...)
{
    if ((int)level < atomic_load_explicit(&threshold, memory_order_relaxed)) return;
    char text[1024], line[4400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);

    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    struct tm tm;
    gmtime_r(&t.tv_sec, &tm);
    size_t n = strftime(line, 64, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, 64, ".%03ldZ %-5s ", t.tv_nsec / 1000000, names[level]);
    for (const char *p = text; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c < 0x20 || c == 0x7f)
            n += (size_t)snprintf(line + n, 5, "\\x%02x", c);
        else
            line[n++] = *p;
    }
    line[n++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, n);
    (void)ignored;
}
