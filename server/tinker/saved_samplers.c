/* Sampling sessions on weights that were saved under a name: their adapter is loaded from its files, and stays loaded
 * as long as the session does, or until it has begun too many others. */
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "engine/train/tuner_files.h"
#include "server/api/app.h"
#include "server/api/model_table.h"
#include "server/net/http.h"
#include "server/store/store.h"
#include "server/tinker/finding.h"
#include "server/tinker/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct opening {
    struct app *app;
    struct http_req *req; /* NULL once closed */
    struct served_model *model;
    char session[HANDLE_ID], adapter[ADAPTER_NAME_MAX + 1], owner[CLIENT_NAME];
    struct checkpoint saved; /* owned */
    char *path;              /* its; owned */
    bool loaded;
    struct err e;
};

static void unuse(struct app *app, struct served_model *m)
{
    model_unhold(m);
    model_release(app->models, m);
}

void saved_sampler_forget(struct tinker *t, struct sampler *s)
{
    struct err e = {0};
    if (!s->path || s->gone) return;
    s->gone = true;
    engine_adapter_unload(s->model->engine, s->adapter, &e);
    unuse(t->app, s->model);
}

/* The session's oldest, where there are too many; names are numbered. */
static void drop_oldest(struct tinker *t, const struct session *session)
{
    struct sampler *oldest = NULL;
    int n = 0;
    for (size_t i = 0; i < t->samplers.n; i++) {
        struct sampler *s = (struct sampler *)t->samplers.v[i];
        if (!s || s->session != session || !s->path || s->gone) continue;
        if (!oldest || strcmp(s->adapter, oldest->adapter) < 0) oldest = s;
        n++;
    }
    if (n > SNAPSHOTS_MAX) saved_sampler_forget(t, oldest);
}

static void answer(struct opening *o)
{
    struct http_req *req = o->req;
    struct tinker *t = o->app->tinker;
    struct buf b = {0};
    req->on_close = NULL;
    req->user = NULL;
    if (o->e.code == ERR_NOT_FOUND) {
        http_reply_error(req, 404, "not_found", "%s", o->e.msg);
        return;
    }
    if (o->e.code) {
        http_reply_error(req, o->e.code == ERR_INVALID ? 422 : 503,
                         o->e.code == ERR_INVALID ? "validation" : "overloaded", "`model_path`: %s", o->e.msg);
        return;
    }
    struct session *session = tinker_session(req, o->session);
    struct sampler *s = session ? sampler_new(t, session, o->model) : NULL;
    if (!session) return;
    if (!s) {
        http_reply_error(req, 429, "overloaded", "there are %d sampling sessions", SAMPLERS_MAX);
        return;
    }
    s->adapter = mem_strdup(o->adapter);
    s->path = o->path;
    o->path = NULL;
    o->loaded = false; /* the sampler's */
    o->model = NULL;
    drop_oldest(t, session);
    buf_printf(&b, "{\"type\":\"create_sampling_session\",\"sampling_session_id\":\"%s\"}", s->handle.id);
    http_reply(req, 200, "application/json", b.data, b.len);
    buf_free(&b);
}

/* The base model may have been loaded since the weights were found, for minutes: whether the client may still read them
 * is asked again. */
static void work_load(void *arg)
{
    struct opening *o = arg;
    const char *data = store_dir(o->app->store);
    int64_t steps;
    if (checkpoint_read(data, &o->saved, o->owner, false, &o->e)) return;
    char *dir = checkpoint_dir(data, &o->saved);
    if (!tuner_files_check(dir, &steps, &o->e))
        o->loaded = !engine_adapter_load_unlisted(o->model->engine, o->adapter, dir, NULL, &o->e);
    free(dir);
}

static void after_load(void *arg)
{
    struct opening *o = arg;
    struct err e = {0};
    if (o->req) answer(o);
    if (o->loaded) engine_adapter_unload(o->model->engine, o->adapter, &e);
    if (o->model) unuse(o->app, o->model);
    checkpoint_free(&o->saved);
    free(o->path);
    free(o);
}

static void on_close(struct http_req *req)
{
    ((struct opening *)req->user)->req = NULL;
}

static void on_found(struct http_req *req, struct checkpoint *c, struct served_model *m, void *arg)
{
    static uint64_t last;
    struct buf path = {0};
    struct opening *o = mem_zalloc(sizeof *o);
    *o = (struct opening){.app = req->app, .req = req, .model = m, .saved = {.sampler = c->sampler}};
    memcpy(o->saved.run, c->run, sizeof o->saved.run);
    memcpy(o->saved.name, c->name, sizeof o->saved.name);
    client_name(req, o->owner);
    checkpoint_put_path(&path, c);
    o->path = path.data;
    snprintf(o->session, sizeof o->session, "%s", (const char *)arg);
    snprintf(o->adapter, sizeof o->adapter, "@tinker-saved-%010llu", (unsigned long long)++last);
    model_use_again(m);
    model_hold(m);
    req->user = o;
    req->on_close = on_close;
    tinker_work(o->app->tinker, client_id(req), work_load, after_load, o);
}

void saved_sampler_create(struct http_req *req, const char *session, const char *path)
{
    if (tinker_session(req, session)) checkpoint_find(req, path, true, on_found, mem_strdup(session));
}
