#include "loadtest/gauges.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { RUNNING, WAITING, KV, WHATS };

static const struct {
    int what;
    const char *name;
} names[] = {{RUNNING, "tandem_requests_running"},
             {WAITING, "tandem_requests_waiting"},
             {KV, "tandem_kv_usage_ratio"},
             {RUNNING, "vllm:num_requests_running"},
             {WAITING, "vllm:num_requests_waiting"},
             {KV, "vllm:kv_cache_usage_perc"},
             {RUNNING, "sglang:num_running_reqs"},
             {WAITING, "sglang:num_queue_reqs"},
             {KV, "sglang:token_usage"},
             {RUNNING, "tgi_batch_current_size"},
             {WAITING, "tgi_queue_size"},
             {RUNNING, "llamacpp:requests_processing"},
             {WAITING, "llamacpp:requests_deferred"},
             {KV, "llamacpp:kv_cache_usage_ratio"}};

enum { NAMES = sizeof names / sizeof *names };

static void take_line(const char *line, size_t n, double sums[NAMES])
{
    size_t name = 0;
    while (name < n && line[name] != '{' && line[name] != ' ') name++;
    int i = 0;
    while (i < NAMES && (strlen(names[i].name) != name || memcmp(line, names[i].name, name))) i++;
    if (i == NAMES) return;
    const char *value = line + name;
    if (*value == '{') { /* the labels' end: the last brace of the line */
        value = memrchr(line, '}', n);
        if (!value) return;
        value++;
    }
    char text[64], *end;
    size_t length = n - (size_t)(value - line);
    if (length >= sizeof text) return;
    memcpy(text, value, length);
    text[length] = 0;
    double v = strtod(text, &end);
    if (end == text || !isfinite(v)) return;
    if (isnan(sums[i]))
        sums[i] = v;
    else
        sums[i] = names[i].what == KV ? fmax(sums[i], v) : sums[i] + v;
}

void gauges_read(struct gauge *g, const char *text)
{
    double sums[NAMES], found[WHATS] = {NAN, NAN, NAN};
    for (int i = 0; i < NAMES; i++) sums[i] = NAN;
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, "\n");
        take_line(p, n, sums);
        p += n + (p[n] == '\n');
    }
    for (int i = NAMES; i-- > 0;) /* the first name of the table that is there: an alias adds nothing */
        if (!isnan(sums[i])) found[names[i].what] = sums[i];
    g->running = found[RUNNING], g->waiting = found[WAITING], g->kv = found[KV];
}
