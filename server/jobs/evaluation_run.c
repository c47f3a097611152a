/* An evaluation's requests in flight and its rounds (evaluation_run.h).
 *
 *     rows --round (pool)--> ready --> in flight --> answered --round (pool)--> scored */
#include "server/jobs/evaluation_run.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/access/client.h"
#include "server/api/app.h"
#include "server/api/served_model.h"
#include "server/bridge/bridge.h"
#include "server/config/settings.h"
#include "server/jobs/evaluation_report.h"
#include "server/json/json.h"
#include "server/memory/reservation.h"
#include "server/store/data_dir.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

enum {
    TICK_MS = 200, /* requests that the engine had no room for are submitted again */
    SUBJECTS_MAX = 1 + EVALUATION_ADAPTERS_MAX,
    ROW_BYTES = 2048, /* of memory for a row and its answer, beside its texts */
};

/* A request on its way. */
struct flight {
    struct flight *next, *prev; /* a ring */
    struct evaluation_run *run;
    struct evaluation_part *part;
    struct gen *gen; /* in flight */
};

/* How far it is, as of the last round. */
struct progress {
    bool open;
    const char *subject;
    size_t rows, rows_done; /* of the subject */
    double share;           /* of all subjects */
    uint64_t tokens;
};

struct evaluation_run {
    struct evaluation_task task;
    struct app *app;
    char *path, *name, *output; /* owned */
    uint64_t client;

    /* the round's, while busy */
    bool open, whole; /* whole: the results are there */
    struct reservation held;
    struct evaluation_rows rows;
    struct evaluation_subject subjects[SUBJECTS_MAX];
    uint64_t versions[SUBJECTS_MAX]; /* of the adapters */
    int n_subjects;
    int next, first;                 /* subjects: the one to prepare requests of, the first that is not done */
    uint64_t since;                  /* clock_now(): when `first` became the first */
    struct flight prepared, scoring; /* rings */
    int n_prepared, most;            /* most: how many to prepare */
    struct progress progress;
    struct evaluation_outcome outcome;

    /* the loop's */
    struct flight ready, flying, answered; /* rings */
    int n_ready, n_flying, n_answered, window;
    struct progress shown;
    bool busy, stopped, closing;
    bool refused; /* the engine had no room: waits for the next answer, or tick */
    struct err e; /* a request was refused for good */
    uv_work_t work;
    uv_timer_t tick;
};

/* ---- rings ----------------------------------------------------------------------------------------------------- */

static void ring_init(struct flight *head)
{
    head->next = head->prev = head;
}

static void ring_insert(struct flight *before, struct flight *f)
{
    f->prev = before->prev;
    f->next = before;
    f->prev->next = f->next->prev = f;
}

static void ring_remove(struct flight *f)
{
    f->prev->next = f->next;
    f->next->prev = f->prev;
}

/* Moves all of a ring behind those of another. */
static void ring_move(struct flight *from, struct flight *to)
{
    while (from->next != from) {
        struct flight *f = from->next;
        ring_remove(f);
        ring_insert(to, f);
    }
}

/* Parts stay with their evaluation, which frees them. */
static void ring_free(struct flight *head)
{
    for (struct flight *f = head->next, *next; f != head; f = next) {
        next = f->next;
        free(f);
    }
    ring_init(head);
}

/* ---- rounds: pool thread --------------------------------------------------------------------------------------- */

/* The version of an adapter that is loaded.  @return 0: it is not. */
static uint64_t adapter_version(const struct engine *engine, const char *name)
{
    int most = engine_info(engine)->max_adapters;
    struct adapter_info *v = mem_array((size_t)most, sizeof *v);
    int n = engine_adapters_list(engine, v, most);
    uint64_t version = 0;
    for (int i = 0; i < n && i < most; i++)
        if (strcmp(v[i].name, name) == 0) version = v[i].version;
    free(v);
    return version;
}

static int reserve_rows(struct evaluation_run *r, struct err *e)
{
    size_t bytes = r->rows.n * ROW_BYTES * (size_t)(1 + r->task.spec->n_adapters);
    for (size_t i = 0; i < r->rows.n; i++) {
        const struct evaluation_row *row = &r->rows.v[i];
        bytes += row->prompt ? strlen(row->prompt) : 0;
        bytes += row->messages ? (size_t)json_weight(row->messages) * 16 : 0;
        for (int k = 0; k < row->n; k++) bytes += strlen(row->list[k]);
    }
    return reserve_up_to(&r->held, bytes, "the rows of an evaluation", e) ? 0 : e->code;
}

static int read_rows(struct evaluation_run *r, struct err *e)
{
    struct stat st;
    if (stat(r->path, &st)) return err_set(e, ERR_NOT_FOUND, "%s: %s", r->name, strerror(errno));
    size_t bytes = (size_t)st.st_size < EVALUATION_FILE_BYTES ? (size_t)st.st_size : EVALUATION_FILE_BYTES;
    if (!reserve(&r->held, 4 * bytes, "the rows of an evaluation", e)) return e->code;
    if (evaluation_rows_read(&r->rows, r->path, r->name, (size_t)r->task.spec->limit, e)) return e->code;
    const struct chat_format *chat = &r->task.served->chat;
    for (size_t i = 0; i < r->rows.n && *chat->reason; i++)
        if (r->rows.v[i].messages) return err_set(e, ERR_INVALID, "messages: %s", chat->reason);
    return reserve_rows(r, e);
}

static int open_subjects(struct evaluation_run *r, struct err *e)
{
    struct evaluation_spec *spec = r->task.spec;
    if (engine_check_generates(r->task.served->engine, e)) return e->code;
    spec->options.model = r->task.served->dir;
    spec->options.chat = r->task.served->chat.template;
    for (int i = 0; i < 1 + spec->n_adapters; i++) {
        struct evaluation_subject *s = &r->subjects[i];
        const char *name = i ? spec->adapters[i - 1] : NULL;
        *s = (struct evaluation_subject){.name = i ? name : "base", .adapter = name, .quantize = "none"};
        r->versions[i] = name ? adapter_version(r->task.served->engine, name) : 0;
        if (name && engine_adapter_check(r->task.served->engine, name, e)) return e->code;
        s->evaluation = evaluation_open(&r->rows, &spec->options, r->task.served->engine, name, e);
        if (!s->evaluation) return e->code;
        r->n_subjects++;
    }
    return 0;
}

static int score_all(struct evaluation_run *r, struct err *e)
{
    int rc = 0;
    for (struct flight *f = r->scoring.next; f != &r->scoring && !rc; f = f->next)
        rc = evaluation_part_score(f->part, e);
    ring_free(&r->scoring);
    return rc;
}

static int prepare(struct evaluation_run *r, struct err *e)
{
    while (r->n_prepared < r->most && r->next < r->n_subjects) {
        struct evaluation_part *part = evaluation_next(r->subjects[r->next].evaluation, e);
        if (e->code) return e->code;
        if (!part) {
            r->next++;
            continue;
        }
        struct flight *f = mem_zalloc(sizeof *f);
        f->run = r;
        f->part = part;
        ring_insert(&r->prepared, f);
        r->n_prepared++;
    }
    return 0;
}

static void note_progress(struct evaluation_run *r)
{
    struct progress p = {.open = true, .rows = r->rows.n};
    uint64_t now = clock_now();
    for (; r->first < r->n_subjects && evaluation_is_done(r->subjects[r->first].evaluation); r->first++) {
        r->subjects[r->first].seconds = (double)(now - r->since) * 1e-9;
        r->since = now;
    }
    for (int i = 0; i < r->n_subjects; i++) {
        struct evaluation_progress one = evaluation_progress(r->subjects[i].evaluation);
        p.share += one.done / one.work / r->n_subjects;
        p.tokens += one.tokens;
        if (i > r->first) continue;
        p.subject = r->subjects[i].name;
        p.rows_done = one.rows_done;
    }
    r->progress = p;
}

static int write_rows(struct evaluation_run *r, const struct evaluation_report *report, struct err *e)
{
    struct stat st = {0};
    FILE *out = fopen(r->output, "we");
    if (!out) return err_set(e, ERR_IO, "the results of rows: %s", strerror(errno));
    evaluation_report_rows(report, out);
    bool failed = fflush(out) || ferror(out) || fsync(fileno(out)) || fstat(fileno(out), &st);
    int why = errno;
    failed = fclose(out) != 0 || failed;
    if (failed) return err_set(e, ERR_IO, "the results of rows: %s", strerror(why));
    r->outcome.rows_bytes = st.st_size;
    return data_sync_parent(r->output, e);
}

static int report(struct evaluation_run *r, struct err *e)
{
    const struct evaluation_spec *spec = r->task.spec;
    const struct evaluation_metric *names;
    const struct evaluation *evaluations[SUBJECTS_MAX];
    for (int i = 0; i < r->n_subjects; i++) {
        const char *adapter = r->subjects[i].adapter;
        evaluations[i] = r->subjects[i].evaluation;
        if (adapter && adapter_version(r->task.served->engine, adapter) != r->versions[i])
            return err_set(e, ERR_INVALID, "the adapter %s was loaded anew, or removed, meanwhile", adapter);
    }
    size_t cells = (size_t)r->n_subjects * (size_t)evaluation_metrics(r->rows.kind, &names);
    struct evaluation_score *scores = mem_array(cells, sizeof *scores);
    const struct evaluation_report all = {.rows = &r->rows,
                                          .subjects = r->subjects,
                                          .n_subjects = r->n_subjects,
                                          .scores = scores,
                                          .model = r->task.served->info->model_id,
                                          .resamples = spec->resamples,
                                          .seed = spec->seed};
    int rc = evaluation_compare(evaluations, r->n_subjects, spec->resamples, spec->seed, scores, e);
    if (!rc) rc = write_rows(r, &all, e);
    if (!rc) evaluation_report_json(&all, &r->outcome.results);
    free(scores);
    r->whole = !rc;
    return rc;
}

static void work_round(uv_work_t *w)
{
    struct evaluation_run *r = w->data;
    struct err *e = &r->outcome.e;
    int rc = 0;
    if (!r->open) {
        r->open = true;
        r->since = clock_now();
        rc = read_rows(r, e);
        if (!rc) rc = open_subjects(r, e);
    }
    if (!rc) rc = score_all(r, e);
    if (!rc) rc = prepare(r, e);
    if (!rc) note_progress(r);
    if (!rc && r->first == r->n_subjects) report(r, e);
}

static void work_close(uv_work_t *w)
{
    struct evaluation_run *r = w->data;
    for (int i = 0; i < r->n_subjects; i++) evaluation_close(r->subjects[i].evaluation);
    evaluation_rows_free(&r->rows);
    reservation_free(&r->held);
}

/* ---- requests in flight ---------------------------------------------------------------------------------------- */

static void pump(struct evaluation_run *r);

static void on_event(void *arg, const struct event *ev, const struct event_batch *batch)
{
    struct flight *f = arg;
    struct evaluation_run *r = f->run;
    if (!evaluation_part_take(f->part, ev, batch)) return;
    f->gen = NULL;
    ring_remove(f);
    ring_insert(&r->answered, f);
    r->n_flying--;
    r->n_answered++;
    r->refused = false;
    if (ev->finish == FINISH_ERROR && engine_lost(r->task.served->engine)) r->stopped = true;
    pump(r);
}

static void launch(struct evaluation_run *r, struct flight *f)
{
    struct err e = {0};
    f->gen = bridge_submit_own(r->task.served->bridge, evaluation_part_request(f->part), r->client, on_event, f, &e);
    if (!f->gen) {
        r->refused = true;
        if (e.code != ERR_FULL) r->e = e;
        return;
    }
    ring_remove(f);
    ring_insert(&r->flying, f);
    r->n_ready--;
    r->n_flying++;
}

static void drop_flights(struct evaluation_run *r)
{
    for (struct flight *f = r->flying.next; f != &r->flying; f = f->next) bridge_cancel(f->gen);
    ring_free(&r->flying);
    ring_free(&r->ready);
    ring_free(&r->answered);
    r->n_flying = r->n_ready = r->n_answered = 0;
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

static void on_closed(uv_handle_t *h)
{
    struct evaluation_run *r = h->data;
    free(r->path);
    free(r->name);
    free(r->output);
    free(r);
}

static void after_close(uv_work_t *w, int status)
{
    struct evaluation_run *r = w->data;
    struct evaluation_outcome *out = &r->outcome;
    (void)status;
    if (r->whole)
        out->end = EVALUATION_SUCCEEDED;
    else if (r->stopped || out->e.code == ERR_LOST)
        out->end = EVALUATION_HALTED;
    else
        out->end = EVALUATION_FAILED;
    r->task.over(r->task.arg, out);
    buf_free(&out->results);
    uv_close((uv_handle_t *)&r->tick, on_closed);
}

static void begin_close(struct evaluation_run *r)
{
    r->closing = true;
    drop_flights(r);
    ring_free(&r->scoring);
    ring_free(&r->prepared);
    uv_timer_stop(&r->tick);
    CHECK(uv_queue_work(r->app->loop, &r->work, work_close, after_close) == 0);
}

static void after_round(uv_work_t *w, int status)
{
    struct evaluation_run *r = w->data;
    (void)status;
    r->busy = false;
    r->shown = r->progress;
    r->n_ready += r->n_prepared;
    ring_move(&r->prepared, &r->ready);
    pump(r);
}

static void begin_round(struct evaluation_run *r)
{
    r->busy = true;
    ring_move(&r->answered, &r->scoring);
    r->n_answered = r->n_prepared = 0;
    r->most = r->n_ready < r->window ? r->window : 0;
    CHECK(uv_queue_work(r->app->loop, &r->work, work_round, after_round) == 0);
}

/* Does whatever can be done now. */
static void pump(struct evaluation_run *r)
{
    if (r->closing) return;
    while (!r->stopped && !r->e.code && !r->refused && r->n_ready && r->n_flying < r->window && !mem_is_short())
        launch(r, r->ready.next);
    if (r->busy) return;
    if (r->e.code && !r->outcome.e.code) r->outcome.e = r->e;
    if (r->stopped || r->whole || r->outcome.e.code)
        begin_close(r);
    else if (!r->open || r->n_answered || (r->n_ready < r->window && r->next < r->n_subjects))
        begin_round(r);
}

static void on_tick(uv_timer_t *t)
{
    struct evaluation_run *r = t->data;
    r->refused = false;
    pump(r);
}

/* Requests in flight: those that run, and as many that wait, as of a batch. */
static int window_of(const struct app *app)
{
    int seqs = app->set->max_seqs, queue = app->set->max_queue;
    return seqs + (queue < seqs ? queue : seqs);
}

struct evaluation_run *evaluation_run_start(const struct evaluation_task *task)
{
    struct evaluation_run *r = mem_zalloc(sizeof *r);
    r->task = *task;
    r->app = task->app;
    r->path = mem_strdup(task->path);
    r->name = mem_strdup(task->name);
    r->output = mem_strdup(task->output);
    r->client = client_id_of("evaluations of the daemon");
    r->window = window_of(task->app);
    ring_init(&r->prepared);
    ring_init(&r->scoring);
    ring_init(&r->ready);
    ring_init(&r->flying);
    ring_init(&r->answered);
    r->work.data = r->tick.data = r;
    CHECK(uv_timer_init(r->app->loop, &r->tick) == 0);
    uv_timer_start(&r->tick, on_tick, TICK_MS, TICK_MS);
    pump(r);
    return r;
}

void evaluation_run_stop(struct evaluation_run *r)
{
    r->stopped = true;
    if (r->closing) return;
    drop_flights(r);
    pump(r);
}

void evaluation_run_put_progress(const struct evaluation_run *r, struct buf *out)
{
    const struct progress *p = &r->shown;
    buf_printf(out, "\"progress\":%.6g,\"subject\":", p->open ? p->share : 0);
    if (p->subject)
        json_put_string(out, p->subject, strlen(p->subject));
    else
        buf_str(out, "null");
    buf_printf(out, ",\"rows\":%zu,\"rows_done\":%zu,\"tokens\":%llu", p->rows, p->rows_done,
               (unsigned long long)p->tokens);
}
