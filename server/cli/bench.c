/* tandem bench: measures a model's speed and compares it with the machine's limits.  Main thread. */
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "server/cli/bench_report.h"
#include "server/cli/cmd.h"

#include <ctype.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] = "tandem bench [--model DIR] [--quantize TYPE] [--batch LIST] [options]  or  --ops [FILTER]";
static const char about[] = "Measures prefill and decoding beside the machine's ceilings, and says what bounds them.";

enum { BATCH_MAX = 1024, BATCHES_MAX = 32, INTERRUPTED = 130, PROGRESS_NS = 100000000 };

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

/* "1,8,32" -> out[BATCHES_MAX]; returns how many, or an err code. */
static int parse_batches(const char *text, int *out, struct err *e)
{
    int n = 0;
    for (const char *p = text;; p++) {
        char *end = NULL;
        long v = isdigit((unsigned char)*p) ? strtol(p, &end, 10) : 0;
        if (!end || (*end && *end != ','))
            return err_set(e, ERR_INVALID, "--batch: '%.60s' is not a list of numbers such as 1,8,32", text);
        if (v < 1 || v > BATCH_MAX)
            return err_set(e, ERR_INVALID, "--batch: %.*s is not between 1 and %d", (int)(end - p), p, BATCH_MAX);
        if (n == BATCHES_MAX) return err_set(e, ERR_INVALID, "--batch: more than %d numbers", BATCHES_MAX);
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

static void print(const struct bench_report *r, bool json)
{
    struct buf out = {0};
    if (json)
        bench_report_json(&out, r);
    else
        bench_report_text(&out, r);
    fwrite(out.data, 1, out.len, stdout);
    buf_free(&out);
}

static int run_model(const struct settings *s, const int *batches, int n_batches, struct err *e)
{
    struct bench_config c = {.engine = cmd_engine_config(s), .repeat = s->repeat, .progress = show_progress};
    if (settings_given(s, "prompt-tokens")) c.prompt_tokens = s->prompt_tokens;
    if (settings_given(s, "generate-tokens")) c.generate_tokens = s->generate_tokens;
    for (int i = 0; i < n_batches; i++) c.max_batch = batches[i] > c.max_batch ? batches[i] : c.max_batch;
    struct bench_report r = {.repeat = s->repeat};
    bench_system_read(&r.system); /* before the device may bind this thread to a core */
    show_progress(NULL, "loading", 0, 0);
    struct bench *b = bench_open(&c, e);
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
    if (!rc) print(&r, s->json);
    free(results);
    bench_close(b);
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

static int run_ops(const struct settings *s, struct err *e)
{
    struct ops_run o = {.json = s->json};
    bench_system_read(&o.r.system);
    struct bench_ops_sink sink = {ops_begin, ops_row, &o};
    int rc = bench_ops(s->device, s->threads, s->ops, &sink, e);
    if (s->json) clear_progress();
    if (!rc && !o.r.n_rows) rc = err_set(e, ERR_NOT_FOUND, "--ops: no operation's row contains '%.60s'", s->ops);
    o.r.rows = o.rows;
    if (!rc && s->json) print(&o.r, true);
    free(o.rows);
    return rc;
}

/* ---- the command ---------------------------------------------------------------------------------------------------
 */

int cmd_bench(int argc, char **argv)
{
    struct settings s;
    struct err e = {0};
    int status = 0, batches[BATCHES_MAX];
    if (cmd_settings(&s, CMD_BENCH, argc, argv, usage, about, &status)) {
        int n = parse_batches(s.batch, batches, &e);
        if (n < 0) {
            fprintf(stderr, "tandem: %s\nusage: %s\n", e.msg, usage);
            status = 2;
        } else {
            catch_interrupt();
            if (s.ops ? run_ops(&s, &e) : run_model(&s, batches, n, &e)) {
                clear_progress();
                status = cmd_fail(&e);
            }
            if (interrupted) status = INTERRUPTED;
        }
    }
    settings_free(&s);
    return status;
}
