#include "server/jobs/job_report.h"

#include "engine/train/bottleneck.h"
#include "server/json/json.h"

#include <string.h>

void job_put_report(struct buf *b, const struct dataset_report *d, const struct data_spec *spec)
{
    buf_printf(b,
               "{\"format\":\"%s\",\"rows\":%llu,\"kept\":%llu,\"skipped\":%llu,\"duplicates\":%llu,\"truncated\":%llu,"
               "\"tokens\":%llu,\"trained_tokens\":%llu,\"longest\":%llu,",
               dataset_format_name(d->format), (unsigned long long)d->seen, (unsigned long long)d->kept,
               (unsigned long long)d->skipped, (unsigned long long)d->duplicates, (unsigned long long)d->truncated,
               (unsigned long long)d->tokens, (unsigned long long)d->trained_tokens, (unsigned long long)d->longest);
    if (d->drawn) buf_printf(b, "\"drawn\":%llu,", (unsigned long long)d->drawn);
    buf_str(b, "\"problems\":[");
    for (int i = 0; i < d->n_problems; i++) {
        buf_printf(b, "%s{\"line\":%llu,\"what\":", i ? "," : "", (unsigned long long)d->problem[i].line);
        json_put_string(b, d->problem[i].what, strlen(d->problem[i].what));
        if (spec->n_refs > 1 && (int)d->problem[i].source < spec->n_refs) {
            const char *file = spec->ref[d->problem[i].source].name;
            buf_str(b, ",\"file\":");
            json_put_string(b, file, strlen(file));
        }
        buf_char(b, '}');
    }
    buf_str(b, "]}");
}

static void put_number(struct buf *b, const char *name, double v)
{
    buf_printf(b, ",\"%s\":", name);
    json_put_number(b, v);
}

void job_put_plan(struct buf *d, const struct train_plan *p)
{
    buf_printf(d, "\"steps\":%lld", (long long)p->steps);
    put_number(d, "rows", (double)p->rows);
    put_number(d, "eval_rows", (double)p->eval_rows);
    put_number(d, "tokens_per_epoch", (double)p->tokens_per_epoch);
    put_number(d, "trained_tokens_per_epoch", (double)p->trained_tokens_per_epoch);
    put_number(d, "weight_bytes", (double)p->weight_bytes);
    put_number(d, "trainable_parameters", (double)p->trainable);
    put_number(d, "state_bytes", (double)p->state_bytes);
    put_number(d, "moment_bytes", (double)p->moment_bytes);
    buf_printf(d, ",\"offload_optimizer\":%s", p->offload ? "true" : "false");
    put_number(d, "activation_bytes", (double)p->activation_bytes);
    put_number(d, "micro_tokens", (double)p->micro_tokens);
    buf_printf(d, ",\"recompute\":%s", p->recompute ? "true" : "false");
}

void job_put_parts(struct buf *b, const double part[TRAIN_PARTS])
{
    for (int i = 0; i < TRAIN_PARTS; i++) {
        buf_printf(b, "%s\"%s\":", i ? "," : "{", train_part_name((enum train_part)i));
        json_put_number(b, part[i]);
    }
    buf_char(b, '}');
}

void job_put_norms(struct buf *b, const struct train_event *ev)
{
    buf_char(b, '{');
    for (size_t i = 0; i < ev->n_group_norms; i++) {
        buf_printf(b, "%s\"%s\":", i ? "," : "", ev->group_norm[i].name);
        json_put_number(b, ev->group_norm[i].norm);
    }
    buf_char(b, '}');
}

/* Numbers of bytes have more digits than json_put_number writes. */
static void put_bytes(struct buf *b, const char *name, size_t bytes)
{
    if (bytes)
        buf_printf(b, ",\"%s\":%zu", name, bytes);
    else
        buf_printf(b, ",\"%s\":null", name);
}

static void put_text(struct buf *b, const char *name, const char *text)
{
    buf_printf(b, "%s\"%s\":", strcmp(name, "rule") ? "," : "", name);
    json_put_string(b, text, strlen(text));
}

static void put_advice(struct buf *b, const struct train_event *ev)
{
    struct train_advice advice[TRAIN_ADVICE_MAX];
    struct train_facts facts = train_facts_of(ev);
    buf_str(b, ",\"advice\":[");
    for (int i = 0, n = train_advise(&facts, advice); i < n; i++) {
        buf_str(b, i ? ",{" : "{");
        put_text(b, "rule", advice[i].rule);
        put_text(b, "cause", advice[i].cause);
        put_text(b, "change", advice[i].change);
        put_number(b, "gain", advice[i].gain);
        buf_char(b, '}');
    }
    buf_char(b, ']');
}

void job_put_usage(struct buf *b, const struct train_event *ev)
{
    const struct train_usage *u = &ev->usage;
    if (u->steps < 1 || u->seconds <= 0) {
        buf_str(b, "null");
        return;
    }
    buf_printf(b, "{\"steps\":%lld", (long long)u->steps);
    put_number(b, "seconds", u->seconds);
    buf_str(b, ",\"step_seconds\":");
    job_put_parts(b, u->part);
    put_number(b, "evaluation_seconds", u->eval_seconds);
    put_number(b, "checkpoint_seconds", u->checkpoint_seconds);
    put_number(b, "cpu_seconds", u->cpu_seconds);
    put_number(b, "tokens", (double)u->tokens);
    put_number(b, "rows", (double)u->rows);
    put_number(b, "tokens_per_s", (double)u->tokens / u->seconds);
    put_number(b, "rows_per_s", (double)u->rows / u->seconds);
    if (ev->plan) put_number(b, "macs_per_s", (double)u->tokens / u->seconds * ev->plan->macs_per_token);
    put_number(b, "micro_batches_per_step", (double)u->micro_batches / (double)u->steps);
    put_bytes(b, "peak_host_bytes", u->host_peak);
    put_bytes(b, "peak_device_bytes", u->device_peak);
    if (ev->plan) put_advice(b, ev);
    buf_char(b, '}');
}
