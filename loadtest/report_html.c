/* The report as one HTML page: no script, no font, no picture from elsewhere. */
#include "loadtest/report.h"

#include "engine/base/mem.h"
#include "loadtest/svg.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char head[] =
    "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport "
    "content=\"width=device-width\">\n<style>\n"
    "body{font:14px/1.45 system-ui,sans-serif;margin:24px auto;max-width:1340px;padding:0 "
    "16px;color:#1f2937;background:#fff}\n"
    "h1{font-size:22px}h2{font-size:17px;margin-top:28px}table{border-collapse:collapse;margin:10px 0}\n"
    "td,th{padding:3px 10px;text-align:right;border-bottom:1px solid #e5e7eb;font-variant-numeric:tabular-nums}\n"
    "td:first-child,th:first-child{text-align:left}.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax("
    "480px,1fr));gap:14px}\n"
    "svg{width:100%;background:#fafafa;border:1px solid #e5e7eb;border-radius:6px}svg text{font:11px "
    "system-ui,sans-serif;fill:#4b5563}\n"
    "svg .t{font-size:13px;font-weight:600;fill:#111827}svg .g{stroke:#e5e7eb}\n"
    ".warn{background:#fef3c7;border:1px solid #f59e0b;padding:8px 12px;border-radius:6px}\n"
    "pre{background:#f3f4f6;padding:10px;border-radius:6px;overflow:auto}\n</style>\n";

static void put_plot(struct buf *out, const char *title, const char *x, const char *y, bool log_x, bool log_y,
                     const struct svg_series *series, int n)
{
    svg_put(out, &(struct svg_plot){title, x, y, log_x, log_y, true, series, n});
}

/* ---- one run ----------------------------------------------------------------------------------------------------- */

static void put_latency_table(struct buf *out, const struct run_result *r)
{
    static const double percents[] = {50, 90, 95, 99, 99.9};
    buf_str(out, "<table><tr><th>ms<th>mean<th>p50<th>p90<th>p95<th>p99<th>p99.9<th>max<th>count</tr>\n");
    for (int m = 0; m < METRICS; m++) {
        const struct hist *h = r->stats->h[m];
        if (!h->n) continue;
        buf_printf(out, "<tr><td>%s<td>%.2f", metric_names[m], hist_mean(h) * 1e-6);
        for (int i = 0; i < 5; i++) buf_printf(out, "<td>%.2f", report_ms(r, (enum metric)m, percents[i]));
        buf_printf(out, "<td>%.2f<td>%llu</tr>\n", (double)h->max * 1e-6, (unsigned long long)h->n);
    }
    buf_str(out, "</table>\n");
}

/* The share of the values up to each time, at steps of a twentieth of a decade or better. */
static void put_distribution(struct buf *out, const struct run_result *r)
{
    enum { STEPS = 400 };
    static const enum metric shown[] = {M_TTFT, M_ITL, M_TPOT, M_E2E, M_REJECT};
    double x[5][STEPS], y[5][STEPS];
    struct svg_series series[5];
    int n = 0;
    for (int k = 0; k < 5; k++) {
        const struct hist *h = r->stats->h[shown[k]];
        if (!h->n) continue;
        for (int i = 0; i < STEPS; i++) {
            double percent = 100.0 * i / (STEPS - 1);
            x[n][i] = (double)hist_percentile(h, percent) * 1e-6;
            y[n][i] = percent;
        }
        series[n] = (struct svg_series){metric_names[shown[k]], x[n], y[n], STEPS, SVG_LINE, NULL};
        n++;
    }
    if (n) put_plot(out, "Distribution", "ms", "% of values", true, false, series, n);
}

static void put_points(struct buf *out, const struct stats *s)
{
    size_t n = s->n_points;
    if (!n) return;
    double *x = mem_array(4 * n, sizeof *x), *ttft = x + n, *e2e = ttft + n, *reject = e2e + n;
    bool any[3] = {false, false, false};
    for (size_t i = 0; i < n; i++) {
        const struct point *p = &s->points[i];
        x[i] = p->at, ttft[i] = p->ttft, e2e[i] = p->e2e, reject[i] = p->reject;
        any[0] |= !isnan(p->ttft), any[2] |= !isnan(p->reject);
    }
    struct svg_series series[3];
    int k = 0;
    if (any[0]) series[k++] = (struct svg_series){"first token", x, ttft, n, SVG_DOTS, NULL};
    if (any[0]) series[k++] = (struct svg_series){"whole answer", x, e2e, n, SVG_DOTS, NULL};
    if (any[2]) series[k++] = (struct svg_series){"reject", x, reject, n, SVG_DOTS, NULL};
    put_plot(out, "Latency by time of arrival", "s", "ms", false, true, series, k);
    free(x);
}

static void put_series(struct buf *out, const struct stats *s)
{
    size_t n = s->n_moments;
    if (!n) return;
    double *x = mem_array(7 * n, sizeof *x), *v[6], unit = (double)s->moment * 1e-9;
    for (int k = 0; k < 6; k++) v[k] = x + (size_t)(k + 1) * n;
    for (size_t i = 0; i < n; i++) {
        const struct moment *m = &s->moments[i];
        x[i] = (double)i * unit;
        v[0][i] = m->pieces / unit, v[1][i] = m->running, v[2][i] = m->arrivals / unit;
        v[3][i] = m->ok / unit, v[4][i] = m->rejected / unit, v[5][i] = m->errors / unit;
    }
    struct svg_series tokens = {"pieces", x, v[0], n, SVG_STEPS, NULL}, running = {"open", x, v[1], n, SVG_STEPS, NULL};
    const struct svg_series rates[] = {{"arrivals", x, v[2], n, SVG_STEPS, NULL},
                                       {"served", x, v[3], n, SVG_STEPS, NULL},
                                       {"rejected", x, v[4], n, SVG_STEPS, NULL},
                                       {"errors", x, v[5], n, SVG_STEPS, NULL}};
    put_plot(out, "Pieces of answers a second", "s", "1/s", false, false, &tokens, 1);
    put_plot(out, "Requests a second", "s", "1/s", false, false, rates, 4);
    put_plot(out, "Open requests", "s", "greatest number in the second", false, false, &running, 1);
    free(x);
}

static void put_gauge_plots(struct buf *out, const struct stats *s)
{
    size_t n = s->n_gauges;
    if (!n) return;
    double *x = mem_array(4 * n, sizeof *x), *running = x + n, *waiting = running + n, *kv = waiting + n;
    for (size_t i = 0; i < n; i++) {
        x[i] = s->gauges[i].at, running[i] = s->gauges[i].running, waiting[i] = s->gauges[i].waiting;
        kv[i] = 100 * s->gauges[i].kv;
    }
    const struct svg_series queue[] = {{"running", x, running, n, SVG_STEPS, NULL},
                                       {"waiting", x, waiting, n, SVG_STEPS, NULL}};
    struct svg_series use = {"kv", x, kv, n, SVG_STEPS, NULL};
    put_plot(out, "The server: requests", "s", "requests", false, false, queue, 2);
    put_plot(out, "The server: keys and values in use", "s", "%", false, false, &use, 1);
    free(x);
}

static void put_run(struct buf *out, const struct report *p, const struct run_result *r)
{
    if (p->n > 1) buf_printf(out, "<h2>%d at once</h2>\n", r->concurrency);
    if (report_summary(r).saturated)
        buf_str(out, "<p class=warn>The generator could not keep up: it was late, or used all of a core. These figures "
                     "are its own.</p>\n");
    put_latency_table(out, r);
    buf_str(out, "<div class=plots>\n");
    put_distribution(out, r);
    put_points(out, r->stats);
    put_series(out, r->stats);
    put_gauge_plots(out, r->stats);
    buf_str(out, "</div>\n");
}

/* ---- a sweep ----------------------------------------------------------------------------------------------------- */

static void put_sweep(struct buf *out, const struct report *p)
{
    double user[SWEEP_MAX], system[SWEEP_MAX], ttft[SWEEP_MAX], at[SWEEP_MAX];
    char names[SWEEP_MAX][16];
    const char *labels[SWEEP_MAX];
    for (int i = 0; i < p->n; i++) {
        struct summary v = report_summary(&p->runs[i]);
        user[i] = v.tps_per_user, system[i] = v.tokens_per_s;
        ttft[i] = report_ms(&p->runs[i], M_TTFT, 90);
        at[i] = p->runs[i].concurrency;
        snprintf(names[i], sizeof names[i], "%d", p->runs[i].concurrency);
        labels[i] = names[i];
    }
    struct svg_series pareto = {"", user, system, (size_t)p->n, SVG_MARKED, labels};
    struct svg_series first = {"", at, ttft, (size_t)p->n, SVG_MARKED, labels};
    struct svg_series total = {"", at, system, (size_t)p->n, SVG_MARKED, labels};
    buf_str(out, "<div class=plots>\n");
    put_plot(out, "Tokens/s of the system against tokens/s of a user, by concurrency",
             "tokens/s of a user (1000 / tpot p90 ms)", "tokens/s", false, false, &pareto, 1);
    put_plot(out, "Tokens/s of the system", "concurrency", "tokens/s", true, false, &total, 1);
    put_plot(out, "Time to the first token, p90", "concurrency", "ms", true, true, &first, 1);
    buf_str(out, "</div>\n");
}

void report_html(struct buf *out, const struct report *p)
{
    const char *title = p->options->title ? p->options->title : "Load test";
    struct buf text = {0};
    char when[64] = "";
    time_t t = (time_t)p->unix_time;
    struct tm tm;
    if (gmtime_r(&t, &tm)) strftime(when, sizeof when, "%Y-%m-%d %H:%M UTC", &tm);
    buf_str(out, head);
    buf_str(out, "<title>");
    html_put_text(out, title);
    buf_str(out, "</title></head><body><h1>");
    html_put_text(out, title);
    buf_printf(out, "</h1><p>%s</p>\n", when);
    if (p->n > 1) put_sweep(out, p);
    for (int i = 0; i < p->n; i++) put_run(out, p, &p->runs[i]);
    buf_str(out, "<h2>As text</h2><pre>");
    report_text(&text, p);
    html_put_text(out, text.data);
    buf_str(out, "</pre></body></html>\n");
    buf_free(&text);
}
