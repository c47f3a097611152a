/* tandem eval: scores a model on a file of rows, and compares it with its adapters and its quantised forms.  Main
 * thread; the engine thread only posts a semaphore.
 *
 * The model and its adapters are evaluated together, on one engine; each quantised form on an engine of its own, one
 * after the other. */
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "server/cli/cmd.h"
#include "server/cli/eval_report.h"

#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char usage[] = "tandem eval [--model DIR] --data FILE [--adapter DIR] [--quantize TYPE] [options]";
static const char about[] =
    "Evaluates a model on rows with texts (perplexity), questions with choices (accuracy), or prompts with references\n"
    "(exact match, ROUGE, BLEU, chrF), and compares it with adapters and with quantised weights.";

enum {
    SUBJECTS_MAX = 64,
    PROGRESS_MS = 100, /* between two updates of the progress line; without a terminal, between two lines */
    LINES_MS = 30000,
};

struct eval_run {
    const struct settings *s;
    struct evaluation_rows rows;
    struct evaluation_options options;
    struct chat_template *chat;
    struct evaluation_subject subjects[SUBJECTS_MAX];
    int n_subjects;
    FILE *json, *output; /* NULL: not asked for */
    sem_t wake;
};

/* ---- what is asked for ------------------------------------------------------------------------------------------- */

/* A list with commas. */
static int read_ignore(const char *list, unsigned *out, struct err *e)
{
    *out = 0;
    for (const char *at = list; *at;) {
        size_t n = strcspn(at, ",");
        if (!match_ignore_parse(at, n, out))
            return err_set(e, ERR_INVALID, "--ignore: '%.*s' is not one of " MATCH_IGNORE_WORDS, (int)(n < 40 ? n : 40),
                           at);
        at += n + (at[n] == ',');
    }
    return 0;
}

static int add_subject(struct eval_run *r, const char *name, const char *adapter, const char *quantize, struct err *e)
{
    if (r->n_subjects == SUBJECTS_MAX)
        return err_set(e, ERR_INVALID, "more than %d adapters and types", SUBJECTS_MAX - 1);
    r->subjects[r->n_subjects++] = (struct evaluation_subject){.name = name, .adapter = adapter, .quantize = quantize};
    return 0;
}

static int add_subjects(struct eval_run *r, struct err *e)
{
    static const char *const types[] = {"int8", "int4", "nf4"};
    const struct settings *s = r->s;
    int rc = add_subject(r, "base", NULL, "none", e);
    for (int i = 0; i < s->eval_adapters.n && !rc; i++)
        rc = add_subject(r, s->eval_adapters.v[i], s->adapter_dirs.v[i], "none", e);
    for (int i = 0; i < s->eval_quantize.n && !rc; i++) {
        const char *type = s->eval_quantize.v[i];
        int k = 0;
        while (k < 3 && strcmp(types[k], type) != 0) k++;
        rc = k == 3 ? err_set(e, ERR_INVALID, "--quantize: '%.40s' is not one of int8, int4, nf4", type)
                    : add_subject(r, type, NULL, type, e);
    }
    return rc;
}

/* What the file holds stays until there are results. */
static int open_output(FILE **f, const char *flag, const char *path, struct err *e)
{
    if (path && !(*f = fopen(path, "ae"))) return err_set(e, ERR_IO, "%s: %s: %s", flag, path, strerror(errno));
    return 0;
}

static int empty_output(FILE *f, const char *path, struct err *e)
{
    struct stat st;
    bool regular = f && fstat(fileno(f), &st) == 0 && S_ISREG(st.st_mode);
    if (regular && ftruncate(fileno(f), 0)) return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    return 0;
}

static int prepare(struct eval_run *r, struct err *e)
{
    const struct settings *s = r->s;
    r->options = (struct evaluation_options){.max_new_tokens = s->max_new_tokens,
                                             .stop = (const char *const *)s->stop.v,
                                             .n_stop = s->stop.n,
                                             .window = s->window,
                                             .delimiter = s->delimiter,
                                             .special = s->special,
                                             .extract = s->extract,
                                             .extract_last = s->extract_last,
                                             .stem = s->stem,
                                             .model = settings_model_dir(s)};
    int rc = read_ignore(s->ignore, &r->options.ignore, e);
    if (!rc) rc = add_subjects(r, e);
    if (!rc) rc = evaluation_rows_read(&r->rows, s->data, NULL, (size_t)s->limit, e);
    if (!rc) rc = open_output(&r->json, "--json", s->json_file, e);
    if (!rc) rc = open_output(&r->output, "--output", s->output, e);
    if (rc || strcmp(s->chat_template, "plain") == 0) return rc;
    const char *dir = settings_model_dir(s);
    r->chat = *s->chat_template ? chat_template_load_file(dir, s->chat_template, e) : chat_template_load(dir, e);
    r->options.chat = r->chat;
    return e->code;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static void on_notify(void *arg)
{
    sem_post(arg);
}

static int open_evaluations(struct eval_run *r, struct engine *engine, int first, int last, struct err *e)
{
    for (int i = first; i < last; i++) {
        struct evaluation_subject *s = &r->subjects[i];
        char name[16]; /* the engine's name of the adapter */
        snprintf(name, sizeof name, "a%d", i);
        if (s->adapter && engine_adapter_load(engine, name, s->adapter, NULL, e)) return e->code;
        s->evaluation = evaluation_open(&r->rows, &r->options, engine, s->adapter ? name : NULL, e);
        if (!s->evaluation) return e->code;
    }
    return 0;
}

static int take_events(struct engine *engine, struct event_batch *list, struct err *e)
{
    int rc = 0;
    for (struct event_batch *b = list; b; b = b->next)
        for (int i = 0; i < b->n && !rc; i++) rc = evaluation_take(&b->v[i], b, e);
    engine_events_done(engine, list);
    return rc;
}

/* Runs subjects [first, last) of an engine that was started, each until its requests have ended; the next one's are
 * submitted as soon as there is room for them. */
static int run_subjects(struct eval_run *r, struct engine *engine, int first, int last, struct err *e)
{
    bool terminal = isatty(STDERR_FILENO);
    uint64_t started = clock_now(), shown = started, every = (terminal ? PROGRESS_MS : LINES_MS) * UINT64_C(1000000);
    int rc = 0, at = first;
    while (!rc && at < last) {
        for (int i = at; i < last && !rc; i++) rc = evaluation_submit(r->subjects[i].evaluation, e);
        struct event_batch *list = rc ? NULL : engine_events(engine);
        if (list)
            rc = take_events(engine, list, e);
        else if (!rc)
            sem_wait(&r->wake);
        uint64_t now = clock_now();
        double seconds = (double)(now - started) * 1e-9;
        if (now - shown > every) {
            eval_report_progress(&r->subjects[at], &r->rows, seconds, terminal, stderr);
            shown = now;
        }
        for (; !rc && at < last && evaluation_is_done(r->subjects[at].evaluation); at++) {
            r->subjects[at].seconds = seconds;
            seconds = 0;
            started = now;
        }
    }
    if (terminal) fputs("\r\033[K", stderr);
    return rc;
}

static int run_engine(struct eval_run *r, int first, int last, struct err *e)
{
    struct engine_config c = cmd_engine_config(r->s);
    c.quantize = r->subjects[first].quantize;
    if (last - first > c.max_adapters) c.max_adapters = last - first;
    struct engine *engine = engine_open(&c, e);
    int rc = engine ? open_evaluations(r, engine, first, last, e) : e->code;
    if (!rc) rc = engine_start(engine, on_notify, &r->wake, e);
    if (!rc) rc = run_subjects(r, engine, first, last, e);
    engine_close(engine);
    return rc;
}

static int run_all(struct eval_run *r, struct err *e)
{
    int first = 0, rc = 0;
    while (first < r->n_subjects && !rc) {
        int last = first + 1; /* adapters follow the model that they are adapters of */
        while (last < r->n_subjects && r->subjects[last].adapter) last++;
        rc = run_engine(r, first, last, e);
        if (rc && first) err_prefix(e, "%s", r->subjects[first].name);
        first = last;
    }
    return rc;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static int close_output(FILE **f, const char *path, struct err *e)
{
    FILE *done = *f;
    *f = NULL;
    if (!done) return 0;
    bool failed = ferror(done);
    if (fclose(done) || failed) return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    return 0;
}

static void warn_truncated(const struct eval_run *r)
{
    struct evaluation_progress p = evaluation_progress(r->subjects[0].evaluation);
    if (p.truncated)
        fprintf(stderr, "%zu prompts were too long: only their ends were used (--window, --max-total-tokens)\n",
                p.truncated);
}

static void put_json(const struct evaluation_report *r, FILE *out)
{
    struct buf b = {0};
    evaluation_report_json(r, &b);
    buf_char(&b, '\n');
    fwrite(b.data, 1, b.len, out);
    buf_free(&b);
}

static int report(struct eval_run *r, struct err *e)
{
    const struct evaluation_metric *names;
    int metrics = evaluation_metrics(r->rows.kind, &names);
    struct evaluation_score *scores = mem_array((size_t)r->n_subjects * (size_t)metrics, sizeof *scores);
    const struct evaluation *evaluations[SUBJECTS_MAX];
    for (int i = 0; i < r->n_subjects; i++) evaluations[i] = r->subjects[i].evaluation;
    int rc = evaluation_compare(evaluations, r->n_subjects, r->s->resamples, r->s->seed, scores, e);
    struct evaluation_report out = {.rows = &r->rows,
                                    .subjects = r->subjects,
                                    .n_subjects = r->n_subjects,
                                    .scores = scores,
                                    .model = r->s->model,
                                    .resamples = r->s->resamples,
                                    .seed = r->s->seed};
    if (!rc) eval_report_table(&out, stdout);
    if (!rc) rc = empty_output(r->json, r->s->json_file, e);
    if (!rc) rc = empty_output(r->output, r->s->output, e);
    if (!rc && r->json) put_json(&out, r->json);
    if (!rc && r->output) evaluation_report_rows(&out, r->output);
    if (!rc) warn_truncated(r);
    free(scores);
    if (!rc && fflush(stdout)) rc = err_set(e, ERR_IO, "stdout is closed");
    if (!rc) rc = close_output(&r->json, r->s->json_file, e);
    return rc ? rc : close_output(&r->output, r->s->output, e);
}

static int evaluate(const struct settings *s)
{
    struct err e = {0};
    struct eval_run *r = mem_zalloc(sizeof *r);
    r->s = s;
    sem_init(&r->wake, 0, 0);
    int rc = prepare(r, &e);
    if (!rc) rc = run_all(r, &e);
    if (!rc) rc = report(r, &e);
    for (int i = 0; i < r->n_subjects; i++) evaluation_close(r->subjects[i].evaluation);
    if (r->json) fclose(r->json);
    if (r->output) fclose(r->output);
    chat_template_free(r->chat);
    evaluation_rows_free(&r->rows);
    sem_destroy(&r->wake);
    free(r);
    return rc ? cmd_fail(&e) : 0;
}

int cmd_eval(int argc, char **argv)
{
    struct settings s;
    int status = 0;
    if (cmd_settings(&s, CMD_EVAL, argc, argv, usage, about, &status)) {
        if (!s.data) {
            fprintf(stderr, "tandem: --data is missing\nusage: %s\n", usage);
            status = 2;
        } else {
            status = evaluate(&s);
        }
    }
    settings_free(&s);
    return status;
}
