#include "engine/model/embedder_files.h"

#include "engine/base/mem.h"
#include "engine/files/model_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_LIMIT = 4 << 20 };

int embedder_json(const char *dir, const char *name, cJSON **out, struct err *e)
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

const cJSON *embedder_get(const cJSON *j, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(j, name);
    return v && !cJSON_IsNull(v) ? v : NULL;
}

bool embedder_bool(const cJSON *j, const char *name, bool otherwise)
{
    const cJSON *v = embedder_get(j, name);
    return cJSON_IsBool(v) ? cJSON_IsTrue(v) : otherwise;
}

const char *embedder_text(const cJSON *j, const char *name)
{
    const cJSON *v = embedder_get(j, name);
    return cJSON_IsString(v) ? v->valuestring : NULL;
}

int embedder_size(const cJSON *j, const char *name, int max)
{
    const cJSON *v = embedder_get(j, name);
    double d = cJSON_IsNumber(v) ? v->valuedouble : 0;
    return d >= 1 && d <= max && d == floor(d) ? (int)d : 0;
}

const char *embedder_class_name(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

int embedder_floats(const struct tensor_source *f, const char *name, int rows, int cols, bool optional, float **out,
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

int embedder_linear(struct embedder *m, const struct tensor_source *f, const char *name, int rows, int cols,
                    enum vector_act act, struct err *e)
{
    char weight[128], bias[128];
    if (m->n_steps == VECTOR_STEPS_MAX)
        return err_set(e, ERR_UNSUPPORTED, "more than %d layers behind the pooling", VECTOR_STEPS_MAX);
    struct vector_step *s = &m->step[m->n_steps++];
    *s = (struct vector_step){.rows = rows, .cols = cols, .act = act};
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    int rc = embedder_floats(f, weight, rows, cols, false, &s->w, e);
    if (!rc) rc = embedder_floats(f, bias, rows, 0, true, &s->b, e);
    m->size = rows;
    return rc;
}

bool embedder_act(const char *name, enum vector_act *act)
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
        if (strcmp(embedder_class_name(name), acts[i].name) == 0) {
            *act = acts[i].act;
            return true;
        }
    return false;
}
