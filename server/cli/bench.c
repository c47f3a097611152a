/* tandem bench: measures a model's speed and compares it with the machine's limits.  Main thread. */
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/bench/training.h"
#include "server/cli/bench_compare.h"
#include "server/cli/bench_report.h"
#include "server/cli/bench_training.h"
#include "server/cli/cmd.h"
#include "server/cli/hyperparameters.h"
#include "server/cli/ranks.h"
#include "server/jobs/train_aliases.h"

#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "tandem bench [--model DIR] [--quantize TYPE] [--batch LIST] [options]  or  --train  or  --ops [FILTER]";
static const char about[] =
    "Measures prefill and decoding, or fine-tuning, beside the machine's ceilings, and says what bounds them.";

enum { BATCH_MAX = 1024, NUMBERS_MAX = 32, LENGTH_MAX = 1 << 18, INTERRUPTED = 130, PROGRESS_NS = 100000000 };

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

/* The first SIGINT ends the run at the next step, the second at once. */
static void catch_interrupt(void)
{
    struct sigaction a = {.sa_handler = on_interrupt, .sa_flags = SA_RESETHAND};
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
}

/* ---- progress: one line on a terminal, rewritten -------------------------------------------------------------------
 */

static bool show_progress(void *arg, const char *what, int done, int total)
{
    static uint64_t shown;
    (void)arg;
    if (!interrupted && isatty(STDERR_FILENO) && clock_now() - shown > PROGRESS_NS) {
        shown = clock_now();
        if (total > 0)
            fprintf(stderr, "\r\033[K%s: %d of %d", what, done, total);
        else
            fprintf(stderr, "\r\033[K%s", what);
        fflush(stderr);
    }
    return !interrupted;
}

static void clear_progress(void)
{
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r\033[K");
}

/* ---- arguments -----------------------------------------------------------------------------------------------------
 */

/* "1,8,32" -> out[NUMBERS_MAX]; returns how many, or an err code. */
static int parse_numbers(const char *option, const char *text, int least, int most, int *out, struct err *e)
{
    int n = 0;
    for (const char *p = text;; p++) {
        char *end = NULL;
        long v = isdigit((unsigned char)*p) ? strtol(p, &end, 10) : 0;
        if (!end || (*end && *end != ','))
            return err_set(e, ERR_INVALID, "--%s: '%.60s' is not a list of numbers such as 1,8,32", option, text);
        if (v < least || v > most)
            return err_set(e, ERR_INVALID, "--%s: %.*s is not between %d and %d", option, (int)(end - p), p, least,
                           most);
        if (n == NUMBERS_MAX) return err_set(e, ERR_INVALID, "--%s: more than %d numbers", option, NUMBERS_MAX);
        out[n++] = (int)v;
        p = end;
        if (!*p) return n;
    }
}

/* ---- a model -------------------------------------------------------------------------------------------------------
 */

static int measure(struct bench *b, struct bench_report *r, struct bench_result *results, const int *batches,
                   int n_batches, struct err *e)
{
    struct ceilings c[2];
    show_progress(NULL, "ceilings", 0, 0);
    int rc = bench_ceilings(b, &c[0], e);
    r->before = c[0];
    for (int i = -1; i < n_batches && !rc; i++) {
        struct bench_result *out = &results[r->n_results++];
        rc = i < 0 ? bench_run(b, BENCH_PREFILL, 1, out, e) : bench_run(b, BENCH_DECODE, batches[i], out, e);
        if (!rc && !show_progress(NULL, "ceilings", 0, 0)) rc = err_set(e, ERR_FULL, "interrupted");
        if (!rc) rc = bench_ceilings(b, &c[1], e);
        if (!rc) bench_judge(b, &r->system, &c[0], &c[1], out);
        c[0] = c[1];
    }
    r->after = c[1];
    return rc;
}

static cJSON *read_json(const char *option, const char *path, struct err *e)
{
    struct buf text = {0};
    cJSON *out = cmd_read_file(path, &text, e) ? NULL : json_parse(text.data ? text.data : "", text.len, e);
    if (!out) err_prefix(e, "%s", option);
    buf_free(&text);
    return out;
}

/* --baseline and --check: what they say goes to stdout, beside a JSON document to stderr.  @return the exit status. */
static int judge(const struct settings *s, const struct buf *json, struct err *e)
{
    cJSON *now = json_parse(json->data, json->len, e);
    cJSON *before = now && s->baseline ? read_json("--baseline", s->baseline, e) : NULL;
    cJSON *targets = now && !e->code && s->check ? read_json("--check", s->check, e) : NULL;
    struct buf says = {0};
    int missed = 0;
    if (before && !e->code) {
        buf_str(&says, "\ncompared with the baseline\n");
        bench_compare(&says, before, now);
    }
    if (targets) {
        buf_str(&says, "\ntargets\n");
        missed = bench_check(&says, targets, now, e);
    }
    if (!e->code && says.len) fwrite(says.data, 1, says.len, s->json ? stderr : stdout);
    buf_free(&says);
    json_free(before);
    json_free(targets);
    json_free(now);
    return e->code ? 1 : missed > 0;
}

/* Prints a report in one of its two forms.  @return the exit status. */
static int print(const struct settings *s, const struct buf *text, const struct buf *json, struct err *e)
{
    const struct buf *out = s->json ? json : text;
    fwrite(out->data, 1, out->len, stdout);
    fflush(stdout);
    return s->baseline || s->check ? judge(s, json, e) : 0;
}

static int print_report(const struct settings *s, const struct bench_report *r, struct err *e)
{
    struct buf text = {0}, json = {0};
    bench_report_text(&text, r);
    bench_report_json(&json, r);
    int status = print(s, &text, &json, e);
    buf_free(&text);
    buf_free(&json);
    return status;
}

static int run_model(const struct settings *s, const int *batches, int n_batches, int *status, struct err *e)
{
    struct bench_config c = {.engine = cmd_engine_config(s), .repeat = s->repeat, .progress = show_progress};
    if (settings_given(s, "prompt-tokens")) c.prompt_tokens = s->prompt_tokens;
    if (settings_given(s, "generate-tokens")) c.generate_tokens = s->generate_tokens;
    for (int i = 0; i < n_batches; i++) c.max_batch = batches[i] > c.max_batch ? batches[i] : c.max_batch;
    struct bench_report r = {.repeat = s->repeat};
    bench_system_read(&r.system); /* before the device may bind this thread to a core */
    show_progress(NULL, "loading", 0, 0);
    struct ranks ranks;
    if (ranks_open(&ranks, s, e) || ranks_begin(&ranks, &c.engine, e)) return e->code;
    if (ranks_follows(&ranks)) return *status = ranks_follow(&ranks), 0;
    struct bench *b = bench_open(&c, e);
    ranks.opened = b != NULL;
    if (!b && !ranks.comm) ranks_close(&ranks); /* processes of mpirun end with this one, after its message */
    if (!b) return e->code;
    struct bench_result *results = mem_array((size_t)n_batches + 1, sizeof *results);
    int rc = measure(b, &r, results, batches, n_batches, e);
    clear_progress();
    r.info = bench_info(b);
    r.device = r.info->device;
    r.threads = r.info->threads;
    r.prompt_tokens = bench_prompt_tokens(b);
    r.generate_tokens = bench_generate_tokens(b);
    r.load_peak = bench_load_peak(b);
    r.results = results;
    if (!rc) *status = print_report(s, &r, e);
    free(results);
    bench_close(b);
    ranks_close(&ranks);
    return rc;
}

/* ---- single ops ----------------------------------------------------------------------------------------------------
 */

struct ops_run {
    struct bench_report r;
    struct bench_op_row *rows;
    size_t cap;
    char device[32];
    bool json;
};

static void put_out(struct buf *text)
{
    fwrite(text->data, 1, text->len, stdout);
    fflush(stdout);
    buf_free(text);
}

static void ops_begin(void *arg, const char *device, int threads, const struct ceilings *c)
{
    struct ops_run *o = arg;
    struct buf text = {0};
    snprintf(o->device, sizeof o->device, "%s", device);
    o->r.device = o->device;
    o->r.threads = threads;
    o->r.before = o->r.after = *c;
    if (o->json) return;
    bench_ops_head(&text, &o->r);
    put_out(&text);
}

static bool ops_row(void *arg, const struct bench_op_row *row)
{
    struct ops_run *o = arg;
    struct buf text = {0};
    mem_grow(&o->rows, &o->cap, (size_t)o->r.n_rows + 1, sizeof *row);
    o->rows[o->r.n_rows++] = *row;
    if (!o->json) {
        bench_ops_line(&text, row, &o->r.before);
        put_out(&text);
    }
    return !o->json || show_progress(NULL, row->name, 0, 0) ? !interrupted : false;
}

static int run_ops(const struct settings *s, int *status, struct err *e)
{
    struct ops_run o = {.json = s->json};
    bench_system_read(&o.r.system);
    struct bench_ops_sink sink = {ops_begin, ops_row, &o};
    int rc = bench_ops(s->device, s->threads, s->ops, &sink, e);
    if (s->json) clear_progress();
    if (!rc && !o.r.n_rows) rc = err_set(e, ERR_NOT_FOUND, "--ops: no operation's row contains '%.60s'", s->ops);
    o.r.rows = o.rows;
    if (!rc && (s->json || s->baseline || s->check)) {
        struct buf json = {0}, none = {0};
        bench_report_json(&json, &o.r);
        buf_str(&none, "");
        *status = print(s, &none, &json, e);
        buf_free(&json);
        buf_free(&none);
    }
    free(o.rows);
    return rc;
}

/* ---- the command ---------------------------------------------------------------------------------------------------
 */

struct arguments {
    int batch[NUMBERS_MAX], n_batches, length[NUMBERS_MAX], n_lengths;
    struct train_params p;
};

/* Checks what --train measures.  @return 0 or an err code. */
static int read_training(const struct settings *s, const cJSON *hyperparameters, struct arguments *a, struct err *e)
{
    enum train_method method;
    struct json_at at = {hyperparameters, "", e};
    if (s->ops) return err_set(e, ERR_INVALID, "--train and --ops exclude each other");
    a->n_lengths = parse_numbers("lengths", s->lengths, BENCH_LENGTH_LEAST, LENGTH_MAX, a->length, e);
    if (a->n_lengths < 0) return e->code;
    train_method_parse(s->method, &method);
    train_params_default(&a->p, method);
    int rows = 0; /* of a step: --batch says how many */
    return train_hyperparameters_read(&at, &a->p, &rows) ? 0 : e->code;
}

static int read_arguments(const struct settings *s, const cJSON *hyperparameters, struct arguments *a, struct err *e)
{
    const char *batch = s->bench_train && !settings_given(s, "batch") ? "1,4,16" : s->batch;
    a->n_batches = parse_numbers("batch", batch, 1, BATCH_MAX, a->batch, e);
    if (a->n_batches < 0) return e->code;
    if (s->bench_train) return read_training(s, hyperparameters, a, e);
    if (hyperparameters->child)
        return err_set(e, ERR_INVALID, "%s is an option of --train", hyperparameters->child->string);
    return 0;
}

static int run(const struct settings *s, const struct arguments *a, struct err *e)
{
    int status = 0;
    struct bench_training_run t = {.settings = s,
                                   .p = &a->p,
                                   .batch = a->batch,
                                   .length = a->length,
                                   .n_batches = a->n_batches,
                                   .n_lengths = a->n_lengths,
                                   .progress = show_progress};
    struct buf text = {0}, json = {0};
    int rc = s->bench_train ? bench_training_run(&t, &text, &json, e)
             : s->ops       ? run_ops(s, &status, e)
                            : run_model(s, a->batch, a->n_batches, &status, e);
    clear_progress();
    if (!rc && s->bench_train) status = print(s, &text, &json, e);
    buf_free(&text);
    buf_free(&json);
    if (rc || e->code) status = cmd_fail(e);
    return interrupted ? INTERRUPTED : status;
}

int cmd_bench(int argc, char **argv)
{
    struct settings s = {0};
    struct arguments a;
    struct err e = {0};
    int status = 2;
    cJSON *hyperparameters = hyperparameters_take(&argc, argv, &e);
    bool wanted = hyperparameters && cmd_settings(&s, CMD_BENCH, argc, argv, usage, about, &status);
    if (!hyperparameters || (wanted && read_arguments(&s, hyperparameters, &a, &e))) {
        fprintf(stderr, "tandem: %s\nusage: %s\n", e.msg, usage);
        status = 2;
    } else if (wanted) {
        catch_interrupt();
        status = run(&s, &a, &e);
    }
    settings_free(&s);
    json_free(hyperparameters);
    return status;
}
