/* Sessions, samplers, and what the client asks before it begins. */
#include "server/tinker/tinker.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "server/access/admission.h"
#include "server/access/client.h"
#include "server/api/app.h"
#include "server/api/model_table.h"
#include "server/api/request_body.h"
#include "server/api/served_model.h"
#include "server/config/settings.h"
#include "server/bridge/bridge.h"
#include "server/net/http.h"
#include "server/store/store.h"
#include "server/tinker/checkpoints.h"
#include "server/tinker/state.h"

#include <stdlib.h>
#include <string.h>

struct tinker *tinker_of(const struct http_req *req)
{
    return ((const struct app *)req->app)->tinker;
}

void tinker_refuse(struct http_req *req, const struct err *e)
{
    if (body_reply_memory(req->app, req, e)) return;
    metrics_reject(&((struct app *)req->app)->metrics, REJECT_VALIDATION);
    http_reply_error(req, 422, "validation", "%s", e->msg);
}

cJSON *tinker_parse(const char *text, size_t n, struct err *e)
{
    cJSON *tree = json_parse_body(text, n, e);
    if (!tree || cJSON_IsObject(tree)) return tree;
    err_set(e, ERR_INVALID, "the body must be a JSON object");
    json_free(tree);
    return NULL;
}

cJSON *tinker_body(struct http_req *req)
{
    struct err e = {0};
    cJSON *tree = tinker_parse(req->body_len ? req->body : "", req->body_len, &e);
    if (!tree) tinker_refuse(req, &e);
    return tree;
}

static void reply(struct http_req *req, const char *json)
{
    http_reply(req, 200, "application/json", json, strlen(json));
}

struct pool_work {
    struct tinker *t;
    void (*work)(void *), (*done)(void *);
    void *arg;
};

static void on_work(void *arg)
{
    struct pool_work *w = arg;
    w->work(w->arg);
}

static void after_work(void *arg)
{
    struct pool_work *w = arg;
    struct tinker *t = w->t;
    w->done(w->arg);
    free(w);
    t->n_works--;
    tinker_check_closed(t);
}

void tinker_work(struct tinker *t, uint64_t client, void (*work)(void *), void (*done)(void *), void *arg)
{
    struct pool_work *w = mem_zalloc(sizeof *w);
    *w = (struct pool_work){t, work, done, arg};
    t->n_works++;
    bridge_work(t->app->bridge, client, on_work, after_work, w);
}

/* ---- sessions ------------------------------------------------------------------------------------------------------
 */

static void sampler_free(struct tinker *t, struct sampler *s)
{
    futures_free(t, s);
    run_forget_sampler(s);
    saved_sampler_forget(t, s);
    handles_remove(&t->samplers, &s->handle);
    free(s->adapter);
    free(s->path);
    free(s);
}

static void session_free(struct tinker *t, struct session *s)
{
    for (size_t i = 0; i < t->samplers.n; i++) {
        struct sampler *sampler = (struct sampler *)t->samplers.v[i];
        if (sampler && sampler->session == s) sampler_free(t, sampler);
    }
    runs_end(t, s);
    futures_free(t, s);
    handles_remove(&t->sessions, &s->handle);
    free(s);
    if (!t->sessions.used) uv_timer_stop(&t->tick);
}

static void work_sweep(void *arg)
{
    checkpoints_sweep(store_dir(((struct tinker *)arg)->app->store));
}

static void after_sweep(void *arg)
{
    ((struct tinker *)arg)->sweeping = false;
}

/* Of saved weights that have expired. */
static void sweep(struct tinker *t, uint64_t now)
{
    if (t->sweeping || (t->swept && now - t->swept < SWEEP_SECONDS * 1000000000ull)) return;
    t->swept = now;
    t->sweeping = true;
    tinker_work(t, 0, work_sweep, after_sweep, t);
}

/* Heartbeats are what keeps a session: what a client left behind that was killed is freed without them. */
static void on_tick(uv_timer_t *timer)
{
    struct tinker *t = timer->data;
    uint64_t now = clock_now();
    futures_tick(t, now);
    sampling_pump(t);
    sweep(t, now);
    for (size_t i = 0; i < t->sessions.n; i++) {
        struct session *s = (struct session *)t->sessions.v[i];
        if (s && now - s->seen > SILENT_SECONDS * 1000000000ull) session_free(t, s);
    }
}

struct session *tinker_session(struct http_req *req, const char *id)
{
    struct session *s = (struct session *)handles_find(&tinker_of(req)->sessions, id, client_id(req));
    if (s)
        s->seen = clock_now();
    else
        http_reply_error(req, 404, "not_found", "`session_id`: there is no such session");
    return s;
}

void api_tinker_session_create(struct http_req *req)
{
    struct tinker *t = tinker_of(req);
    struct buf b = {0};
    if (admission_refuses(req, NULL)) return;
    cJSON *tree = tinker_body(req);
    if (!tree) return;
    json_free(tree);
    size_t own = 0, most = (size_t)t->app->set->tinker_client_sessions;
    for (size_t i = 0; i < t->sessions.n; i++) own += t->sessions.v[i] && t->sessions.v[i]->client == client_id(req);
    if (own >= most) {
        http_set_header(req, "Retry-After", "10");
        http_reply_error(req, 429, "overloaded",
                         "you have %zu sessions already, of at most %zu (--tinker-client-sessions); each ends %d s "
                         "after its last heartbeat",
                         own, most, SILENT_SECONDS);
        return;
    }
    struct session *s = mem_zalloc(sizeof *s);
    s->seen = clock_now();
    if (!handles_add(&t->sessions, &s->handle, client_id(req), SESSIONS_MAX)) {
        free(s);
        http_set_header(req, "Retry-After", "10");
        http_reply_error(req, 429, "overloaded", "there are %d sessions; each ends %d s after its last heartbeat",
                         SESSIONS_MAX, SILENT_SECONDS);
        return;
    }
    uv_timer_start(&t->tick, on_tick, 1000, 1000);
    buf_printf(&b, "{\"type\":\"create_session\",\"session_id\":\"%s\"}", s->handle.id);
    reply(req, b.data);
    buf_free(&b);
}

/* @return the session that the body names; NULL with an answer. */
static struct session *named_session(struct http_req *req)
{
    struct err e = {0};
    const char *id = NULL;
    cJSON *tree = tinker_body(req);
    if (!tree) return NULL;
    struct json_at at = {tree, "", &e};
    json_get_string(&at, "session_id", &id);
    if (e.code) tinker_refuse(req, &e);
    struct session *s = e.code ? NULL : tinker_session(req, id);
    json_free(tree);
    return s;
}

void api_tinker_session_heartbeat(struct http_req *req)
{
    if (named_session(req)) reply(req, "{\"type\":\"session_heartbeat\"}");
}

void api_tinker_session_finish(struct http_req *req)
{
    struct session *s = tinker_session(req, req->param);
    if (!s) return;
    session_free(tinker_of(req), s);
    reply(req, "{}");
}

/* ---- samplers ------------------------------------------------------------------------------------------------------
 */

static void put_name(struct buf *b, const struct served_model *m)
{
    const char *name = m->name ? m->name : "";
    json_put_string(b, name, strlen(name));
}

struct sampler *sampler_new(struct tinker *t, struct session *session, struct served_model *m)
{
    struct sampler *s = mem_zalloc(sizeof *s);
    *s = (struct sampler){.session = session, .model = m};
    if (handles_add(&t->samplers, &s->handle, session->handle.client, SAMPLERS_MAX)) return s;
    free(s);
    return NULL;
}

/* @return the model to sample from; NULL with an answer. */
static struct served_model *model_of(struct http_req *req, struct json_at *at)
{
    const char *base = NULL;
    json_get_string(at, "base_model", &base);
    struct served_model *m = base ? model_table_named(((struct app *)req->app)->models, base) : NULL;
    if (at->e->code)
        tinker_refuse(req, at->e);
    else if (!base)
        http_reply_error(req, 422, "validation", "`base_model` or `model_path` is needed");
    else if (!m)
        http_reply_error(req, 404, "not_found", "`base_model`: there is no model %.200s here", base);
    else if (m->kind && strcmp(m->kind, "generate"))
        http_reply_error(req, 422, "validation", "`base_model`: %.200s gives no text", base);
    else
        return m;
    return NULL;
}

void api_tinker_sampler_create(struct http_req *req)
{
    struct tinker *t = tinker_of(req);
    struct err e = {0};
    struct buf b = {0};
    const char *id = NULL, *path = NULL;
    if (admission_refuses(req, NULL)) return;
    cJSON *tree = tinker_body(req);
    if (!tree) return;
    struct json_at at = {tree, "", &e};
    json_get_string(&at, "session_id", &id);
    if (json_get_string(&at, "model_path", &path) && id) {
        saved_sampler_create(req, id, path);
        json_free(tree);
        return;
    }
    struct served_model *m = model_of(req, &at);
    struct session *session = m ? tinker_session(req, id) : NULL;
    json_free(tree);
    if (!session) return;
    struct sampler *s = sampler_new(t, session, m);
    if (!s) {
        http_set_header(req, "Retry-After", "10");
        http_reply_error(req, 429, "overloaded", "there are %d sampling sessions", SAMPLERS_MAX);
        return;
    }
    buf_printf(&b, "{\"type\":\"create_sampling_session\",\"sampling_session_id\":\"%s\"}", s->handle.id);
    reply(req, b.data);
    buf_free(&b);
}

void api_tinker_sampler_get(struct http_req *req)
{
    const struct sampler *s = (struct sampler *)handles_find(&tinker_of(req)->samplers, req->param, client_id(req));
    struct buf b = {0};
    if (!s) {
        http_reply_error(req, 404, "not_found", "there is no such sampling session");
        return;
    }
    buf_printf(&b, "{\"sampler_id\":\"%s\",\"base_model\":", s->handle.id);
    put_name(&b, s->model);
    if (s->path) buf_printf(&b, ",\"model_path\":\"%s\"", s->path);
    buf_char(&b, '}');
    reply(req, b.data);
    buf_free(&b);
}

/* ---- what the client asks before it begins
 * --------------------------------------------------------------------------- */

void api_tinker_healthz(struct http_req *req)
{
    reply(req, "{\"status\":\"ok\"}");
}

/* Flags that are not here have their defaults, which ask for nothing that is not here. */
void api_tinker_config(struct http_req *req)
{
    reply(req, "{\"pjwt_auth_enabled\":false,\"proto_compress_fwdbwd\":false,\"custom_loss_server_side\":false}");
}

void api_tinker_dynamic_config(struct http_req *req)
{
    reply(req, "{\"refresh_interval_sec\":300,\"sample_cancel_enabled\":false}");
}

/* Nothing is kept of it. */
void api_tinker_telemetry(struct http_req *req)
{
    reply(req, "{\"status\":\"accepted\"}");
}

void api_tinker_capabilities(struct http_req *req)
{
    const struct app *app = req->app;
    struct buf b = {0};
    if (admission_refuses(req, NULL)) return;
    buf_str(&b, "{\"supported_models\":[");
    for (int i = 0, n = 0; i < model_table_count(app->models); i++) {
        const struct served_model *m = model_table_at(app->models, i);
        if (m->kind && strcmp(m->kind, "generate")) continue;
        buf_str(&b, n++ ? ",{\"model_name\":" : "{\"model_name\":");
        put_name(&b, m);
        if (m->max_total_tokens) buf_printf(&b, ",\"max_context_length\":%d", m->max_total_tokens);
        buf_str(&b, ",\"trainable\":true,\"sampleable\":true}");
    }
    buf_str(&b, "]}");
    reply(req, b.data);
    buf_free(&b);
}

/* ---- opening and closing
 * --------------------------------------------------------------------------------------------- */

struct tinker *tinker_open(struct app *app)
{
    struct tinker *t = mem_zalloc(sizeof *t);
    t->app = app;
    t->last = &t->first;
    uv_timer_init(app->loop, &t->tick);
    t->tick.data = t;
    runs_open(t);
    return t;
}

void tinker_drain(struct tinker *t)
{
    t->stopping = true;
    futures_tick(t, clock_now());
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct tinker *t = handle->data;
    void (*closed)(void *) = t->closed;
    void *arg = t->closed_arg;
    if (--t->handles) return;
    uv_mutex_destroy(&t->lock);
    free(t);
    closed(arg);
}

void tinker_check_closed(struct tinker *t)
{
    if (!t->closing || t->runs || t->n_works) return;
    t->handles = 2;
    uv_close((uv_handle_t *)&t->tick, on_handle_closed);
    uv_close((uv_handle_t *)&t->wake, on_handle_closed);
}

void tinker_close(struct tinker *t, void (*done)(void *), void *arg)
{
    for (size_t i = 0; i < t->sessions.n; i++)
        if (t->sessions.v[i]) session_free(t, (struct session *)t->sessions.v[i]);
    handles_free(&t->sessions);
    handles_free(&t->samplers);
    handles_free(&t->futures);
    t->closed = done;
    t->closed_arg = arg;
    runs_close(t);
}
