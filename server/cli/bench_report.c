#include "server/cli/bench_report.h"

#include "server/json/json.h"

#include <stdio.h>
#include <string.h>

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

void bench_put_name(struct buf *out, const char *name)
{
    char last = out->len ? out->data[out->len - 1] : '{';
    buf_printf(out, "%s\"%s\":", last == '{' ? "" : ",", name);
}

void bench_put_number(struct buf *out, const char *name, double v)
{
    bench_put_name(out, name);
    json_put_number(out, v);
}

void bench_put_count(struct buf *out, const char *name, double v)
{
    bench_put_name(out, name);
    buf_printf(out, "%.0f", v);
}

void bench_put_string(struct buf *out, const char *name, const char *s)
{
    bench_put_name(out, name);
    json_put_string(out, s, strlen(s));
}

/* 0: the unit does not exist */
static void put_rate(struct buf *out, const char *name, double v)
{
    bench_put_name(out, name);
    if (v > 0)
        buf_printf(out, "%.0f", v);
    else
        buf_str(out, "null");
}

static void put_rates(struct buf *out, const struct ceilings *c)
{
    put_rate(out, "read_bytes_per_s", c->read_bytes_per_s);
    put_rate(out, "int8_macs_per_s", c->int8_macs_per_s);
    put_rate(out, "int4_macs_per_s", c->int4_macs_per_s);
    put_rate(out, "bf16_macs_per_s", c->bf16_macs_per_s);
    put_rate(out, "f32_macs_per_s", c->f32_macs_per_s);
}

static void put_ceilings(struct buf *out, const struct bench_report *r)
{
    /* --ops has no phases */
    struct ceilings most = r->n_results ? bench_overall_ceilings(r->results, r->n_results) : r->before;
    bench_put_name(out, "ceilings");
    buf_char(out, '{');
    put_rates(out, &most);
    bench_put_count(out, "read_buffer_bytes", (double)most.read_bytes);
    bench_put_name(out, "before");
    buf_char(out, '{');
    put_rates(out, &r->before);
    buf_char(out, '}');
    bench_put_name(out, "after");
    buf_char(out, '{');
    put_rates(out, &r->after);
    buf_str(out, "}}");
}

static void put_system(struct buf *out, const struct bench_report *r)
{
    const struct bench_system *s = &r->system;
    bench_put_name(out, "system");
    buf_char(out, '{');
    bench_put_string(out, "cpu", s->cpu);
    bench_put_count(out, "cores", s->cores);
    bench_put_count(out, "threads", r->threads);
    bench_put_string(out, "device", r->device);
    bench_put_string(out, "best_level", s->best_level);
    bench_put_string(out, "flags", s->flags);
    bench_put_count(out, "memory_bytes", (double)s->memory_bytes);
    bench_put_string(out, "huge_pages", s->huge_pages);
    bench_put_string(out, "kernel", s->kernel);
    bench_put_number(out, "load_average", s->load);
    buf_char(out, '}');
}

static void put_model(struct buf *out, const struct bench_report *r)
{
    const struct engine_info *m = r->info;
    bench_put_name(out, "model");
    buf_char(out, '{');
    bench_put_string(out, "id", m->model_id);
    bench_put_string(out, "family", m->family);
    bench_put_count(out, "parameters", (double)m->parameters);
    if (*m->exchange) bench_put_string(out, "exchange", m->exchange);
    bench_put_string(out, "weight_type", m->weight_type);
    bench_put_count(out, "weight_bytes", (double)m->weight_bytes);
    bench_put_string(out, "kv_type", m->kv_type);
    bench_put_count(out, "kv_bytes", (double)m->kv_bytes);
    bench_put_count(out, "max_batch_tokens", m->max_batch_tokens);
    bench_put_number(out, "load_seconds", m->load_seconds);
    bench_put_count(out, "load_peak_bytes", (double)r->load_peak);
    buf_char(out, '}');
}

static void put_op(struct buf *out, const struct bench_op *o)
{
    buf_str(out, out->data[out->len - 1] == '[' ? "{" : ",{");
    bench_put_string(out, "op", o->name);
    bench_put_count(out, "calls", (double)o->calls);
    bench_put_number(out, "seconds", o->seconds);
    bench_put_number(out, "share", o->share);
    bench_put_count(out, "macs", o->macs);
    bench_put_count(out, "bytes", o->bytes);
    buf_char(out, '}');
}

static void put_result(struct buf *out, const struct bench_result *r)
{
    const struct bench_work *w = &r->work;
    double step = r->seconds / r->steps, macs = w->weight_macs + w->attention_macs,
           bytes = w->weight_bytes + w->kv_bytes;
    buf_str(out, out->data[out->len - 1] == '[' ? "{" : ",{");
    bench_put_string(out, "phase", bench_phase_name(r->phase));
    bench_put_count(out, "batch", r->batch);
    bench_put_count(out, "prompt_tokens", r->prompt_tokens);
    bench_put_count(out, "generate_tokens", r->generate_tokens);
    bench_put_count(out, "repeats", r->repeats);
    bench_put_count(out, "steps", r->steps);
    bench_put_number(out, "seconds", r->seconds);
    bench_put_number(out, "tokens_per_s", r->tokens_per_s);
    bench_put_number(out, "tokens_per_s_min", r->tokens_per_s_min);
    bench_put_number(out, "tokens_per_s_max", r->tokens_per_s_max);
    bench_put_name(out, "step_ms");
    buf_char(out, '{');
    bench_put_number(out, "p50", r->step_p50 * 1e3);
    bench_put_number(out, "p95", r->step_p95 * 1e3);
    bench_put_number(out, "p99", r->step_p99 * 1e3);
    buf_char(out, '}');
    bench_put_number(out, "macs_per_step", macs);
    bench_put_number(out, "weight_macs_per_step", w->weight_macs);
    bench_put_number(out, "attention_macs_per_step", w->attention_macs);
    bench_put_number(out, "bytes_per_step", bytes);
    bench_put_number(out, "weight_bytes_per_step", w->weight_bytes);
    bench_put_number(out, "kv_bytes_per_step", w->kv_bytes);
    bench_put_number(out, "macs_per_s", macs / step);
    bench_put_number(out, "bytes_per_s", bytes / step);
    bench_put_number(out, "ceiling_ratio", r->ratios.ceiling);
    bench_put_number(out, "read_ratio", r->ratios.read);
    bench_put_number(out, "compute_ratio", r->ratios.compute);
    bench_put_number(out, "multiplier_ratio", r->ratios.multiplier);
    bench_put_string(out, "bound_by", bench_bound_name(r->ratios.bound));
    bench_put_name(out, "ceilings");
    buf_char(out, '{');
    put_rates(out, &r->ceilings);
    buf_char(out, '}');
    bench_put_name(out, "ops");
    buf_char(out, '[');
    for (int i = 0; i < r->n_ops; i++) put_op(out, &r->ops[i]);
    buf_char(out, ']');
    bench_put_name(out, "advice");
    buf_char(out, '[');
    for (int i = 0; i < r->n_advice; i++) {
        if (i) buf_char(out, ',');
        json_put_string(out, r->advice[i], strlen(r->advice[i]));
    }
    buf_char(out, ']');
    bench_put_count(out, "peak_memory_bytes", (double)r->peak_bytes);
    buf_char(out, '}');
}

static void put_row(struct buf *out, const struct bench_op_row *o, const struct ceilings *c)
{
    buf_str(out, out->data[out->len - 1] == '[' ? "{" : ",{");
    bench_put_string(out, "name", o->name);
    bench_put_number(out, "seconds", o->seconds);
    put_rate(out, "macs_per_s", o->macs / o->seconds);
    bench_put_name(out, "multiplier_ratio");
    if (o->macs > 0 && o->macs_ceiling > 0)
        json_put_number(out, o->macs / o->seconds / o->macs_ceiling);
    else
        buf_str(out, "null");
    put_rate(out, "bytes_per_s", o->bytes / o->seconds);
    bench_put_number(out, "read_ratio", c->read_bytes_per_s > 0 ? o->bytes / o->seconds / c->read_bytes_per_s : 0);
    buf_char(out, '}');
}

void bench_report_head_json(struct buf *out, const struct bench_report *r)
{
    buf_char(out, '{');
    bench_put_string(out, "version", TANDEM_VERSION);
    put_system(out, r);
    put_ceilings(out, r);
}

void bench_report_json(struct buf *out, const struct bench_report *r)
{
    bench_report_head_json(out, r);
    if (r->info) {
        put_model(out, r);
        bench_put_name(out, "results");
        buf_char(out, '[');
        for (int i = 0; i < r->n_results; i++) put_result(out, &r->results[i]);
        buf_char(out, ']');
    } else {
        bench_put_name(out, "ops");
        buf_char(out, '[');
        for (int i = 0; i < r->n_rows; i++) put_row(out, &r->rows[i], &r->before);
        buf_char(out, ']');
    }
    buf_str(out, "}\n");
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static void text_system(struct buf *out, const struct bench_report *r)
{
    const struct bench_system *s = &r->system;
    buf_printf(out, "machine   %s, %d core%s, %.1f GiB, huge pages %s, load %.2f, %s\n", *s->cpu ? s->cpu : "?",
               s->cores, s->cores == 1 ? "" : "s", (double)s->memory_bytes / 0x1p30,
               *s->huge_pages ? s->huge_pages : "?", s->load, s->kernel);
    buf_printf(out, "device    %s, %d thread%s; the processor has %s\n", r->device, r->threads,
               r->threads == 1 ? "" : "s", *s->flags ? s->flags : "no flags that matter here");
    if (r->info && *r->info->exchange)
        buf_printf(out, "ranks     %d, exchange %s\n", r->info->ranks, r->info->exchange);
}

static void text_model(struct buf *out, const struct bench_report *r)
{
    const struct engine_info *m = r->info;
    buf_printf(out, "model     %s: %.1f M parameters, %s weights %.1f MB, %s KV cache\n", m->model_id,
               (double)m->parameters * 1e-6, m->weight_type, (double)m->weight_bytes * 1e-6, m->kv_type);
    buf_printf(out, "loaded    in %.2f s, peak memory %.0f MB\n", m->load_seconds, (double)r->load_peak * 1e-6);
    buf_printf(out, "measured  prompts of %d tokens, then %d steps; median of %d\n", r->prompt_tokens,
               r->generate_tokens, r->repeat);
}

static void text_ceiling(struct buf *out, const char *name, double before, double after, double scale, const char *unit)
{
    if (before <= 0 && after <= 0)
        buf_printf(out, "  %-28s %10s\n", name, "none");
    else
        buf_printf(out, "  %-28s %10.1f %10.1f %s\n", name, before * scale, after * scale, unit);
}

static void text_ceilings(struct buf *out, const struct bench_report *r)
{
    const struct ceilings *a = &r->before, *b = &r->after;
    char read[64];
    snprintf(read, sizeof read, "memory read (%zu MiB)", a->read_bytes >> 20);
    char title[40];
    snprintf(title, sizeof title, "ceilings, %d thread%s", r->threads, r->threads == 1 ? "" : "s");
    buf_printf(out, "\n%-30s %10s %10s\n", title, "before", "after");
    text_ceiling(out, read, a->read_bytes_per_s, b->read_bytes_per_s, 1e-9, "GB/s");
    text_ceiling(out, "int8 multiply-adds", a->int8_macs_per_s, b->int8_macs_per_s, 1e-9, "G/s");
    text_ceiling(out, "int8 by int4 multiply-adds", a->int4_macs_per_s, b->int4_macs_per_s, 1e-9, "G/s");
    text_ceiling(out, "bf16 multiply-adds", a->bf16_macs_per_s, b->bf16_macs_per_s, 1e-9, "G/s");
    text_ceiling(out, "f32 multiply-adds", a->f32_macs_per_s, b->f32_macs_per_s, 1e-9, "G/s");
}

static void text_results(struct buf *out, const struct bench_report *r)
{
    buf_printf(out, "\n%-8s %5s %9s %9s %9s %9s %13s %13s %5s %5s %7s  %-10s %8s\n", "phase", "batch", "tokens/s",
               "p50 ms", "p95 ms", "p99 ms", "GMAC/s of", "GB/s of", "read", "mult", "ceiling", "bound by", "peak MB");
    for (int i = 0; i < r->n_results; i++) {
        const struct bench_result *b = &r->results[i];
        double step = b->seconds / b->steps;
        buf_printf(out, "%-8s %5d %9.1f %9.3f %9.3f %9.3f %7.1f %5.0f %7.2f %5.1f %5.2f %5.2f %7.2f  %-10s %8.0f\n",
                   bench_phase_name(b->phase), b->batch, b->tokens_per_s, b->step_p50 * 1e3, b->step_p95 * 1e3,
                   b->step_p99 * 1e3, (b->work.weight_macs + b->work.attention_macs) / step * 1e-9,
                   b->ceilings.int8_macs_per_s * 1e-9, (b->work.weight_bytes + b->work.kv_bytes) / step * 1e-9,
                   b->ceilings.read_bytes_per_s * 1e-9, b->ratios.read, b->ratios.multiplier, b->ratios.ceiling,
                   bench_bound_name(b->ratios.bound), (double)b->peak_bytes * 1e-6);
    }
    buf_printf(out,
               "  read, mult: share of the read and of the int8 ceiling; ceiling: of the time at the ceilings, 1 is "
               "the most\n");
}

static void text_work(struct buf *out, const struct bench_report *r)
{
    buf_printf(out, "\n%-8s %5s %22s %22s %14s %14s\n", "a step", "batch", "weights, M mult-adds",
               "attention, M m.-adds", "weights, MB", "KV, MB");
    for (int i = 0; i < r->n_results; i++) {
        const struct bench_result *b = &r->results[i];
        buf_printf(out, "%-8s %5d %22.2f %22.2f %14.2f %14.2f\n", bench_phase_name(b->phase), b->batch,
                   b->work.weight_macs * 1e-6, b->work.attention_macs * 1e-6, b->work.weight_bytes * 1e-6,
                   b->work.kv_bytes * 1e-6);
    }
}

static double share_of(const struct bench_result *r, const char *name)
{
    for (int i = 0; i < r->n_ops; i++)
        if (strcmp(r->ops[i].name, name) == 0) return r->ops[i].share;
    return 0;
}

/* Rows in the order of the last phase's time; columns are the phases. */
static void text_ops(struct buf *out, const struct bench_report *r)
{
    const struct bench_result *first = &r->results[0], *last = &r->results[r->n_results - 1];
    buf_printf(out, "\n%-12s", "time by op");
    for (int i = 0; i < r->n_results; i++) {
        char name[32];
        if (r->results[i].phase == BENCH_PREFILL)
            snprintf(name, sizeof name, "prefill");
        else
            snprintf(name, sizeof name, "decode %d", r->results[i].batch);
        buf_printf(out, " %12s", name);
    }
    buf_char(out, '\n');
    for (int k = 0; k < last->n_ops + first->n_ops; k++) {
        const char *name = k < last->n_ops ? last->ops[k].name : first->ops[k - last->n_ops].name;
        if (k >= last->n_ops && share_of(last, name) > 0) continue; /* already has its row */
        buf_printf(out, "%-12s", name);
        for (int i = 0; i < r->n_results; i++) buf_printf(out, " %10.1f %%", 100 * share_of(&r->results[i], name));
        buf_char(out, '\n');
    }
}

static void text_advice(struct buf *out, const struct bench_report *r)
{
    bool any = false;
    for (int i = 0; i < r->n_results; i++) {
        const struct bench_result *b = &r->results[i];
        for (int k = 0; k < b->n_advice; k++) {
            buf_printf(out, any ? "" : "\nwhat to change\n");
            buf_printf(out, "  %s, batch %d: %s\n", bench_phase_name(b->phase), b->batch, b->advice[k]);
            any = true;
        }
    }
}

void bench_report_head_text(struct buf *out, const struct bench_report *r, const char *flag)
{
    buf_printf(out, "tandem %s bench %s\n", TANDEM_VERSION, flag);
    text_system(out, r);
    text_ceilings(out, r);
    buf_char(out, '\n');
}

void bench_report_text(struct buf *out, const struct bench_report *r)
{
    buf_printf(out, "tandem %s bench\n", TANDEM_VERSION);
    text_system(out, r);
    text_model(out, r);
    text_ceilings(out, r);
    if (!r->n_results) return;
    text_results(out, r);
    text_work(out, r);
    text_ops(out, r);
    text_advice(out, r);
}

void bench_ops_head(struct buf *out, const struct bench_report *r)
{
    const struct ceilings *c = &r->before;
    buf_printf(out, "tandem %s bench --ops\n", TANDEM_VERSION);
    text_system(out, r);
    buf_printf(out, "ceilings  read %.1f GB/s; multiply-adds int8 %.0f, int8 by int4 %.0f, bf16 %.0f, f32 %.0f G/s\n\n",
               c->read_bytes_per_s * 1e-9, c->int8_macs_per_s * 1e-9, c->int4_macs_per_s * 1e-9,
               c->bf16_macs_per_s * 1e-9, c->f32_macs_per_s * 1e-9);
    buf_printf(out, "%-44s %11s %9s %6s %9s %6s\n", "op", "ms", "GMAC/s", "share", "GB/s", "share");
}

void bench_ops_line(struct buf *out, const struct bench_op_row *o, const struct ceilings *c)
{
    buf_printf(out, "%-44s %11.4f", o->name, o->seconds * 1e3);
    if (o->macs > 0)
        buf_printf(out, " %9.1f", o->macs / o->seconds * 1e-9);
    else
        buf_printf(out, " %9s", "-");
    if (o->macs > 0 && o->macs_ceiling > 0)
        buf_printf(out, " %6.2f", o->macs / o->seconds / o->macs_ceiling);
    else
        buf_printf(out, " %6s", "-");
    buf_printf(out, " %9.2f", o->bytes / o->seconds * 1e-9);
    if (c->read_bytes_per_s > 0)
        buf_printf(out, " %6.2f\n", o->bytes / o->seconds / c->read_bytes_per_s);
    else
        buf_printf(out, " %6s\n", "-");
}
