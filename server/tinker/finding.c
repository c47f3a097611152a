#include "server/tinker/finding.h"

#include "engine/base/mem.h"
#include "server/api/app.h"
#include "server/api/model_table.h"
#include "server/net/http.h"
#include "server/store/store.h"
#include "server/tinker/state.h"

#include <stdlib.h>
#include <string.h>

struct finding {
    struct app *app;
    struct http_req *req; /* NULL once closed */
    struct checkpoint c;
    char owner[CLIENT_NAME];
    struct err e;
    bool with_model, waits;
    struct model_wait wait;
    checkpoint_found_fn *fn;
    void *arg; /* owned */
};

static void end(struct finding *f)
{
    if (f->req) {
        f->req->on_close = NULL;
        f->req->user = NULL;
    }
    checkpoint_free(&f->c);
    free(f->arg);
    free(f);
}

static void on_close(struct http_req *req)
{
    struct finding *f = req->user;
    f->req = NULL;
    if (!f->waits) return;
    model_wait_cancel(f->app->models, &f->wait);
    end(f);
}

static void found(struct finding *f, struct served_model *m)
{
    struct http_req *req = f->req;
    req->on_close = NULL;
    req->user = NULL;
    f->req = NULL;
    f->fn(req, &f->c, m, f->arg);
    if (m) model_release(f->app->models, m);
    end(f);
}

static void on_loaded(void *arg, const struct err *e)
{
    struct finding *f = arg;
    f->waits = false;
    if (!e->code) {
        found(f, f->wait.model);
        return;
    }
    http_reply_error(f->req, 503, "overloaded", "%s", e->msg);
    end(f);
}

static void load_model(struct finding *f)
{
    struct served_model *m = model_table_named(f->app->models, f->c.base);
    if (!m) {
        http_reply_error(f->req, 404, "not_found", "the base of these weights, %.200s, is not here", f->c.base);
        end(f);
    } else if (model_use(f->app->models, m)) {
        found(f, m);
    } else if (model_wait_for(f->app->models, m, &f->wait, f->req, on_loaded, f)) {
        f->wait.model = m;
        f->waits = true;
    } else {
        http_set_header(f->req, "Retry-After", "1");
        http_reply_error(f->req, 429, "overloaded", "too many requests wait for models");
        end(f);
    }
}

static void work_read(void *arg)
{
    struct finding *f = arg;
    checkpoint_read(store_dir(f->app->store), &f->c, f->owner, false, &f->e);
}

static void after_read(void *arg)
{
    struct finding *f = arg;
    if (!f->req) {
        end(f);
    } else if (f->e.code == ERR_NOT_FOUND) {
        http_reply_error(f->req, 404, "not_found", "%s", f->e.msg);
        end(f);
    } else if (f->e.code) {
        bool damaged = f->e.code == ERR_INVALID;
        http_reply_error(f->req, damaged ? 422 : 500, damaged ? "validation" : "storage", "%s", f->e.msg);
        end(f);
    } else if (f->with_model) {
        load_model(f);
    } else {
        found(f, NULL);
    }
}

void checkpoint_find(struct http_req *req, const char *path, bool with_model, checkpoint_found_fn *fn, void *arg)
{
    struct err e = {0};
    struct finding *f = mem_zalloc(sizeof *f);
    *f = (struct finding){.app = req->app, .with_model = with_model, .fn = fn, .arg = arg};
    if (checkpoint_parse(&f->c, path, &e)) {
        tinker_refuse(req, &e);
        end(f);
        return;
    }
    client_name(req, f->owner);
    f->req = req;
    req->user = f;
    req->on_close = on_close;
    tinker_work(f->app->tinker, client_id(req), work_read, after_read, f);
}
