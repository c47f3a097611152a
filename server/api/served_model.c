#include "server/api/served_model.h"

#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/access/admission.h"
#include "server/api/app.h"
#include "server/api/model_table.h"
#include "server/api/models.h"
#include "server/bridge/grammar_cache.h"
#include "server/net/http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct served_model *served_model_of(const struct http_req *req)
{
    return req->model ? req->model : ((const struct app *)req->app)->model;
}

bool served_models_lost(const struct app *app)
{
    if (app->models) return model_table_lost(app->models);
    return app->model->engine && engine_lost(app->model->engine);
}

static size_t longest_spelling(const struct tokenizer *t)
{
    size_t longest = 1;
    for (int id = 0, n = tokenizer_size(t); id < n; id++) {
        const char *s = tokenizer_spelling(t, id);
        if (s && strlen(s) > longest) longest = strlen(s);
    }
    return longest;
}

/* FNV-1a of everything that can change the text generated for a request. */
static void set_fingerprint(struct served_model *m)
{
    const struct engine_info *i = m->info;
    const char *parts[] = {TANDEM_VERSION, i->model_id, i->family, i->weight_type, i->kv_type};
    uint64_t h = UINT64_C(0xcbf29ce484222325) ^ chat_template_identity(m->chat.template) ^ i->parameters;
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
        for (const char *p = parts[k]; *p; p++) h = (h ^ (unsigned char)*p) * UINT64_C(0x100000001b3);
    snprintf(m->fingerprint, sizeof m->fingerprint, "fp_%010llx", (unsigned long long)(h >> 24));
}

void served_model_prepare(struct served_model *m, const struct engine *engine)
{
    m->longest_token = longest_spelling(engine_tokenizer(engine));
    m->grammar_cache = grammar_cache_new(engine_tokenizer(engine));
}

void served_model_set(struct app *app, struct served_model *m, struct bridge *bridge, struct engine *engine)
{
    m->engine = engine;
    m->bridge = bridge;
    m->info = engine_info(engine);
    if (!m->name) m->name = models_base_name(app->set, m->info);
    if (!m->id) m->id = mem_strdup(m->info->model_id);
    m->ready_time = (int64_t)time(NULL);
    const struct embedder *gives = m->info->embedder;
    m->kind = gives->classifies ? "classify" : gives->encoder ? "embed" : "generate";
    m->max_total_tokens = m->info->max_total_tokens;
    grammar_cache_bridge(m->grammar_cache, bridge);
    if (app->admission) admission_engine_opened(app->admission, engine);
    admission_engine_opened(app->background, engine);
    set_fingerprint(m);
}

static void forget_at(struct served_model *m, size_t i)
{
    free(m->adapters[i].name);
    free(m->adapters[i].dir);
    m->adapters[i] = m->adapters[--m->n_adapters];
}

/* Which adapters it has, for requests that name one of them later. */
static void keep_names(struct served_model *m)
{
    int max = m->info->max_adapters;
    struct adapter_info *v = mem_array((size_t)max, sizeof *v);
    int n = engine_adapters_list(m->engine, v, max);
    for (size_t i = m->n_adapters; i-- > 0;) /* those that are no longer there, by the folders' files */
        if (!m->adapters[i].dir) forget_at(m, i);
    for (int i = 0; i < n; i++)
        if (!served_adapter_find(m, v[i].name)) served_adapter_keep(m, v[i].name, NULL);
    free(v);
}

void served_model_drop(struct served_model *m)
{
    chat_close(&m->chat);
    m->chat = (struct chat_format){0};
    buf_free(&m->tokenizer_info);
    grammar_cache_free(m->grammar_cache);
    m->grammar_cache = NULL;
}

void served_model_clear(struct app *app, struct served_model *m)
{
    if (app->models && m->engine) keep_names(m);
    if (app->admission && m->engine) admission_engine_closes(app->admission, m->engine);
    if (m->engine) admission_engine_closes(app->background, m->engine);
    m->engine = NULL;
    m->bridge = NULL;
    m->info = NULL;
    served_model_drop(m);
}

void served_model_free(struct served_model *m)
{
    while (m->n_adapters) forget_at(m, m->n_adapters - 1);
    free(m->adapters);
    free(m->name);
    free(m->id);
    free(m->where);
    free(m->dir);
    free(m);
}

/* ---- adapters ---------------------------------------------------------------------------------------------------- */

const struct served_adapter *served_adapter_find(const struct served_model *m, const char *name)
{
    for (size_t i = 0; i < m->n_adapters; i++)
        if (strcmp(m->adapters[i].name, name) == 0) return &m->adapters[i];
    return NULL;
}

void served_adapter_forget(struct served_model *m, const char *name)
{
    const struct served_adapter *a = served_adapter_find(m, name);
    if (a) forget_at(m, (size_t)(a - m->adapters));
}

void served_adapter_keep(struct served_model *m, const char *name, const char *dir)
{
    char *copy = mem_strdup(name);
    served_adapter_forget(m, copy);
    mem_grow(&m->adapters, &m->cap_adapters, m->n_adapters + 1, sizeof *m->adapters);
    m->adapters[m->n_adapters++] = (struct served_adapter){copy, dir ? mem_strdup(dir) : NULL};
}
