#include "server/api/embed_params.h"

#include "engine/base/mem.h"
#include "server/bridge/encode.h"
#include "server/json/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* @return the last field of that name, like the getters; NULL when absent or null. */
static const cJSON *find_field(const cJSON *obj, const char *name)
{
    const cJSON *found = NULL;
    for (const cJSON *i = obj->child; i; i = i->next)
        if (strcmp(i->string, name) == 0) found = i;
    return found && !cJSON_IsNull(found) ? found : NULL;
}

int embed_refusal(enum embed_shape shape)
{
    return shape == EMBED_OPENAI ? 400 : 422;
}

struct input_path {
    char text[48];
};

/* @return the path of input i in the request. */
static struct input_path input_path(const struct embed_params *p, int i)
{
    struct input_path path;
    if (p->shape == EMBED_SIMILARITY)
        snprintf(path.text, sizeof path.text, i ? "inputs.sentences[%d]" : "inputs.source_sentence", i - 1);
    else
        snprintf(path.text, sizeof path.text, "%s[%d]", p->shape == EMBED_TEI ? "inputs" : "input", i);
    return path;
}

/* ---- input ----------------------------------------------------------------------------------------------------- */

static int take_text(struct embed_params *p, const cJSON *item, int i, const struct embed_limits *lim, struct err *e)
{
    size_t n = strlen(item->valuestring), most = (size_t)lim->max_total_tokens * lim->longest_token;
    if (n == 0) return err_set(e, ERR_INVALID, "%s: cannot be empty", input_path(p, i).text);
    if (!p->truncate && n > most) /* too long for any tokenisation */
        return err_set(e, ERR_INVALID, "%s: has %zu bytes; the model's %d tokens can hold %zu at most",
                       input_path(p, i).text, n, lim->max_total_tokens, most);
    p->inputs[i] = (struct embed_input){.text = item->valuestring, .len = n};
    return 0;
}

static int take_ids(struct embed_params *p, const cJSON *list, int i, const struct embed_limits *lim, struct err *e)
{
    struct embed_input *in = &p->inputs[i];
    int n = cJSON_GetArraySize(list), k = 0;
    if (n == 0) return err_set(e, ERR_INVALID, "%s: cannot be empty", input_path(p, i).text);
    if (!p->truncate && n > lim->max_total_tokens)
        return err_set(e, ERR_INVALID, "%s: has %d tokens; the model takes %d at most", input_path(p, i).text, n,
                       lim->max_total_tokens);
    in->ids = mem_array((size_t)n, sizeof *in->ids);
    p->n_ids += (size_t)n;
    for (const cJSON *v = list->child; v; v = v->next, k++) {
        if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0 && v->valuedouble < lim->vocab) ||
            v->valuedouble != floor(v->valuedouble))
            return err_set(e, ERR_INVALID, "%s[%d]: expected a token id from 0 to %d", input_path(p, i).text, k,
                           lim->vocab - 1);
        in->ids[in->n++] = (int32_t)v->valuedouble;
    }
    return 0;
}

static int count_inputs(struct embed_params *p, int n, struct err *e)
{
    int most = EMBED_VALUES_MAX / p->dimensions;
    if (most > EMBED_INPUTS_MAX) most = EMBED_INPUTS_MAX;
    if (n < 1 || n > most) return err_set(e, ERR_INVALID, "%s: expected 1 to %d inputs, not %d", p->field, most, n);
    p->n = n;
    p->inputs = mem_array((size_t)n, sizeof *p->inputs);
    return 0;
}

/* A text, a list of texts, a list of ids, a list of lists of ids. */
static int read_inputs(struct embed_params *p, const struct embed_limits *lim, struct err *e)
{
    p->field = p->shape == EMBED_TEI ? "inputs" : "input";
    const cJSON *input = find_field(p->tree, p->field), *first = cJSON_IsArray(input) ? input->child : NULL;
    if (!input) return err_set(e, ERR_INVALID, "%s: the field is missing", p->field);
    bool one = cJSON_IsString(input) || cJSON_IsNumber(first), texts = cJSON_IsString(input) || cJSON_IsString(first);
    if (!one && !cJSON_IsArray(input))
        return err_set(e, ERR_INVALID, "%s: expected a string, a list of strings, or token ids", p->field);
    if (count_inputs(p, one ? 1 : cJSON_GetArraySize(input), e)) return e->code;
    if (one) return texts ? take_text(p, input, 0, lim, e) : take_ids(p, input, 0, lim, e);
    int i = 0, rc = 0;
    for (const cJSON *v = first; v && !rc; v = v->next, i++) {
        if (texts ? !cJSON_IsString(v) : !cJSON_IsArray(v))
            return err_set(e, ERR_INVALID, "%s: expected %s", input_path(p, i).text,
                           texts ? "a string, as the first" : "a string or a list of token ids");
        rc = texts ? take_text(p, v, i, lim, e) : take_ids(p, v, i, lim, e);
    }
    return rc;
}

/* {"source_sentence": TEXT, "sentences": TEXTS}: input 0, and the inputs to compare it with. */
static int read_sentences(struct embed_params *p, const struct embed_limits *lim, struct err *e)
{
    p->field = "inputs";
    const cJSON *inputs = find_field(p->tree, "inputs");
    if (!cJSON_IsObject(inputs))
        return err_set(e, ERR_INVALID, "inputs: expected an object with source_sentence and sentences");
    const cJSON *source = find_field(inputs, "source_sentence"), *others = find_field(inputs, "sentences");
    if (!cJSON_IsString(source)) return err_set(e, ERR_INVALID, "inputs.source_sentence: expected a string");
    if (!cJSON_IsArray(others) || !others->child)
        return err_set(e, ERR_INVALID, "inputs.sentences: expected a list of strings");
    if (count_inputs(p, 1 + cJSON_GetArraySize(others), e)) return e->code;
    int i = 1, rc = take_text(p, source, 0, lim, e);
    for (const cJSON *v = others->child; v && !rc; v = v->next, i++) {
        if (!cJSON_IsString(v)) return err_set(e, ERR_INVALID, "%s: expected a string", input_path(p, i).text);
        rc = take_text(p, v, i, lim, e);
    }
    return rc;
}

/* ---- the rest -------------------------------------------------------------------------------------------------- */

/* Reads one of two words; *second: whether it is b.  Absent: unchanged. */
static void get_word(struct embed_params *p, struct json_at *top, const char *name, const char *a, const char *b,
                     bool *second)
{
    const char *v;
    p->field = name;
    if (!json_get_string(top, name, &v)) return;
    if (strcmp(v, a) && strcmp(v, b))
        err_set(top->e, ERR_INVALID, "%s: must be \"%s\" or \"%s\"", name, a, b);
    else
        *second = strcmp(v, b) == 0;
}

static void get_number(struct embed_params *p, struct json_at *top, const char *name, int64_t min, int64_t max,
                       int64_t *out)
{
    p->field = name;
    json_get_int(top, name, min, max, out);
}

/* Reads TEI's equivalents of truncate_prompt_tokens; refuses prompt_name, which needs a model with named prompts. */
static void read_truncation(struct embed_params *p, struct json_at *top, const struct embed_limits *lim)
{
    bool truncate = false, left = false;
    const char *name = NULL;
    p->field = "truncate", json_get_bool(top, "truncate", &truncate);
    if (!top->e->code) get_word(p, top, "truncation_direction", "right", "left", &left);
    if (!top->e->code && json_get_string(top, p->field = "prompt_name", &name))
        err_set(top->e, ERR_UNSUPPORTED, "prompt_name: the model has no prompt \"%.100s\"", name);
    p->truncate = truncate ? lim->max_total_tokens : 0;
    p->keep_first = !left;
}

static int read_options(struct embed_params *p, const struct embed_limits *lim, struct err *e)
{
    struct json_at top = {.obj = p->tree, .path = "", .e = e};
    bool last = lim->pooling == POOLING_LAST;
    int64_t dimensions = lim->hidden, priority = 0;
    get_word(p, &top, "encoding_format", "float", "base64", &p->base64);
    if (!e->code) get_word(p, &top, "pooling", "mean", "last", &last);
    if (!e->code) get_number(p, &top, "dimensions", 1, lim->hidden, &dimensions);
    if (!e->code) get_number(p, &top, "priority", INT32_MIN, INT32_MAX, &priority);
    if (!e->code) get_number(p, &top, "timeout_ms", 1, 24 * 60 * 60 * 1000, &p->timeout_ms);
    if (!e->code) p->field = "normalize", json_get_bool(&top, "normalize", &p->normalize);
    if (!e->code) p->field = "add_special_tokens", json_get_bool(&top, "add_special_tokens", &p->special);
    p->pooling = last ? POOLING_LAST : POOLING_MEAN;
    p->dimensions = (int)dimensions;
    p->priority = (int)priority;
    if (e->code) return e->code;
    if (p->shape == EMBED_OPENAI) {
        get_number(p, &top, "truncate_prompt_tokens", -1, lim->max_total_tokens, &p->truncate);
        if (!e->code) p->field = "model", json_get_string(&top, "model", &p->model);
        if (p->truncate < 0) p->truncate = lim->max_total_tokens;
        return e->code;
    }
    struct json_at parameters = {.path = "parameters", .e = e};
    bool nested = p->shape == EMBED_SIMILARITY;
    if (nested) p->field = "parameters", json_get_object(&top, "parameters", &parameters.obj);
    if (!e->code && (!nested || parameters.obj)) read_truncation(p, nested ? &parameters : &top, lim);
    if (nested) p->normalize = true;
    return e->code;
}

int embed_params_parse(struct embed_params *p, enum embed_shape shape, const struct embed_limits *lim, const char *body,
                       size_t len, struct err *e)
{
    *p = (struct embed_params){.shape = shape, .normalize = true, .special = true};
    e->code = 0;
    p->tree = json_parse_body(body, len, e);
    if (!p->tree) return 400;
    if (!cJSON_IsObject(p->tree))
        err_set(e, ERR_INVALID, "expected a JSON object with the field `%s`",
                shape == EMBED_OPENAI ? "input" : "inputs");
    else if (read_options(p, lim, e) == 0)
        shape == EMBED_SIMILARITY ? read_sentences(p, lim, e) : read_inputs(p, lim, e);
    return e->code ? embed_refusal(shape) : 0;
}

void embed_params_free(struct embed_params *p)
{
    for (int i = 0; i < p->n; i++) free(p->inputs[i].ids);
    free(p->inputs);
    json_free(p->tree);
    *p = (struct embed_params){0};
}

int embed_input_tokenize(struct embed_params *p, int i, const struct tokenizer *tk, const struct embed_limits *lim,
                         struct reservation *held, struct err *e)
{
    struct embed_input *in = &p->inputs[i];
    if (in->text) {
        struct tokens t = {0};
        if (encode_reserved(tk, in->text, in->len, p->special ? TOKENIZE_SPECIAL : 0, &t, held, e)) {
            err_prefix(e, "%s", input_path(p, i).text);
            return reservation_status(e, embed_refusal(p->shape));
        }
        reservation_shrink(held, t.cap * sizeof *t.v);
        in->n = t.n;
        in->ids = mem_array(t.n ? t.n : 1, sizeof *in->ids);
        for (size_t k = 0; k < t.n; k++) in->ids[k] = t.v[k].id;
        tokens_free(&t);
    }
    if (p->truncate && in->n > (size_t)p->truncate) {
        size_t keep = (size_t)p->truncate;
        if (!p->keep_first) memmove(in->ids, in->ids + (in->n - keep), keep * sizeof *in->ids);
        in->n = keep;
    }
    if (in->n < 1)
        err_set(e, ERR_INVALID, "%s: has no token", input_path(p, i).text);
    else if (in->n > (size_t)lim->max_total_tokens)
        err_set(e, ERR_INVALID, "%s: has %zu tokens; the model takes %d at most", input_path(p, i).text, in->n,
                lim->max_total_tokens);
    else
        return 0;
    return embed_refusal(p->shape);
}
