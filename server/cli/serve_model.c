#include "server/cli/serve_model.h"

#include "engine/serve/engine.h"
#include "server/access/admission.h"
#include "server/api/app.h"
#include "server/api/models.h"
#include "server/api/served_model.h"
#include "server/bridge/grammar_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

void serve_model_set(struct app *app, struct served_model *m, struct bridge *bridge, struct engine *engine)
{
    m->engine = engine;
    m->bridge = bridge;
    m->info = engine_info(engine);
    m->longest_token = longest_spelling(engine_tokenizer(engine));
    m->name = models_base_name(app->set, m->info);
    m->ready_time = (int64_t)time(NULL);
    m->grammar_cache = grammar_cache_new(bridge, engine_tokenizer(engine));
    if (app->admission) admission_engine(app->admission, engine);
    admission_engine(app->background, engine);
    set_fingerprint(m);
}

void serve_model_clear(struct app *app, struct served_model *m)
{
    m->engine = NULL;
    m->bridge = NULL;
    m->info = NULL;
    if (app->admission) admission_engine(app->admission, NULL);
    admission_engine(app->background, NULL);
    grammar_cache_free(m->grammar_cache);
    chat_close(&m->chat);
    buf_free(&m->tokenizer_info);
    free(m->name);
}
