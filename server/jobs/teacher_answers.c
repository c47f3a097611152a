#include "server/jobs/teacher_answers.h"

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/data/dataset.h"
#include "engine/serve/engine.h"
#include "engine/train/teacher_file.h"
#include "server/access/client.h"
#include "server/api/app.h"
#include "server/api/served_model.h"
#include "server/bridge/bridge.h"
#include "server/config/settings.h"
#include "server/store/data_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

enum {
    TICK_MS = 200, /* requests that the engine had no room for are submitted again */
};

/* A place for a row on its way. */
struct flight {
    struct teacher_answers *t;
    struct gen *gen; /* NULL: no row */
    struct dataset_row row;
    uint64_t number;
    int at;         /* the token that the next event is of */
    int n;          /* trained tokens so far, of row.n_trained */
    int32_t *id;    /* (n_trained, k) owned, as the next */
    float *logprob; /* (n_trained, k) */
};

struct teacher_answers {
    struct teacher_answers_task task;
    char *path; /* task's; owned */
    uint64_t client, rows, next, n_done;
    int window, n_flying;
    struct flight *flight; /* (window) owned */
    struct buf records;    /* of rows that are answered, not yet written */
    bool stopped, closing;
    bool refused; /* the engine had no room: waits for the next answer, or tick */
    bool busy;    /* work is on the pool, which owns what follows */
    struct err e;

    bool open;
    int fd;
    bool *known; /* (rows) those that are in the file, of an earlier process */
    uint64_t n_before;
    struct buf writing;
    bool wrote;
    struct err work_error;
    uv_work_t work;
    uv_timer_t tick;
};

/* ---- the file: pool thread -------------------------------------------------------------------------------------- */

static int file_error(const char *path, struct err *e)
{
    return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
}

/* Which teacher it is; never 0. */
static uint64_t identity_of(const struct served_model *m)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (const char *p = m->fingerprint; *p; p++) h = (h ^ (unsigned char)*p) * UINT64_C(0x100000001b3);
    for (const char *p = m->dir; *p; p++) h = (h ^ (unsigned char)*p) * UINT64_C(0x100000001b3);
    return h | 1;
}

/* Finds the records of an earlier process.  @return the bytes that are good. */
static int find_records(struct teacher_answers *t, const struct teacher_file_of *of, size_t *good, struct err *e)
{
    struct teacher_file f;
    if (teacher_file_open(&f, t->task.path, of, e)) return e->code;
    for (uint64_t i = 0; i < t->rows; i++) t->known[i] = f.at[i] != 0;
    t->n_before = f.known;
    *good = f.whole;
    teacher_file_close(&f);
    return 0;
}

static void work_open(uv_work_t *w)
{
    struct teacher_answers *t = w->data;
    const struct teacher_answers_task *k = &t->task;
    struct teacher_file_of of = {.set = k->rows, .teacher = identity_of(k->teacher), .k = k->k};
    struct err *e = &t->work_error;
    struct buf head = {0};
    size_t good = 0;
    if (engine_check_teacher(k->teacher->engine, k->student->dir, e)) return;
    t->known = mem_array((size_t)t->rows + 1, sizeof *t->known);
    if (find_records(t, &of, &good, e)) return;
    t->fd = open(k->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (t->fd < 0 || ftruncate(t->fd, (off_t)good) || lseek(t->fd, (off_t)good, SEEK_SET) < 0) {
        file_error(k->path, e);
        return;
    }
    teacher_file_put_head(&head, &of);
    if (!good && (file_write_all(t->fd, head.data, head.len) || fdatasync(t->fd))) file_error(k->path, e);
    buf_free(&head);
    if (!e->code) data_sync_parent(k->path, e);
}

static void work_write(uv_work_t *w)
{
    struct teacher_answers *t = w->data;
    if (file_write_all(t->fd, t->writing.data, t->writing.len) || fdatasync(t->fd))
        file_error(t->task.path, &t->work_error);
    t->wrote = !t->work_error.code;
    buf_clear(&t->writing);
}

/* ---- requests in flight ------------------------------------------------------------------------------------------ */

static void pump(struct teacher_answers *t);

static void finish_flight(struct flight *f)
{
    f->t->n_flying--;
    free(f->id);
    free(f->logprob);
    *f = (struct flight){0};
}

/* Of a prompt's token; those that are not trained are passed over. */
static void take(struct flight *f, const struct event *ev, const struct event_batch *batch)
{
    struct teacher_answers *t = f->t;
    int k = t->task.k, at = f->at++;
    if (at >= f->row.n || !f->row.trained[at] || f->n >= f->row.n_trained || t->e.code) return;
    size_t to = (size_t)f->n++ * (size_t)k;
    if (ev->n_top < k) {
        err_set(&t->e, ERR_INVALID,
                "row %llu: the teacher tells %d of its likeliest %d tokens in the place of token %d",
                (unsigned long long)f->number, ev->n_top, k, at);
        return;
    }
    for (int i = 0; i < k; i++) {
        struct top_token top = batch->top[ev->top + (uint32_t)i];
        f->id[to + (size_t)i] = top.id;
        f->logprob[to + (size_t)i] = top.logprob;
        if (top.id >= t->task.vocab)
            err_set(&t->e, ERR_INVALID,
                    "row %llu: token %d is among the teacher's likeliest, and the model that is trained has %d tokens",
                    (unsigned long long)f->number, top.id, t->task.vocab);
    }
}

static void on_done(struct flight *f, const struct event *ev)
{
    struct teacher_answers *t = f->t;
    bool ended = ev->finish == FINISH_CANCELLED || ev->finish == FINISH_TIMEOUT || ev->finish == FINISH_ABORTED;
    if (ev->finish == FINISH_ERROR && !engine_lost(t->task.teacher->engine))
        err_set(&t->e, ERR_IO, "row %llu: %s", (unsigned long long)f->number, ev->error ? ev->error : "?");
    else if (ev->finish == FINISH_ERROR || ended)
        t->stopped = true;
    else if (f->n < f->row.n_trained && !t->e.code)
        err_set(&t->e, ERR_IO, "row %llu: the teacher told %d of %d tokens", (unsigned long long)f->number, f->n,
                f->row.n_trained);
    else if (!t->e.code)
        teacher_file_put(&t->records, t->task.k, (uint32_t)f->number, (uint32_t)f->n, f->id, f->logprob), t->n_done++;
    finish_flight(f);
    t->refused = false;
    t->task.progress(t->task.arg, (double)t->n_done / (double)t->rows);
    pump(t);
}

static void on_event(void *arg, const struct event *ev, const struct event_batch *batch)
{
    struct flight *f = arg;
    if (ev->kind == EV_PROMPT) take(f, ev, batch);
    if (ev->kind == EV_DONE) on_done(f, ev);
}

/* Submits the next row, up to its last trained token.  @return false: not now, or never (t->e). */
static bool launch(struct teacher_answers *t)
{
    const struct teacher_answers_task *k = &t->task;
    struct flight *f = t->flight;
    while (f->gen) f++; /* there is a free one */
    *f = (struct flight){.t = t, .number = t->next, .row = dataset_row(k->rows, t->next)};
    size_t n = (size_t)f->row.n_trained * (size_t)k->k;
    int first = 0, last = f->row.n;
    while (last > 1 && !f->row.trained[last - 1]) last--;
    while (first < last && !f->row.trained[first]) first++;
    f->id = mem_array(n, sizeof *f->id);
    f->logprob = mem_array(n, sizeof *f->logprob);
    f->at = first;
    struct gen_request q = {.prompt = f->row.id,
                            .n_prompt = last,
                            .max_new_tokens = 1,
                            .prompt_logprobs = true,
                            .logprobs_from = first,
                            .top_n = k->k,
                            .sampling = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition = 1}};
    struct err e = {0};
    f->gen = bridge_submit_own(k->teacher->bridge, &q, t->client, on_event, f, &e);
    if (!f->gen) {
        if (e.code != ERR_FULL && e.code != ERR_NOMEM) /* what is short now may not be later */
            t->e = e, err_prefix(&t->e, "row %llu", (unsigned long long)t->next);
        t->refused = true;
        free(f->id);
        free(f->logprob);
        *f = (struct flight){0};
        return false;
    }
    t->n_flying++;
    return true;
}

static void drop_flights(struct teacher_answers *t)
{
    for (struct flight *f = t->flight; f < t->flight + t->window; f++) {
        if (!f->gen) continue;
        bridge_cancel(f->gen);
        finish_flight(f);
    }
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *h)
{
    struct teacher_answers *t = h->data;
    buf_free(&t->records);
    buf_free(&t->writing);
    free(t->flight);
    free(t->known);
    free(t->path);
    free(t);
}

static void end(struct teacher_answers *t)
{
    t->closing = true;
    drop_flights(t); /* the error may be that of the newest one, which others precede */
    uv_timer_stop(&t->tick);
    if (t->fd >= 0) close(t->fd);
    if (t->n_done < t->rows && !t->e.code) err_set(&t->e, ERR_FULL, "stopped");
    t->task.over(t->task.arg, &t->e);
    uv_close((uv_handle_t *)&t->tick, on_closed);
}

static void after_work(uv_work_t *w, int status)
{
    struct teacher_answers *t = w->data;
    (void)status;
    t->busy = false;
    if (t->work_error.code && !t->e.code) t->e = t->work_error;
    if (t->wrote) t->task.written(t->task.arg);
    t->wrote = false;
    if (!t->open) {
        t->open = true;
        t->n_done = t->n_before;
        if (t->n_before)
            log_info("rows for a teacher: %llu of %llu are there", (unsigned long long)t->n_before,
                     (unsigned long long)t->rows);
    }
    pump(t);
}

static void begin(struct teacher_answers *t, uv_work_cb fn)
{
    t->busy = true;
    CHECK(uv_queue_work(t->task.app->loop, &t->work, fn, after_work) == 0);
}

/* Does whatever can be done now. */
static void pump(struct teacher_answers *t)
{
    if (t->closing || !t->open) return;
    while (!t->stopped && !t->e.code && !t->refused && t->next < t->rows && t->n_flying < t->window &&
           !mem_is_short()) {
        if (!t->known[t->next] && !launch(t)) break;
        t->next++;
    }
    if (t->busy) return;
    bool failed = t->work_error.code != 0;
    if (t->records.len && !failed) { /* also when it was stopped: what is done stays */
        struct buf empty = t->writing;
        t->writing = t->records;
        t->records = empty;
        begin(t, work_write);
    } else if (t->stopped || t->e.code || (t->next == t->rows && !t->n_flying)) {
        end(t);
    }
}

static void on_tick(uv_timer_t *tick)
{
    struct teacher_answers *t = tick->data;
    t->refused = false;
    pump(t);
}

struct teacher_answers *teacher_answers_start(const struct teacher_answers_task *task)
{
    struct teacher_answers *t = mem_zalloc(sizeof *t);
    const struct engine_info *m = task->teacher->info;
    int queue = task->app->set->max_queue;
    t->task = *task;
    t->task.path = t->path = mem_strdup(task->path);
    t->client = client_id_of("teachers of the daemon");
    t->rows = dataset_rows(task->rows);
    t->window = m->max_seqs + (queue < m->max_seqs ? queue : m->max_seqs);
    t->flight = mem_array((size_t)t->window, sizeof *t->flight);
    t->fd = -1;
    t->work.data = t->tick.data = t;
    CHECK(uv_timer_init(task->app->loop, &t->tick) == 0);
    uv_timer_start(&t->tick, on_tick, TICK_MS, TICK_MS);
    begin(t, work_open);
    return t;
}

void teacher_answers_stop(struct teacher_answers *t)
{
    t->stopped = true;
    pump(t);
}
