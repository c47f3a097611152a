/* POST /models/load and /models/unload: {"model": "NAME"}.  Loop thread. */
#include "engine/base/log.h"
#include "server/access/admission.h"
#include "server/api/app.h"
#include "server/api/model_table.h"
#include "server/api/models.h"
#include "server/api/request_body.h"
#include "server/api/routes.h"
#include "server/json/json.h"
#include "server/net/http.h"

#include <string.h>

/* A client that waits until a model is loaded. */
struct load {
    struct model_wait wait;
    struct http_req *req;
};

static void reply_done(struct http_req *req, const struct served_model *m)
{
    struct buf out = {0};
    buf_str(&out, "{\"success\":true,\"model\":");
    json_put_string(&out, m->name, strlen(m->name));
    buf_printf(&out, ",\"state\":\"%s\"}", model_state_names[m->state]);
    http_reply(req, 200, "application/json", out.data, out.len);
    buf_free(&out);
}

/* @return the model that the body names; NULL when it was refused. */
static struct served_model *read_model(struct http_req *req)
{
    struct app *app = req->app;
    struct err e = {0};
    const char *name = NULL;
    struct served_model *m = NULL;
    if (admission_refuses(req, NULL)) return NULL;
    cJSON *tree = json_parse_body(req->body, req->body_len, &e);
    struct json_at top = {.obj = tree, .path = "", .e = &e};
    if (!tree) {
        if (!body_reply_memory(app, req, &e)) http_reply_error(req, 400, "validation", "%s", e.msg);
        return NULL;
    }
    if (!cJSON_IsObject(tree))
        err_set(&e, ERR_INVALID, "expected a JSON object with the field `model`");
    else if (!json_get_string(&top, "model", &name) && !e.code)
        err_set(&e, ERR_INVALID, "model: the field is missing");
    if (!e.code) {
        bool adapter = false;
        m = model_table_find(app->models, name, &adapter);
        if (!m || adapter || !name || !*name) m = NULL, models_say_unknown(app, name, &e);
    }
    if (!m)
        http_reply_error(req, e.code == ERR_NOT_FOUND ? 404 : 422, e.code == ERR_NOT_FOUND ? "not_found" : "validation",
                         "%s", e.msg);
    json_free(tree);
    return m;
}

static void on_close(struct http_req *req)
{
    struct load *l = req->user;
    model_wait_cancel(((struct app *)req->app)->models, &l->wait);
}

static void on_loaded(void *arg, const struct err *e)
{
    struct load *l = arg;
    struct app *app = l->req->app;
    l->req->on_close = NULL;
    if (!e->code) {
        model_release(app->models, l->wait.model);
        reply_done(l->req, l->wait.model);
        return;
    }
    bool passes = e->code == ERR_FULL || e->code == ERR_LOST;
    http_set_header(l->req, "Retry-After", "5");
    http_reply_error(l->req, 503, passes ? "loading" : "model_load_failed", "%s", e->msg);
}

void api_models_load(struct http_req *req)
{
    struct app *app = req->app;
    struct served_model *m = read_model(req);
    if (!m) return;
    if (m->state == MODEL_LOADED) {
        reply_done(req, m);
        return;
    }
    struct load *l = http_alloc(req, sizeof *l);
    l->req = req;
    req->user = l;
    req->on_close = on_close;
    if (model_wait_for(app->models, m, &l->wait, req, on_loaded, l)) return;
    req->on_close = NULL;
    admission_reply_full(req);
}

void api_models_unload(struct http_req *req)
{
    struct app *app = req->app;
    struct err e = {0};
    struct served_model *m = read_model(req);
    if (!m) return;
    if (m->state == MODEL_UNLOADED || model_unload(app->models, m, &e) == 0) {
        log_info("model unload asked: model=%s", m->name);
        reply_done(req, m);
        return;
    }
    http_set_header(req, "Retry-After", "1");
    http_reply_error(req, 409, "conflict", "%s", e.msg);
}
