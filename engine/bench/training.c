#include "engine/bench/training.h"

#include "engine/base/mem.h"
#include "engine/base/meminfo.h"
#include "engine/bench/bench.h"
#include "engine/data/dataset.h"
#include "engine/model/open.h"
#include "kernels/rng.h"
#include "kernels/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* SLOW_SECONDS: the largest batch that fits is measured when that takes no longer than this. */
enum { ROWS_OF_STEPS = 2, EPOCHS_MAX = 1000, SLOW_SECONDS = 30, STREAM_ROWS = 31 };

struct run {
    const struct bench_training_config *c;
    struct bench_training *out;
    struct model model;
    struct tokenizer *tokenizer;
    struct train *train; /* of the case that runs */
    struct bench_training_row *row;
    double *seconds, *tokens_per_s, *rows_per_s, *part[TRAIN_PARTS]; /* (steps) of the measured steps */
    int n;
    double tokens;
    bool stopped;
};

/* ---- pure -------------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct bench_spread bench_spread_of(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return (struct bench_spread){(v[(n - 1) / 2] + v[n / 2]) / 2, v[0], v[n - 1]};
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Rows of random ids, no two alike.  mixed: of an eighth of `length` up to it, else all of it. */
static struct dataset *make_rows(struct run *r, int rows, int length, bool mixed, struct err *e)
{
    struct buf json = {0};
    struct dataset *out = NULL;
    struct dataset_report report;
    int tokens = tokenizer_size(r->tokenizer), table = r->model.c.vocab; /* padded, where it has more */
    uint64_t vocab = (uint64_t)(tokens < table ? tokens : table), at = 0;
    buf_char(&json, '[');
    for (int i = 0; i < rows; i++) {
        int n = length;
        if (mixed) n = length / 8 + (int)(rng_at(STREAM_ROWS, at++) % (uint64_t)(length - length / 8 + 1));
        buf_str(&json, i ? ",{\"input_ids\":[" : "{\"input_ids\":[");
        for (int k = 0; k < n; k++)
            buf_printf(&json, "%s%llu", k ? "," : "", (unsigned long long)(rng_at(STREAM_ROWS, at++) % vocab));
        buf_str(&json, "]}");
    }
    buf_char(&json, ']');
    struct dataset_source source = {.inline_json = json.data, .inline_bytes = json.len, .name = "rows"};
    struct dataset_options o = {.format = DATASET_TOKENS,
                                .max_length = length,
                                .keep_duplicates = true,
                                .threads = r->model.d->threads,
                                .max_row_bytes = (size_t)length * 16 + 64};
    int rc = dataset_open(&out, &source, &o, r->tokenizer, NULL, -1, &report, e);
    buf_free(&json);
    return rc ? NULL : out;
}

/* ---- a case ------------------------------------------------------------------------------------------------------ */

struct setting {
    const char *of, *name; /* as in the row */
    int batch, length;
    bool mixed;
    struct train_params p;
};

static bool go_on(struct run *r, const char *what, int done, int total)
{
    if (r->c->progress && !r->c->progress(r->c->arg, what, done, total)) r->stopped = true;
    return !r->stopped;
}

static void on_event(void *arg, const struct train_event *ev)
{
    struct run *r = arg;
    struct bench_training_row *row = r->row;
    row->usage = ev->usage;
    if (ev->kind == TRAIN_FAILED || ev->kind == TRAIN_LOST)
        snprintf(row->refused, sizeof row->refused, "%s", ev->text ? ev->text : "failed");
    if (ev->kind != TRAIN_STEP) return;
    if (!go_on(r, row->name, (int)ev->step, (int)ev->steps)) train_command(r->train, TRAIN_CANCEL);
    if (ev->step <= BENCH_TRAINING_WARM_UP || r->n == r->c->steps) return;
    double seconds = 0;
    for (int i = 0; i < TRAIN_PARTS; i++) seconds += r->part[i][r->n] = ev->part[i];
    r->seconds[r->n] = seconds;
    r->tokens_per_s[r->n] = ev->tokens_per_s;
    r->rows_per_s[r->n++] = ev->rows_per_s;
    r->tokens += ev->tokens_per_s * seconds;
    row->loss = ev->loss;
}

static double ceiling_of(const struct run *r, const struct train_params *p, const struct ceilings *c)
{
    bool half = !p->f32 && r->model.d->ops->bf16_units;
    return half ? bench_bf16_rate(c) : c->f32_macs_per_s;
}

static void fill_row(struct run *r, const struct train_params *p)
{
    struct bench_training_row *row = r->row;
    double ceiling = ceiling_of(r, p, &r->out->before);
    row->steps = r->n;
    row->seconds = bench_spread_of(r->seconds, r->n);
    row->tokens_per_s = bench_spread_of(r->tokens_per_s, r->n);
    row->rows_per_s = bench_spread_of(r->rows_per_s, r->n);
    for (int i = 0; i < TRAIN_PARTS; i++) row->part[i] = bench_spread_of(r->part[i], r->n);
    row->tokens = r->tokens / r->n;
    row->micro_batches = (double)row->usage.micro_batches / (double)row->usage.steps;
    row->macs_per_token = row->plan.macs_per_token;
    if (ceiling > 0) row->ceiling_ratio = row->macs_per_token * row->tokens_per_s.median / ceiling;
}

static struct bench_training_row *add_row(struct run *r, const struct setting *s, const char *weights)
{
    struct bench_training *o = r->out;
    size_t cap = (size_t)o->n_rows;
    mem_grow(&o->row, &cap, cap + 1, sizeof *o->row);
    struct bench_training_row *row = &o->row[o->n_rows++];
    *row = (struct bench_training_row){.of = s->of, .batch = s->batch, .length = s->length, .loss = NAN};
    snprintf(row->name, sizeof row->name, "%s", s->name);
    snprintf(row->weights, sizeof row->weights, "%s", weights);
    return row;
}

/* The job's parameters: a step is `batch` rows, all of them in one micro-batch unless the setting says otherwise.  A
 * row of n ids has n - 1 tokens to compute. */
static struct train_params params_of(const struct run *r, const struct setting *s)
{
    struct train_params p = s->p;
    p.max_length = s->length;
    p.batch_tokens = s->batch * (s->length - 1);
    if (!p.micro_tokens) p.micro_tokens = p.batch_tokens;
    p.epochs = EPOCHS_MAX;
    p.max_steps = BENCH_TRAINING_WARM_UP + r->c->steps;
    p.eval_fraction = 0;
    return p;
}

/* @return 0 also for a case that does not fit: its row says why. */
static int measure(struct run *r, const struct setting *s, struct err *e)
{
    struct bench_training_row *row = r->row = add_row(r, s, dtype_name(r->model.w.type));
    struct train_params p = params_of(r, s);
    struct dataset *data = make_rows(r, ROWS_OF_STEPS * s->batch, s->length, s->mixed, e);
    if (!data) return e->code;
    struct train_job job = {.p = p, .data = data, .base_name = "base"};
    r->n = 0;
    r->tokens = 0;
    memory_peak_forget();
    int rc = 0;
    if (go_on(r, row->name, 0, (int)p.max_steps)) r->train = train_open(&job, &r->model, NULL, e);
    if (r->train) {
        row->plan = *train_plan(r->train);
        train_run(r->train, on_event, r);
        train_free(r->train);
        r->train = NULL;
        if (r->n && !*row->refused) fill_row(r, &p);
    } else if (!r->stopped && e->code == ERR_LOST) {
        rc = e->code;
    } else {
        snprintf(row->refused, sizeof row->refused, "%s", e->msg);
        *e = (struct err){0};
    }
    dataset_free(data);
    return r->stopped ? err_set(e, ERR_FULL, "interrupted") : rc;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static struct setting table_setting(const struct run *r, int batch, int length, char name[48])
{
    snprintf(name, 48, "%d x %d", batch, length);
    return (struct setting){.name = name, .batch = batch, .length = length, .p = r->c->p};
}

static bool plan_fits(struct run *r, const struct dataset *data, int batch, int length)
{
    char name[48];
    struct train_plan plan;
    struct err e = {0};
    struct setting s = table_setting(r, batch, length, name);
    struct train_job job = {.p = params_of(r, &s), .data = data, .base_name = "base"};
    job.p.max_steps = 1;
    return train_plan_job(&job, &r->model, NULL, &plan, &e) == 0;
}

/* Doubles the batch while its plan fits, and measures the largest unless that takes long. */
static int find_most(struct run *r, int length, struct err *e)
{
    const struct bench_training_row *last = &r->out->row[r->out->n_rows - 1];
    int batch = last->batch, most = BENCH_TRAINING_TOKENS_MAX / length;
    double speed = last->tokens_per_s.median;
    if (*last->refused || batch > most) return 0;
    struct dataset *data = make_rows(r, most, length, false, e);
    if (!data) return e->code;
    while (2 * batch <= most && plan_fits(r, data, 2 * batch, length)) batch *= 2;
    dataset_free(data);
    size_t cap = (size_t)r->out->n_most;
    mem_grow(&r->out->most, &cap, cap + 1, sizeof *r->out->most);
    r->out->most[r->out->n_most++] = (struct bench_training_most){length, batch, 2 * batch > most};
    double seconds = (double)batch * length * (BENCH_TRAINING_WARM_UP + r->c->steps) / speed;
    if (batch == last->batch || !(seconds <= SLOW_SECONDS)) return 0;
    char name[48];
    struct setting s = table_setting(r, batch, length, name);
    return measure(r, &s, e);
}

static int measure_table(struct run *r, struct err *e)
{
    const struct bench_training_config *c = r->c;
    int rc = 0, positions = r->model.c.max_len, before = 0;
    for (int l = 0; l < c->n_lengths && !rc; l++) {
        int length = c->any_length && c->length[l] > positions ? positions : c->length[l];
        if (length == before) continue;
        before = length;
        for (int b = 0; b < c->n_batches && !rc; b++) {
            char name[48];
            struct setting s = table_setting(r, c->batch[b], length, name);
            rc = measure(r, &s, e);
        }
        if (!rc) rc = find_most(r, length, e);
    }
    return rc;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

static void close_model(struct run *r)
{
    tokenizer_close(r->tokenizer);
    model_close(&r->model);
    r->tokenizer = NULL;
    r->model = (struct model){0};
}

static int open_model(struct run *r, const char *quantize, struct err *e)
{
    struct cpus cpus;
    struct model_options o = r->c->model;
    o.quantize = quantize;
    go_on(r, "loading", 0, 0);
    int rc = cpus_parse(&cpus, r->c->cpus, e);
    if (!rc) rc = model_open_as(&r->model, &o, &cpus, e);
    if (!rc) rc = model_config_generates(&r->model.c, e);
    if (!rc && !(r->tokenizer = tokenizer_open_dir(o.dir, e))) rc = e->code;
    if (!rc) rc = model_pin(&r->model, &cpus, e);
    return rc;
}

/* ---- the switches ------------------------------------------------------------------------------------------------ */

/* The case that the switches are measured on: the last row of the first length that was. */
static const struct bench_training_row *typical(const struct bench_training *o)
{
    const struct bench_training_row *best = NULL;
    for (int i = 0; i < o->n_rows; i++)
        if (!*o->row[i].refused && o->row[i].length == o->row[0].length && (!best || o->row[i].batch <= 8))
            best = &o->row[i];
    return best;
}

static int measure_pair(struct run *r, struct setting s, const char *of, struct train_params off,
                        struct train_params on, struct err *e)
{
    char name[48];
    int rc = 0;
    s.of = of;
    s.name = name;
    for (int i = 0; i < 2 && !rc; i++) {
        snprintf(name, sizeof name, "%s %s", of, i ? "on" : "off");
        s.p = i ? on : off;
        rc = measure(r, &s, e);
    }
    return rc;
}

static int measure_bases(struct run *r, struct setting s, struct err *e)
{
    static const char *const types[] = {"none", "int8", "int4", "nf4"};
    char name[48];
    int rc = 0;
    s.of = "base";
    s.name = name;
    if (s.p.method == TRAIN_QLORA) s.p.method = TRAIN_LORA; /* the same, on weights as the file has them, too */
    for (size_t i = 0; i < sizeof types / sizeof *types && !rc; i++) {
        close_model(r);
        snprintf(name, sizeof name, "base %s", i ? types[i] : "as it is");
        rc = open_model(r, types[i], e);
        if (!rc) rc = measure(r, &s, e);
        if (rc && rc != ERR_LOST && !r->stopped) { /* this base cannot be quantised so */
            struct bench_training_row *row = add_row(r, &s, types[i]);
            snprintf(row->refused, sizeof row->refused, "%s", e->msg);
            *e = (struct err){0};
            rc = 0;
        }
    }
    return rc;
}

static int measure_switches(struct run *r, struct err *e)
{
    const struct bench_training_row *row = typical(r->out);
    if (!row) return 0;
    struct setting s = {.batch = row->batch, .length = row->length, .p = r->c->p};
    struct train_params off = s.p, on = s.p;
    off.recompute = RECOMPUTE_OFF;
    on.recompute = RECOMPUTE_ON;
    int rc = measure_pair(r, s, "recompute", off, on, e);
    off = on = s.p;
    off.f32 = true;
    on.f32 = false;
    if (!rc && r->model.d->ops->bf16_units) rc = measure_pair(r, s, "bf16", off, on, e);
    off = on = s.p;
    off.packing = false;
    on.packing = true;
    off.micro_tokens = on.micro_tokens = s.batch * s.length / 4 > s.length ? s.batch * s.length / 4 : s.length;
    s.mixed = true;
    if (!rc) rc = measure_pair(r, s, "packing", off, on, e);
    s.mixed = false;
    if (!rc && s.p.method != TRAIN_FULL) rc = measure_bases(r, s, e);
    return rc;
}

/* ---- advice ------------------------------------------------------------------------------------------------------ */

/* Tokens per second of the fastest larger batch of the same length, relative to the row's, where it is faster beyond
 * the noise, else 1; 0: none was measured. */
static double best_ratio(const struct bench_training *o, const struct bench_training_row *row)
{
    double best = 0;
    bool any = false;
    for (int i = 0; i < o->n_rows; i++) {
        const struct bench_training_row *other = &o->row[i];
        if (other->of || *other->refused || other->length != row->length || other->batch <= row->batch) continue;
        any = true;
        if (other->tokens_per_s.least > row->tokens_per_s.most) best = fmax(best, other->tokens_per_s.median);
    }
    return best > 0 ? best / row->tokens_per_s.median : any ? 1 : 0;
}

/* The rate of the machine after the cases relative to before; 0: unknown. */
static double clock_ratio(const struct bench_training *o)
{
    double before = o->before.f32_macs_per_s;
    return before > 0 ? o->after.f32_macs_per_s / before : 0;
}

static void advise(struct bench_training *o)
{
    for (int i = 0; i < o->n_rows; i++) {
        struct bench_training_row *row = &o->row[i];
        struct train_event ev = {.usage = row->usage, .plan = &row->plan};
        struct train_facts f = train_facts_of(&ev);
        if (*row->refused || row->of) continue;
        f.ceiling_ratio = row->ceiling_ratio;
        f.best_ratio = best_ratio(o, row);
        f.clock_ratio = clock_ratio(o);
        row->n_advice = train_advise(&f, row->advice);
    }
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

static int measure_ceilings(struct run *r, struct ceilings *out, struct err *e)
{
    go_on(r, "ceilings", 0, 0);
    return bench_measure(r->model.d, out, e);
}

static int run_all(struct run *r, struct err *e)
{
    struct bench_training *o = r->out;
    const char *quantize = r->c->model.quantize ? r->c->model.quantize : "none";
    int rc = open_model(r, quantize, e);
    if (rc) return rc;
    const struct dev *d = r->model.d;
    snprintf(o->device, sizeof o->device, "%s%s%s", d->ops->name, *d->level ? " " : "", d->level);
    o->threads = d->threads;
    o->parameters = r->model.w.parameters;
    rc = measure_ceilings(r, &o->before, e);
    if (!rc) rc = measure_table(r, e);
    if (!rc) rc = measure_ceilings(r, &o->after, e);
    if (!rc && r->c->switches) rc = measure_switches(r, e);
    return rc;
}

int bench_training(const struct bench_training_config *c, struct bench_training *out, struct err *e)
{
    struct run r = {.c = c, .out = out};
    size_t n = (size_t)c->steps;
    *out = (struct bench_training){0};
    r.seconds = mem_array(n, sizeof *r.seconds);
    r.tokens_per_s = mem_array(n, sizeof *r.tokens_per_s);
    r.rows_per_s = mem_array(n, sizeof *r.rows_per_s);
    for (int i = 0; i < TRAIN_PARTS; i++) r.part[i] = mem_array(n, sizeof *r.part[i]);
    int rc = run_all(&r, e);
    advise(out);
    close_model(&r);
    free(r.seconds);
    free(r.tokens_per_s);
    free(r.rows_per_s);
    for (int i = 0; i < TRAIN_PARTS; i++) free(r.part[i]);
    return rc;
}

void bench_training_free(struct bench_training *t)
{
    free(t->row);
    free(t->most);
    *t = (struct bench_training){0};
}
