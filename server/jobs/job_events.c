/* Stores the trainer's events: the trainer's thread queues a work per event, the store thread writes its rows, and the
 * loop then notifies the job's watchers.  Events are published only after commit. */
#include "server/jobs/job_run.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/train/board.h"
#include "engine/train/bottleneck.h"
#include "server/jobs/job_data.h"
#include "server/jobs/job_db.h"
#include "server/jobs/job_report.h"
#include "server/json/json.h"
#include "server/store/data_dir.h"

#include <limits.h>
#include <math.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PENDING_MAX = 2000, PREPARED_EVERY_NS = 200000000, THIN_EVERY = 512 };

struct event_work {
    struct store_work work; /* first */
    struct run *run;
    struct train_event ev; /* its plan, text and norms are copied below */
    struct buf data, message, extra;
    struct buf norms;                    /* of the gradients by group, as JSON */
    struct buf usage;                    /* the job's so far, as JSON */
    struct train_group_norm *group_norm; /* those of ev, when TensorBoard is to have them */
    const char *kind, *level;
    /* a final state */
    bool final;
    enum job_state state;
    const char *code;
    char result_file[DATA_ID_MAX]; /* written for this transaction; "": none */
    double prepared;               /* >= 0: the work only stores this progress of preparing */
    bool progressed;               /* the work only stores that */
};

static void put_number(struct buf *b, const char *name, double v)
{
    buf_printf(b, "%s\"%s\":", b->len ? "," : "", name);
    json_put_number(b, v);
}

/* ---- the store thread ------------------------------------------------------------------------------------------ */

static void add_event(struct event_work *w, struct db *db, int64_t step)
{
    job_event(db, w->run->seq,
              &(struct job_event){.kind = w->kind,
                                  .level = w->level,
                                  .message = w->message.data ? w->message.data : "",
                                  .step = step,
                                  .data = w->data.data});
}

/* TensorBoard event files are optional: an error in writing them is logged once. */
static void board_add(struct event_work *w, struct db *db)
{
    struct run *r = w->run;
    struct err e = {0};
    if (r->board_failed) return;
    if (!r->board) {
        char *dir = data_path(db->dir, "tensorboard", r->id);
        if (data_mkdir(db->dir, "tensorboard", NULL, &e) == 0) r->board = tfevents_open(dir, w->ev.step, &e);
        free(dir);
    }
    if (r->board) train_board_add(r->board, &w->ev, &e);
    if (!e.code) return;
    r->board_failed = true;
    log_warn("no TensorBoard events: job=%s error=\"%s\"", r->id, e.msg);
}

static void board_close(struct run *r)
{
    tfevents_close(r->board);
    r->board = NULL;
}

/* Stores the last step's metrics as one JSON object, which is shown with the job. */
static void store_step(struct event_work *w, struct db *db)
{
    struct run *r = w->run;
    struct buf last = {0};
    buf_printf(&last, "{%s,\"grad_norms\":%s,\"usage\":%s}", w->extra.data, w->norms.data, w->usage.data);
    db_run(db, "UPDATE jobs SET step = ?, steps = ?, last = ?, phase = 'training' WHERE seq = ?", "iiti", w->ev.step,
           w->ev.steps, last.data, r->seq);
    buf_free(&last);
    board_add(w, db);
    if (r->stored_steps++ % THIN_EVERY == 0) {
        job_thin_events(db, r->seq);
        int64_t stride = db_number(db, 1, "SELECT stride FROM jobs WHERE seq = ?", "i", r->seq);
        r->stride = stride < 1 || stride > INT_MAX ? 1 : (int)stride;
    }
    if (w->ev.step > r->reached) /* progress: this job did not cause the earlier daemons to end */
        db_run(db, "UPDATE jobs SET attempts = 0 WHERE seq = ? AND attempts > 0", "i", r->seq);
    if (w->ev.step % r->stride == 0 || w->ev.step == w->ev.steps) add_event(w, db, w->ev.step);
}

static void store_checkpoint(struct event_work *w, struct db *db)
{
    db_run(db,
           "INSERT INTO checkpoints(job, created, step, dir, data) VALUES(?, ?, ?, ?, ?)"
           " ON CONFLICT(job, step) DO UPDATE SET created = excluded.created, dir = excluded.dir",
           "iiitt", w->run->seq, data_now_ms(), w->ev.step, w->ev.text ? w->extra.data : "", w->data.data);
    /* the trainer keeps the last and the best; rows of removed directories are deleted */
    sqlite3_stmt *q = db_query(db, "SELECT id, dir FROM checkpoints WHERE job = ?", "i", w->run->seq);
    int64_t gone[64];
    int n = 0;
    while (db_step(db, q))
        if (n < 64 && *db_text(q, 1) && access(db_text(q, 1), F_OK)) gone[n++] = db_int(q, 0);
    while (n--) db_run(db, "DELETE FROM checkpoints WHERE id = ?", "i", gone[n]);
    add_event(w, db, -1);
}

/* Sets the state after a pause, by the latest command. */
static void store_paused(struct event_work *w, struct db *db)
{
    struct run *r = w->run;
    char wanted[16] = "";
    board_close(r);
    add_event(w, db, -1);
    sqlite3_stmt *q = db_query(db, "SELECT coalesce(wanted, '') FROM jobs WHERE seq = ?", "i", r->seq);
    if (db_step(db, q)) {
        snprintf(wanted, sizeof wanted, "%s", db_text(q, 0));
        db_done(q);
    }
    if (strcmp(wanted, "cancel") == 0)
        job_set_state(db, r->seq, JOB_CANCELLED, NULL, NULL);
    else if (strcmp(wanted, "pause") == 0)
        job_set_state(db, r->seq, JOB_PAUSED, NULL, NULL);
    else if (!atomic_load(&r->stopping)) /* resumed before the pause took effect */
        job_set_state(db, r->seq, JOB_QUEUED, NULL, NULL);
    else
        db_run(db, "UPDATE jobs SET attempts = 0 WHERE seq = ?", "i", r->seq);
}

static void store_eval(struct event_work *w, struct db *db)
{
    struct buf eval = {0};
    double best = NAN, acceptance = NAN;
    sqlite3_stmt *q = db_query(db,
                               "SELECT json_extract(eval, '$.best_eval_loss'), json_extract(eval, '$.acceptance')"
                               " FROM job_rows WHERE seq = ?",
                               "i", w->run->seq);
    if (db_step(db, q)) {
        best = db_double(q, 0);
        acceptance = db_double(q, 1);
        db_done(q);
    }
    if (w->ev.best) acceptance = w->ev.eval_accuracy;
    if (w->ev.best || !(best <= w->ev.eval_loss)) best = w->ev.eval_loss;
    put_number(&eval, "eval_loss", w->ev.eval_loss);
    put_number(&eval, "best_eval_loss", best);
    if (w->run->spec.draft.on) put_number(&eval, "acceptance", acceptance);
    if (w->run->spec.gate) put_number(&eval, "best_step", (double)w->ev.best_step);
    struct buf object = {0};
    buf_printf(&object, "{%s}", eval.data);
    db_run(db, "UPDATE jobs SET eval = ? WHERE seq = ?", "ti", object.data, w->run->seq);
    buf_free(&object);
    buf_free(&eval);
    board_add(w, db);
    add_event(w, db, -1);
}

/* Removes the file of a transaction that failed: its row was rolled back, and the next attempt writes another file. */
static void remove_result_file(struct event_work *w, struct db *db)
{
    if (!w->result_file[0]) return;
    char *path = data_path(db->dir, "files", w->result_file);
    data_remove(path);
    free(path);
    w->result_file[0] = 0;
}

/* The result file is optional: the job's state is stored even if writing it fails. */
static void add_result_file(struct event_work *w, struct db *db)
{
    struct err e = {0};
    remove_result_file(w, db); /* from an attempt in a batch that failed */
    db_optional_begin(db);
    bool good = job_add_result_file(db, w->run->seq, w->result_file, &e);
    good = db_optional_end(db, &e) && good;
    if (good) return;
    w->result_file[0] = 0;
    log_warn("no result file: job=%s error=\"%s\"", w->run->id, e.msg);
}

static void store_final(struct event_work *w, struct db *db)
{
    struct run *r = w->run;
    board_close(r);
    if (w->state == JOB_SUCCEEDED) {
        add_result_file(w, db);
        db_run(db, "UPDATE jobs SET adapter_dir = ?, step = coalesce(steps, step) WHERE seq = ?", "ti", r->target,
               r->seq);
    }
    job_set_state(db, r->seq, w->state, w->code, w->message.data);
}

/* Each line of w->extra is an event of its own.  The transaction may be repeated: the text stays as it is. */
static void store_advice(const struct event_work *w, struct db *db)
{
    const char *end;
    for (const char *p = w->extra.data; p && (end = strchr(p, '\n')); p = end + 1) {
        char line[512];
        snprintf(line, sizeof line, "%.*s", (int)(end - p), p);
        job_event(db, w->run->seq, &(struct job_event){.kind = "log", .level = "info", .message = line, .step = -1});
    }
}

static int on_run(struct store_work *work, struct db *db)
{
    struct event_work *w = (struct event_work *)work;
    struct run *r = w->run;
    if (w->prepared >= 0) {
        db_run(db, "UPDATE jobs SET prepared = ?, phase = 'preparing' WHERE seq = ?", "di", w->prepared, r->seq);
    } else if (w->final) {
        store_final(w, db);
    } else if (w->progressed) {
        db_run(db, "UPDATE jobs SET attempts = 0 WHERE seq = ? AND attempts > 0", "i", r->seq);
    } else if (!w->kind) {
        return 0;
    } else if (w->ev.kind == TRAIN_STEP) {
        store_step(w, db);
    } else if (w->ev.kind == TRAIN_CHECKPOINT) {
        store_checkpoint(w, db);
    } else if (w->ev.kind == TRAIN_EVAL) {
        store_eval(w, db);
    } else if (w->ev.kind == TRAIN_PAUSED) {
        store_paused(w, db);
    } else if (w->ev.kind == TRAIN_LOST) { /* `running` in its row, as after a crash */
        board_close(r);
        add_event(w, db, -1);
    } else if (w->ev.kind == TRAIN_SUCCEEDED) {
        db_run(db,
               "UPDATE jobs SET phase = 'publishing', last = coalesce(json_set(last, '$.usage', json(?)), last)"
               " WHERE seq = ?",
               "ti", w->usage.data, r->seq);
        if (w->message.len) add_event(w, db, -1);
        store_advice(w, db);
    } else {
        if (w->ev.kind == TRAIN_PLAN) {
            struct buf plan = {0};
            buf_printf(&plan, "{%s}", w->data.data);
            db_run(db, "UPDATE jobs SET plan = ?, steps = ?, phase = 'training' WHERE seq = ?", "tii", plan.data,
                   w->ev.steps, r->seq);
            buf_free(&plan);
        }
        add_event(w, db, -1);
    }
    return 0;
}

/* Keeps a final state that could not be written in memory, so that readers see it. */
static void on_settle(struct store_work *work, struct db *db)
{
    struct event_work *w = (struct event_work *)work;
    if (!w->final) return;
    db->unsaved.seq = work->e.code ? w->run->seq : 0;
    db->unsaved.state = (int)w->state;
    snprintf(db->unsaved.error, sizeof db->unsaved.error, "%s", w->message.data ? w->message.data : "");
    if (work->e.code) {
        remove_result_file(w, db);
        return;
    }
    if (w->state == JOB_SUCCEEDED || w->state == JOB_CANCELLED) job_data_remove(db->dir, w->run->id);
    if (w->state == JOB_CANCELLED && w->run->dir) data_remove(w->run->dir); /* NULL: it still waited for its base */
    job_sweep_checkpoints(db);
}

/* ---- the loop -------------------------------------------------------------------------------------------------- */

static void event_free(struct event_work *w)
{
    buf_free(&w->data);
    buf_free(&w->message);
    buf_free(&w->extra);
    buf_free(&w->norms);
    buf_free(&w->usage);
    free(w->group_norm);
    free(w);
}

void run_abandon(struct store_work *work)
{
    event_free((struct event_work *)work);
}

static void on_done(struct store_work *work)
{
    struct event_work *w = (struct event_work *)work;
    struct run *r = w->run;
    if (w->final && work->e.code) {
        log_warn("the end of a job could not be stored, trying again: job=%s state=%s error=\"%s\"", r->id,
                 job_state_names[w->state], work->e.msg);
        jobs_retry(r->jobs, work);
        return;
    }
    jobs_notify(r->jobs, r->seq);
    if (w->final)
        jobs_on_finished(r, w->state, w->code, w->message.data ? w->message.data : "");
    else if (w->prepared < 0 && w->kind)
        jobs_on_event(r, &w->ev);
    event_free(w);
}

static struct event_work *event_new(struct run *r, const char *kind, const char *level)
{
    struct event_work *w = mem_zalloc(sizeof *w);
    *w = (struct event_work){
        .work = {.run = on_run, .settle = on_settle, .done = on_done},
        .run = r,
        .kind = kind,
        .level = level,
        .prepared = -1,
        .ev.kind = TRAIN_WARNING,
    };
    return w;
}

/* ---- any thread ------------------------------------------------------------------------------------------------ */

static void post(struct event_work *w)
{
    store_send(w->run->app->store, &w->work);
}

void run_log(struct run *r, const char *level, const char *message)
{
    struct event_work *w = event_new(r, strcmp(level, "warn") == 0 ? "warning" : "log", level);
    buf_str(&w->message, message);
    post(w);
}

void run_prepared(void *arg, double fraction)
{
    struct run *r = arg;
    uint64_t now = clock_now();
    if (now - r->last_progress < PREPARED_EVERY_NS) return;
    r->last_progress = now;
    struct event_work *w = event_new(r, NULL, NULL);
    w->prepared = fraction < 0 ? 0 : fraction > 1 ? 1 : fraction;
    post(w);
}

void run_progressed(void *arg)
{
    struct run *r = arg;
    if (r->progressed) return;
    r->progressed = true;
    struct event_work *w = event_new(r, NULL, NULL);
    w->progressed = true;
    post(w);
}

void run_finish(struct run *r, enum job_state state, const char *code, const char *message)
{
    struct event_work *w = event_new(r, "state", "info");
    w->final = true;
    w->state = state;
    w->code = code;
    if (message) buf_str(&w->message, message);
    post(w);
}

static void put_plan(struct event_work *w, const struct train_plan *p)
{
    if (!p) return;
    job_put_plan(&w->data, p);
    buf_printf(&w->message, "%lld steps over %lld rows; %.1f MiB for states, %.1f MiB for activations",
               (long long)p->steps, (long long)p->rows, (double)p->state_bytes / 1048576,
               (double)p->activation_bytes / 1048576);
    if (!w->ev.steps) w->ev.steps = p->steps;
}

/* By TRL's names. */
static void put_rewards(struct buf *d, const char *prefix, const struct train_rewards *rewards)
{
    struct train_reward r[TRAIN_REWARDS];
    char name[40];
    for (int i = 0, n = train_rewards_list(rewards, r); i < n; i++) {
        snprintf(name, sizeof name, "%s%s", prefix, r[i].name);
        put_number(d, name, r[i].v);
    }
}

static void put_step(struct event_work *w)
{
    const struct train_event *ev = &w->ev;
    double progress = ev->steps > 0 ? (double)ev->step / (double)ev->steps : 0;
    struct buf *d = &w->extra;
    put_number(d, "epoch", ev->epoch);
    put_number(d, "loss", ev->loss);
    put_number(d, "accuracy", ev->accuracy);
    put_rewards(d, "", &ev->rewards);
    put_number(d, "grad_norm", ev->grad_norm);
    put_number(d, "learning_rate", ev->learning_rate);
    put_number(d, "tokens_per_s", ev->tokens_per_s);
    put_number(d, "rows_per_s", ev->rows_per_s);
    buf_str(d, ",\"step_seconds\":");
    job_put_parts(d, ev->part);
    put_number(d, "tokens", (double)ev->tokens);
    put_number(d, "trained_tokens", (double)ev->trained_tokens);
    put_number(d, "elapsed_s", ev->seconds);
    put_number(d, "eta_s", ev->eta_s);
    put_number(d, "skipped_steps", (double)ev->skipped);
    d = &w->data;
    put_number(d, "step", (double)ev->step);
    put_number(d, "steps", (double)ev->steps);
    put_number(d, "progress", progress);
    put_number(d, "percent", round(progress * 1000) / 10);
    buf_printf(d, ",%s", w->extra.data);
    buf_printf(&w->message, "Step %lld/%lld: training loss=%.4g", (long long)ev->step, (long long)ev->steps, ev->loss);
}

/* The closing summary, as a line of the log. */
static void put_summary(struct event_work *w)
{
    const struct train_usage *u = &w->ev.usage;
    if (u->steps < 1 || u->seconds <= 0) return;
    buf_printf(&w->message, "Trained %lld steps in %.1f s: %.0f tokens/s, %.1f rows/s; a step is", (long long)u->steps,
               u->seconds, (double)u->tokens / u->seconds, (double)u->rows / u->seconds);
    for (int i = 0; i < TRAIN_PARTS; i++) {
        if (i == TRAIN_RANKS && u->ranks < 2) continue;
        buf_printf(&w->message, "%s %s %.1f %%", i ? "," : "", train_part_name((enum train_part)i),
                   100 * u->part[i] / u->seconds);
    }
    buf_printf(&w->message, "; at most %.2f GiB of the host", (double)u->host_peak / 0x1p30);
    if (u->device_peak) buf_printf(&w->message, ", %.2f GiB of the device", (double)u->device_peak / 0x1p30);
    buf_printf(&w->data, "\"usage\":%s", w->usage.data);
    struct train_advice advice[TRAIN_ADVICE_MAX];
    if (!w->ev.plan) return;
    struct train_facts facts = train_facts_of(&w->ev);
    for (int i = 0, n = train_advise(&facts, advice); i < n; i++) {
        char line[512];
        train_advice_text(&advice[i], line, sizeof line);
        buf_printf(&w->extra, "Advice: %s\n", line);
    }
}

static void put_eval(struct event_work *w)
{
    struct buf *d = &w->data;
    put_number(d, "step", (double)w->ev.step);
    put_number(d, "eval_loss", w->ev.eval_loss);
    put_number(d, "eval_accuracy", w->ev.eval_accuracy);
    put_rewards(d, "eval_", &w->ev.rewards);
    buf_printf(d, ",\"best\":%s", w->ev.best ? "true" : "false");
    buf_printf(&w->message, "Step %lld: evaluation loss=%.4g", (long long)w->ev.step, w->ev.eval_loss);
}

/* The norms of the event, which live as long as it is handled. */
static void keep_norms(struct event_work *w)
{
    size_t n = train_board_wants_groups(&w->ev) ? w->ev.n_group_norms : 0;
    if (n) {
        w->group_norm = mem_array(n, sizeof *w->group_norm);
        memcpy(w->group_norm, w->ev.group_norm, n * sizeof *w->group_norm);
    }
    w->ev.group_norm = w->group_norm;
    w->ev.n_group_norms = n;
}

struct flush_work {
    struct store_work work; /* first */
    sem_t *done;
};

static int on_flush(struct store_work *w, struct db *db)
{
    (void)w, (void)db;
    return 0;
}

static void on_flushed(struct store_work *w, struct db *db)
{
    (void)db;
    sem_post(((struct flush_work *)w)->done);
}

/* Blocks until all works sent before are committed or have failed. */
static void flush(struct run *r)
{
    sem_t done;
    struct flush_work *w = mem_zalloc(sizeof *w);
    w->work = (struct store_work){.run = on_flush, .settle = on_flushed};
    w->done = &done;
    sem_init(&done, 0, 0);
    store_send(r->app->store, &w->work);
    while (sem_wait(&done)) continue; /* EINTR */
    sem_destroy(&done);
}

void run_on_event(void *arg, const struct train_event *ev)
{
    static const struct {
        const char *kind, *level;
    } kinds[] = {
        [TRAIN_PLAN] = {"plan", "info"},       [TRAIN_STEP] = {"step", "info"},
        [TRAIN_EVAL] = {"eval", "info"},       [TRAIN_CHECKPOINT] = {"checkpoint", "info"},
        [TRAIN_WARNING] = {"warning", "warn"}, [TRAIN_RESUMED] = {"log", "info"},
        [TRAIN_LOST] = {"log", "warn"},        [TRAIN_PAUSED] = {"log", "info"},
        [TRAIN_CANCELLED] = {"log", "info"},   [TRAIN_FAILED] = {"log", "error"},
        [TRAIN_SUCCEEDED] = {"log", "info"},
    };
    struct run *r = arg;
    if (ev->kind == TRAIN_SAVING) {
        flush(r);
        return;
    }
    /* bounds memory when the disk hangs: step events are the only frequent ones */
    if (ev->kind == TRAIN_STEP && store_waiting(r->app->store) > PENDING_MAX) return;
    struct event_work *w = event_new(r, kinds[ev->kind].kind, kinds[ev->kind].level);
    w->ev = *ev;
    keep_norms(w);
    job_put_norms(&w->norms, ev);
    job_put_usage(&w->usage, ev);
    switch (ev->kind) {
    case TRAIN_PLAN: put_plan(w, ev->plan); break;
    case TRAIN_STEP: put_step(w); break;
    case TRAIN_EVAL:
        if (ev->best) r->acceptance = ev->eval_accuracy;
        put_eval(w);
        break;
    case TRAIN_CHECKPOINT:
        put_number(&w->data, "step", (double)ev->step);
        put_number(&w->data, "loss", ev->loss);
        buf_str(&w->extra, ev->text ? ev->text : "");
        buf_printf(&w->message, "Checkpoint created at step %lld", (long long)ev->step);
        break;
    case TRAIN_RESUMED:
        put_number(&w->data, "step", (double)ev->step);
        buf_printf(&w->message, "Going on from the checkpoint at step %lld", (long long)ev->step);
        break;
    case TRAIN_LOST:
        buf_printf(&w->message, "The device was lost (%s); the job goes on from what it has written, in a new process",
                   ev->text ? ev->text : "");
        break;
    case TRAIN_SUCCEEDED:
        r->best_step = ev->best_step;
        put_summary(w);
        break;
    case TRAIN_PAUSED: buf_printf(&w->message, "Stopped at step %lld", (long long)ev->step); break;
    default: buf_str(&w->message, ev->text ? ev->text : "");
    }
    /* the loop writes the final state, because it has to publish the result and clean up */
    if (ev->kind == TRAIN_FAILED || ev->kind == TRAIN_CANCELLED) {
        w->final = true;
        w->state = ev->kind == TRAIN_FAILED ? JOB_FAILED : JOB_CANCELLED;
        w->code = ev->kind == TRAIN_FAILED ? "training_failed" : NULL;
        if (ev->kind == TRAIN_CANCELLED) buf_free(&w->message);
    }
    w->ev.plan = NULL;
    if (ev->kind != TRAIN_CHECKPOINT) w->ev.text = NULL;
    post(w);
}
