#include "server/embed_params.h"

#include "engine/base/mem.h"
#include "server/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The last field of that name, as the getters take it; NULL where it is absent or null. */
static const cJSON *find_field(const cJSON *obj, const char *name)
{
    const cJSON *found = NULL;
    for (const cJSON *i = obj->child; i; i = i->next)
        if (strcmp(i->string, name) == 0) found = i;
    return found && !cJSON_IsNull(found) ? found : NULL;
}

/* ---- input ----------------------------------------------------------------------------------------------------- */

static int take_text(struct embed_params *p, const cJSON *item, int i, const struct embed_limits *lim, struct err *e)
{
    size_t n = strlen(item->valuestring), most = (size_t)lim->max_total_tokens * lim->longest_token;
    if (n == 0) return err_set(e, ERR_INVALID, "input[%d]: cannot be empty", i);
    if (!p->truncate && n > most) /* not tokenised in vain */
        return err_set(e, ERR_INVALID, "input[%d]: has %zu bytes; the model's %d tokens can hold %zu at most", i, n,
                       lim->max_total_tokens, most);
    p->inputs[i] = (struct embed_input){.text = item->valuestring, .len = n};
    return 0;
}

static int take_ids(struct embed_params *p, const cJSON *list, int i, const struct embed_limits *lim, struct err *e)
{
    struct embed_input *in = &p->inputs[i];
    int n = cJSON_GetArraySize(list), k = 0;
    if (n == 0) return err_set(e, ERR_INVALID, "input[%d]: cannot be empty", i);
    if (!p->truncate && n > lim->max_total_tokens)
        return err_set(e, ERR_INVALID, "input[%d]: has %d tokens; the model takes %d at most", i, n,
                       lim->max_total_tokens);
    in->ids = mem_array((size_t)n, sizeof *in->ids);
    for (const cJSON *v = list->child; v; v = v->next, k++) {
        if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0 && v->valuedouble < lim->vocab) ||
            v->valuedouble != floor(v->valuedouble))
            return err_set(e, ERR_INVALID, "input[%d][%d]: expected a token id from 0 to %d", i, k, lim->vocab - 1);
        in->ids[in->n++] = (int32_t)v->valuedouble;
    }
    return 0;
}

/* A text, a list of texts, a list of ids, a list of lists of ids. */
static int read_inputs(struct embed_params *p, const struct embed_limits *lim, struct err *e)
{
    const cJSON *input = find_field(p->tree, "input"), *first = cJSON_IsArray(input) ? input->child : NULL;
    p->field = "input";
    if (!input) return err_set(e, ERR_INVALID, "input: the field is missing");
    bool one = cJSON_IsString(input) || cJSON_IsNumber(first), texts = cJSON_IsString(input) || cJSON_IsString(first);
    if (!one && !cJSON_IsArray(input))
        return err_set(e, ERR_INVALID, "input: expected a string, a list of strings, or token ids");
    p->n = one ? 1 : cJSON_GetArraySize(input);
    int most = EMBED_VALUES_MAX / p->dimensions;
    if (most > EMBED_INPUTS_MAX) most = EMBED_INPUTS_MAX;
    if (p->n < 1 || p->n > most) {
        int n = p->n;
        p->n = 0;
        return err_set(e, ERR_INVALID, "input: expected 1 to %d inputs, not %d", most, n);
    }
    p->inputs = mem_array((size_t)p->n, sizeof *p->inputs);
    if (one) return texts ? take_text(p, input, 0, lim, e) : take_ids(p, input, 0, lim, e);
    int i = 0, rc = 0;
    for (const cJSON *v = first; v && !rc; v = v->next, i++) {
        if (texts ? !cJSON_IsString(v) : !cJSON_IsArray(v))
            return err_set(e, ERR_INVALID, "input[%d]: expected %s", i,
                           texts ? "a string, as the first" : "a string or a list of token ids");
        rc = texts ? take_text(p, v, i, lim, e) : take_ids(p, v, i, lim, e);
    }
    return rc;
}

/* ---- the rest -------------------------------------------------------------------------------------------------- */

/* One of two words; *second says which.  NULL where the field is absent. */
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

static int read_options(struct embed_params *p, const struct embed_limits *lim, struct err *e)
{
    struct json_at top = {.obj = p->tree, .path = "", .e = e};
    bool last = lim->pooling == POOLING_LAST;
    int64_t dimensions = lim->hidden, priority = 0;
    get_word(p, &top, "encoding_format", "float", "base64", &p->base64);
    if (!e->code) get_word(p, &top, "pooling", "mean", "last", &last);
    if (!e->code) get_number(p, &top, "dimensions", 1, lim->hidden, &dimensions);
    if (!e->code) get_number(p, &top, "truncate_prompt_tokens", -1, lim->max_total_tokens, &p->truncate);
    if (!e->code) get_number(p, &top, "priority", INT32_MIN, INT32_MAX, &priority);
    if (!e->code) get_number(p, &top, "timeout_ms", 1, 24 * 60 * 60 * 1000, &p->timeout_ms);
    if (!e->code) p->field = "normalize", json_get_bool(&top, "normalize", &p->normalize);
    if (!e->code) p->field = "add_special_tokens", json_get_bool(&top, "add_special_tokens", &p->special);
    if (!e->code) p->field = "model", json_get_string(&top, "model", &p->model);
    if (p->truncate < 0) p->truncate = lim->max_total_tokens;
    p->pooling = last ? POOLING_LAST : POOLING_MEAN;
    p->dimensions = (int)dimensions;
    p->priority = (int)priority;
    return e->code;
}

int embed_params_parse(struct embed_params *p, const struct embed_limits *lim, const char *body, size_t len,
                       struct err *e)
{
    *p = (struct embed_params){.normalize = true, .special = true};
    e->code = 0;
    p->tree = json_parse(body, len, e);
    if (!p->tree) return 400;
    if (!cJSON_IsObject(p->tree))
        err_set(e, ERR_INVALID, "expected a JSON object with the field `input`");
    else if (read_options(p, lim, e) == 0)
        read_inputs(p, lim, e);
    return e->code ? 400 : 0;
}

void embed_params_free(struct embed_params *p)
{
    for (int i = 0; i < p->n; i++) free(p->inputs[i].ids);
    free(p->inputs);
    cJSON_Delete(p->tree);
    *p = (struct embed_params){0};
}

int embed_input_tokenize(struct embed_params *p, int i, const struct tokenizer *tk, const struct embed_limits *lim,
                         struct err *e)
{
    struct embed_input *in = &p->inputs[i];
    if (in->text) {
        struct tokens t = {0};
        if (tokenizer_encode(tk, in->text, in->len, p->special ? TOKENIZE_SPECIAL : 0, &t, e)) {
            tokens_free(&t);
            if (!e->code) err_set(e, ERR_INVALID, "the text cannot be tokenised");
            err_prefix(e, "input[%d]", i);
            return 400;
        }
        in->n = t.n;
        in->ids = mem_array(t.n ? t.n : 1, sizeof *in->ids);
        for (size_t k = 0; k < t.n; k++) in->ids[k] = t.v[k].id;
        tokens_free(&t);
    }
    if (p->truncate && in->n > (size_t)p->truncate) {
        memmove(in->ids, in->ids + (in->n - (size_t)p->truncate), (size_t)p->truncate * sizeof *in->ids);
        in->n = (size_t)p->truncate;
    }
    if (in->n < 1) return err_set(e, ERR_INVALID, "input[%d]: has no token", i), 400;
    if (in->n > (size_t)lim->max_total_tokens)
        return err_set(e, ERR_INVALID, "input[%d]: has %zu tokens; the model takes %d at most", i, in->n,
                       lim->max_total_tokens),
               400;
    return 0;
}
