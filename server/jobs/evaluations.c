/* The queue of evaluations (evaluations.h).  Loop thread; functions with a db parameter run on the store thread. */
#include "server/jobs/evaluations.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/api/app.h"
#include "server/api/model_table.h"
#include "server/config/settings.h"
#include "server/jobs/evaluation_db.h"
#include "server/jobs/evaluation_run.h"
#include "server/jobs/job_data.h"
#include "server/store/data_dir.h"
#include "server/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

enum {
    RETRY_MS = 2000,
    TRIES = 150, /* of one that finds no memory or descriptors: five minutes */
};

/* The evaluation in hand. */
struct current {
    struct store_work work; /* first: one of its row's works at a time */
    struct evaluations *all;
    struct evaluation_claimed row; /* spec owned */
    bool found;
    char *path, *name; /* of the rows' file */
    char rows_id[DATA_ID_MAX];
    struct evaluation_spec spec;
    cJSON *tree; /* that it points into */
    struct served_model *served;
    struct model_wait wait; /* for it */
    bool uses;              /* it is loaded, and held */
    struct evaluation_run *run;
    uint64_t started; /* clock_now() */
    bool halted;      /* runs again later */
    bool kept;        /* the file with the results of rows */
    int64_t rows_bytes;
    struct buf results; /* empty: it failed */
    struct err e;
};

struct evaluations {
    struct app *app;
    struct current *current; /* NULL: none; owned */
    bool ready, stopping;
    bool news;     /* there may be another row to find since the last look */
    int64_t tried; /* seq of the one that found no memory last, */
    int tries;     /* and how often */
    uv_timer_t retry;
    void (*stopped)(void *);
    void *stopped_arg;
};

static void settle(struct evaluations *v);

static void on_retry(uv_timer_t *t)
{
    evaluations_kick(t->data);
}

static void retry_later(struct evaluations *v)
{
    if (!v->stopping) uv_timer_start(&v->retry, on_retry, RETRY_MS, 0);
}

static void send_work(struct current *c, int (*run)(struct store_work *, struct db *),
                      void (*done)(struct store_work *))
{
    c->work.run = run;
    c->work.settle = NULL;
    c->work.done = done;
    store_send(c->all->app->store, &c->work);
}

/* Frees what claiming made. */
static void unclaim(struct current *c)
{
    evaluation_spec_free(&c->spec);
    json_free(c->tree);
    free(c->row.spec);
    free(c->row.filename);
    free(c->path);
    free(c->name);
    c->tree = NULL;
    c->row = (struct evaluation_claimed){0};
    c->path = c->name = NULL;
}

static void over(struct current *c)
{
    struct evaluations *v = c->all;
    if (c->uses) {
        model_unhold(c->served);
        model_release(v->app->models, c->served);
    }
    unclaim(c);
    buf_free(&c->results);
    free(c);
    v->current = NULL;
    settle(v);
}

/* ---- ending ---------------------------------------------------------------------------------------------------- */

static char *rows_path(const struct current *c)
{
    return data_path(settings_data_dir(c->all->app->set), "files", c->rows_id);
}

static int on_store_put_back(struct store_work *w, struct db *db)
{
    const struct current *c = (struct current *)w;
    evaluation_put_back(db, c->row.seq);
    return 0;
}

static void on_put_back(struct store_work *w)
{
    struct current *c = (struct current *)w;
    retry_later(c->all);
    over(c);
}

static int on_store_end(struct store_work *w, struct db *db)
{
    struct current *c = (struct current *)w;
    struct evaluation_key key = {.seq = c->row.seq};
    const struct evaluation_last last = {.results = c->results.len ? c->results.data : NULL,
                                         .rows_file = c->rows_id,
                                         .rows_bytes = c->rows_bytes,
                                         .error_code = c->results.len ? NULL : "failed",
                                         .error = c->results.len ? NULL : c->e.msg};
    snprintf(key.id, sizeof key.id, "%s", c->row.id);
    c->kept = evaluation_finish(db, &key, &last);
    return 0;
}

/* After the commit: files that nobody needs any more. */
static void on_settle_end(struct store_work *w, struct db *db)
{
    struct current *c = (struct current *)w;
    if (!w->e.code) job_data_remove(db->dir, c->row.id);
    if (!w->e.code && c->kept) return;
    char *path = rows_path(c);
    unlink(path);
    free(path);
}

static void on_ended(struct store_work *w)
{
    struct current *c = (struct current *)w;
    if (w->e.code) { /* it runs again when there is room for its last state */
        log_warn("an evaluation's end could not be stored: evaluation=%s error=\"%s\"", c->row.id, w->e.msg);
        send_work(c, on_store_put_back, on_put_back);
        return;
    }
    log_info("evaluation ended: evaluation=%s status=%s seconds=%.1f%s%s", c->row.id,
             c->kept     ? "succeeded"
             : c->e.code ? "failed"
                         : "cancelled",
             c->started ? (double)(clock_now() - c->started) * 1e-9 : 0, c->e.code ? " error=" : "",
             c->e.code ? c->e.msg : "");
    c->all->news = true;
    over(c);
}

static void store_end(struct current *c)
{
    c->work.run = on_store_end;
    c->work.settle = on_settle_end;
    c->work.done = on_ended;
    store_send(c->all->app->store, &c->work);
}

/* ---- running --------------------------------------------------------------------------------------------------- */

/* Whether what ended it may pass: no memory for its rows now. */
static bool is_passing(struct evaluations *v, const struct current *c)
{
    if (c->e.code != ERR_FULL) return false;
    if (v->tried != c->row.seq) v->tries = 0;
    v->tried = c->row.seq;
    if (!v->tries) log_warn("an evaluation waits: evaluation=%s error=\"%s\"", c->row.id, c->e.msg);
    return ++v->tries < TRIES;
}

static void on_over(void *arg, struct evaluation_outcome *out)
{
    struct current *c = arg;
    struct evaluations *v = c->all;
    c->run = NULL;
    c->e = out->e;
    c->rows_bytes = out->rows_bytes;
    c->results = out->results;
    out->results = (struct buf){0};
    bool halted = out->end == EVALUATION_HALTED;
    if (halted && served_models_lost(v->app))
        over(c); /* what lost the device may be one of its requests, so it counts as a crash */
    else if ((halted && c->halted) || (out->end == EVALUATION_FAILED && is_passing(v, c)))
        send_work(c, on_store_put_back, on_put_back);
    else
        store_end(c);
}

/* The file with the rows, and what messages call it. */
static int find_rows(struct current *c, const char *dir)
{
    const struct data_spec *d = &c->spec.data;
    char file[DATA_ID_MAX + 8];
    const char *given = d->n_refs ? d->ref[0].name : "";
    snprintf(file, sizeof file, "%s.%s", c->row.id, d->kind == DATA_ROWS ? "json" : "txt");
    if (d->kind == DATA_PATH)
        c->path = data_find(dir, given, &c->e);
    else if (d->kind == DATA_FILE && !c->row.filename)
        err_set(&c->e, ERR_NOT_FOUND, "dataset.file: %.80s was deleted", given);
    else
        c->path = d->kind == DATA_FILE ? data_path(dir, "files", given) : data_path(dir, "inline", file);
    if (c->path)
        c->name = mem_strdup(d->kind == DATA_PATH   ? given
                             : d->kind == DATA_FILE ? c->row.filename
                             : d->kind == DATA_ROWS ? "dataset"
                                                    : "dataset.txt");
    return c->e.code;
}

static int on_claim(struct store_work *w, struct db *db)
{
    struct current *c = (struct current *)w;
    struct err *e = &c->e;
    unclaim(c); /* a work may be repeated */
    e->code = 0;
    c->found = evaluation_claim(db, &c->row);
    if (!c->found) return 0;
    c->tree = json_parse(c->row.spec, strlen(c->row.spec), e);
    if (c->tree && !evaluation_spec_read(&c->spec, c->tree, true, e) && !find_rows(c, db->dir))
        data_mkdir(db->dir, "files", NULL, e);
    return 0;
}

static void start(struct current *c)
{
    struct evaluations *v = c->all;
    data_id(c->rows_id, "file-");
    char *output = rows_path(c);
    const struct evaluation_task task = {.app = v->app,
                                         .served = c->served,
                                         .spec = &c->spec,
                                         .path = c->path,
                                         .name = c->name,
                                         .output = output,
                                         .over = on_over,
                                         .arg = c};
    log_info("evaluation: evaluation=%s data=%s adapters=%d", c->row.id, c->name, c->spec.n_adapters);
    c->started = clock_now();
    c->run = evaluation_run_start(&task);
    free(output);
}

static void on_model(void *arg, const struct err *e)
{
    struct current *c = arg;
    if (e->code == ERR_LOST) { /* the daemon ends */
        send_work(c, on_store_put_back, on_put_back);
    } else if (e->code) {
        c->e = *e;
        store_end(c);
    } else {
        c->uses = true;
        model_hold(c->served);
        start(c);
    }
}

/* Has its model loaded for as long as it runs. */
static void begin(struct current *c)
{
    struct app *app = c->all->app;
    struct err e = {0};
    c->served = c->spec.model ? model_table_named(app->models, c->spec.model) : app->model;
    if (!c->served) {
        err_set(&e, ERR_NOT_FOUND, "model: this server has no model %.100s", c->spec.model);
        on_model(c, &e);
    } else if (model_use(app->models, c->served)) {
        on_model(c, &e);
    } else if (!model_wait_for(app->models, c->served, &c->wait, NULL, on_model, c)) {
        e.code = ERR_LOST;
        on_model(c, &e);
    }
}

static void on_claimed(struct store_work *w)
{
    struct current *c = (struct current *)w;
    struct evaluations *v = c->all;
    if (w->e.code || !c->found) {
        if (w->e.code) retry_later(v);
        over(c);
    } else if (v->stopping) {
        send_work(c, on_store_put_back, on_put_back);
    } else if (c->e.code) {
        store_end(c);
    } else {
        begin(c);
    }
}

/* ---- commands -------------------------------------------------------------------------------------------------- */

static void look(struct evaluations *v)
{
    if (!v->ready || v->stopping || !v->news || v->current) return;
    v->news = false;
    v->current = mem_zalloc(sizeof *v->current);
    v->current->all = v;
    send_work(v->current, on_claim, on_claimed);
}

void evaluations_kick(struct evaluations *v)
{
    v->news = true;
    look(v);
}

void evaluations_cancelled(struct evaluations *v, int64_t seq)
{
    struct current *c = v->current;
    if (!c || c->row.seq != seq)
        evaluations_kick(v); /* it waits for another attempt: it is claimed, and ends */
    else if (c->run)
        evaluation_run_stop(c->run);
    else if (c->wait.next) {
        model_wait_cancel(v->app->models, &c->wait);
        store_end(c);
    }
}

int64_t evaluations_progress(const struct evaluations *v, struct buf *out)
{
    if (!v->current || !v->current->run) return 0;
    evaluation_run_put_progress(v->current->run, out);
    return v->current->row.seq;
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

/* Looks again where that was wanted meanwhile, and calls what waits for the end of all. */
static void settle(struct evaluations *v)
{
    look(v);
    if (!v->stopping || !v->stopped || v->current) return;
    void (*done)(void *) = v->stopped;
    v->stopped = NULL;
    done(v->stopped_arg);
}

struct evaluations *evaluations_open(struct app *app)
{
    struct evaluations *v = mem_zalloc(sizeof *v);
    v->app = app;
    CHECK(uv_timer_init(app->loop, &v->retry) == 0);
    v->retry.data = v;
    return v;
}

void evaluations_ready(struct evaluations *v)
{
    v->ready = true;
    if (store_exists(v->app->store)) evaluations_kick(v);
}

void evaluations_drain(struct evaluations *v)
{
    if (v->stopping) return;
    v->stopping = true;
    uv_timer_stop(&v->retry);
    if (v->current && v->current->wait.next) {
        model_wait_cancel(v->app->models, &v->current->wait);
        send_work(v->current, on_store_put_back, on_put_back);
        return;
    }
    if (!v->current || !v->current->run) return;
    v->current->halted = true;
    evaluation_run_stop(v->current->run);
}

void evaluations_stop(struct evaluations *v, void (*done)(void *), void *arg)
{
    evaluations_drain(v);
    v->stopped = done;
    v->stopped_arg = arg;
    settle(v);
}

static void on_closed(uv_handle_t *h)
{
    free(h->data);
}

void evaluations_free(struct evaluations *v)
{
    uv_close((uv_handle_t *)&v->retry, on_closed);
}
