#include "server/api/model_dispatch.h"

#include "engine/base/mem.h"
#include "server/access/admission.h"
#include "server/access/client.h"
#include "server/api/app.h"
#include "server/api/model_table.h"
#include "server/api/models.h"
#include "server/api/store_request.h"
#include "server/bridge/bridge.h"
#include "server/json/find.h"
#include "server/metrics/metrics.h"
#include "server/net/http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SCAN_INLINE = 256 * 1024, /* a longer body is searched on the pool */
    NAME_MAX_BYTES = 512,
    RETRY_SECONDS = 5,
};

/* A request that waits for its model. */
struct pending {
    struct model_wait wait;
    struct http_req *req;
    void (*handler)(struct http_req *);
};

/* A request whose body is searched on the pool. */
struct search {
    struct http_req *req; /* NULL once closed */
    struct http_body body;
    void (*handler)(struct http_req *);
    const char *fields;
    char name[NAME_MAX_BYTES];
    bool strict, as_is;
};

/* ---- refusing ---------------------------------------------------------------------------------------------------- */

static void reply_unknown(struct http_req *req, const char *name)
{
    struct err e = {0};
    struct buf out = {0};
    models_say_unknown(req->app, name, &e);
    metrics_reject(&((struct app *)req->app)->metrics, REJECT_VALIDATION);
    if (!http_speaks_openai(req->path)) {
        http_reply_error(req, 404, "model_not_found", "%s", e.msg);
        return;
    }
    store_request_put_error(&out, true, 404, "model_not_found", "model", e.msg);
    http_reply(req, 404, "application/json", out.data, out.len);
    buf_free(&out);
}

static void reply_failed(struct http_req *req, const struct err *e)
{
    char text[16];
    bool passes = e->code == ERR_FULL || e->code == ERR_LOST;
    snprintf(text, sizeof text, "%d", RETRY_SECONDS);
    http_set_header(req, "Retry-After", text);
    metrics_reject(&((struct app *)req->app)->metrics, REJECT_LOADING);
    http_reply_error(req, 503,
                     e->code == ERR_LOST ? "draining"
                     : passes            ? "loading"
                                         : "model_load_failed",
                     "%s%s", passes ? "" : "the model could not be loaded: ", e->msg);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static void on_close(struct http_req *req)
{
    struct pending *p = req->user;
    model_wait_cancel(((struct app *)req->app)->models, &p->wait);
}

static void on_loaded(void *arg, const struct err *e)
{
    struct pending *p = arg;
    struct http_req *req = p->req;
    req->user = NULL;
    req->on_close = NULL;
    if (e->code) {
        reply_failed(req, e);
    } else {
        req->model = p->wait.model;
        p->handler(req);
    }
}

static void run(struct http_req *req, void (*handler)(struct http_req *), struct served_model *m, bool as_is)
{
    struct app *app = req->app;
    if (as_is) {
        model_use_as_is(m);
        req->model = m;
        handler(req);
        return;
    }
    if (model_use(app->models, m)) {
        req->model = m;
        handler(req);
        return;
    }
    struct pending *p = http_alloc(req, sizeof *p);
    p->req = req;
    p->handler = handler;
    req->user = p;
    req->on_close = on_close;
    if (model_wait_for(app->models, m, &p->wait, req, on_loaded, p)) return;
    req->user = NULL;
    req->on_close = NULL;
    admission_reply_full(req);
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

/* The first of the fields, separated by spaces, that the body has; "" where it has none.  @return false: what it names
 * may be unknown here, and the handler says so. */
static bool find_name(const char *body, size_t n, const char *fields, char out[NAME_MAX_BYTES])
{
    char path[64];
    *out = 0;
    for (const char *at = fields; *at; at += strspn(at, " ")) {
        size_t len = strcspn(at, " ");
        snprintf(path, sizeof path, "%.*s", (int)len, at);
        if (json_find_string(body, n, path, out, NAME_MAX_BYTES)) return !strchr(path, '.');
        at += len;
    }
    *out = 0;
    return true;
}

static void choose(struct http_req *req, void (*handler)(struct http_req *), const char *name, bool strict, bool as_is)
{
    struct app *app = req->app;
    struct served_model *m = model_table_find(app->models, name, NULL);
    if (m || !strict)
        run(req, handler, m ? m : app->model, as_is);
    else
        reply_unknown(req, name);
}

static void on_search_close(struct http_req *req)
{
    ((struct search *)req->user)->req = NULL;
}

static void work_search(void *arg)
{
    struct search *s = arg;
    s->strict = find_name(s->body.data ? s->body.data : "", s->body.len, s->fields, s->name);
}

static void after_search(void *arg)
{
    struct search *s = arg;
    if (s->req) {
        s->req->on_close = NULL;
        s->req->user = NULL;
        http_return_body(s->req, &s->body);
        choose(s->req, s->handler, s->name, s->strict, s->as_is);
    }
    http_body_free(&s->body);
    free(s);
}

void model_dispatch(struct http_req *req, void (*handler)(struct http_req *), const char *fields)
{
    struct app *app = req->app;
    char name[NAME_MAX_BYTES] = "";
    bool as_is = *fields == '?';
    fields += as_is;
    if (app->state != SERVING_READY) { /* it refuses */
        handler(req);
        return;
    }
    if (model_table_count(app->models) == 1) {
        run(req, handler, app->model, as_is);
        return;
    }
    if (query_get(req->query, "model", name, sizeof name) && *name) {
        choose(req, handler, name, true, as_is);
        return;
    }
    if (req->body_len > SCAN_INLINE && *fields) {
        struct search *s = mem_zalloc(sizeof *s);
        *s = (struct search){.req = req, .handler = handler, .fields = fields, .as_is = as_is};
        http_take_body(req, &s->body);
        req->user = s;
        req->on_close = on_search_close;
        bridge_work(app->bridge, client_id(req), work_search, after_search, s);
        return;
    }
    bool strict = find_name(req->body, req->body_len, fields, name);
    choose(req, handler, name, strict, as_is);
}

void model_dispatch_release(void *app, void *model)
{
    model_release(((struct app *)app)->models, model);
}
