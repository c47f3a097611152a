/* Names of models (models.h), and GET /v1/models and /v1/models/{id}. */
#include "server/api/models.h"

#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/access/admission.h"
#include "server/api/app.h"
#include "server/api/model_table.h"
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

bool models_is_served(const struct settings *set, const char *name)
{
    return is_listed(set->served_model_name, name);
}

bool models_is_any(const struct settings *set, const char *name)
{
    return set->accept_any_model || strcmp(name, "tgi") == 0 || strcmp(name, "dummy") == 0;
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

bool models_is_taken(const struct app *app, const char *name)
{
    for (int i = 0; i < model_table_count(app->models); i++) {
        const struct served_model *m = model_table_at(app->models, i);
        bool own = m->main && *app->set->served_model_name ? is_listed(app->set->served_model_name, name)
                                                           : strcmp(name, m->id) == 0;
        if (own) return true;
    }
    return false;
}

/* The names of a model's adapters, as many as fit. */
static void put_adapters(struct buf *names, const struct served_model *m)
{
    int n = 0;
    struct adapter_info *v = m->engine ? adapters_of(m, &n) : NULL;
    for (int i = 0; i < n && names->len < 240; i++) buf_printf(names, ", `%s`", v[i].name);
    for (size_t i = 0; i < m->n_adapters && !m->engine && names->len < 240; i++)
        buf_printf(names, ", `%s`", m->adapters[i].name);
    free(v);
}

void models_say_unknown(const struct app *app, const char *name, struct err *e)
{
    struct buf names = {0};
    buf_str(&names, "");
    if (app->models)
        model_table_put_names(app->models, &names);
    else
        buf_printf(&names, "`%.100s`", app->model->name);
    for (int i = 0; app->models && i < model_table_count(app->models); i++)
        put_adapters(&names, model_table_at(app->models, i));
    if (!app->models) put_adapters(&names, app->model);
    err_set(e, ERR_NOT_FOUND, "The model `%.100s` does not exist: this server has %s.", name, names.data);
    buf_free(&names);
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
    if (models_is_any(app->set, name)) return true;
    models_say_unknown(app, name, e);
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

/* A model, or (adapter not NULL) an adapter of it.  vLLM's tools use root as the model's path. */
static void put_model(struct buf *out, const struct served_model *m, const char *name, bool adapter)
{
    buf_str(out, out->data[out->len - 1] == '[' ? "{\"id\":" : ",{\"id\":");
    json_put_string(out, name, strlen(name));
    buf_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"tandem\"", (long long)m->ready_time);
    put_string(out, "root", adapter ? name : m->where);
    put_string(out, "parent", adapter ? m->name : NULL);
    put_string(out, "kind", m->kind);
    put_string(out, "state", model_state_names[m->state]);
    if (m->state == MODEL_FAILED) put_string(out, "error", m->failure.msg);
    buf_str(out, ",\"max_model_len\":");
    if (m->max_total_tokens)
        buf_printf(out, "%d", m->max_total_tokens);
    else
        buf_str(out, "null");
    buf_str(out, ",\"permission\":[]}");
}

/* Under all its names, and its adapters. */
static void put_models(struct buf *out, const struct app *app, const struct served_model *m)
{
    if (!m->name) return;
    put_model(out, m, m->name, false);
    for (const char *at = app->set->served_model_name + strcspn(app->set->served_model_name, ",");
         *at && m == app->model;) {
        size_t len = strcspn(++at, ",");
        char *name = mem_strndup(at, len);
        if (len) put_model(out, m, name, false);
        free(name);
        at += len;
    }
    int n = 0;
    struct adapter_info *v = m->engine ? adapters_of(m, &n) : NULL;
    for (int i = 0; i < n; i++) put_model(out, m, v[i].name, true);
    free(v);
    for (size_t i = 0; i < m->n_adapters && !m->engine; i++) put_model(out, m, m->adapters[i].name, true);
}

static void reply(struct http_req *req, struct buf *out)
{
    http_reply(req, 200, "application/json", out->data, out->len);
    buf_free(out);
}

void api_models_list(struct http_req *req)
{
    struct app *app = req->app;
    struct buf out = {0};
    if (admission_refuses(req, NULL)) return;
    buf_str(&out, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < model_table_count(app->models); i++) put_models(&out, app, model_table_at(app->models, i));
    buf_str(&out, "]}");
    reply(req, &out);
}

/* Names may have slashes, so the route is a prefix. */
void api_models_get(struct http_req *req)
{
    struct app *app = req->app;
    const char *name = req->path + strlen("/v1/models/");
    struct buf out = {0};
    struct err e = {0};
    bool adapter = false;
    if (admission_refuses(req, NULL)) return;
    const struct served_model *m = *name ? model_table_find(app->models, name, &adapter) : NULL;
    bool own = m && (adapter || strcmp(m->name, name) == 0 || models_is_served(app->set, name));
    if (own) { /* not a name that only --accept-any-model would accept */
        buf_char(&out, '[');
        put_model(&out, m, name, adapter);
        http_reply(req, 200, "application/json", out.data + 1, out.len - 1);
        buf_free(&out);
        return;
    }
    models_say_unknown(app, name, &e);
    store_request_put_error(&out, true, 404, "model_not_found", "model", e.msg);
    http_reply(req, 404, "application/json", out.data, out.len);
    buf_free(&out);
}
