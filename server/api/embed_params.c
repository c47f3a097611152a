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
    bool openai = shape == EMBED_OPENAI || shape == EMBED_RERANK || shape == EMBED_SCORE || shape == EMBED_CLASSIFY;
    return openai ? 400 : 422;
}

bool embed_shape_ranks(enum embed_shape shape)
{
    return shape >= EMBED_RERANK && shape < EMBED_NONE;
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
    else if (embed_shape_ranks(p->shape))
        snprintf(path.text, sizeof path.text, "%s[%d]", p->field, i);
    else
        snprintf(path.text, sizeof path.text, "%s[%d]", p->shape == EMBED_TEI ? "inputs" : "input", i);
    return path;
}

/* ---- input ----------------------------------------------------------------------------------------------------- */

/* An encoder's texts, and those of a model with sentence-transformers' files, are cut before the template is put around
 * them; a decoder's tokens afterwards, as vLLM does.  Encoders' tokenizers drop characters, and one token may stand for
 * any unknown word: the bytes of a text bound nothing. */
static bool cuts_texts(const struct embed_limits *lim)
{
    const struct embedder *m = lim->embedder;
    return m->encoder || m->classifies || m->sentences;
}

int embed_take_text(struct embed_params *p, int i, const char *text, const char *pair, const struct embed_limits *lim,
                    struct err *e)
{
    size_t n = strlen(text), n_pair = pair ? strlen(pair) : 0, both = n + n_pair;
    size_t most = (size_t)lim->max_total_tokens * lim->longest_token;
    if (n == 0) return err_set(e, ERR_INVALID, "%s: cannot be empty", input_path(p, i).text);
    if (!p->truncate && !cuts_texts(lim) && both > most) /* too long for any tokenisation */
        return err_set(e, ERR_INVALID, "%s: has %zu bytes; the model's %d tokens can hold %zu at most",
                       input_path(p, i).text, both, lim->max_total_tokens, most);
    p->inputs[i] = (struct embed_input){.text = text, .len = n, .pair = pair, .pair_len = n_pair};
    return 0;
}

static int take_text(struct embed_params *p, const cJSON *item, int i, const struct embed_limits *lim, struct err *e)
{
    return embed_take_text(p, i, item->valuestring, NULL, lim, e);
}

int embed_take_ids(struct embed_params *p, const cJSON *list, int i, const struct embed_limits *lim, struct err *e)
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

int embed_count_inputs(struct embed_params *p, int n, struct err *e)
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
    if (embed_count_inputs(p, one ? 1 : cJSON_GetArraySize(input), e)) return e->code;
    if (one) return texts ? take_text(p, input, 0, lim, e) : embed_take_ids(p, input, 0, lim, e);
    int i = 0, rc = 0;
    for (const cJSON *v = first; v && !rc; v = v->next, i++) {
        if (texts ? !cJSON_IsString(v) : !cJSON_IsArray(v))
            return err_set(e, ERR_INVALID, "%s: expected %s", input_path(p, i).text,
                           texts ? "a string, as the first" : "a string or a list of token ids");
        rc = texts ? take_text(p, v, i, lim, e) : embed_take_ids(p, v, i, lim, e);
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
    if (embed_count_inputs(p, 1 + cJSON_GetArraySize(others), e)) return e->code;
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

/* prompt_name: one of the model's; otherwise its default one, if any. */
static void read_prompt(struct embed_params *p, struct json_at *top, const struct embed_limits *lim)
{
    const struct embedder *m = lim->embedder;
    const char *name = NULL;
    if (m->default_prompt >= 0) p->prompt = m->prompts[m->default_prompt].text;
    if (!json_get_string(top, p->field = "prompt_name", &name)) return;
    for (int i = 0; i < m->n_prompts; i++)
        if (strcmp(m->prompts[i].name, name) == 0) {
            p->prompt = m->prompts[i].text;
            return;
        }
    struct buf names = {0};
    for (int i = 0; i < m->n_prompts && names.len < 200; i++)
        buf_printf(&names, "%s\"%.60s\"", i ? ", " : "; it has ", m->prompts[i].name);
    err_set(top->e, ERR_UNSUPPORTED, "prompt_name: the model has no prompt \"%.100s\"%s", name,
            names.data ? names.data : "");
    buf_free(&names);
}

/* Reads TEI's equivalents of truncate_prompt_tokens. */
static void read_truncation(struct embed_params *p, struct json_at *top, const struct embed_limits *lim)
{
    bool truncate = false, left = false;
    p->field = "truncate", json_get_bool(top, "truncate", &truncate);
    if (!top->e->code) get_word(p, top, "truncation_direction", "right", "left", &left);
    p->truncate = truncate ? lim->max_total_tokens : 0;
    p->keep_first = !left;
}

/* `pooling`: another than the model's. */
static void read_pooling(struct embed_params *p, struct json_at *top, const struct embed_limits *lim)
{
    static const struct {
        const char *name;
        enum pooling pooling;
    } poolings[] = {{"mean", POOLING_MEAN},
                    {"last", POOLING_LAST},
                    {"cls", POOLING_FIRST},
                    {"max", POOLING_MAX},
                    {"weightedmean", POOLING_WEIGHTED}};
    const char *name;
    p->pooling = lim->pooling;
    if (!json_get_string(top, p->field = "pooling", &name)) return;
    if (p->pooling.n > 1) {
        err_set(top->e, ERR_UNSUPPORTED, "pooling: the model concatenates %d poolings", p->pooling.n);
        return;
    }
    for (size_t i = 0; i < sizeof poolings / sizeof *poolings; i++)
        if (strcmp(name, poolings[i].name) == 0) {
            p->pooling.v[0] = poolings[i].pooling;
            return;
        }
    err_set(top->e, ERR_INVALID, "pooling: must be \"mean\", \"last\", \"cls\", \"max\" or \"weightedmean\"");
}

static int read_options(struct embed_params *p, const struct embed_limits *lim, struct err *e)
{
    struct json_at top = {.obj = p->tree, .path = "", .e = e};
    int64_t dimensions = lim->hidden, priority = 0;
    get_word(p, &top, "encoding_format", "float", "base64", &p->base64);
    if (!e->code) read_pooling(p, &top, lim);
    if (!e->code && p->shape != EMBED_SIMILARITY) read_prompt(p, &top, lim);
    if (!e->code) get_number(p, &top, "dimensions", 1, lim->hidden, &dimensions);
    if (!e->code) get_number(p, &top, "priority", INT32_MIN, INT32_MAX, &priority);
    if (!e->code) get_number(p, &top, "timeout_ms", 1, 24 * 60 * 60 * 1000, &p->timeout_ms);
    if (!e->code) p->field = "normalize", json_get_bool(&top, "normalize", &p->normalize);
    if (!e->code) p->field = "add_special_tokens", json_get_bool(&top, "add_special_tokens", &p->special);
    p->dimensions = (int)dimensions;
    p->priority = (int)priority;
    if (e->code) return e->code;
    if (p->shape == EMBED_OPENAI) {
        get_number(p, &top, "truncate_prompt_tokens", -1, lim->max_total_tokens, &p->truncate);
        if (!e->code) p->field = "model", json_get_string(&top, "model", &p->model);
        /* sentence-transformers cuts texts to what the model takes */
        if (p->truncate < 0 || (!p->truncate && lim->embedder->sentences)) {
            p->truncate = lim->max_total_tokens;
            p->keep_first = lim->embedder->sentences;
        }
        return e->code;
    }
    struct json_at parameters = {.path = "parameters", .e = e};
    bool nested = p->shape == EMBED_SIMILARITY;
    if (nested) p->field = "parameters", json_get_object(&top, "parameters", &parameters.obj);
    if (!e->code && (!nested || parameters.obj)) read_truncation(p, nested ? &parameters : &top, lim);
    if (!e->code && nested) read_prompt(p, parameters.obj ? &parameters : &top, lim);
    if (nested) p->normalize = true;
    return e->code;
}

int embed_params_parse(struct embed_params *p, enum embed_shape shape, const struct embed_limits *lim, const char *body,
                       size_t len, struct err *e)
{
    bool normal = shape != EMBED_OPENAI || !lim->embedder->sentences || lim->embedder->normalize;
    *p = (struct embed_params){.shape = shape, .normalize = normal, .special = true};
    e->code = 0;
    p->tree = json_parse_body(body, len, e);
    if (!p->tree) return 400;
    if (embed_shape_ranks(shape))
        rank_params_read(p, lim, e);
    else if (!cJSON_IsObject(p->tree))
        err_set(e, ERR_INVALID, "expected a JSON object with the field `%s`",
                shape == EMBED_OPENAI ? "input" : "inputs");
    else if (read_options(p, lim, e) == 0)
        shape == EMBED_SIMILARITY ? read_sentences(p, lim, e) : read_inputs(p, lim, e);
    return e->code ? embed_refusal(shape) : 0;
}

void embed_params_free(struct embed_params *p)
{
    for (int i = 0; i < p->n; i++) {
        free(p->inputs[i].ids);
        free(p->inputs[i].types);
    }
    free(p->inputs);
    json_free(p->tree);
    *p = (struct embed_params){0};
}

static int encode_text(const struct embed_params *p, const struct embed_input *in, const struct tokenizer *tk,
                       const struct embed_limits *lim, struct tokens *t, struct buf *types, struct reservation *held,
                       struct err *e)
{
    unsigned flags = p->special ? TOKENIZE_SPECIAL : 0;
    if (!cuts_texts(lim)) return encode_reserved(tk, in->text, in->len, flags, t, held, e);
    struct encode_input x = {.text = in->text, .n_text = in->len, .pair = in->pair, .n_pair = in->pair_len};
    x.max = (size_t)p->truncate;
    x.cut_left = !p->keep_first;
    struct buf text = {0};
    if (p->prompt || lim->embedder->lowercase) {
        if (p->prompt) buf_str(&text, p->prompt);
        buf_append(&text, in->text, in->len);
        if (lim->embedder->lowercase) tokenizer_lowercase(&text);
        x.text = text.data;
        x.n_text = text.len;
    }
    int rc = encode_input_reserved(tk, &x, flags, t, types, held, e);
    buf_free(&text);
    return rc;
}

/* Counts the tokens that the prompt has by itself, with those that the template puts before it, as
 * sentence-transformers does: that many of a text's first tokens are not pooled. */
static int count_prompt(struct embed_params *p, const struct tokenizer *tk, const struct embed_limits *lim,
                        struct reservation *held, struct err *e)
{
    if (!p->prompt || !lim->embedder->skip_prompt || p->n_prompt) return 0;
    struct embed_params bare = *p;
    struct embed_input prompt = {.text = p->prompt, .len = strlen(p->prompt)};
    struct tokens t = {0};
    struct buf types = {0};
    bare.prompt = NULL;
    int rc = encode_text(&bare, &prompt, tk, lim, &t, &types, held, e);
    buf_free(&types);
    if (rc) return rc;
    p->n_prompt = t.n;
    if (t.n && tokenizer_is_special(tk, t.v[t.n - 1].id)) p->n_prompt--; /* [SEP], </s> */
    reservation_shrink(held, t.cap * ENCODE_TOKEN);
    tokens_free(&t);
    return 0;
}

static int take_tokens(struct embed_params *p, int i, const struct tokenizer *tk, const struct embed_limits *lim,
                       struct reservation *held, struct err *e)
{
    struct embed_input *in = &p->inputs[i];
    struct tokens t = {0};
    struct buf types = {0};
    if (count_prompt(p, tk, lim, held, e) || encode_text(p, in, tk, lim, &t, &types, held, e)) {
        err_prefix(e, "%s", input_path(p, i).text);
        buf_free(&types);
        return reservation_status(e, embed_refusal(p->shape));
    }
    reservation_shrink(held, t.cap * sizeof *t.v);
    if (p->n_prompt && !p->keep_first && p->truncate && t.n >= (size_t)p->truncate) {
        err_set(e, ERR_UNSUPPORTED, "%s: of a text cut at its left no prompt can be left out", input_path(p, i).text);
        buf_free(&types);
        tokens_free(&t);
        return reservation_status(e, embed_refusal(p->shape));
    }
    in->n = t.n;
    in->skip = p->n_prompt;
    in->ids = mem_array(t.n ? t.n : 1, sizeof *in->ids);
    for (size_t k = 0; k < t.n; k++) in->ids[k] = t.v[k].id;
    if (lim->types > 1)
        in->types = (unsigned char *)types.data; /* now owned by the input */
    else
        buf_free(&types);
    tokens_free(&t);
    return 0;
}

int embed_input_tokenize(struct embed_params *p, int i, const struct tokenizer *tk, const struct embed_limits *lim,
                         struct reservation *held, struct err *e)
{
    struct embed_input *in = &p->inputs[i];
    int rc = in->text ? take_tokens(p, i, tk, lim, held, e) : 0;
    if (rc) return rc;
    if (p->truncate && in->n > (size_t)p->truncate) {
        size_t keep = (size_t)p->truncate;
        if (!p->keep_first) memmove(in->ids, in->ids + (in->n - keep), keep * sizeof *in->ids);
        in->n = keep;
    }
    while (in->n > 1 && in->ids[in->n - 1] == lim->embedder->pad) in->n--;
    if (in->n < 1)
        err_set(e, ERR_INVALID, "%s: has no token", input_path(p, i).text);
    else if (in->n > (size_t)lim->max_total_tokens)
        err_set(e, ERR_INVALID, "%s: has %zu tokens; the model takes %d at most", input_path(p, i).text, in->n,
                lim->max_total_tokens);
    else
        return 0;
    return embed_refusal(p->shape);
}
