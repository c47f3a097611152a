/* Names of models (models.h), and GET /v1/models and /v1/models/{id}. */
#include "server/api/models.h"

#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/access/admission.h"
#include "server/api/app.h"
#include "server/api/routes.h"
#include "server/api/served_model.h"
#include "server/api/store_request.h"
#include "server/config/settings.h"
#include "server/json/json.h"
#include "server/net/http.h"

#include <stdlib.h>
#include <string.h>

/* ---- names ----------------------------------------------------------------------------------------------------- */

char *models_base_name(const struct settings *set, const struct engine_info *info)
{
    size_t n = strcspn(set->served_model_name, ",");
    return n ? mem_strndup(set->served_model_name, n) : mem_strdup(info->model_id);
}

static bool is_listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    while (*list) {
        size_t len = strcspn(list, ",");
        if (len == n && memcmp(list, name, n) == 0) return true;
        list += len + (list[len] == ',');
    }
    return false;
}

bool models_is_base(const struct settings *set, const struct engine_info *info, const char *name)
{
    return *set->served_model_name ? is_listed(set->served_model_name, name) : strcmp(name, info->model_id) == 0;
}

static struct adapter_info *adapters_of(const struct served_model *served, int *n)
{
    int max = served->info->max_adapters;
    struct adapter_info *v = mem_array((size_t)max, sizeof *v);
    *n = engine_adapters_list(served->engine, v, max);
    return v;
}

/* "The model `x` does not exist: this server has `demo`, `pirate`", with as many names as fit. */
static void say_unknown(const struct served_model *served, const char *name, struct err *e)
{
    struct buf names = {0};
    int n;
    struct adapter_info *v = adapters_of(served, &n);
    buf_printf(&names, "`%.100s`", served->name);
    for (int i = 0; i < n && names.len < 240; i++) buf_printf(&names, ", `%s`", v[i].name);
    err_set(e, ERR_NOT_FOUND, "The model `%.100s` does not exist: this server has %s.", name, names.data);
    buf_free(&names);
    free(v);
}

bool models_find(const struct app *app, const struct served_model *served, const char *name, struct model_choice *m,
                 struct err *e)
{
    struct err none = {0};
    *m = (struct model_choice){.name = served->name};
    if (!name || !*name || strcmp(name, served->name) == 0) return true;
    if (is_listed(app->set->served_model_name, name)) {
        m->name = name;
        return true;
    }
    if (engine_adapter_check(served->engine, name, &none) == 0) {
        m->name = m->adapter = name;
        return true;
    }
    if (app->set->accept_any_model || strcmp(name, "tgi") == 0 || strcmp(name, "dummy") == 0) return true;
    say_unknown(served, name, e);
    return false;
}

/* ---- routes ---------------------------------------------------------------------------------------------------- */

static void put_string(struct buf *out, const char *name, const char *value)
{
    buf_printf(out, ",\"%s\":", name);
    if (value)
        json_put_string(out, value, strlen(value));
    else
        buf_str(out, "null");
}

/* parent NULL: the base model.  vLLM's tools use root as the model's path. */
static void put_model(struct buf *out, const struct app *app, const struct served_model *served, const char *name,
                      const char *parent)
{
    buf_str(out, "{\"id\":");
    json_put_string(out, name, strlen(name));
    buf_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"tandem\"", (long long)served->ready_time);
    put_string(out, "root", parent ? name : app->set->model);
    put_string(out, "parent", parent);
    const struct embedder *m = served->info->embedder;
    put_string(out, "kind", m->classifies ? "classify" : m->encoder ? "embed" : "generate");
    buf_printf(out, ",\"max_model_len\":%d,\"permission\":[]}", served->info->max_total_tokens);
}

static void reply(struct http_req *req, struct buf *out)
{
    http_reply(req, 200, "application/json", out->data, out->len);
    buf_free(out);
}

void api_models_list(struct http_req *req)
{
    struct app *app = req->app;
    const struct served_model *served = app->model;
    struct buf out = {0};
    int n;
    if (admission_refuses(req, NULL)) return;
    struct adapter_info *v = adapters_of(served, &n);
    buf_str(&out, "{\"object\":\"list\",\"data\":[");
    put_model(&out, app, served, served->name, NULL);
    for (const char *at = app->set->served_model_name + strcspn(app->set->served_model_name, ","); *at;) {
        size_t len = strcspn(++at, ",");
        char *name = mem_strndup(at, len);
        if (len) buf_char(&out, ',');
        if (len) put_model(&out, app, served, name, NULL);
        free(name);
        at += len;
    }
    for (int i = 0; i < n; i++) {
        buf_char(&out, ',');
        put_model(&out, app, served, v[i].name, served->name);
    }
    buf_str(&out, "]}");
    free(v);
    reply(req, &out);
}

/* Names may have slashes, so the route is a prefix. */
void api_models_get(struct http_req *req)
{
    struct app *app = req->app;
    const struct served_model *served = app->model;
    const char *name = req->path + strlen("/v1/models/");
    struct model_choice m;
    struct buf out = {0};
    struct err e = {0};
    if (admission_refuses(req, NULL)) return;
    if (*name && (models_find(app, served, name, &m, &e)) && strcmp(m.name, name) == 0) {
        put_model(&out, app, served, name, m.adapter ? served->name : NULL);
        reply(req, &out);
        return;
    }
    say_unknown(served, name, &e); /* also a name that only --accept-any-model would accept */
    store_request_put_error(&out, true, 404, "model_not_found", "model", e.msg);
    http_reply(req, 404, "application/json", out.data, out.len);
    buf_free(&out);
}
