/* The queue of batches (batches.h).  Loop thread; functions with a db parameter run on the store thread. */
#include "server/jobs/batches.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/api/app.h"
#include "server/api/served_model.h"
#include "server/config/settings.h"
#include "server/jobs/batch_db.h"
#include "server/jobs/batch_run.h"
#include "server/json/json.h"
#include "server/store/data_dir.h"
#include "server/store/store.h"

#include <stdlib.h>
#include <string.h>
#include <uv.h>

enum {
    RETRY_MS = 2000,
    TRIES_IO = 150, /* of one batch whose files the system refuses to open or to map: five minutes */
};

/* What is known of the batch that runs or is validated. */
struct current {
    struct store_work work; /* first: one of its rows' works at a time */
    struct batches *all;
    struct batch_row row;
    struct batch_clients but; /* clients whose batches run */
    bool found;               /* the store's */
    /* the run */
    struct batch_run *run;
    struct batch_progress progress; /* to store */
    uint64_t started;               /* clock_now() */
    enum batch_end end;
    struct err e;
    /* the validation */
    uv_work_t pool;
    char *path;
    struct batch_limits limits;
    struct batch_lines lines;
};

/* How often the system refused the files of a batch. */
struct tries {
    int64_t seq;
    int n;
};

struct batches {
    struct app *app;
    struct current *running[BATCH_RUNS_MAX];
    int n_running;
    struct current *claiming, *validating; /* NULL: none; owned */
    int n_cancels;                         /* works of cancelled batches that never ran */
    bool ready, stopping;
    bool run_news, validate_news; /* there may be another row to find since the last look */
    struct tries run_tries[BATCH_RUNS_MAX], validate_tries;
    uv_timer_t retry;
    void (*stopped)(void *);
    void *stopped_arg;
};

static void settle(struct batches *b);
static void look(struct batches *b);

static void on_retry(uv_timer_t *t)
{
    batches_kick(t->data);
}

static void retry_later(struct batches *b)
{
    if (!b->stopping) uv_timer_start(&b->retry, on_retry, RETRY_MS, 0);
}

static struct current *current_new(struct batches *b, int (*run)(struct store_work *, struct db *),
                                   void (*done)(struct store_work *))
{
    struct current *c = mem_zalloc(sizeof *c);
    c->work = (struct store_work){.run = run, .done = done};
    c->all = b;
    return c;
}

static void send_work(struct current *c, int (*run)(struct store_work *, struct db *),
                      void (*done)(struct store_work *))
{
    c->work.run = run;
    c->work.done = done;
    store_send(c->all->app->store, &c->work);
}

/* Whether an error of the batch's files may pass: no memory, no descriptor, a disk that is full. */
static bool is_passing(struct tries *t, const struct current *c)
{
    if (c->e.code == ERR_FULL) return true;
    if (c->e.code != ERR_IO) return false;
    if (t->seq != c->row.seq) *t = (struct tries){.seq = c->row.seq};
    if (!t->n) log_warn("a batch waits for its files: batch=%s error=\"%s\"", c->row.id, c->e.msg);
    return ++t->n < TRIES_IO;
}

/* Leaves the folder of files out of a message for clients: files are named by their ids. */
static void hide_folder(const struct batches *b, char *message)
{
    char *folder = data_path(settings_data_dir(b->app->set), "files", "");
    size_t n = strlen(folder);
    for (char *p = message; (p = strstr(p, folder));) memmove(p, p + n, strlen(p + n) + 1);
    free(folder);
}

static char *file_path(const struct batches *b, const char *id)
{
    return data_path(settings_data_dir(b->app->set), "files", id);
}

/* Lines may be as long as a body may be when they are validated; a limit that was lowered since is not applied. */
static struct batch_limits limits_of(const struct current *c, bool validating)
{
    return (struct batch_limits){.endpoint = c->row.endpoint,
                                 .lines = BATCH_LINES_MAX,
                                 .line_bytes = validating ? c->all->app->set->max_body_size : SIZE_MAX};
}

static int on_store_put_back(struct store_work *w, struct db *db)
{
    const struct current *c = (struct current *)w;
    batch_put_back(db, c->row.seq);
    return 0;
}

/* ---- validating ------------------------------------------------------------------------------------------------ */

static void validating_over(struct current *c)
{
    struct batches *b = c->all;
    batch_lines_free(&c->lines);
    free(c->path);
    free(c);
    b->validating = NULL;
    settle(b);
}

static void on_validating_put_back(struct store_work *w)
{
    struct current *c = (struct current *)w;
    retry_later(c->all);
    validating_over(c);
}

static void put_back_validating(struct current *c)
{
    send_work(c, on_store_put_back, on_validating_put_back);
}

static int on_store_validated(struct store_work *w, struct db *db)
{
    struct current *c = (struct current *)w;
    bool good = !c->lines.n_wrong && !c->e.code;
    batch_validated(db, c->row.seq, good ? (int)c->lines.n : 0, c->lines.wrong.data);
    return 0;
}

static void on_validated(struct store_work *w)
{
    struct current *c = (struct current *)w;
    struct batches *b = c->all;
    if (w->e.code) {
        put_back_validating(c);
        return;
    }
    if (c->lines.n_wrong) log_info("batch failed: batch=%s errors=%d", c->row.id, c->lines.n_wrong);
    b->run_news = b->validate_news = true;
    validating_over(c);
}

static void work_validate(uv_work_t *w)
{
    struct current *c = w->data;
    batch_lines_open(&c->lines, c->path, &c->limits, &c->e);
}

/* The list of errors of a file that cannot be read at all. */
static void put_unreadable(struct current *c)
{
    struct buf *out = &c->lines.wrong;
    log_warn("a batch's input cannot be read: batch=%s error=\"%s\"", c->row.id, c->e.msg);
    hide_folder(c->all, c->e.msg);
    buf_clear(out);
    buf_printf(out, "{\"code\":\"%s\",\"message\":", c->e.code == ERR_NOMEM ? "file_too_large" : "unreadable_file");
    json_put_string(out, c->e.msg, strlen(c->e.msg));
    buf_str(out, ",\"param\":null,\"line\":null}");
}

static void after_validate(uv_work_t *w, int status)
{
    struct current *c = w->data;
    struct batches *b = c->all;
    (void)status;
    if (b->stopping || is_passing(&b->validate_tries, c)) {
        put_back_validating(c);
        return;
    }
    if (c->e.code) put_unreadable(c);
    send_work(c, on_store_validated, on_validated);
}

static int on_claim_new(struct store_work *w, struct db *db)
{
    struct current *c = (struct current *)w;
    c->found = batch_next(db, true, &c->but, &c->row);
    return 0;
}

static void on_claimed_new(struct store_work *w)
{
    struct current *c = (struct current *)w;
    struct batches *b = c->all;
    if (w->e.code || !c->found) {
        if (w->e.code) retry_later(b);
        validating_over(c);
        return;
    }
    if (b->stopping) {
        put_back_validating(c);
        return;
    }
    c->path = file_path(b, c->row.input);
    c->limits = limits_of(c, true);
    c->pool.data = c;
    CHECK(uv_queue_work(b->app->loop, &c->pool, work_validate, after_validate) == 0);
}

/* ---- running --------------------------------------------------------------------------------------------------- */

/* Each has its part of the lines in flight. */
static void share(struct batches *b)
{
    int n = 0;
    for (int i = 0; i < b->n_running; i++) n += b->running[i]->run != NULL;
    for (int i = 0; i < b->n_running; i++)
        if (b->running[i]->run) batch_run_share(b->running[i]->run, n);
}

static void running_over(struct current *c)
{
    struct batches *b = c->all;
    int at = 0;
    if (b->claiming == c) b->claiming = NULL;
    while (at < b->n_running && b->running[at] != c) at++;
    if (at < b->n_running) b->running[at] = b->running[--b->n_running];
    free(c);
    share(b);
    settle(b);
}

static int on_store_end(struct store_work *w, struct db *db)
{
    struct current *c = (struct current *)w;
    batch_finish(db, c->row.seq, c->end, c->e.msg);
    return 0;
}

static void on_put_back(struct store_work *w)
{
    struct current *c = (struct current *)w;
    retry_later(c->all);
    running_over(c);
}

static void on_ended(struct store_work *w)
{
    static const char *const ends[] = {[BATCH_COMPLETED] = "completed",
                                       [BATCH_CANCELLED] = "cancelled",
                                       [BATCH_EXPIRED] = "expired",
                                       [BATCH_FAILED] = "failed"};
    struct current *c = (struct current *)w;
    struct batches *b = c->all;
    const struct batch_progress *p = &c->progress;
    if (w->e.code) { /* it is claimed again, and has nothing left to do */
        send_work(c, on_store_put_back, on_put_back);
        return;
    }
    log_info("batch ended: batch=%s endpoint=%s status=%s lines=%d completed=%d failed=%d seconds=%.1f%s%s", c->row.id,
             batch_endpoints[c->row.endpoint].path, ends[c->end], p->total, p->good, p->bad,
             c->started ? (double)(clock_now() - c->started) * 1e-9 : 0, c->end == BATCH_FAILED ? " error=" : "",
             c->end == BATCH_FAILED ? c->e.msg : "");
    b->run_news = true;
    running_over(c);
}

static int on_store_progress(struct store_work *w, struct db *db)
{
    struct current *c = (struct current *)w;
    batch_advance(db, c->row.seq, &c->progress);
    return 0;
}

static void on_progress(struct store_work *w)
{
    struct current *c = (struct current *)w;
    batch_run_committed(c->run, !w->e.code);
}

static void commit(void *arg, struct batch_run *run, const struct batch_progress *p)
{
    struct current *c = arg;
    (void)run;
    c->progress = *p;
    send_work(c, on_store_progress, on_progress);
}

static void over(void *arg, enum batch_end end, const struct batch_progress *p, const struct err *e)
{
    struct current *c = arg;
    c->run = NULL;
    c->end = end;
    c->progress = *p;
    c->e = *e;
    if (end == BATCH_HALTED && served_models_lost(c->all->app)) {
        running_over(c); /* what lost the device may be one of its lines, so it counts as a crash */
        return;
    }
    if (end == BATCH_HALTED ||
        (end == BATCH_FAILED && is_passing(&c->all->run_tries[c->row.seq % BATCH_RUNS_MAX], c))) {
        send_work(c, on_store_put_back, on_put_back);
        return;
    }
    if (end == BATCH_FAILED) {
        log_warn("a batch's files cannot be read: batch=%s error=\"%s\"", c->row.id, e->msg);
        hide_folder(c->all, c->e.msg);
    }
    send_work(c, on_store_end, on_ended);
}

static int on_claim(struct store_work *w, struct db *db)
{
    struct current *c = (struct current *)w;
    c->found = batch_next(db, false, &c->but, &c->row);
    return 0;
}

static void start(struct current *c)
{
    struct batches *b = c->all;
    char *input = file_path(b, c->row.input), *output = file_path(b, c->row.output),
         *errors = file_path(b, c->row.errors);
    const struct batch_job job = {.app = b->app,
                                  .input = input,
                                  .output = output,
                                  .errors = errors,
                                  .client = c->row.id, /* its lines share with those of other batches */
                                  .limits = limits_of(c, false),
                                  .committed = c->row.progress,
                                  .deadline = c->row.expires * 1000,
                                  .commit = commit,
                                  .over = over,
                                  .arg = c};
    log_info("batch: batch=%s endpoint=%s lines=%d answered=%d", c->row.id, batch_endpoints[c->row.endpoint].path,
             c->row.progress.total, c->row.progress.good + c->row.progress.bad);
    c->started = clock_now();
    c->run = batch_run_start(&job);
    share(b);
    free(input);
    free(output);
    free(errors);
}

static void on_claimed(struct store_work *w)
{
    struct current *c = (struct current *)w;
    struct batches *b = c->all;
    if (w->e.code || !c->found) {
        if (w->e.code) retry_later(b);
        running_over(c);
        return;
    }
    b->claiming = NULL;
    b->running[b->n_running++] = c;
    b->run_news = true; /* there may be one of another client */
    if (b->stopping) {
        send_work(c, on_store_put_back, on_put_back);
    } else if (c->row.cancelling) {
        c->end = BATCH_CANCELLED;
        c->progress = c->row.progress;
        send_work(c, on_store_end, on_ended);
    } else {
        start(c);
    }
    look(b);
}

/* ---- commands -------------------------------------------------------------------------------------------------- */

/* Looks for rows where there is news, unless one is being looked for or in hand: then again when that is over. */
static void look(struct batches *b)
{
    if (!b->ready || b->stopping) return;
    if (b->validate_news && !b->validating) {
        b->validate_news = false;
        b->validating = current_new(b, on_claim_new, on_claimed_new);
        store_send(b->app->store, &b->validating->work);
    }
    if (b->run_news && !b->claiming && b->n_running < BATCH_RUNS_MAX) {
        struct current *c = current_new(b, on_claim, on_claimed);
        b->run_news = false;
        b->claiming = c;
        c->but.n = b->n_running;
        for (int i = 0; i < b->n_running; i++) memcpy(c->but.name[i], b->running[i]->row.client, BATCH_CLIENT);
        store_send(b->app->store, &c->work);
    }
}

void batches_kick(struct batches *b)
{
    b->run_news = b->validate_news = true;
    look(b);
}

static void on_cancel_stored(struct store_work *w)
{
    struct current *c = (struct current *)w;
    struct batches *b = c->all;
    bool failed = w->e.code != 0;
    free(c);
    b->n_cancels--;
    if (failed) retry_later(b); /* it is claimed as cancelling */
    settle(b);
}

void batches_cancelled(struct batches *b, int64_t seq)
{
    if (b->stopping) return;
    for (int i = 0; i < b->n_running; i++) {
        struct current *r = b->running[i];
        if (r->row.seq != seq) continue;
        if (r->run) batch_run_end(r->run, BATCH_CANCELLED);
        return;
    }
    struct current *c = current_new(b, on_store_end, on_cancel_stored);
    c->row.seq = seq;
    c->end = BATCH_CANCELLED;
    b->n_cancels++;
    store_send(b->app->store, &c->work);
}

bool batches_running(const struct batches *b)
{
    for (int i = 0; i < b->n_running; i++)
        if (b->running[i]->run) return true;
    return false;
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

/* A work is over: looks again where that was wanted meanwhile, and calls what waits for the end of all. */
static void settle(struct batches *b)
{
    look(b);
    if (!b->stopping || !b->stopped || b->n_running || b->claiming || b->validating || b->n_cancels) return;
    void (*done)(void *) = b->stopped;
    b->stopped = NULL;
    done(b->stopped_arg);
}

struct batches *batches_open(struct app *app)
{
    struct batches *b = mem_zalloc(sizeof *b);
    b->app = app;
    CHECK(uv_timer_init(app->loop, &b->retry) == 0);
    b->retry.data = b;
    return b;
}

void batches_ready(struct batches *b)
{
    b->ready = true;
    if (store_exists(b->app->store)) batches_kick(b);
}

void batches_drain(struct batches *b)
{
    if (b->stopping) return;
    b->stopping = true;
    uv_timer_stop(&b->retry);
    for (int i = b->n_running; i-- > 0;) /* one may end, and leave the list, inside the call */
        if (i < b->n_running && b->running[i]->run) batch_run_end(b->running[i]->run, BATCH_HALTED);
}

void batches_stop(struct batches *b, void (*done)(void *), void *arg)
{
    batches_drain(b);
    b->stopped = done;
    b->stopped_arg = arg;
    settle(b);
}

static void on_closed(uv_handle_t *h)
{
    free(h->data);
}

void batches_free(struct batches *b)
{
    uv_close((uv_handle_t *)&b->retry, on_closed);
}
