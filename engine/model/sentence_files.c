/* The files that sentence-transformers writes beside a model (embedder.h). */
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/model/config.h"
#include "engine/model/embedder_files.h"
#include "engine/model/safetensors.h"

#include <stdlib.h>
#include <string.h>

enum { MODULES_MAX = 16, WIDTH_MAX = 1 << 18, TEXT_MAX = 1 << 16 };

/* One mode of sentence-transformers' Pooling; `old`: the switch that older files have for it. */
static const struct pooling_mode {
    const char *name, *old;
    enum pooling pooling;
} modes[] = {{"cls", "pooling_mode_cls_token", POOLING_FIRST},
             {"max", "pooling_mode_max_tokens", POOLING_MAX},
             {"mean", "pooling_mode_mean_tokens", POOLING_MEAN},
             {"mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", POOLING_ROOT},
             {"weightedmean", "pooling_mode_weightedmean_tokens", POOLING_WEIGHTED},
             {"lasttoken", "pooling_mode_lasttoken", POOLING_LAST}};
enum { MODES = sizeof modes / sizeof *modes };

static int mode_add(struct poolings *p, const cJSON *name, struct err *e)
{
    for (int i = 0; i < MODES && cJSON_IsString(name); i++) {
        if (strcmp(name->valuestring, modes[i].name)) continue;
        if (p->n == POOLINGS_MAX) return err_set(e, ERR_UNSUPPORTED, "pooling_mode: more than %d modes", POOLINGS_MAX);
        p->v[p->n++] = modes[i].pooling;
        return 0;
    }
    return err_set(e, ERR_UNSUPPORTED, "pooling_mode: the pooling \"%.40s\" is not known",
                   cJSON_IsString(name) ? name->valuestring : "");
}

/* The modes in the order in which their vectors are concatenated: that of pooling_mode, or of the table. */
static int modes_read(struct poolings *p, const cJSON *j, struct err *e)
{
    const cJSON *named = embedder_get(j, "pooling_mode");
    int rc = 0;
    for (int i = 0; i < MODES && !named; i++)
        if (embedder_bool(j, modes[i].old, false)) p->v[p->n++] = modes[i].pooling;
    if (named && !cJSON_IsArray(named)) rc = mode_add(p, named, e);
    for (const cJSON *v = cJSON_IsArray(named) ? named->child : NULL; v && !rc; v = v->next) rc = mode_add(p, v, e);
    if (named && !rc && !p->n) rc = err_set(e, ERR_INVALID, "pooling_mode: expected a name or a list of names");
    if (!p->n) p->v[p->n++] = POOLING_MEAN;
    return rc;
}

static int pooling_read(struct embedder *m, const cJSON *j, int hidden, struct err *e)
{
    if (m->pooling.n || m->n_steps) return err_set(e, ERR_UNSUPPORTED, "a Pooling behind another module");
    int rc = modes_read(&m->pooling, j, e);
    if (rc) return rc;
    int size = embedder_size(j, "embedding_dimension", WIDTH_MAX);
    if (!size) size = embedder_size(j, "word_embedding_dimension", WIDTH_MAX);
    if (size && size != hidden)
        return err_set(e, ERR_INVALID, "pools vectors of %d values; the model's have %d", size, hidden);
    m->skip_prompt = !embedder_bool(j, "include_prompt", true);
    m->inputs = m->size = m->pooling.n * hidden;
    return 0;
}

static int dense_read(struct embedder *m, const char *dir, const cJSON *j, struct err *e)
{
    int in = embedder_size(j, "in_features", WIDTH_MAX), out = embedder_size(j, "out_features", WIDTH_MAX);
    const char *name = embedder_text(j, "activation_function");
    enum vector_act act = VECTOR_TANH;
    if (in != m->size || !out)
        return err_set(e, ERR_INVALID, "in_features %d and out_features %d behind vectors of %d values", in, out,
                       m->size);
    if (name && !embedder_act(name, &act))
        return err_set(e, ERR_UNSUPPORTED, "activation_function \"%.80s\" is not supported", name);
    struct tensor_source *f = safetensors_open_dir(dir, e);
    if (!f) return e->code;
    int rc = embedder_linear(m, f, "linear", out, in, act, e);
    tensor_source_close(f);
    return rc;
}

static int module_read(struct embedder *m, const char *dir, const cJSON *module, const struct model_config *c,
                       struct err *e)
{
    const char *type = embedder_text(module, "type"), *path = embedder_text(module, "path");
    if (!type || !path || *path == '/' || strstr(path, ".."))
        return err_set(e, ERR_INVALID, "modules.json: expected a type and a relative path");
    const char *kind = embedder_class_name(type);
    if (strcmp(kind, "Transformer") == 0 || strcmp(kind, "Dropout") == 0) return 0;
    if (strcmp(kind, "Normalize") == 0) {
        m->normalize = true;
        return 0;
    }
    if (m->normalize) return err_set(e, ERR_UNSUPPORTED, "modules.json: %.60s behind Normalize is not supported", kind);
    char *folder = file_join(dir, path);
    cJSON *j = NULL;
    int rc = embedder_json(folder, "config.json", &j, e);
    if (!rc && strcmp(kind, "Pooling") == 0)
        rc = j ? pooling_read(m, j, c->hidden, e) : err_set(e, ERR_INVALID, "no config.json");
    else if (!rc && strcmp(kind, "Dense") == 0)
        rc = dense_read(m, folder, j, e);
    else if (!rc)
        rc = err_set(e, ERR_UNSUPPORTED, "modules of type \"%.80s\" are not supported", type);
    if (rc) err_prefix(e, "modules.json: %.60s", path);
    cJSON_Delete(j);
    free(folder);
    return rc;
}

static int modules_read(struct embedder *m, const char *dir, const struct model_config *c, struct err *e)
{
    cJSON *j;
    int rc = embedder_json(dir, "modules.json", &j, e), n = 0;
    if (rc || !j) return rc;
    m->sentences = true;
    if (!cJSON_IsArray(j)) rc = err_set(e, ERR_INVALID, "modules.json: must be a list");
    for (const cJSON *v = rc ? NULL : j->child; v && !rc; v = v->next)
        rc = ++n > MODULES_MAX ? err_set(e, ERR_INVALID, "modules.json: more than %d modules", MODULES_MAX)
                               : module_read(m, dir, v, c, e);
    cJSON_Delete(j);
    if (!rc && !m->pooling.n) rc = err_set(e, ERR_UNSUPPORTED, "modules.json: there is no Pooling");
    return rc;
}

static int prompts_read(struct embedder *m, const char *dir, struct err *e)
{
    cJSON *j;
    int rc = embedder_json(dir, "config_sentence_transformers.json", &j, e);
    if (rc || !j) return rc;
    const cJSON *prompts = embedder_get(j, "prompts");
    const char *chosen = embedder_text(j, "default_prompt_name");
    m->prompts = mem_array(PROMPTS_MAX, sizeof *m->prompts);
    for (const cJSON *v = cJSON_IsObject(prompts) ? prompts->child : NULL; v; v = v->next) {
        if (!cJSON_IsString(v) || strlen(v->valuestring) > TEXT_MAX || m->n_prompts == PROMPTS_MAX) {
            rc = err_set(
                e, ERR_INVALID,
                "config_sentence_transformers.json: prompts: \"%.60s\" is no short text, or there are more than %d",
                v->string, PROMPTS_MAX);
            break;
        }
        if (chosen && strcmp(chosen, v->string) == 0) m->default_prompt = m->n_prompts;
        m->prompts[m->n_prompts++] = (struct named_prompt){mem_strdup(v->string), mem_strdup(v->valuestring)};
    }
    cJSON_Delete(j);
    return rc;
}

/* The model's own limit is the engine's business. */
int sentence_limits_read(struct embedder *m, const char *dir, struct err *e)
{
    cJSON *j;
    int rc = embedder_json(dir, "sentence_bert_config.json", &j, e);
    if (rc) return rc;
    m->max_tokens = embedder_size(j, "max_seq_length", 1 << 24);
    m->lowercase = embedder_bool(j, "do_lower_case", false);
    cJSON_Delete(j);
    if (m->max_tokens) return 0;
    rc = embedder_json(dir, "tokenizer_config.json", &j, e);
    if (!rc) m->max_tokens = embedder_size(j, "model_max_length", 1 << 24);
    cJSON_Delete(j);
    return rc;
}

int sentence_files_read(struct embedder *m, const char *dir, const struct model_config *c, struct err *e)
{
    int rc = modules_read(m, dir, c, e);
    return rc || !m->sentences ? rc : prompts_read(m, dir, e);
}
