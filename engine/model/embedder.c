#include "engine/model/embedder.h"

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/files/model_file.h"
#include "engine/model/config.h"
#include "engine/model/safetensors.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_LIMIT = 4 << 20, MODULES_MAX = 16, WIDTH_MAX = 1 << 18, TEXT_MAX = 1 << 16 };

/* ---- files ---------------------------------------------------------------------------------------------------------
 */

/* Parses dir/name.  *out NULL: there is no such file. */
static int json_file(const char *dir, const char *name, cJSON **out, struct err *e)
{
    struct err why = {0};
    char *text = NULL;
    size_t n;
    *out = NULL;
    int rc = model_file_read(dir, name, FILE_LIMIT, &text, &n, &why);
    if (rc == ERR_NOT_FOUND) return 0; /* and *e stays as it is: callers show what it holds */
    if (rc) return err_set(e, rc, "%s", why.msg);
    *out = cJSON_ParseWithOpts(text, NULL, 1);
    free(text);
    return *out ? 0 : err_set(e, ERR_INVALID, "%s is not JSON", name);
}

static const cJSON *get(const cJSON *j, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(j, name);
    return v && !cJSON_IsNull(v) ? v : NULL;
}

static bool get_bool(const cJSON *j, const char *name, bool otherwise)
{
    const cJSON *v = get(j, name);
    return cJSON_IsBool(v) ? cJSON_IsTrue(v) : otherwise;
}

static const char *get_text(const cJSON *j, const char *name)
{
    const cJSON *v = get(j, name);
    return cJSON_IsString(v) ? v->valuestring : NULL;
}

/* A whole number from 1 to max, or 0. */
static int get_size(const cJSON *j, const char *name, int max)
{
    const cJSON *v = get(j, name);
    double d = cJSON_IsNumber(v) ? v->valuedouble : 0;
    return d >= 1 && d <= max && d == floor(d) ? (int)d : 0;
}

/* The part of a Python class's name behind the last dot. */
static const char *class_name(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* ---- tensors -------------------------------------------------------------------------------------------------------
 */

/* The tensor as floats; *out NULL without an error: there is none, and it is optional. */
static int floats(const struct tensor_source *f, const char *name, int rows, int cols, bool optional, float **out,
                  struct err *e)
{
    const struct tensor *t = tensor_source_find(f, name);
    *out = NULL;
    if (!t) return optional ? 0 : err_set(e, ERR_INVALID, "no tensor %s", name);
    size_t n = (size_t)rows * (size_t)(cols ? cols : 1);
    bool fits = t->n_dims == (cols ? 2 : 1) && t->dims[0] == rows && (!cols || t->dims[1] == cols);
    if (!fits || tensor_float_type(t->type) == DT_NONE)
        return err_set(e, ERR_INVALID, "tensor %s: expected %d x %d floats", name, rows, cols ? cols : 1);
    *out = mem_array(n, sizeof **out);
    for (size_t i = 0; i < n; i++) (*out)[i] = tensor_element(t, i);
    return 0;
}

/* The next step: a linear layer NAME.weight and NAME.bias. */
static int linear(struct embedder *m, const struct tensor_source *f, const char *name, int rows, int cols,
                  enum vector_act act, struct err *e)
{
    char weight[128], bias[128];
    if (m->n_steps == VECTOR_STEPS_MAX)
        return err_set(e, ERR_UNSUPPORTED, "more than %d layers behind the pooling", VECTOR_STEPS_MAX);
    struct vector_step *s = &m->step[m->n_steps++];
    *s = (struct vector_step){.rows = rows, .cols = cols, .act = act};
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    int rc = floats(f, weight, rows, cols, false, &s->w, e);
    if (!rc) rc = floats(f, bias, rows, 0, true, &s->b, e);
    m->size = rows;
    return rc;
}

static int act_of(const char *name, enum vector_act *act)
{
    static const struct {
        const char *name;
        enum vector_act act;
    } acts[] = {{"Identity", VECTOR_LINEAR},    {"Tanh", VECTOR_TANH},
                {"GELU", VECTOR_GELU},          {"ReLU", VECTOR_RELU},
                {"Sigmoid", VECTOR_SIGMOID},    {"gelu", VECTOR_GELU},
                {"gelu_new", VECTOR_GELU_TANH}, {"gelu_pytorch_tanh", VECTOR_GELU_TANH},
                {"tanh", VECTOR_TANH},          {"relu", VECTOR_RELU}};
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (strcmp(class_name(name), acts[i].name) == 0) {
            *act = acts[i].act;
            return 0;
        }
    return -1;
}

/* ---- sentence-transformers -----------------------------------------------------------------------------------------
 */

static int pooling_read(struct embedder *m, const cJSON *j, int hidden, struct err *e)
{
    static const struct {
        const char *name, *old;
        enum pooling pooling;
    } modes[] = {{"cls", "pooling_mode_cls_token", POOLING_FIRST},
                 {"max", "pooling_mode_max_tokens", POOLING_MAX},
                 {"mean", "pooling_mode_mean_tokens", POOLING_MEAN},
                 {"mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", POOLING_ROOT},
                 {"weightedmean", "pooling_mode_weightedmean_tokens", POOLING_WEIGHTED},
                 {"lasttoken", "pooling_mode_lasttoken", POOLING_LAST}};
    const char *mode = get_text(j, "pooling_mode");
    const cJSON *list = get(j, "pooling_mode");
    if (cJSON_IsArray(list) && cJSON_GetArraySize(list) == 1 && cJSON_IsString(list->child))
        mode = list->child->valuestring;
    int n = 0;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        bool on = list ? mode && strcmp(mode, modes[i].name) == 0
                       : get_bool(j, modes[i].old, modes[i].pooling == POOLING_MEAN && !get(j, modes[i].old));
        if (on) m->pooling = modes[i].pooling, n++;
    }
    if (n != 1) return err_set(e, ERR_UNSUPPORTED, "%s", n ? "several poolings at once" : "the pooling is not known");
    int size = get_size(j, "embedding_dimension", WIDTH_MAX);
    if (!size) size = get_size(j, "word_embedding_dimension", WIDTH_MAX);
    if (size && size != hidden)
        return err_set(e, ERR_INVALID, "pools vectors of %d values; the model's have %d", size, hidden);
    return 0;
}

static int dense_read(struct embedder *m, const char *dir, const cJSON *j, struct err *e)
{
    int in = get_size(j, "in_features", WIDTH_MAX), out = get_size(j, "out_features", WIDTH_MAX);
    const char *name = get_text(j, "activation_function");
    enum vector_act act = VECTOR_TANH;
    if (in != m->size || !out)
        return err_set(e, ERR_INVALID, "in_features %d and out_features %d behind vectors of %d values", in, out,
                       m->size);
    if (name && act_of(name, &act))
        return err_set(e, ERR_UNSUPPORTED, "activation_function \"%.80s\" is not supported", name);
    struct tensor_source *f = safetensors_open_dir(dir, e);
    if (!f) return e->code;
    int rc = linear(m, f, "linear", out, in, act, e);
    tensor_source_close(f);
    return rc;
}

static int module_read(struct embedder *m, const char *dir, const cJSON *module, const struct model_config *c,
                       struct err *e)
{
    const char *type = get_text(module, "type"), *path = get_text(module, "path");
    if (!type || !path || *path == '/' || strstr(path, ".."))
        return err_set(e, ERR_INVALID, "modules.json: expected a type and a relative path");
    const char *kind = class_name(type);
    if (strcmp(kind, "Transformer") == 0 || strcmp(kind, "Dropout") == 0) return 0;
    if (strcmp(kind, "Normalize") == 0) {
        m->normalize = true;
        return 0;
    }
    if (m->normalize) return err_set(e, ERR_UNSUPPORTED, "modules.json: %.60s behind Normalize is not supported", kind);
    char *folder = file_join(dir, path);
    cJSON *j = NULL;
    int rc = json_file(folder, "config.json", &j, e);
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
    int rc = json_file(dir, "modules.json", &j, e), n = 0;
    if (rc || !j) return rc;
    m->sentences = true;
    if (!cJSON_IsArray(j)) rc = err_set(e, ERR_INVALID, "modules.json: must be a list");
    for (const cJSON *v = rc ? NULL : j->child; v && !rc; v = v->next)
        rc = ++n > MODULES_MAX ? err_set(e, ERR_INVALID, "modules.json: more than %d modules", MODULES_MAX)
                               : module_read(m, dir, v, c, e);
    cJSON_Delete(j);
    if (!rc && !m->pooling) rc = err_set(e, ERR_UNSUPPORTED, "modules.json: there is no Pooling");
    return rc;
}

static int prompts_read(struct embedder *m, const char *dir, struct err *e)
{
    cJSON *j;
    int rc = json_file(dir, "config_sentence_transformers.json", &j, e);
    if (rc || !j) return rc;
    const cJSON *prompts = get(j, "prompts");
    const char *chosen = get_text(j, "default_prompt_name");
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
static int limits_read(struct embedder *m, const char *dir, struct err *e)
{
    cJSON *j;
    int rc = json_file(dir, "sentence_bert_config.json", &j, e);
    if (rc) return rc;
    m->max_tokens = get_size(j, "max_seq_length", 1 << 24);
    m->lowercase = get_bool(j, "do_lower_case", false);
    cJSON_Delete(j);
    if (m->max_tokens) return 0;
    rc = json_file(dir, "tokenizer_config.json", &j, e);
    if (!rc) m->max_tokens = get_size(j, "model_max_length", 1 << 24);
    cJSON_Delete(j);
    return rc;
}

/* ---- classifiers ---------------------------------------------------------------------------------------------------
 */

static int labels_read(struct embedder *m, const cJSON *config, struct err *e)
{
    const cJSON *names = get(config, "id2label");
    m->n_labels =
        cJSON_IsObject(names) && names->child ? cJSON_GetArraySize(names) : get_size(config, "num_labels", LABELS_MAX);
    if (!m->n_labels) m->n_labels = 2; /* transformers' default */
    if (m->n_labels > LABELS_MAX) return err_set(e, ERR_INVALID, "config.json: more than %d labels", LABELS_MAX);
    m->labels = mem_array((size_t)m->n_labels, sizeof *m->labels);
    for (int i = 0; i < m->n_labels; i++) {
        char id[16], other[24];
        snprintf(id, sizeof id, "%d", i);
        snprintf(other, sizeof other, "LABEL_%d", i);
        const char *name = get_text(names, id);
        m->labels[i] = mem_strdup(name ? name : other);
    }
    const char *problem = get_text(config, "problem_type");
    m->multi_label = problem && strcmp(problem, "multi_label_classification") == 0;
    /* where sentence-transformers keeps a cross-encoder's activation: in newer files in an object of its own */
    const char *act = get_text(get(config, "sentence_transformers"), "activation_fn");
    if (!act) act = get_text(config, "sbert_ce_default_activation_function");
    m->raw_scores = act && strcmp(class_name(act), "Identity") == 0;
    return 0;
}

/* ModernBERT: dense, activation, norm, then the classifier. */
static int modernbert_head(struct embedder *m, const struct tensor_source *f, const cJSON *config, int hidden,
                           struct err *e)
{
    const char *name = get_text(config, "classifier_activation"), *pooling = get_text(config, "classifier_pooling");
    enum vector_act act = VECTOR_GELU;
    if (name && act_of(name, &act))
        return err_set(e, ERR_UNSUPPORTED, "config.json: classifier_activation \"%.40s\" is not supported", name);
    m->pooling = pooling && strcmp(pooling, "mean") == 0 ? POOLING_MEAN : POOLING_FIRST;
    int rc = linear(m, f, "head.dense", hidden, hidden, act, e);
    struct vector_step *s = &m->step[m->n_steps - 1];
    const cJSON *eps = get(config, "norm_eps");
    s->eps = cJSON_IsNumber(eps) ? (float)eps->valuedouble : 1e-5f;
    if (!rc) rc = floats(f, "head.norm.weight", hidden, 0, false, &s->norm_w, e);
    if (!rc) rc = floats(f, "head.norm.bias", hidden, 0, true, &s->norm_b, e);
    return rc ? rc : linear(m, f, "classifier", m->n_labels, hidden, VECTOR_LINEAR, e);
}

/* Since sentence-transformers 6 the activation is in this file. */
static int activation_read(struct embedder *m, const char *dir, struct err *e)
{
    cJSON *j;
    int rc = json_file(dir, "config_sentence_transformers.json", &j, e);
    const char *act = rc ? NULL : get_text(j, "activation_fn");
    if (act) m->raw_scores = strcmp(class_name(act), "Identity") == 0;
    cJSON_Delete(j);
    return rc;
}

static int classifier_read(struct embedder *m, const char *dir, const struct model_config *c, const cJSON *config,
                           struct err *e)
{
    const char *family = c->family->model_type;
    int rc = labels_read(m, config, e);
    if (!rc) rc = activation_read(m, dir, e);
    struct tensor_source *f = rc ? NULL : safetensors_open_dir(dir, e);
    if (!f) return e->code;
    m->classifies = true;
    m->pooling = POOLING_FIRST;
    if (strcmp(family, "modernbert") == 0) {
        rc = modernbert_head(m, f, config, c->hidden, e);
    } else if (strcmp(family, "bert") == 0) {
        rc = linear(m, f, "bert.pooler.dense", c->hidden, c->hidden, VECTOR_TANH, e);
        if (!rc) rc = linear(m, f, "classifier", m->n_labels, c->hidden, VECTOR_LINEAR, e);
    } else {
        rc = linear(m, f, "classifier.dense", c->hidden, c->hidden, VECTOR_TANH, e);
        if (!rc) rc = linear(m, f, "classifier.out_proj", m->n_labels, c->hidden, VECTOR_LINEAR, e);
    }
    tensor_source_close(f);
    return rc;
}

static bool is_classifier(const cJSON *config)
{
    static const char suffix[] = "ForSequenceClassification";
    const cJSON *names = get(config, "architectures");
    const char *name = cJSON_IsArray(names) && cJSON_IsString(names->child) ? names->child->valuestring : "";
    size_t n = strlen(name), k = sizeof suffix - 1;
    return n > k && strcmp(name + n - k, suffix) == 0;
}

/* ---- the whole -----------------------------------------------------------------------------------------------------
 */

int embedder_open(struct embedder *m, const char *dir, const struct model_config *c, struct err *e)
{
    *m = (struct embedder){.encoder = c->encoder, .default_prompt = -1, .size = c->hidden};
    cJSON *config = NULL;
    int rc = json_file(dir, "config.json", &config, e);
    if (!rc && c->encoder && is_classifier(config))
        rc = classifier_read(m, dir, c, config, e);
    else if (!rc)
        rc = modules_read(m, dir, c, e);
    cJSON_Delete(config);
    if (!rc && (c->encoder || m->sentences)) rc = limits_read(m, dir, e);
    if (!rc && m->sentences) rc = prompts_read(m, dir, e);
    if (rc) embedder_free(m);
    return rc;
}

void embedder_free(struct embedder *m)
{
    for (int i = 0; i < m->n_prompts; i++) {
        free(m->prompts[i].name);
        free(m->prompts[i].text);
    }
    for (int i = 0; m->labels && i < m->n_labels; i++) free(m->labels[i]);
    for (int i = 0; i < m->n_steps; i++) {
        free(m->step[i].w);
        free(m->step[i].b);
        free(m->step[i].norm_w);
        free(m->step[i].norm_b);
    }
    free(m->prompts);
    free(m->labels);
    *m = (struct embedder){0};
}

/* ---- applying ------------------------------------------------------------------------------------------------------
 */

/* Sixteen sums side by side, added in order: the same bits whatever the compiler makes of the loop. */
static double dot(const float *w, const float *x, int n)
{
    float sum[16] = {0};
    double all = 0;
    int i = 0;
    for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 16; k++) sum[k] += w[i + k] * x[i + k];
    for (; i < n; i++) sum[0] += w[i] * x[i];
    for (int k = 0; k < 16; k++) all += (double)sum[k];
    return all;
}

static double activate(enum vector_act act, double x)
{
    switch (act) {
    case VECTOR_LINEAR: return x;
    case VECTOR_TANH: return tanh(x);
    case VECTOR_GELU: return 0.5 * x * (1 + erf(x * 0.70710678118654752));
    case VECTOR_GELU_TANH: return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    case VECTOR_RELU: return x > 0 ? x : 0;
    case VECTOR_SIGMOID: return 1 / (1 + exp(-x));
    }
    return x;
}

static void layer_norm(const struct vector_step *s, float *y)
{
    double mean = 0, variance = 0;
    for (int i = 0; i < s->rows; i++) mean += (double)y[i];
    mean /= s->rows;
    for (int i = 0; i < s->rows; i++) variance += ((double)y[i] - mean) * ((double)y[i] - mean);
    double scale = 1 / sqrt(variance / s->rows + (double)s->eps);
    for (int i = 0; i < s->rows; i++)
        y[i] = (float)(((double)y[i] - mean) * scale * (double)s->norm_w[i] + (s->norm_b ? (double)s->norm_b[i] : 0));
}

void embedder_apply(const struct embedder *m, const double *pooled, float *out)
{
    int first = m->n_steps ? m->step[0].cols : m->size, most = first;
    for (int i = 0; i < m->n_steps; i++)
        if (m->step[i].rows > most) most = m->step[i].rows;
    float *x = mem_array(2 * (size_t)most, sizeof *x), *y = x + most, *memory = x;
    for (int i = 0; i < first; i++) x[i] = (float)pooled[i];
    for (int i = 0; i < m->n_steps; i++) {
        const struct vector_step *s = &m->step[i];
        for (int r = 0; r < s->rows; r++)
            y[r] = (float)activate(s->act,
                                   dot(s->w + (size_t)r * (size_t)s->cols, x, s->cols) + (s->b ? (double)s->b[r] : 0));
        if (s->norm_w) layer_norm(s, y);
        float *swap = x;
        x = y;
        y = swap;
    }
    memcpy(out, x, (size_t)m->size * sizeof *out);
    free(memory);
}
