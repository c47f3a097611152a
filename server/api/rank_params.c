/* The bodies of POST /rerank, /score, /classify and /predict (embed_params.h): pairs of texts, or texts, for a
 * classifier.
 *
 * Sources: vLLM's protocol for pooling (docs/models/pooling_models), Jina's and Cohere's rerank; Text Embeddings
 * Inference, router/src/http/types.rs. */
#include "server/api/embed_params.h"
#include "server/json/json.h"

#include <stdint.h>
#include <string.h>

static const cJSON *find_field(const cJSON *obj, const char *name)
{
    const cJSON *found = NULL;
    for (const cJSON *i = obj->child; i; i = i->next)
        if (strcmp(i->string, name) == 0) found = i;
    return found && !cJSON_IsNull(found) ? found : NULL;
}

/* A text, or Jina's and Cohere's {"text": TEXT}; NULL: neither. */
static const char *text_of(const cJSON *v)
{
    if (cJSON_IsObject(v)) v = find_field(v, "text");
    return cJSON_IsString(v) ? v->valuestring : NULL;
}

static const char *need_text(struct embed_params *p, const char *name, struct err *e)
{
    const char *text = text_of(find_field(p->tree, p->field = name));
    if (!text) err_set(e, ERR_INVALID, "%s: expected a string", name);
    return text;
}

/* One label, whose score ranks. */
static int check_one_label(const struct embed_limits *lim, struct err *e)
{
    if (lim->embedder->n_labels == 1) return 0;
    return err_set(e, ERR_UNSUPPORTED, "this model has %d labels: only a model with one gives a score to rank by",
                   lim->embedder->n_labels);
}

static int read_query(struct embed_params *p, const char *name, const struct embed_limits *lim, struct err *e)
{
    const char *query = need_text(p, "query", e);
    const cJSON *texts = find_field(p->tree, name);
    if (!query || check_one_label(lim, e)) return e->code;
    p->field = name;
    if (!cJSON_IsArray(texts) || !texts->child) return err_set(e, ERR_INVALID, "%s: expected a list of strings", name);
    if (embed_count_inputs(p, cJSON_GetArraySize(texts), e)) return e->code;
    int i = 0, rc = 0;
    for (const cJSON *v = texts->child; v && !rc; v = v->next, i++) {
        const char *text = text_of(v);
        rc = text ? embed_take_text(p, i, query, text, lim, e)
                  : err_set(e, ERR_INVALID, "%s[%d]: expected a string", name, i);
    }
    return rc;
}

/* The i-th text of a list, or the one text. */
static const char *text_at(const cJSON *v, int i)
{
    return text_of(cJSON_IsArray(v) ? cJSON_GetArrayItem(v, i) : v);
}

static int read_score(struct embed_params *p, const struct embed_limits *lim, struct err *e)
{
    const cJSON *a = find_field(p->tree, "text_1"), *b = find_field(p->tree, "text_2");
    p->field = a ? "text_2" : "text_1";
    if (!a || !b) return err_set(e, ERR_INVALID, "%s: the field is missing", p->field);
    int n = cJSON_IsArray(a) ? cJSON_GetArraySize(a) : 1, m = cJSON_IsArray(b) ? cJSON_GetArraySize(b) : 1;
    if (check_one_label(lim, e)) return e->code;
    if (n != m && cJSON_IsArray(a) && n != 1)
        return err_set(e, ERR_INVALID, "text_2: %d texts beside %d in text_1: expected as many, or one text_1", m, n);
    if (embed_count_inputs(p, m, e)) return e->code;
    const cJSON *left = cJSON_IsArray(a) ? a->child : a, *right = cJSON_IsArray(b) ? b->child : b;
    for (int i = 0; i < m; i++) {
        const char *x = text_of(left), *y = text_of(right);
        if (!x || !y) return err_set(e, ERR_INVALID, "%s[%d]: expected a string", x ? "text_2" : "text_1", i);
        if (embed_take_text(p, i, x, y, lim, e)) return e->code;
        if (n == m && n > 1) left = left->next;
        right = right->next;
    }
    return 0;
}

/* A text, a list of texts, a list of token ids, or a list of such lists. */
static int read_input(struct embed_params *p, const struct embed_limits *lim, struct err *e)
{
    const cJSON *input = find_field(p->tree, p->field = "input");
    if (!input) return err_set(e, ERR_INVALID, "input: the field is missing");
    bool one = !cJSON_IsArray(input) || cJSON_IsNumber(input->child);
    int n = one ? 1 : cJSON_GetArraySize(input), rc = embed_count_inputs(p, n, e);
    const cJSON *v = one ? input : input->child;
    for (int i = 0; i < n && !rc; i++, v = v->next) {
        if (cJSON_IsArray(v))
            rc = embed_take_ids(p, v, i, lim, e);
        else
            rc = cJSON_IsString(v) ? embed_take_text(p, i, v->valuestring, NULL, lim, e)
                                   : err_set(e, ERR_INVALID, "input[%d]: expected a string", i);
    }
    return rc;
}

/* A text, or a list of one text or of two, which are a pair. */
static int take_sequence(struct embed_params *p, int i, const cJSON *v, const struct embed_limits *lim, struct err *e)
{
    int n = cJSON_IsArray(v) ? cJSON_GetArraySize(v) : 1;
    const char *text = text_at(v, 0), *pair = n == 2 ? text_at(v, 1) : NULL;
    if (n < 1 || n > 2 || !text || (n == 2 && !pair))
        return err_set(e, ERR_INVALID, "inputs[%d]: expected a string, or a list of one or two strings", i);
    return embed_take_text(p, i, text, pair, lim, e);
}

static int read_inputs(struct embed_params *p, const struct embed_limits *lim, struct err *e)
{
    const cJSON *inputs = find_field(p->tree, p->field = "inputs");
    if (!inputs) return err_set(e, ERR_INVALID, "inputs: the field is missing");
    p->list = cJSON_IsArray(inputs) && cJSON_IsArray(inputs->child);
    int n = p->list ? cJSON_GetArraySize(inputs) : 1, rc = embed_count_inputs(p, n, e);
    if (!p->list) return rc ? rc : take_sequence(p, 0, inputs, lim, e);
    const cJSON *v = inputs->child;
    for (int i = 0; i < n && !rc; i++, v = v->next) rc = take_sequence(p, i, v, lim, e);
    return rc;
}

/* TEI's fields, in the other shapes too where vLLM has none of the name. */
static int read_options(struct embed_params *p, const struct embed_limits *lim, bool tei, struct err *e)
{
    struct json_at top = {.obj = p->tree, .path = "", .e = e};
    const char *direction = "right";
    int64_t keep = tei ? 0 : lim->max_total_tokens, top_n = 0, priority = 0;
    bool truncate = false;
    p->documents = !tei;
    p->field = "truncate", json_get_bool(&top, "truncate", &truncate);
    if (!e->code) p->field = "truncation_direction", json_get_string(&top, p->field, &direction);
    if (!e->code && strcmp(direction, "right") && strcmp(direction, "Right") && strcmp(direction, "left") &&
        strcmp(direction, "Left"))
        err_set(e, ERR_INVALID, "truncation_direction: must be \"right\" or \"left\"");
    if (!e->code) p->field = "raw_scores", json_get_bool(&top, p->field, &p->raw_scores);
    if (!e->code) p->field = tei ? "return_text" : "return_documents", json_get_bool(&top, p->field, &p->documents);
    if (!e->code) p->field = "top_n", json_get_int(&top, p->field, 0, INT32_MAX, &top_n);
    if (!e->code) p->field = "priority", json_get_int(&top, p->field, INT32_MIN, INT32_MAX, &priority);
    if (!e->code) p->field = "timeout_ms", json_get_int(&top, p->field, 1, 24 * 60 * 60 * 1000, &p->timeout_ms);
    if (!e->code && !tei) p->field = "model", json_get_string(&top, p->field, &p->model);
    if (!e->code && !tei)
        p->field = "truncate_prompt_tokens", json_get_int(&top, p->field, -1, lim->max_total_tokens, &keep);
    if (truncate || keep < 0) keep = lim->max_total_tokens;
    p->truncate = keep;
    p->keep_first = (*direction | 32) == 'r';
    p->normalize = false;
    p->top_n = (int)top_n;
    p->priority = (int)priority;
    p->pooling = lim->pooling;
    p->dimensions = lim->hidden;
    return e->code;
}

int rank_params_read(struct embed_params *p, const struct embed_limits *lim, struct err *e)
{
    if (!cJSON_IsObject(p->tree)) return err_set(e, ERR_INVALID, "expected a JSON object");
    if (!lim->embedder->classifies) { /* refused for that, whatever its fields */
        p->dimensions = lim->hidden;
        return 0;
    }
    if (p->shape == EMBED_RERANK && find_field(p->tree, "texts")) p->shape = EMBED_RANK;
    if (p->shape == EMBED_CLASSIFY && !find_field(p->tree, "input") && find_field(p->tree, "inputs"))
        p->shape = EMBED_PREDICT;
    bool root = p->shape == EMBED_PREDICT_ROOT;
    if (root) p->shape = EMBED_PREDICT;
    if (read_options(p, lim, p->shape == EMBED_RANK || p->shape == EMBED_PREDICT, e)) return e->code;
    switch (p->shape) {
    case EMBED_RERANK: return read_query(p, "documents", lim, e);
    case EMBED_RANK: return read_query(p, "texts", lim, e);
    case EMBED_SCORE: return read_score(p, lim, e);
    case EMBED_CLASSIFY: return read_input(p, lim, e);
    default: break;
    }
    int rc = read_inputs(p, lim, e);
    p->list |= root;
    return rc;
}
