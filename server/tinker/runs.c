/* Training runs: each is a tuner on the device, and calls on it in the order of their numbers.
 *
 * A call that arrives before those with lower numbers waits for them.  One call of a run at a time is with the
 * trainer's thread; calls of several runs take turns there.  When its session ends, a run's calls are dropped, and the
 * tuner is freed by a last call. */
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "engine/train/tuner.h"
#include "server/access/admission.h"
#include "server/access/client.h"
#include "server/api/app.h"
#include "server/api/model_table.h"
#include "server/api/request_body.h"
#include "server/api/served_model.h"
#include "server/bridge/bridge.h"
#include "server/net/http.h"
#include "server/tinker/gradient_request.h"
#include "server/tinker/state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum call_kind { CALL_OPEN, CALL_GRADIENT, CALL_STEP, CALL_PUBLISH, CALL_CLOSE };

struct run_call {
    struct run_call *next;
    struct run *run;
    enum call_kind kind;
    int64_t seq;
    struct future *future; /* NULL: nobody waits for it any more */
    struct err e;
    struct gradient_request gradient;
    struct tuner_step step;
    double norm;
    char adapter[ADAPTER_NAME_MAX + 1];
    bool shared; /* the adapter's name is the run's own */
};

struct run {
    struct run *next;
    struct tinker *t;
    struct session *session; /* NULL: it has ended */
    char id[96];
    uint64_t client, number;
    struct served_model *model; /* held */
    struct tuner_params params;
    struct tuner *tuner; /* the running call's, while there is one */
    struct run_call *waiting, *running;
    int64_t next_seq;
    int snapshots;
};

static void call_free(struct run_call *c)
{
    gradient_request_free(&c->gradient);
    free(c);
}

/* ---- the trainer's thread ------------------------------------------------------------------------------------------
 */

static void work(void *arg, struct model *m, struct scheduler_gate *gate)
{
    struct run_call *c = arg;
    struct run *r = c->run;
    struct tinker *t = r->t;
    switch (c->kind) {
    case CALL_OPEN: r->tuner = tuner_open(&r->params, m, gate, &c->e); break;
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
    if (t->closing && !t->runs) tinker_close_handles(t);
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

static void add_call(struct run *r, struct run_call *c)
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

/* @return the call, with its future; NULL with an answer, which may be that of the same call before. */
static struct run_call *call_new(struct http_req *req, struct run *r, enum call_kind kind, int64_t seq)
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
        future_failed(f, c->e.code == ERR_INVALID || c->e.code == ERR_UNSUPPORTED ? "user" : "server",
                      c->e.msg);
    else if (c->kind == CALL_PUBLISH && !c->e.code)
        finish_publish(c);
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
    snprintf(shared, sizeof shared, "tinker-%llu-live", (unsigned long long)r->number);
    engine_adapter_unload(r->model->engine, shared, &e);
    while (r->waiting) {
        struct run_call *c = r->waiting;
        r->waiting = c->next;
        call_free(c);
    }
    r->session = NULL;
    struct run_call *c = mem_zalloc(sizeof *c);
    *c = (struct run_call){.run = r, .kind = CALL_CLOSE, .seq = INT64_MAX - 1};
    add_call(r, c);
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
    if (!t->runs) tinker_close_handles(t);
}

static struct run *run_find(struct http_req *req, const char *id)
{
    for (struct run *r = tinker_of(req)->runs; id && r; r = r->next)
        if (r->session && r->client == client_id(req) && !strcmp(r->id, id)) {
            r->session->seen = clock_now();
            return r;
        }
    http_reply_error(req, 404, "not_found", "`model_id`: there is no such model");
    return NULL;
}

/* ---- requests ------------------------------------------------------------------------------------------------------
 */

static void read_lora(struct json_at *at, struct tuner_params *p, int most)
{
    const cJSON *lora = NULL;
    int64_t rank = 32, seed = 0;
    bool unembed = true, mlp = true, attn = true;
    if (json_get_object(at, "lora_config", &lora)) {
        struct json_at in = {lora, "lora_config", at->e};
        json_get_int(&in, "rank", 1, most, &rank);
        json_get_int(&in, "seed", INT64_MIN, INT64_MAX, &seed);
        json_get_bool(&in, "train_unembed", &unembed);
        json_get_bool(&in, "train_mlp", &mlp);
        json_get_bool(&in, "train_attn", &attn);
    }
    *p = (struct tuner_params){.r = (int)rank, .alpha = 32, .seed = (uint64_t)seed};
    p->targets = (attn ? TUNER_ATTENTION : 0) | (mlp ? TUNER_FEED_FORWARD : 0) | (unembed ? TUNER_HEAD : 0);
    if (!p->targets && !at->e->code)
        err_set(at->e, ERR_INVALID, "`lora_config`: one of train_attn, train_mlp and train_unembed must be true");
}

static void create(struct http_req *req, struct session *s, int64_t seq, const struct tuner_params *p)
{
    static uint64_t last;
    struct tinker *t = tinker_of(req);
    struct served_model *m = served_model_of(req);
    char id[96];
    snprintf(id, sizeof id, "%s:train:%lld", s->handle.id, (long long)seq);
    for (struct run *r = t->runs; r; r = r->next)
        if (!strcmp(r->id, id)) {
            call_new(req, r, CALL_OPEN, 0); /* the same request again */
            return;
        }
    if (t->n_runs >= RUNS_MAX) {
        http_reply_error(req, 422, "validation", "there are %d training runs already", RUNS_MAX);
        return;
    }
    struct run *r = mem_zalloc(sizeof *r);
    *r = (struct run){.next = t->runs, .t = t, .session = s, .client = s->handle.client, .model = m, .params = *p};
    r->number = ++last;
    memcpy(r->id, id, sizeof r->id);
    t->runs = r;
    t->n_runs++;
    model_use_again(m);
    model_hold(m);
    struct run_call *c = call_new(req, r, CALL_OPEN, 0);
    if (c)
        add_call(r, c);
    else
        run_free(r);
}

void api_tinker_create_model(struct http_req *req)
{
    struct err e = {0};
    struct tuner_params p;
    const char *id = NULL, *base = NULL;
    int64_t seq = 0;
    if (admission_refuses(req, NULL)) return;
    cJSON *tree = tinker_body(req);
    if (!tree) return;
    struct json_at at = {tree, "", &e};
    json_get_string(&at, "session_id", &id);
    json_get_string(&at, "base_model", &base);
    json_get_int(&at, "model_seq_id", 0, INT32_MAX, &seq);
    read_lora(&at, &p, served_model_of(req)->info->max_lora_rank);
    const cJSON *optimizer = cJSON_GetObjectItemCaseSensitive(tree, "optimizer_config");
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(optimizer, "type");
    if (!e.code && cJSON_IsString(type) && strcmp(type->valuestring, "adamw"))
        err_set(&e, ERR_UNSUPPORTED, "`optimizer_config.type` must be adamw");
    if (e.code)
        tinker_refuse(req, &e);
    else if (!base || model_table_named(((struct app *)req->app)->models, base) != served_model_of(req))
        http_reply_error(req, 404, "not_found", "`base_model`: there is no model %.200s here", base ? base : "");
    else {
        struct session *s = tinker_session(req, id);
        if (s) create(req, s, seq, &p);
    }
    json_free(tree);
}

void api_tinker_get_info(struct http_req *req)
{
    struct err e = {0};
    struct buf b = {0};
    const char *id = NULL;
    cJSON *tree = tinker_body(req);
    if (!tree) return;
    struct json_at at = {tree, "", &e};
    json_get_string(&at, "model_id", &id);
    const struct run *r = run_find(req, id);
    json_free(tree);
    if (!r) return;
    const char *name = r->model->name, *where = r->model->dir ? r->model->dir : name;
    buf_printf(&b,
               "{\"type\":\"get_info\",\"model_id\":\"%s\",\"is_lora\":true,\"lora_rank\":%d,\"model_name\":", r->id,
               r->params.r);
    json_put_string(&b, name, strlen(name));
    buf_str(&b, ",\"model_data\":{\"arch\":");
    json_put_string(&b, r->model->info->family, strlen(r->model->info->family));
    buf_str(&b, ",\"model_name\":");
    json_put_string(&b, name, strlen(name));
    buf_str(&b, ",\"tokenizer_id\":");
    json_put_string(&b, where, strlen(where));
    buf_str(&b, "}}");
    http_reply(req, 200, "application/json", b.data, b.len);
    buf_free(&b);
}

/* @return the run that the body names, and its seq_id; NULL with an answer. */
static struct run *read_call(struct http_req *req, struct json_at *at, int64_t *seq)
{
    const char *id = NULL;
    json_get_string(at, "model_id", &id);
    if (!json_get_int(at, "seq_id", 1, INT32_MAX, seq) && !at->e->code)
        err_set(at->e, ERR_INVALID, "`seq_id` is needed");
    if (!at->e->code) return run_find(req, id);
    tinker_refuse(req, at->e);
    return NULL;
}

static int read_step(struct json_at *at, struct tuner_step *s)
{
    const cJSON *adam = NULL;
    struct err *e = at->e;
    *s = (struct tuner_step){1e-4, 0.9, 0.95, 1e-12, 0, 0};
    if (!json_get_object(at, "adam_params", &adam))
        return e->code ? e->code : err_set(e, ERR_UNSUPPORTED, "`adam_params` is needed: the optimizer is AdamW");
    struct json_at in = {adam, "adam_params", e};
    const struct {
        const char *name;
        double *v, max;
    } fields[] = {{"learning_rate", &s->learning_rate, 1e3}, {"beta1", &s->beta1, 0.999999},
                  {"beta2", &s->beta2, 0.99999999},          {"eps", &s->epsilon, 1},
                  {"weight_decay", &s->weight_decay, 1e3},   {"grad_clip_norm", &s->max_norm, 1e30}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        json_get_number(&in, fields[i].name, fields[i].v);
        if (!e->code && !(*fields[i].v >= 0 && *fields[i].v <= fields[i].max))
            err_set(e, ERR_INVALID, "`adam_params.%s` must be from 0 to %g", fields[i].name, fields[i].max);
    }
    return e->code;
}

void api_tinker_optim_step(struct http_req *req)
{
    struct err e = {0};
    struct tuner_step step;
    int64_t seq = 0;
    if (admission_refuses(req, NULL)) return;
    cJSON *tree = tinker_body(req);
    if (!tree) return;
    struct json_at at = {tree, "", &e};
    read_step(&at, &step);
    struct run *r = read_call(req, &at, &seq);
    json_free(tree);
    struct run_call *c = r ? call_new(req, r, CALL_STEP, seq) : NULL;
    if (!c) return;
    c->step = step;
    add_call(r, c);
}

void api_tinker_save_for_sampler(struct http_req *req)
{
    struct err e = {0};
    const char *path = NULL, *kind = "snapshot";
    int64_t seq = 0;
    if (admission_refuses(req, NULL)) return;
    cJSON *tree = tinker_body(req);
    if (!tree) return;
    struct json_at at = {tree, "", &e};
    json_get_string(&at, "path", &path);
    json_get_string(&at, "kind", &kind);
    if (path && !e.code) err_set(&e, ERR_UNSUPPORTED, "`path`: weights cannot be saved under a name here yet");
    struct run *r = read_call(req, &at, &seq);
    bool shared = kind && !strcmp(kind, "inflight");
    json_free(tree);
    struct run_call *c = r ? call_new(req, r, CALL_PUBLISH, seq) : NULL;
    if (!c) return;
    c->shared = shared;
    if (shared)
        snprintf(c->adapter, sizeof c->adapter, "tinker-%llu-live", (unsigned long long)r->number);
    else
        snprintf(c->adapter, sizeof c->adapter, "tinker-%llu-%010lld", (unsigned long long)r->number, (long long)seq);
    add_call(r, c);
}

/* ---- forward and backward ------------------------------------------------------------------------------------------
 */

struct reading {
    struct http_req *req; /* NULL once closed */
    struct http_body body;
    struct gradient_request gradient;
    struct err e;
};

static void on_close(struct http_req *req)
{
    ((struct reading *)req->user)->req = NULL;
}

static void work_read(void *arg)
{
    struct reading *d = arg;
    gradient_request_read(&d->gradient, d->body.data ? d->body.data : "", d->body.len, &d->e);
    http_body_free(&d->body);
}

static void begin_gradient(struct http_req *req, struct reading *d)
{
    struct run *r = run_find(req, d->gradient.model_id);
    const struct engine_info *info = r ? r->model->info : NULL;
    if (!r) return;
    if (d->gradient.seq < 1) err_set(&d->e, ERR_INVALID, "seq_id must be at least 1");
    if (d->e.code || gradient_request_fits(&d->gradient, info->vocab, info->max_model_len, &d->e)) {
        tinker_refuse(req, &d->e);
        return;
    }
    struct run_call *c = call_new(req, r, CALL_GRADIENT, d->gradient.seq);
    if (!c) return;
    c->gradient = d->gradient;
    d->gradient = (struct gradient_request){0};
    add_call(r, c);
}

static void after_read(void *arg)
{
    struct reading *d = arg;
    struct http_req *req = d->req;
    if (req) {
        req->on_close = NULL;
        req->user = NULL;
        if (d->e.code)
            tinker_refuse(req, &d->e);
        else
            begin_gradient(req, d);
    }
    gradient_request_free(&d->gradient);
    free(d);
}

void api_tinker_forward_backward(struct http_req *req)
{
    struct app *app = req->app;
    if (admission_refuses(req, NULL)) return;
    struct reading *d = mem_zalloc(sizeof *d);
    d->req = req;
    http_take_body(req, &d->body);
    req->user = d;
    req->on_close = on_close;
    bridge_work(app->bridge, client_id(req), work_read, after_read, d);
}
