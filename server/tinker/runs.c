/* Training runs: each is a tuner on the device, and calls on it in the order of their numbers.
 *
 * A call that arrives before those with lower numbers waits for them.  One call of a run at a time is with the
 * trainer's thread; calls of several runs take turns there.  When its session ends, a run's calls are dropped, and the
 * tuner is freed by a last call. */
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/access/client.h"
#include "server/api/app.h"
#include "server/api/model_table.h"
#include "server/api/served_model.h"
#include "server/config/settings.h"
#include "server/net/http.h"
#include "server/store/data_dir.h"
#include "server/store/store.h"
#include "server/tinker/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void call_free(struct run_call *c)
{
    gradient_request_free(&c->gradient);
    checkpoint_free(&c->saved);
    free(c);
}

/* ---- the trainer's thread ------------------------------------------------------------------------------------------
 */

/* A run that has weights already gets only such as fit. */
static int check_fits(const struct run_call *c, struct err *e)
{
    const struct tuner_params *p = &c->run->params;
    const struct checkpoint *s = &c->saved;
    if (s->sampler && c->optimizer)
        return err_set(e, ERR_INVALID, "`path`: weights for sampling have no state of the optimizer");
    if (s->rank == p->r && run_targets(s->attn, s->mlp, s->unembed) == p->targets) return 0;
    return err_set(e, ERR_INVALID, "`path`: these weights are of rank %d or of modules that the model does not train",
                   s->rank);
}

static void load(struct run_call *c, struct model *m, struct scheduler_gate *gate)
{
    struct run *r = c->run;
    const char *data = store_dir(r->t->app->store);
    if (checkpoint_read(data, &c->saved, r->owner, false, &c->e) || check_fits(c, &c->e)) return;
    char *dir = checkpoint_dir(data, &c->saved);
    struct tuner *t = tuner_load(dir, c->optimizer, m, gate, &c->e);
    free(dir);
    if (!t) return;
    tuner_free(r->tuner);
    r->tuner = t;
}

static void work(void *arg, struct model *m, struct scheduler_gate *gate)
{
    struct run_call *c = arg;
    struct run *r = c->run;
    struct tinker *t = r->t;
    switch (c->kind) {
    case CALL_OPEN:
        if (c->saved.run[0])
            load(c, m, gate);
        else
            r->tuner = tuner_open(&r->params, m, gate, &c->e);
        break;
    case CALL_LOAD: load(c, m, gate); break;
    case CALL_SAVE:
        checkpoint_save(store_dir(t->app->store), &c->saved, r->tuner, r->model->dir, c->overwrite,
                        (size_t)t->app->set->tinker_client_weights, &c->e);
        break;
    case CALL_GRADIENT: gradient_request_run(&c->gradient, r->tuner, &c->e); break;
    case CALL_STEP: tuner_step(r->tuner, &c->step, &c->norm, &c->e); break;
    case CALL_PUBLISH: engine_tuner_publish(r->model->engine, r->tuner, c->adapter, &c->e); break;
    case CALL_CLOSE: tuner_free(r->tuner); break;
    }
    uv_mutex_lock(&t->lock);
    c->next = t->finished;
    t->finished = c;
    uv_async_send(&t->wake); /* within the lock: once the loop has the last call, it frees t */
    uv_mutex_unlock(&t->lock);
}

/* ---- calls ---------------------------------------------------------------------------------------------------------
 */

static void run_free(struct run *r)
{
    struct tinker *t = r->t;
    struct run **link = &t->runs;
    while (*link != r) link = &(*link)->next;
    *link = r->next;
    t->n_runs--;
    model_unhold(r->model);
    model_release(t->app->models, r->model);
    free(r);
    tinker_check_closed(t);
}

static void finish(struct run_call *c);

/* Gives the next call to the trainer's thread, if it is there. */
static void pump(struct run *r)
{
    struct run_call *c = r->waiting;
    struct err e = {0};
    if (r->running || !c || (c->seq != r->next_seq && c->kind != CALL_CLOSE)) return;
    r->waiting = c->next;
    c->next = NULL;
    r->running = c;
    if (c->kind != CALL_OPEN && c->kind != CALL_CLOSE && !r->tuner) {
        err_set(&c->e, ERR_INVALID, "the run could not be created");
        finish(c);
    } else if (engine_trainer_call(r->model->engine, work, c, &e)) {
        c->e = e;
        finish(c);
    }
}

void run_call_add(struct run *r, struct run_call *c)
{
    struct run_call **link = &r->waiting;
    while (*link && (*link)->seq <= c->seq) link = &(*link)->next;
    c->next = *link;
    *link = c;
    pump(r);
}

/* Nobody wants the result; the call counts in the order nevertheless. */
static void forget(void *arg)
{
    ((struct run_call *)arg)->future = NULL;
}

struct run_call *run_call_new(struct http_req *req, struct run *r, enum call_kind kind, int64_t seq)
{
    struct future *f = future_of(r->t, r, seq);
    if (!f && seq < r->next_seq) {
        http_reply_error(req, 400, "validation", "`seq_id` %lld was done before, and its result is gone",
                         (long long)seq);
        return NULL;
    }
    bool before = f != NULL;
    if (!before && !(f = future_new(r->t, r, r->client, seq))) {
        http_set_header(req, "Retry-After", "1");
        http_reply_error(req, 429, "overloaded", "%d results wait to be fetched", FUTURES_MAX);
        return NULL;
    }
    struct buf b = {0};
    buf_printf(&b, "{\"request_id\":\"%s\",\"model_id\":\"%s\"}", f->handle.id, r->id);
    http_reply(req, 200, "application/json", b.data, b.len);
    buf_free(&b);
    if (before) return NULL;
    struct run_call *c = mem_zalloc(sizeof *c);
    *c = (struct run_call){.run = r, .kind = kind, .seq = seq, .future = f};
    f->work = c;
    f->cancel = forget;
    f->json = kind != CALL_GRADIENT;
    return c;
}

/* ---- results -------------------------------------------------------------------------------------------------------
 */

/* The oldest of the run's snapshots is unloaded where there are too many. */
static void drop_snapshots(struct run *r)
{
    struct tinker *t = r->t;
    struct err e = {0};
    while (r->snapshots > SNAPSHOTS_MAX) {
        struct sampler *oldest = NULL;
        for (size_t i = 0; i < t->samplers.n; i++) {
            struct sampler *s = (struct sampler *)t->samplers.v[i];
            if (s && s->run == r && !s->shared && !s->gone && (!oldest || strcmp(s->adapter, oldest->adapter) < 0))
                oldest = s;
        }
        if (!oldest) return;
        engine_adapter_unload(r->model->engine, oldest->adapter, &e);
        oldest->gone = true;
        r->snapshots--;
    }
}

void run_forget_sampler(struct sampler *s)
{
    struct err e = {0};
    if (!s->run || s->shared || s->gone || !s->adapter) return;
    engine_adapter_unload(s->run->model->engine, s->adapter, &e);
    s->run->snapshots--;
}

static void finish_publish(struct run_call *c)
{
    struct run *r = c->run;
    struct err e = {0};
    struct sampler *s = c->future && r->session ? sampler_new(r->t, r->session, r->model) : NULL;
    if (!s) {
        if (!c->shared) engine_adapter_unload(r->model->engine, c->adapter, &e);
        if (c->future) future_failed(c->future, "server", "there are too many sampling sessions");
        return;
    }
    s->adapter = mem_strdup(c->adapter);
    s->run = r;
    s->shared = c->shared;
    r->snapshots += !c->shared;
    drop_snapshots(r);
    buf_printf(&c->future->answer, "{\"type\":\"save_weights_for_sampler\",\"sampling_session_id\":\"%s\"}",
               s->handle.id);
    future_done(c->future);
}

static bool by_user(int code)
{
    return code == ERR_INVALID || code == ERR_UNSUPPORTED || code == ERR_NOT_FOUND;
}

static void put_saved(struct buf *b, const struct run_call *c)
{
    const char *type = c->kind != CALL_SAVE ? "load_weights"
                       : c->saved.sampler   ? "save_weights_for_sampler"
                                            : "save_weights";
    buf_printf(b, "{\"type\":\"%s\",\"model_id\":\"%s\",\"path\":\"", type, c->run->id);
    checkpoint_put_path(b, &c->saved);
    buf_str(b, "\"}");
}

/* The result of a call, which is freed; the next one begins. */
static void finish(struct run_call *c)
{
    struct run *r = c->run;
    struct future *f = c->future;
    r->running = NULL;
    r->next_seq = c->seq + 1;
    if (c->kind == CALL_CLOSE) {
        call_free(c);
        run_free(r);
        return;
    }
    if (c->e.code && f)
        future_failed(f, by_user(c->e.code) ? "user" : "server", c->e.msg);
    else if (c->kind == CALL_PUBLISH && !c->e.code)
        finish_publish(c);
    else if (f && c->saved.run[0])
        put_saved(&f->answer, c);
    else if (f && c->kind == CALL_OPEN)
        buf_printf(&f->answer, "{\"type\":\"create_model\",\"model_id\":\"%s\"}", r->id);
    else if (f && c->kind == CALL_STEP)
        buf_printf(&f->answer, "{\"type\":\"optim_step\",\"metrics\":{\"grad_norm:mean\":%.9g}}", c->norm);
    else if (f && c->kind == CALL_GRADIENT)
        gradient_put_output(&f->answer, &c->gradient);
    if (f && !f->done) future_done(f);
    call_free(c);
    pump(r);
}

static void on_wake(uv_async_t *wake)
{
    struct tinker *t = wake->data;
    uv_mutex_lock(&t->lock);
    struct run_call *c = t->finished;
    t->finished = NULL;
    uv_mutex_unlock(&t->lock);
    for (struct run_call *next; c; c = next) {
        next = c->next;
        finish(c);
    }
}

/* ---- the run -------------------------------------------------------------------------------------------------------
 */

static void run_end(struct run *r)
{
    struct err e = {0};
    char shared[ADAPTER_NAME_MAX + 1];
    futures_free(r->t, r);
    for (size_t i = 0; i < r->t->samplers.n; i++) {
        struct sampler *s = (struct sampler *)r->t->samplers.v[i];
        if (!s || s->run != r) continue;
        run_forget_sampler(s);
        s->gone = true;
        s->run = NULL;
    }
    snprintf(shared, sizeof shared, "@tinker-%llu-live", (unsigned long long)r->number);
    engine_adapter_unload(r->model->engine, shared, &e);
    while (r->waiting) {
        struct run_call *c = r->waiting;
        r->waiting = c->next;
        call_free(c);
    }
    r->session = NULL;
    struct run_call *c = mem_zalloc(sizeof *c);
    *c = (struct run_call){.run = r, .kind = CALL_CLOSE, .seq = INT64_MAX - 1};
    run_call_add(r, c);
}

void runs_end(struct tinker *t, const struct session *s)
{
    for (struct run *r = t->runs, *next; r; r = next) {
        next = r->next;
        if (r->session == s) run_end(r);
    }
}

void runs_open(struct tinker *t)
{
    uv_mutex_init(&t->lock);
    uv_async_init(t->tick.loop, &t->wake, on_wake);
    t->wake.data = t;
}

void runs_close(struct tinker *t)
{
    t->closing = true;
    tinker_check_closed(t);
}

struct run *run_find(struct http_req *req, const char *id)
{
    for (struct run *r = tinker_of(req)->runs; id && r; r = r->next)
        if (r->session && r->client == client_id(req) && !strcmp(r->id, id)) {
            r->session->seen = clock_now();
            r->used = data_now_ms();
            return r;
        }
    http_reply_error(req, 404, "not_found", "`model_id`: there is no such model");
    return NULL;
}

/* A client's own limit leaves room for others; false with an answer. */
static bool may_have_more(struct http_req *req, uint64_t client)
{
    const struct tinker *t = tinker_of(req);
    int own = 0, most = t->app->set->tinker_client_runs;
    for (const struct run *r = t->runs; r; r = r->next) own += r->client == client; /* also those that are closing */
    if (t->n_runs >= RUNS_MAX)
        http_reply_error(req, 422, "validation", "there are %d training runs already", RUNS_MAX);
    else if (own >= most)
        http_reply_error(req, 422, "validation",
                         "you have %d training runs already, of at most %d (--tinker-client-runs): close the sessions "
                         "of some",
                         own, most);
    else
        return true;
    return false;
}

void run_create(struct http_req *req, struct session *s, int64_t seq, struct served_model *m,
                const struct tuner_params *p, const struct checkpoint *from, bool optimizer)
{
    static uint64_t last;
    struct tinker *t = tinker_of(req);
    char id[RUN_ID];
    snprintf(id, sizeof id, "%s:train:%lld", s->handle.id, (long long)seq);
    for (struct run *r = t->runs; r; r = r->next)
        if (!strcmp(r->id, id)) {
            run_call_new(req, r, CALL_OPEN, 0); /* the same request again */
            return;
        }
    if (!may_have_more(req, s->handle.client)) return;
    struct run *r = mem_zalloc(sizeof *r);
    *r = (struct run){.next = t->runs, .t = t, .session = s, .client = s->handle.client, .model = m, .params = *p};
    r->number = ++last;
    r->used = data_now_ms();
    memcpy(r->id, id, sizeof r->id);
    client_name(req, r->owner);
    t->runs = r;
    t->n_runs++;
    model_use_again(m);
    model_hold(m);
    struct run_call *c = run_call_new(req, r, CALL_OPEN, 0);
    if (!c) {
        run_free(r);
        return;
    }
    if (from) c->saved = (struct checkpoint){.sampler = from->sampler};
    if (from) memcpy(c->saved.run, from->run, sizeof from->run), memcpy(c->saved.name, from->name, sizeof from->name);
    c->optimizer = optimizer;
    run_call_add(r, c);
}
