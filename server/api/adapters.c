/* Adapters: GET /adapters, GET and DELETE /adapters/NAME, POST /adapters, and vLLM's two equivalent routes.
 *
 * Loading reads files and waits until the engine is between two steps, so it runs on the pool; the other routes are
 * table look-ups.  Loop thread, except work_load. */
#include "server/api/adapters.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/access/admission.h"
#include "server/access/keys.h"
#include "server/api/adapter_dir.h"
#include "server/api/app.h"
#include "server/api/model_table.h"
#include "server/api/models.h"
#include "server/api/request_body.h"
#include "server/api/routes.h"
#include "server/api/store_request.h"
#include "server/bridge/bridge.h"
#include "server/config/settings.h"
#include "server/hub/repo.h"
#include "server/json/json.h"
#include "server/json/names.h"
#include "server/net/http.h"
#include "server/store/data_dir.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LOADS_MAX = 2 }; /* at once: the pool also tokenises */

/* ---- looking ---- */

static void put_adapter(struct buf *out, const struct served_model *m, const struct adapter_info *a)
{
    buf_str(out, "{\"name\":");
    json_put_string(out, a->name, strlen(a->name));
    buf_str(out, ",\"base\":");
    json_put_string(out, m->id, strlen(m->id));
    buf_printf(out, ",\"version\":%llu,\"r\":%d,\"lora_alpha\":", (unsigned long long)a->version, a->r);
    json_put_number(out, a->alpha);
    buf_printf(out, ",\"use_rslora\":%s,\"scores\":%s,\"bytes\":%zu,\"requests\":%d,\"target_modules\":[",
               a->rslora ? "true" : "false", a->scores ? "true" : "false", a->bytes, a->requests);
    for (const char *at = a->targets; *at; at += *at == ',') {
        size_t n = strcspn(at, ",");
        if (at != a->targets) buf_char(out, ',');
        json_put_string(out, at, n);
        at += n;
    }
    buf_str(out, "]}");
}

/* One of a model that is not loaded. */
static void put_unloaded(struct buf *out, const struct served_model *m, const char *name)
{
    buf_str(out, "{\"name\":");
    json_put_string(out, name, strlen(name));
    buf_str(out, ",\"base\":");
    json_put_string(out, m->id, strlen(m->id));
    buf_str(out, ",\"loaded\":false}");
}

/* all adapters of a loaded model, owned by the caller */
static struct adapter_info *list(const struct served_model *m, int *n)
{
    int max = m->info->max_adapters;
    struct adapter_info *v = mem_array((size_t)max, sizeof *v);
    *n = engine_adapters_list(m->engine, v, max);
    return v;
}

static bool not_ready(struct app *app, struct http_req *req)
{
    return admission_refuses(req, NULL);
}

static void reply_json(struct http_req *req, int status, struct buf *out)
{
    http_reply(req, status, "application/json", out->data, out->len);
    buf_free(out);
}

/* @return the bytes of the adapters of a model, which it appends. */
static size_t put_all(struct buf *out, const struct served_model *m, bool *first)
{
    int n = 0;
    size_t bytes = 0;
    struct adapter_info *v = m->engine ? list(m, &n) : NULL;
    for (int i = 0; i < n; i++) {
        if (!*first) buf_char(out, ',');
        *first = false;
        put_adapter(out, m, &v[i]);
        bytes += v[i].bytes;
    }
    free(v);
    for (size_t i = 0; i < m->n_adapters && !m->engine; i++) {
        if (!*first) buf_char(out, ',');
        *first = false;
        put_unloaded(out, m, m->adapters[i].name);
    }
    return bytes;
}

void api_adapters_list(struct http_req *req)
{
    struct app *app = req->app;
    struct buf out = {0};
    bool first = true;
    size_t bytes = 0;
    if (not_ready(app, req)) return;
    buf_str(&out, "{\"adapters\":[");
    for (int i = 0; i < model_table_count(app->models); i++)
        bytes += put_all(&out, model_table_at(app->models, i), &first);
    buf_printf(&out, "],\"bytes\":%zu,\"max_adapters\":%d,\"max_lora_rank\":%d}", bytes, app->set->max_adapters,
               app->set->max_lora_rank);
    reply_json(req, 200, &out);
}

/* The model that has the adapter; NULL and *e: none has. */
static struct served_model *model_with(struct app *app, const char *name, struct err *e)
{
    bool adapter = false;
    struct served_model *m = model_table_find(app->models, name, &adapter);
    if (m && adapter) return m;
    if (app->model->engine)
        engine_adapter_check(app->model->engine, name, e);
    else
        err_set(e, ERR_NOT_FOUND, "no model has an adapter %.100s", name);
    return NULL;
}

void api_adapters_get(struct http_req *req)
{
    struct app *app = req->app;
    struct buf out = {0};
    struct err e = {0};
    if (not_ready(app, req)) return;
    const struct served_model *m = model_with(app, req->param, &e);
    if (!m) {
        http_reply_error(req, 404, "not_found", "%s", e.msg);
        return;
    }
    int n = 0;
    struct adapter_info *v = m->engine ? list(m, &n) : NULL;
    for (int i = 0; i < n; i++)
        if (strcmp(v[i].name, req->param) == 0) put_adapter(&out, m, &v[i]);
    free(v);
    if (!m->engine) put_unloaded(&out, m, req->param);
    reply_json(req, 200, &out);
}

/* ---- deleting ---- */

/* with ?files=true: also removes its directory in the data directory, or the next start would load it again */
struct deletion {
    struct app *app;
    struct http_req *req;         /* NULL once the client is gone */
    char *name;                   /* owned */
    bool openai;                  /* answers are in OpenAI's format */
    bool unloaded, removed, left; /* left: its files could not be removed */
    struct err e;
};

static void put_deleted(struct buf *out, const char *name)
{
    buf_str(out, "{\"name\":");
    json_put_string(out, name, strlen(name));
    buf_str(out, ",\"deleted\":true");
}

static void on_deletion_close(struct http_req *req)
{
    ((struct deletion *)req->user)->req = NULL;
}

static void work_remove(void *arg)
{
    struct deletion *d = arg;
    struct stat st;
    if (!data_name_ok(d->name)) return;
    char *path = data_path(settings_data_dir(d->app->set), "adapters", d->name);
    d->removed = lstat(path, &st) == 0;
    if (d->removed) data_remove(path);
    d->left = d->removed && lstat(path, &st) == 0;
    free(path);
    path = data_path(settings_data_dir(d->app->set), "adapters-before", d->name);
    data_remove(path);
    free(path);
}

static void reply_deletion(struct deletion *d)
{
    struct buf out = {0};
    if (d->left) {
        store_request_reply_error(d->req, d->openai, 507, "storage",
                                  "%.100s: its files in the data directory stay: the next start would load it again",
                                  d->name);
    } else if (!d->unloaded && !d->removed) {
        store_request_reply_error(d->req, d->openai, 404, d->openai ? "model_not_found" : "not_found", "%s", d->e.msg);
    } else if (d->openai) {
        buf_str(&out, "{\"id\":");
        json_put_string(&out, d->name, strlen(d->name));
        buf_str(&out, ",\"object\":\"model\",\"deleted\":true}");
        reply_json(d->req, 200, &out);
    } else {
        put_deleted(&out, d->name);
        buf_printf(&out, ",\"files_deleted\":%s}", d->removed ? "true" : "false");
        reply_json(d->req, 200, &out);
    }
}

static void after_remove(void *arg)
{
    struct deletion *d = arg;
    if (d->req) {
        d->req->on_close = NULL;
        reply_deletion(d);
    }
    free(d->name);
    free(d);
}

/* @return whether a model had it, and has it no longer. */
static bool unload(struct app *app, const char *name, struct err *e)
{
    struct served_model *m = model_with(app, name, e);
    if (!m) return false;
    if (m->state == MODEL_LOADING) /* its thread reads them */
        return err_set(e, ERR_FULL, "the model of the adapter %.100s is being loaded: try again", name), false;
    if (m->engine && engine_adapter_unload(m->engine, name, e)) return false;
    served_adapter_forget(m, name);
    return true;
}

/* Unloads the adapter and removes its files; answers either way. */
static void delete_all(struct http_req *req, const char *name, bool openai)
{
    struct app *app = req->app;
    struct err e = {0};
    bool unloaded = unload(app, name, &e);
    if (!unloaded && e.code == ERR_FULL) {
        http_set_header(req, "Retry-After", "1");
        store_request_reply_error(req, openai, 409, "conflict", "%s", e.msg);
        return;
    }
    if (unloaded) log_info("adapter unloaded name=%s", name);
    struct deletion *d = mem_zalloc(sizeof *d);
    *d = (struct deletion){
        .app = app, .req = req, .name = mem_strdup(name), .openai = openai, .unloaded = unloaded, .e = e};
    req->user = d;
    req->on_close = on_deletion_close;
    bridge_work(app->bridge, 0, work_remove, after_remove, d);
}

/* OpenAI's way to delete a fine-tuned model: as DELETE /adapters/NAME?files=true, so that it stays deleted. */
void api_models_delete(struct http_req *req)
{
    struct app *app = req->app;
    const char *name = req->path + strlen("/v1/models/");
    bool adapter = false;
    if (not_ready(app, req)) return;
    const struct served_model *m = *name ? model_table_find(app->models, name, &adapter) : NULL;
    if (m && !adapter && (strcmp(m->name, name) == 0 || models_is_served(app->set, name)))
        store_request_reply_error(
            req, true, 400, "invalid_request",
            "The model `%.100s` is one that this server was started with: only fine-tuned models can be deleted", name);
    else
        delete_all(req, name, true);
}

void api_adapters_delete(struct http_req *req)
{
    struct app *app = req->app;
    struct err e = {0};
    char files[8] = "";
    if (not_ready(app, req)) return;
    if (query_get(req->query, "files", files, sizeof files) && strcmp(files, "true") != 0 &&
        strcmp(files, "false") != 0) {
        http_reply_error(req, 422, "validation", "files: must be true or false");
        return;
    }
    if (strcmp(files, "true") == 0) {
        delete_all(req, req->param, false);
    } else if (unload(app, req->param, &e)) {
        log_info("adapter unloaded name=%s", req->param);
        struct buf out = {0};
        put_deleted(&out, req->param);
        buf_char(&out, '}');
        reply_json(req, 200, &out);
    } else {
        http_reply_error(req, e.code == ERR_FULL ? 409 : 404, e.code == ERR_FULL ? "conflict" : "not_found", "%s",
                         e.msg);
    }
}

/* ---- loading ---- */

struct loading {
    struct app *app;
    struct http_req *req;          /* NULL once the client disconnected; loading continues */
    bool vllm, may_download, busy; /* busy: another download runs */
    bool of_hub;                   /* the error is the hub's */
    struct served_model *served;   /* its base; used while it lasts */
    char *name, *path, *dir;       /* owned; dir: where it was found */
    uint64_t version;
    struct err e;
};

static void on_close(struct http_req *req)
{
    ((struct loading *)req->user)->req = NULL;
}

/* A name of the hub, from its cache or downloaded.  One at a time: it holds a thread of the pool while the network
 * sends.  @return NULL: l->e says why, unchanged where the path is no name */
static char *find_on_hub(struct loading *l)
{
    struct hub h;
    struct hub_found f = {0};
    struct repo_name r;
    struct err e = {0};
    hub_open(&h);
    h.wants = HUB_ADAPTER;
    h.stop = &l->app->stopping;
    if (!repo_parse(&r, l->path, h.endpoint, &e) && !e.code) {
        hub_close(&h);
        return NULL;
    }
    if (atomic_exchange(&l->app->downloading, true)) {
        hub_close(&h);
        l->busy = true;
        return NULL;
    }
    int rc = hub_resolve_name(&h, l->path, &f, &e);
    hub_close(&h);
    atomic_store(&l->app->downloading, false);
    if (rc) l->e = e, l->of_hub = true;
    char *dir = f.path;
    f.path = NULL;
    if (dir) log_info("adapter found on the hub name=%.100s repository=%.100s", l->name, f.name);
    hub_found_free(&f);
    return dir;
}

static void work_load(void *arg)
{
    struct loading *l = arg;
    char *dir = adapter_dir_find(l->app->set, l->path, &l->e);
    if (!dir && l->e.code == ERR_NOT_FOUND && l->may_download) {
        dir = find_on_hub(l);
        if (dir) l->e.code = 0;
    }
    if (dir) engine_adapter_load(l->served->engine, l->name, dir, &l->version, &l->e);
    l->dir = dir;
}

/* vLLM's errors are OpenAI's */
static void reply_failed(struct http_req *req, bool vllm, int status, const char *type, const char *msg)
{
    if (!vllm) {
        http_reply_error(req, status, type, "%s", msg);
        return;
    }
    struct buf out = {0};
    buf_str(&out, "{\"error\":{\"message\":");
    json_put_string(&out, msg, strlen(msg));
    buf_printf(&out, ",\"type\":\"%s\",\"param\":null,\"code\":%d}}",
               status == 404   ? "NotFoundError"
               : status >= 500 ? "InternalServerError"
                               : "BadRequestError",
               status);
    reply_json(req, status, &out);
}

static int status_of(const struct loading *l)
{
    switch (l->e.code) {
    case ERR_NOT_FOUND: return 404;
    case ERR_FULL: return 409; /* --max-adapters reached: delete one first */
    case ERR_NOMEM: return 507;
    case ERR_IO: return l->of_hub ? 502 : 500;
    default: return 422;
    }
}

static void reply_loaded(struct loading *l)
{
    struct buf out = {0};
    if (l->vllm) {
        buf_printf(&out, "Success: LoRA adapter '%s' added successfully.", l->name);
        http_reply(l->req, 200, "text/plain; charset=utf-8", out.data, out.len);
        buf_free(&out);
        return;
    }
    buf_str(&out, "{\"name\":");
    json_put_string(&out, l->name, strlen(l->name));
    buf_printf(&out, ",\"version\":%llu}", (unsigned long long)l->version);
    reply_json(l->req, 201, &out);
}

static void reply_busy(struct http_req *req, bool vllm, const char *why)
{
    http_set_header(req, "Retry-After", "1");
    reply_failed(req, vllm, 429, "overloaded", why);
}

static void after_load(void *arg)
{
    struct loading *l = arg;
    l->app->adapter_loads--;
    if (!l->e.code && l->dir) served_adapter_keep(l->served, l->name, l->dir);
    model_release(l->app->models, l->served);
    if (l->e.code) log_warn("adapter not loaded name=%.100s reason=\"%s\"", l->name, l->e.msg);
    if (l->req) {
        l->req->on_close = NULL;
        if (l->busy)
            reply_busy(l->req, l->vllm, "another adapter is being downloaded");
        else if (!l->e.code)
            reply_loaded(l);
        else
            reply_failed(l->req, l->vllm, status_of(l), l->e.code == ERR_NOT_FOUND ? "not_found" : "validation",
                         l->e.msg);
    }
    free(l->name);
    free(l->path);
    free(l->dir);
    free(l);
}

static void begin_load(struct http_req *req, bool vllm, const char *name, const char *path)
{
    struct app *app = req->app;
    struct loading *l = mem_zalloc(sizeof *l);
    *l = (struct loading){.app = app, .req = req, .vllm = vllm, .name = mem_strdup(name), .path = mem_strdup(path)};
    l->served = served_model_of(req);
    model_use_again(l->served);
    l->may_download = !req->key || req->key->role == KEY_ADMIN; /* disk and network are the operators' */
    req->user = l;
    req->on_close = on_close;
    app->adapter_loads++;
    bridge_work(app->bridge, 0, work_load, after_load, l);
}

/* Reads the body's two strings (path_key NULL: one).  @return false when it was refused. */
static bool read_body(struct http_req *req, bool vllm, const char *name_key, const char *path_key, const char **name,
                      const char **path, cJSON **tree)
{
    struct err e = {0};
    *tree = json_parse_body(req->body, req->body_len, &e);
    if (!*tree) {
        if (!body_reply_memory(req->app, req, &e)) reply_failed(req, vllm, 400, "validation", e.msg);
        return false;
    }
    struct json_at top = {.obj = *tree, .path = "", .e = &e};
    const char *missing = NULL, *known[] = {name_key, path_key, "base"};
    if (!cJSON_IsObject(*tree))
        err_set(&e, ERR_INVALID, "expected a JSON object with the field `%s`", name_key);
    else if (!vllm) /* vLLM's clients send fields that tandem does not use */
        json_only(&top, known, path_key ? 3 : 1);
    if (!e.code && !json_get_string(&top, name_key, name))
        missing = name_key;
    else if (!e.code && path_key && !json_get_string(&top, path_key, path))
        missing = path_key;
    if (missing && !e.code) err_set(&e, ERR_INVALID, "%s: the field is missing", missing);
    if (!e.code) return true;
    reply_failed(req, vllm, vllm ? 400 : 422, "validation", e.msg);
    return false;
}

/* @return false when the name is a model's, or of another model's adapter: refused. */
static bool check_name(struct http_req *req, bool vllm, const char *name)
{
    struct app *app = req->app;
    struct err e = {0};
    bool adapter = false;
    const struct served_model *m = model_table_find(app->models, name, &adapter);
    if (models_is_taken(app, name))
        err_set(&e, ERR_INVALID, "%.100s is the name of the model itself: an adapter needs another", name);
    else if (m && adapter && m != served_model_of(req))
        err_set(&e, ERR_INVALID, "%.100s is an adapter of the model %.100s: delete it there, or choose another name",
                name, m->name);
    if (!e.code) return true;
    log_warn("adapter not loaded name=%.100s reason=\"%s\"", name, e.msg);
    reply_failed(req, vllm, 422, "validation", e.msg);
    return false;
}

static void load(struct http_req *req, bool vllm)
{
    struct app *app = req->app;
    const char *name = NULL, *path = NULL;
    cJSON *tree;
    if (not_ready(app, req)) return;
    if (app->adapter_loads >= LOADS_MAX) {
        reply_busy(req, vllm, "other adapters are being loaded");
        return;
    }
    if (read_body(req, vllm, vllm ? "lora_name" : "name", vllm ? "lora_path" : "path", &name, &path, &tree) &&
        check_name(req, vllm, name))
        begin_load(req, vllm, name, path);
    json_free(tree);
}

void api_adapters_load(struct http_req *req)
{
    load(req, false);
}

void api_lora_load(struct http_req *req)
{
    load(req, true);
}

void api_lora_unload(struct http_req *req)
{
    struct app *app = req->app;
    const char *name, *none;
    cJSON *tree;
    struct err e = {0};
    if (not_ready(app, req)) return;
    if (read_body(req, true, "lora_name", NULL, &name, &none, &tree)) {
        struct buf out = {0};
        if (!unload(app, name, &e)) {
            reply_failed(req, true, e.code == ERR_FULL ? 409 : 404, NULL, e.msg);
        } else {
            log_info("adapter unloaded name=%s", name);
            buf_printf(&out, "Success: LoRA adapter '%s' removed successfully.", name);
            http_reply(req, 200, "text/plain; charset=utf-8", out.data, out.len);
        }
        buf_free(&out);
    }
    json_free(tree);
}

int adapters_publish_dir(const struct served_model *m, const char *name, const char *dir, struct err *e)
{
    return engine_adapter_load(m->engine, name, dir, NULL, e);
}

void adapters_supersede(struct app *app, const struct served_model *by, const char *name)
{
    struct err none = {0};
    for (int i = 0; i < model_table_count(app->models); i++) {
        struct served_model *m = model_table_at(app->models, i);
        if (m == by || m->state == MODEL_LOADING) continue;
        if (m->engine) engine_adapter_unload(m->engine, name, &none);
        served_adapter_forget(m, name);
    }
}
