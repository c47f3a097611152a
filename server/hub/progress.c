#include "server/hub/progress.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"

#include <stdio.h>
#include <unistd.h>

#define SECOND UINT64_C(1000000000)
enum { EVERY_MS = 200, LINE_SECONDS = 10 };

void progress_begin(struct progress *p, const char *name)
{
    *p = (struct progress){.now = {.name = name, .seconds_left = -1}, .begun = clock_now()};
}

static void measure(struct progress *p, uint64_t t)
{
    int last = p->samples % PROGRESS_SAMPLES, first = p->samples < PROGRESS_SAMPLES ? 0 : (last + 1) % PROGRESS_SAMPLES;
    p->sample[last].at = t;
    p->sample[last].loaded = p->loaded;
    p->samples++;
    double seconds = (double)(t - p->sample[first].at) * 1e-9;
    if (seconds > 0.1) p->now.rate = (double)(p->loaded - p->sample[first].loaded) / seconds;
    double left = (double)(p->now.total - p->now.done);
    p->now.seconds_left = p->now.rate > 1 ? left / p->now.rate : -1;
}

void progress_update(struct progress *p, const struct hub *h, bool finished)
{
    uint64_t t = clock_now();
    if (!finished && p->reported && t - p->reported < EVERY_MS * SECOND / 1000) return;
    p->reported = t;
    measure(p, t);
    p->now.seconds = (double)(t - p->begun) * 1e-9;
    p->now.loaded = p->loaded;
    p->now.finished = finished;
    if (h->report) h->report(h->report_arg, &p->now);
}

/* ---- printing -------------------------------------------------------------------------------------------------- */

void progress_bytes(struct buf *out, double bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    int unit = 0;
    while (bytes >= 999.5 && unit < 4) bytes /= 1000, unit++;
    buf_printf(out, "%.*f %s", unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2, bytes, units[unit]);
}

static void put_time(struct buf *out, double seconds)
{
    int s = seconds < 359999 ? (int)(seconds + 0.5) : 359999;
    if (s >= 3600)
        buf_printf(out, "%d:%02d:%02d", s / 3600, s / 60 % 60, s % 60);
    else
        buf_printf(out, "%d:%02d", s / 60, s % 60);
}

void progress_line(struct buf *out, const struct hub_progress *p)
{
    buf_printf(out, "%s: ", p->name);
    progress_bytes(out, (double)p->done);
    buf_str(out, " of ");
    progress_bytes(out, (double)p->total);
    buf_printf(out, ", %d of %d files", p->files_done, p->files);
    if (p->finished) {
        buf_str(out, ", ");
        progress_bytes(out, (double)p->loaded);
        buf_printf(out, " downloaded in %.1f s", p->seconds);
    } else if (p->waiting) {
        buf_str(out, ", another process downloads the rest: waiting");
    } else if (p->done < p->total) {
        buf_str(out, ", ");
        progress_bytes(out, p->rate);
        buf_str(out, "/s");
        if (p->seconds_left >= 0) buf_str(out, ", "), put_time(out, p->seconds_left), buf_str(out, " left");
    }
}

void hub_print_progress(void *arg, const struct hub_progress *p)
{
    struct hub_printer *out = arg;
    struct buf line = {0};
    bool tty = isatty(STDERR_FILENO) && log_get_format() != LOG_JSON;
    if (p->finished && !p->loaded && !out->printed) return; /* everything was there */
    if (!tty && !p->finished && p->seconds < (double)(out->lines + 1) * LINE_SECONDS) return;
    progress_line(&line, p);
    if (log_get_format() == LOG_JSON)
        log_info("downloading model=%s bytes=%llu of=%llu rate=%.0f", p->name, (unsigned long long)p->done,
                 (unsigned long long)p->total, p->rate);
    else if (tty)
        fprintf(stderr, "\r\033[K%s%s", line.data, p->finished ? "\n" : "");
    else
        fprintf(stderr, "%s\n", line.data);
    out->lines = (int)(p->seconds / LINE_SECONDS);
    out->printed = true;
    buf_free(&line);
}

void hub_print_end(struct hub_printer *out)
{
    if (out->printed && isatty(STDERR_FILENO) && log_get_format() != LOG_JSON) fputs("\n", stderr);
}
