#include "server/cli/bench_training_report.h"

#include "server/cli/bench_report.h"
#include "server/json/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

/* 0: unknown */
static void put_bytes(struct buf *out, const char *name, size_t bytes)
{
    bench_put_name(out, name);
    if (bytes)
        buf_printf(out, "%zu", bytes);
    else
        buf_str(out, "null");
}

static void put_spread(struct buf *out, const char *name, const struct bench_spread *s)
{
    bench_put_name(out, name);
    buf_char(out, '{');
    bench_put_number(out, "median", s->median);
    bench_put_number(out, "least", s->least);
    bench_put_number(out, "most", s->most);
    buf_char(out, '}');
}

static size_t planned(const struct bench_training_row *r)
{
    return r->plan.weight_bytes + r->plan.state_bytes + r->plan.activation_bytes;
}

/* The row that a setting of a switch is compared with: the switch's first. */
static const struct bench_training_row *first_of(const struct bench_training *t, const struct bench_training_row *r)
{
    for (int i = 0; r->of && i < t->n_rows; i++)
        if (t->row[i].of && strcmp(t->row[i].of, r->of) == 0) return &t->row[i];
    return NULL;
}

static void put_measured(struct buf *out, const struct bench_training_row *r)
{
    bench_put_count(out, "steps", r->steps);
    bench_put_number(out, "tokens_per_step", r->tokens);
    bench_put_number(out, "micro_batches_per_step", r->micro_batches);
    put_spread(out, "seconds", &r->seconds);
    bench_put_name(out, "parts");
    buf_char(out, '{');
    for (int i = 0; i < TRAIN_PARTS; i++) put_spread(out, train_part_name((enum train_part)i), &r->part[i]);
    buf_char(out, '}');
    bench_put_number(out, "tokens_per_s", r->tokens_per_s.median);
    bench_put_number(out, "tokens_per_s_min", r->tokens_per_s.least);
    bench_put_number(out, "tokens_per_s_max", r->tokens_per_s.most);
    bench_put_number(out, "rows_per_s", r->rows_per_s.median);
    bench_put_number(out, "macs_per_token", r->macs_per_token);
    bench_put_number(out, "ceiling_ratio", r->ceiling_ratio);
    bench_put_number(out, "loss", r->loss);
    bench_put_count(out, "weight_bytes", (double)r->plan.weight_bytes);
    bench_put_count(out, "state_bytes", (double)r->plan.state_bytes);
    bench_put_count(out, "activation_bytes", (double)r->plan.activation_bytes);
    bench_put_name(out, "recompute");
    buf_str(out, r->plan.recompute ? "true" : "false");
    put_bytes(out, "peak_host_bytes", r->usage.host_peak);
    put_bytes(out, "peak_device_bytes", r->usage.device_peak);
    bench_put_name(out, "advice");
    buf_char(out, '[');
    for (int i = 0; i < r->n_advice; i++) {
        buf_str(out, i ? ",{" : "{");
        bench_put_string(out, "rule", r->advice[i].rule);
        bench_put_string(out, "cause", r->advice[i].cause);
        bench_put_string(out, "change", r->advice[i].change);
        bench_put_number(out, "gain", r->advice[i].gain);
        buf_char(out, '}');
    }
    buf_char(out, ']');
}

static void put_row(struct buf *out, const struct bench_training *t, const struct bench_training_row *r)
{
    const struct bench_training_row *first = first_of(t, r);
    buf_str(out, out->data[out->len - 1] == '[' ? "{" : ",{");
    bench_put_string(out, "name", r->name);
    if (r->of) bench_put_string(out, "switch", r->of);
    bench_put_count(out, "batch", r->batch);
    bench_put_count(out, "length", r->length);
    bench_put_string(out, "weights", r->weights);
    if (*r->refused)
        bench_put_string(out, "refused", r->refused);
    else
        put_measured(out, r);
    if (first && first != r && !*r->refused && !*first->refused) {
        bench_put_number(out, "speed_ratio", r->tokens_per_s.median / first->tokens_per_s.median);
        bench_put_count(out, "bytes_saved", (double)planned(first) - (double)planned(r));
    }
    buf_char(out, '}');
}

static void put_rows(struct buf *out, const struct bench_training *t, const char *name, bool switches)
{
    bench_put_name(out, name);
    buf_char(out, '[');
    for (int i = 0; i < t->n_rows; i++)
        if (!t->row[i].of != switches) put_row(out, t, &t->row[i]);
    buf_char(out, ']');
}

void bench_training_json(struct buf *out, const struct bench_report *system, const char *method,
                         const struct bench_training *t)
{
    bench_report_head_json(out, system);
    bench_put_string(out, "method", method);
    bench_put_count(out, "parameters", (double)t->parameters);
    put_rows(out, t, "rows", false);
    bench_put_name(out, "largest");
    buf_char(out, '[');
    for (int i = 0; i < t->n_most; i++)
        buf_printf(out, "%s{\"length\":%d,\"batch\":%d,\"more\":%s}", i ? "," : "", t->most[i].length, t->most[i].batch,
                   t->most[i].more ? "true" : "false");
    buf_char(out, ']');
    put_rows(out, t, "switches", true);
    buf_str(out, "}\n");
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static void text_head(struct buf *out, const char *title)
{
    buf_printf(out, "\n%-18s %9s %9s %9s %17s", title, "tokens/s", "rows/s", "step ms", "least..most");
    for (int i = 0; i < TRAIN_PARTS; i++) buf_printf(out, " %9s", train_part_name((enum train_part)i));
    buf_printf(out, " %7s %8s %8s %8s\n", "ceiling", "state MB", "act. MB", "peak MB");
}

static void text_row(struct buf *out, const struct bench_training_row *r)
{
    char range[40];
    buf_printf(out, "%-18s ", r->name);
    if (*r->refused) {
        buf_printf(out, "not measured: %s\n", r->refused);
        return;
    }
    snprintf(range, sizeof range, "%.4g..%.4g", r->seconds.least * 1e3, r->seconds.most * 1e3);
    buf_printf(out, "%9.1f %9.2f %9.4g %17s", r->tokens_per_s.median, r->rows_per_s.median, r->seconds.median * 1e3,
               range);
    for (int i = 0; i < TRAIN_PARTS; i++) buf_printf(out, " %7.1f %%", 100 * r->part[i].median / r->seconds.median);
    size_t peak = r->usage.device_peak ? r->usage.device_peak : r->usage.host_peak;
    buf_printf(out, " %7.2f %8.1f %8.1f %8.0f\n", r->ceiling_ratio, (double)r->plan.state_bytes * 1e-6,
               (double)r->plan.activation_bytes * 1e-6, (double)peak * 1e-6);
}

static void text_change(struct buf *out, const struct bench_training *t, const struct bench_training_row *r)
{
    const struct bench_training_row *first = first_of(t, r);
    if (!first || first == r || *r->refused || *first->refused) return;
    double speed = 100 * (r->tokens_per_s.median / first->tokens_per_s.median - 1);
    double saved = ((double)planned(first) - (double)planned(r)) * 1e-6;
    bool apart = r->tokens_per_s.least > first->tokens_per_s.most || r->tokens_per_s.most < first->tokens_per_s.least;
    buf_printf(out, "  %s: %+.1f %% tokens/s%s, %s %.1f MB\n", r->name, speed, apart ? "" : " (within the noise)",
               saved < 0 ? "takes" : "saves", fabs(saved));
}

static void text_advice(struct buf *out, const struct bench_training *t)
{
    bool any = false;
    for (int i = 0; i < t->n_rows; i++)
        for (int k = 0; k < t->row[i].n_advice; k++) {
            char line[512];
            train_advice_text(&t->row[i].advice[k], line, sizeof line);
            buf_printf(out, "%s  %s: %s\n", any ? "" : "\nwhat to change\n", t->row[i].name, line);
            any = true;
        }
}

void bench_training_text(struct buf *out, const struct bench_report *system, const char *method,
                         const struct bench_training *t)
{
    bench_report_head_text(out, system, "--train");
    buf_printf(out, "training  %s of %.1f M parameters, after %d steps of warm-up; medians and shares of medians\n",
               method, (double)t->parameters * 1e-6, BENCH_TRAINING_WARM_UP);
    text_head(out, "batch x length");
    const struct bench_training_row *of = NULL; /* a setting of a switch */
    for (int i = 0; i < t->n_rows; i++)
        if (!t->row[i].of)
            text_row(out, &t->row[i]);
        else
            of = &t->row[i];
    for (int i = 0; i < t->n_most; i++)
        buf_printf(out, "  of length %d, %s%d rows fit in memory at once\n", t->most[i].length,
                   t->most[i].more ? "at least " : "", t->most[i].batch);
    text_advice(out, t);
    if (!of) return;
    char title[40];
    snprintf(title, sizeof title, "at %d x %d", of->batch, of->length);
    text_head(out, title);
    for (int i = 0; i < t->n_rows; i++)
        if (t->row[i].of) text_row(out, &t->row[i]);
    buf_str(out, "\nwhat a switch costs and saves\n");
    for (int i = 0; i < t->n_rows; i++) text_change(out, t, &t->row[i]);
}
