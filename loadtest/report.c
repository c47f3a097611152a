#include "loadtest/report.h"

#include <math.h>
#include <string.h>

static const double percents[] = {50, 90, 95, 99, 99.9};

enum { PERCENTS = sizeof percents / sizeof *percents };

double report_ms(const struct run_result *r, enum metric m, double percent)
{
    return (double)hist_percentile(r->stats->h[m], percent) * 1e-6;
}

struct summary report_summary(const struct run_result *r)
{
    const struct stats *s = r->stats;
    double window = r->window_seconds > 0 ? r->window_seconds : 1e-9;
    double tpot = report_ms(r, M_TPOT, 90);
    struct summary v = {.tokens_per_s = s->tokens_in_window / window,
                        .requests_per_s = (double)s->ok_in_window / window,
                        .good_per_s = (double)s->good_in_window / window,
                        .offered_per_s = r->arrivals_seconds > 0 ? (double)s->requests / r->arrivals_seconds : 0,
                        .tps_per_user = tpot > 0 ? 1000 / tpot : 0,
                        .late_p99_ms = report_ms(r, M_LATE, 99),
                        .cpu_share = r->seconds > 0 ? r->cpu_seconds / r->seconds : 0};
    for (int i = 0; i < OUTCOMES; i++)
        if (outcome_is_error((enum outcome)i)) v.errors += s->outcomes[i];
    v.saturated = v.late_p99_ms > 10 || v.cpu_share > 0.9 || s->outcomes[OUT_LIMIT] > 0;
    return v;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static void put_latencies(struct buf *out, const struct run_result *r)
{
    static const struct {
        enum metric m;
        const char *name;
    } rows[] = {{M_TTFT, "time to first token"}, {M_ITL, "between tokens"},         {M_TPOT, "time per output token"},
                {M_E2E, "whole answer"},         {M_REJECT, "time to reject"},      {M_SERVICE, "  since it was sent"},
                {M_LATE, "generator was late"},  {M_CONNECT, "generator connected"}};
    buf_printf(out, "\n%-24s%9s", "ms", "mean");
    for (int i = 0; i < PERCENTS; i++) buf_printf(out, "%7s%g", "p", percents[i]);
    buf_printf(out, "%9s%10s\n", "max", "count");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct hist *h = r->stats->h[rows[i].m];
        if (!h->n) continue;
        buf_printf(out, "%-24s%9.2f", rows[i].name, hist_mean(h) * 1e-6);
        for (int k = 0; k < PERCENTS; k++) {
            int width = percents[k] == floor(percents[k]) ? 9 : 11;
            buf_printf(out, "%*.2f", width, report_ms(r, rows[i].m, percents[k]));
        }
        buf_printf(out, "%9.2f%10llu\n", (double)h->max * 1e-6, (unsigned long long)h->n);
    }
}

static void put_outcomes(struct buf *out, const struct run_result *r)
{
    const struct stats *s = r->stats;
    buf_printf(out, "requests     %llu:", (unsigned long long)s->requests);
    for (int i = 0; i < OUTCOMES; i++)
        if (s->outcomes[i]) buf_printf(out, " %s %llu", outcome_names[i], (unsigned long long)s->outcomes[i]);
    buf_str(out, "\n");
    bool any = false;
    for (int i = 0; i < STATUS_MAX; i++)
        if (s->by_status[i]) {
            buf_printf(out, "%s %d: %llu", any ? "," : "status      ", i, (unsigned long long)s->by_status[i]);
            any = true;
        }
    if (any) buf_str(out, "\n");
}

static void put_goodput(struct buf *out, const struct run_result *r, const struct summary *v)
{
    const struct slo *slo = &r->stats->slo;
    if (!slo->any) return;
    buf_printf(out, "goodput      %.2f requests/s within", v->good_per_s);
    for (int i = 0; i < SLO_KINDS; i++)
        if (slo->ms[i] > 0) buf_printf(out, " %s <= %g ms", slo_names[i], slo->ms[i]);
    uint64_t served = r->stats->h[M_E2E]->n;
    buf_printf(out, " (%.1f %% of the served", served ? 100.0 * (double)r->stats->good / (double)served : 0);
    for (int i = 0; i < SLO_KINDS; i++)
        if (r->stats->failed_slo[i])
            buf_printf(out, "; %llu missed %s", (unsigned long long)r->stats->failed_slo[i], slo_names[i]);
    buf_str(out, ")\n");
}

static void put_gauges(struct buf *out, const struct stats *s)
{
    double running = NAN, waiting = NAN, kv = NAN;
    for (size_t i = 0; i < s->n_gauges; i++) {
        running = fmax(running, s->gauges[i].running);
        waiting = fmax(waiting, s->gauges[i].waiting);
        kv = fmax(kv, s->gauges[i].kv);
    }
    if (s->n_gauges)
        buf_printf(out, "server       at most %g running, %g waiting, %.0f %% of its keys and values (%zu samples)\n",
                   running, waiting, 100 * kv, s->n_gauges);
}

static void put_run(struct buf *out, const struct report *p, const struct run_result *r)
{
    const struct options *o = p->options;
    struct summary v = report_summary(r);
    if (r->concurrency)
        buf_printf(out, "\nload         closed, %d at once", r->concurrency);
    else
        buf_printf(out, "\nload         %s, %.2f requests/s offered", arrival_names[o->arrivals], v.offered_per_s);
    buf_printf(out, ", %.1f s, at most %d open\n", r->seconds, r->peak_open);
    put_outcomes(out, r);
    buf_printf(out, "throughput   %.1f tokens/s, %.2f requests/s, in a window of %.1f s\n", v.tokens_per_s,
               v.requests_per_s, r->window_seconds);
    put_goodput(out, r, &v);
    put_gauges(out, r->stats);
    const struct train_counts *t = &r->train;
    if (o->train_jobs)
        buf_printf(out, "training     %d jobs begun: %d succeeded, %d cancelled, %d failed, %d lost; %d refused%s%s\n",
                   t->started, t->succeeded, t->cancelled, t->failed, t->lost, t->refused, t->error[0] ? ": " : "",
                   t->error);
    buf_printf(
        out, "generator    %.0f %% of a core, late p99 %.2f ms; %llu connections, %llu requests on kept ones%s\n",
        100 * v.cpu_share, v.late_p99_ms, (unsigned long long)r->client.opened, (unsigned long long)r->client.reused,
        v.saturated ? "\nwarning      the generator could not keep up: these figures are its own" : "");
    if (r->interrupted) buf_str(out, "warning      interrupted\n");
    put_latencies(out, r);
}

static void put_pareto(struct buf *out, const struct report *p)
{
    buf_printf(out, "\n%12s%12s%14s%14s%14s%10s\n", "concurrency", "tokens/s", "tokens/s/user", "ttft p90 ms",
               "itl p99 ms", "errors");
    for (int i = 0; i < p->n; i++) {
        struct summary v = report_summary(&p->runs[i]);
        uint64_t failed = v.errors + p->runs[i].stats->outcomes[OUT_REJECTED];
        buf_printf(out, "%12d%12.1f%14.2f%14.1f%14.2f%10llu\n", p->runs[i].concurrency, v.tokens_per_s, v.tps_per_user,
                   report_ms(&p->runs[i], M_TTFT, 90), report_ms(&p->runs[i], M_ITL, 99), (unsigned long long)failed);
    }
}

void report_text(struct buf *out, const struct report *p)
{
    const struct options *o = p->options;
    buf_printf(out, "%s%s%s, %s%s%s\n", o->title ? o->title : "", o->title ? ": " : "", o->url, api_names[o->api],
               p->model ? ", model " : "", p->model ? p->model : "");
    for (int i = 0; i < p->n; i++) put_run(out, p, &p->runs[i]);
    if (p->n > 1) put_pareto(out, p);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void json_text(struct buf *out, const char *s)
{
    buf_char(out, '"');
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            buf_printf(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            buf_printf(out, "\\u%04x", c);
        else
            buf_char(out, (char)c);
    }
    buf_char(out, '"');
}

static void json_number(struct buf *out, double v)
{
    if (isfinite(v))
        buf_printf(out, "%.9g", v);
    else
        buf_str(out, "null");
}

static void json_metric(struct buf *out, const struct run_result *r, enum metric m)
{
    const struct hist *h = r->stats->h[m];
    buf_printf(out, "\"%s_ms\":{\"count\":%llu", metric_names[m], (unsigned long long)h->n);
    if (h->n) {
        buf_printf(out, ",\"mean\":%.9g,\"std\":%.9g,\"min\":%.9g,\"max\":%.9g", hist_mean(h) * 1e-6,
                   hist_deviation(h) * 1e-6, (double)h->min * 1e-6, (double)h->max * 1e-6);
        for (int i = 0; i < PERCENTS; i++) buf_printf(out, ",\"p%g\":%.9g", percents[i], report_ms(r, m, percents[i]));
    }
    buf_str(out, "}");
}

static void json_series(struct buf *out, const struct stats *s)
{
    static const char *const names[] = {"arrivals", "ok", "rejected", "errors", "pieces", "running"};
    buf_printf(out, "\"series\":{\"seconds\":%.9g", (double)s->moment * 1e-9);
    for (int k = 0; k < 6; k++) {
        buf_printf(out, ",\"%s\":[", names[k]);
        for (size_t i = 0; i < s->n_moments; i++) {
            const struct moment *m = &s->moments[i];
            const int v[] = {m->arrivals, m->ok, m->rejected, m->errors, m->pieces, m->running};
            buf_printf(out, "%s%d", i ? "," : "", v[k]);
        }
        buf_str(out, "]");
    }
    buf_str(out, "},\"gauges\":[");
    for (size_t i = 0; i < s->n_gauges; i++) {
        const struct gauge *g = &s->gauges[i];
        buf_printf(out, "%s{\"at\":%.6f,\"running\":", i ? "," : "", g->at);
        json_number(out, g->running);
        buf_str(out, ",\"waiting\":");
        json_number(out, g->waiting);
        buf_str(out, ",\"kv\":");
        json_number(out, g->kv);
        buf_str(out, "}");
    }
    buf_str(out, "]");
}

static void json_counts(struct buf *out, const struct stats *s)
{
    buf_str(out, "\"outcomes\":{");
    for (int i = 0; i < OUTCOMES; i++)
        buf_printf(out, "%s\"%s\":%llu", i ? "," : "", outcome_names[i], (unsigned long long)s->outcomes[i]);
    buf_str(out, "},\"kinds\":{");
    for (int i = 0; i < ASK_KINDS; i++)
        buf_printf(out, "%s\"%s\":%llu", i ? "," : "", ask_names[i], (unsigned long long)s->kinds[i]);
    buf_str(out, "},\"status\":{");
    for (int i = 0, any = 0; i < STATUS_MAX; i++)
        if (s->by_status[i]) buf_printf(out, "%s\"%d\":%llu", any++ ? "," : "", i, (unsigned long long)s->by_status[i]);
    buf_str(out, "}");
}

static void json_run(struct buf *out, const struct run_result *r)
{
    const struct stats *s = r->stats;
    struct summary v = report_summary(r);
    buf_printf(
        out,
        "{\"concurrency\":%d,\"seconds\":%.9g,\"arrivals_seconds\":%.9g,\"window_seconds\":%.9g,\"peak_open\":%d,"
        "\"interrupted\":%s,\"requests\":%llu,\"attempts\":%llu,",
        r->concurrency, r->seconds, r->arrivals_seconds, r->window_seconds, r->peak_open,
        r->interrupted ? "true" : "false", (unsigned long long)s->requests, (unsigned long long)s->attempts);
    json_counts(out, s);
    buf_printf(
        out,
        ",\"errors\":%llu,\"offered_rps\":%.9g,\"requests_per_s\":%.9g,\"tokens_per_s\":%.9g,\"tps_per_user\":%.9g,"
        "\"tokens\":%.9g,\"prompt_tokens\":%.9g,",
        (unsigned long long)v.errors, v.offered_per_s, v.requests_per_s, v.tokens_per_s, v.tps_per_user, s->tokens,
        s->prompt_tokens);
    buf_printf(out, "\"goodput\":{\"requests_per_s\":%.9g,\"good\":%llu,\"missed\":{", v.good_per_s,
               (unsigned long long)s->good);
    for (int i = 0; i < SLO_KINDS; i++)
        buf_printf(out, "%s\"%s\":%llu", i ? "," : "", slo_names[i], (unsigned long long)s->failed_slo[i]);
    buf_printf(out, "}},\"rejects_over_5ms\":%llu,", (unsigned long long)s->reject_over_5ms);
    for (int i = 0; i < METRICS; i++) {
        json_metric(out, r, (enum metric)i);
        buf_str(out, ",");
    }
    buf_printf(
        out,
        "\"generator\":{\"cpu_seconds\":%.6f,\"cpu_share\":%.6f,\"saturated\":%s,\"connections\":%llu,\"kept\":%llu,"
        "\"resent\":%llu},",
        r->cpu_seconds, v.cpu_share, v.saturated ? "true" : "false", (unsigned long long)r->client.opened,
        (unsigned long long)r->client.reused, (unsigned long long)r->client.resent);
    const struct train_counts *t = &r->train;
    buf_printf(out,
               "\"training\":{\"started\":%d,\"refused\":%d,\"succeeded\":%d,\"failed\":%d,\"cancelled\":%d,\"lost\":%"
               "d,\"error\":",
               t->started, t->refused, t->succeeded, t->failed, t->cancelled, t->lost);
    json_text(out, t->error);
    buf_str(out, "},");
    json_series(out, s);
    buf_str(out, "}");
}

void report_json(struct buf *out, const struct report *p)
{
    const struct options *o = p->options;
    buf_str(out, "{\"title\":");
    json_text(out, o->title ? o->title : "");
    buf_str(out, ",\"url\":");
    json_text(out, o->url);
    buf_printf(out, ",\"api\":\"%s\",\"model\":", api_names[o->api]);
    if (p->model)
        json_text(out, p->model);
    else
        buf_str(out, "null");
    buf_printf(out,
               ",\"time\":%.3f,\"arrivals\":\"%s\",\"rate\":%.9g,\"burstiness\":%.9g,\"ramp\":%.9g,\"duration\":%.9g,"
               "\"warmup\":%.9g,"
               "\"prompt_tokens\":[%d,%d],\"output_tokens\":[%d,%d],\"seed\":%.0f,\"slo_ms\":{",
               p->unix_time, arrival_names[o->arrivals], o->rate, o->burstiness, o->ramp, o->duration, o->warmup,
               o->prompt.low, o->prompt.high, o->output.low, o->output.high, o->seed);
    for (int i = 0, any = 0; i < SLO_KINDS; i++)
        if (o->slo.ms[i] > 0) buf_printf(out, "%s\"%s\":%.9g", any++ ? "," : "", slo_names[i], o->slo.ms[i]);
    buf_str(out, "},\"runs\":[");
    for (int i = 0; i < p->n; i++) {
        if (i) buf_str(out, ",");
        json_run(out, &p->runs[i]);
    }
    buf_str(out, "]}\n");
}
