/* TGI's GenerateRequest: field by field in the order in which TGI checks, with TGI's own messages, and the fields that
 * tandem adds.  Where TGI refuses a value that plainly means "off" (top_p = 1), tandem takes it.  Unknown fields are
 * ignored, as TGI does. */
#include "server/generate_params.h"

#include "engine/base/mem.h"
#include "server/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BIAS = 1024, TGI_RESERVE = 1024 /* tokens TGI reserves at a time, known to clients by its length rule */ };

struct check {
    struct generate_params *p;
    const struct generate_limits *lim;
    struct json_at at; /* the parameters object; obj NULL when absent */
    struct err *e;
};

/* Always false, so that a check can end with `return refuse(...)`. */
__attribute__((format(printf, 2, 3))) static bool refuse(struct err *e, const char *fmt, ...)
{
    char msg[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    err_set(e, ERR_INVALID, "Input validation error: %s", msg);
    return false;
}

/* A getter said false: absent, or wrong and the error is set. */
static bool ok(const struct check *c)
{
    return c->e->code == 0;
}

/* A field of any type; the last of duplicates, as the getters take it. */
static const cJSON *find_field(const struct check *c, const char *name)
{
    const cJSON *found = NULL;
    for (const cJSON *i = c->at.obj ? c->at.obj->child : NULL; i; i = i->next)
        if (strcmp(i->string, name) == 0) found = i;
    return found;
}

/* A JSON number as the float the sampler works with. */
static bool get_float(struct check *c, const char *name, float *out, bool *given)
{
    double v;
    *given = json_get_number(&c->at, name, &v);
    if (!*given) return ok(c);
    *out = (float)v;
    if (!isfinite(*out)) return refuse(c->e, "`%s` is too large", name);
    return true;
}

static bool get_int(struct check *c, const char *name, int64_t *out, bool *given)
{
    *given = json_get_int(&c->at, name, INT64_MIN, INT64_MAX, out);
    return *given || ok(c);
}

static float clamp(float v, float low, float high)
{
    return v < low ? low : v > high ? high : v;
}

/* ---- the sampling rules, in TGI's order ------------------------------------------------------------------------ */

static bool check_best_of(struct check *c)
{
    int64_t v = 1;
    bool given;
    if (!get_int(c, "best_of", &v, &given)) return false;
    if (v < 1 || v > c->lim->max_best_of)
        return refuse(c->e, "`best_of` must be > 0 and <= %d. Given: %lld", c->lim->max_best_of, (long long)v);
    c->p->best_of = (int)v;
    return true;
}

/* Whether the request samples: do_sample, or any parameter that would do nothing otherwise.  The trap: without a
 * `parameters` object the answer is sampled, with one that lacks do_sample it is greedy. */
static bool check_sampling_switch(struct check *c)
{
    struct sampling_params *s = &c->p->gen.sampling;
    bool do_sample = c->at.obj == NULL;
    json_get_bool(&c->at, "do_sample", &do_sample);
    if (!ok(c)) return false;
    s->sample = do_sample || s->temperature != 1 || s->top_k || s->top_p < 1 || s->typical_p < 1 || s->min_p > 0;
    if (c->p->best_of > 1 && !s->sample) return refuse(c->e, "you must use sampling when `best_of` is > 1");
    c->p->has_seed = json_get_u64(&c->at, "seed", &s->seed);
    if (!ok(c)) return false;
    if (c->p->best_of > 1 && c->p->has_seed) return refuse(c->e, "`seed` must not be set when `best_of` > 1");
    if (c->p->best_of > 1 && c->p->stream) return refuse(c->e, "`best_of` != 1 is not supported when streaming tokens");
    return true;
}

/* Reads the numbers that check_sampling_switch looks at, without judging them: TGI's order of messages. */
static bool read_sampling(struct check *c, bool given[static 4])
{
    struct sampling_params *s = &c->p->gen.sampling;
    int64_t top_k = 0;
    if (!get_float(c, "temperature", &s->temperature, &given[0])) return false;
    if (!get_int(c, "top_k", &top_k, &given[1])) return false;
    if (!get_float(c, "top_p", &s->top_p, &given[2])) return false;
    if (!get_float(c, "typical_p", &s->typical_p, &given[3])) return false;
    bool min_p;
    if (!get_float(c, "min_p", &s->min_p, &min_p)) return false;
    if (given[1] && top_k <= 0)
        s->top_k = -1; /* judged below */
    else
        s->top_k = top_k > c->lim->vocab ? c->lim->vocab : (int)top_k;
    return true;
}

static bool check_penalties(struct check *c)
{
    struct sampling_params *s = &c->p->gen.sampling;
    bool given;
    if (!get_float(c, "repetition_penalty", &s->repetition, &given)) return false;
    if (given && !(s->repetition > 0)) return refuse(c->e, "`repetition_penalty` must be strictly positive");
    /* the engine's range; beyond it products of logits leave the floats, and nothing changes any more */
    s->repetition = clamp(s->repetition, 1e-3f, 1e3f);
    if (!get_float(c, "frequency_penalty", &s->frequency, &given)) return false;
    if (!(s->frequency >= -2 && s->frequency <= 2))
        return refuse(c->e, "`frequency_penalty` must be >= -2.0 and <= 2.0");
    if (!get_float(c, "presence_penalty", &s->presence, &given)) return false;
    if (!(s->presence >= -2 && s->presence <= 2)) return refuse(c->e, "`presence_penalty` must be >= -2.0 and <= 2.0");
    return true;
}

static bool check_top_n(struct check *c)
{
    int64_t v = 0;
    bool given;
    if (!get_int(c, "top_n_tokens", &v, &given)) return false;
    if (v < 0 || v > c->lim->max_top_n)
        return refuse(c->e, "`top_n_tokens` must be >= 0 and <= %d. Given: %lld", c->lim->max_top_n, (long long)v);
    c->p->gen.top_n = (int)v;
    return true;
}

static bool check_details(struct check *c)
{
    struct generate_params *p = c->p;
    json_get_bool(&c->at, "details", &p->details);
    json_get_bool(&c->at, "decoder_input_details", &p->decoder_input_details);
    json_get_bool(&c->at, "return_full_text", &p->return_full_text);
    if (!ok(c)) return false;
    if (p->decoder_input_details && p->stream)
        return refuse(c->e, "`decoder_input_details` == true is not supported when streaming tokens");
    p->gen.prompt_logprobs = p->decoder_input_details;
    return true;
}

static bool check_sampling(struct check *c)
{
    struct sampling_params *s = &c->p->gen.sampling;
    bool given[4];
    if (!check_best_of(c) || !read_sampling(c, given) || !check_sampling_switch(c)) return false;
    if (!check_top_n(c) || !check_details(c)) return false;
    if (given[0] && !(s->temperature > 0)) return refuse(c->e, "`temperature` must be strictly positive");
    /* colder than this is greedy already, and hotter is uniform: the engine takes 1e-4 to 1e4 */
    s->temperature = clamp(s->temperature, 2e-4f, 1e4f);
    if (!check_penalties(c)) return false;
    if (given[2] && !(s->top_p > 0 && s->top_p <= 1)) return refuse(c->e, "`top_p` must be > 0.0 and < 1.0");
    if (s->top_k < 0) return refuse(c->e, "`top_k` must be strictly positive");
    if (given[3] && !(s->typical_p > 0 && s->typical_p <= 1))
        return refuse(c->e, "`typical_p` must be > 0.0 and < 1.0");
    if (!(s->min_p >= 0 && s->min_p <= 1)) return refuse(c->e, "`min_p` must be >= 0.0 and <= 1.0");
    return true;
}

/* ---- how the text ends ----------------------------------------------------------------------------------------- */

static bool add_stop(struct check *c, const cJSON *item, const char *name, int i)
{
    struct generate_params *p = c->p;
    if (!cJSON_IsString(item)) return refuse(c->e, "parameters.%s[%d]: expected a string", name, i);
    size_t n = strlen(item->valuestring);
    if (n < 1 || n > ENGINE_STOP_BYTES)
        return refuse(c->e, "`%s` texts must have 1 to %d bytes. Given: %zu", name, ENGINE_STOP_BYTES, n);
    p->stop[p->gen.n_stop++] = item->valuestring;
    return true;
}

/* `stop`, or `stop_sequences` as older clients call it: a list, or one text. */
static bool check_stop(struct check *c, const char *name)
{
    const cJSON *item = find_field(c, name);
    const cJSON *list = NULL;
    if (cJSON_IsString(item)) {
        if (c->lim->max_stop < 1) return refuse(c->e, "`%s` supports up to 0 stop sequences. Given: 1", name);
        return add_stop(c, item, name, 0);
    }
    if (!json_get_array(&c->at, name, &list)) return ok(c);
    int n = cJSON_GetArraySize(list), i = 0;
    if (n > c->lim->max_stop)
        return refuse(c->e, "`%s` supports up to %d stop sequences. Given: %d", name, c->lim->max_stop, n);
    for (item = list->child; item; item = item->next)
        if (!add_stop(c, item, name, i++)) return false;
    return true;
}

/* A token id of the model, from a JSON value. */
static bool is_token(const struct check *c, const cJSON *item)
{
    return cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble < c->lim->vocab &&
           item->valuedouble == floor(item->valuedouble);
}

static bool check_stop_ids(struct check *c)
{
    struct generate_params *p = c->p;
    const cJSON *list;
    if (!json_get_array(&c->at, "stop_token_ids", &list)) return ok(c);
    int n = cJSON_GetArraySize(list), i = 0;
    if (n > ENGINE_STOP_MAX)
        return refuse(c->e, "`stop_token_ids` supports up to %d ids. Given: %d", ENGINE_STOP_MAX, n);
    for (const cJSON *item = list->child; item; item = item->next, i++) {
        if (!is_token(c, item))
            return refuse(c->e, "parameters.stop_token_ids[%d]: expected a token id from 0 to %d", i,
                          c->lim->vocab - 1);
        p->stop_ids[p->gen.n_stop_ids++] = (int32_t)item->valuedouble;
    }
    return true;
}

static bool check_lengths(struct check *c)
{
    struct generate_params *p = c->p;
    bool given;
    int64_t v = 0;
    if (!get_int(c, "max_new_tokens", &v, &given)) return false;
    if (given && v <= 0) return refuse(c->e, "`max_new_tokens` must be strictly positive");
    if (v > UINT32_MAX) return refuse(c->e, "`max_new_tokens` is too large. Given: %lld", (long long)v);
    p->max_new_tokens = v;

    int64_t least = 0;
    const char *name = "min_new_tokens";
    if (!get_int(c, name, &least, &given)) return false;
    if (!given && !get_int(c, name = "min_tokens", &least, &given)) return false;
    if (least < 0 || least > INT32_MAX) return refuse(c->e, "`%s` must be >= 0. Given: %lld", name, (long long)least);
    if (p->max_new_tokens && least > p->max_new_tokens)
        return refuse(c->e, "`%s` must be <= `max_new_tokens`. Given: %lld", name, (long long)least);
    p->gen.min_new_tokens = (int)least;

    int64_t most = c->lim->max_total_tokens - 1;
    if (!get_int(c, "truncate", &p->truncate, &given)) return false;
    if (given && (p->truncate < 1 || p->truncate > most))
        return refuse(c->e, "`truncate` must be strictly positive and less than %lld. Given: %lld", (long long)most + 1,
                      (long long)p->truncate);
    return true;
}

/* ---- the rest -------------------------------------------------------------------------------------------------- */

static bool check_bias(struct check *c)
{
    struct generate_params *p = c->p;
    const cJSON *map;
    if (!json_get_object(&c->at, "logit_bias", &map)) return ok(c);
    int n = cJSON_GetArraySize(map);
    if (n > MAX_BIAS) return refuse(c->e, "`logit_bias` supports up to %d tokens. Given: %d", MAX_BIAS, n);
    p->bias = mem_array((size_t)n, sizeof *p->bias);
    for (const cJSON *item = map->child; item; item = item->next) {
        char *end;
        long id = strtol(item->string, &end, 10);
        if (*item->string < '0' || *item->string > '9' || *end || id >= c->lim->vocab)
            return refuse(c->e, "parameters.logit_bias: \"%.40s\" is not a token id from 0 to %d", item->string,
                          c->lim->vocab - 1);
        if (!cJSON_IsNumber(item) || !(fabs(item->valuedouble) <= 100))
            return refuse(c->e, "parameters.logit_bias.%ld: expected a number from -100 to 100", id);
        p->bias[p->gen.sampling.n_bias++] = (struct logit_bias){(int32_t)id, (float)item->valuedouble};
    }
    p->gen.sampling.bias = p->bias;
    return true;
}

static bool check_extras(struct check *c)
{
    struct generate_params *p = c->p;
    int64_t priority = 0;
    json_get_string(&c->at, "adapter_id", &p->gen.adapter);
    json_get_bool(&c->at, "ignore_eos", &p->gen.ignore_eos);
    json_get_bool(&c->at, "ignore_eos_token", &p->gen.ignore_eos);
    if (json_get_int(&c->at, "priority", INT32_MIN, INT32_MAX, &priority)) p->gen.priority = (int)priority;
    return ok(c) && check_bias(c);
}

/* What TGI has and tandem does not: said, not ignored, since the text would differ. */
static bool check_unsupported(struct check *c)
{
    bool watermark = false;
    json_get_bool(&c->at, "watermark", &watermark);
    if (!ok(c)) return false;
    if (watermark) return refuse(c->e, "watermark is not supported");
    return true;
}

/* TGI's `grammar`; also LoRAX's `response_format` and vLLM's `structured_outputs`. */
static bool check_grammar(struct check *c)
{
    struct err e = {0};
    const cJSON *grammar = find_field(c, "grammar");
    if (!constraint_read_tgi(&c->p->ask, grammar, &e)) return refuse(c->e, "grammar is not valid: %s", e.msg);
    if (!constraint_read_openai(&c->p->ask, c->at.obj, &e)) return refuse(c->e, "parameters.%s", e.msg);
    return true;
}

static bool check_inputs(struct generate_params *p, struct json_at *top)
{
    if (!json_get_string(top, "inputs", &p->inputs))
        return top->e->code ? false : refuse(top->e, "inputs: the field is missing");
    p->inputs_len = strlen(p->inputs);
    if (!p->inputs_len) return refuse(top->e, "`inputs` cannot be empty");
    return true;
}

/* A text of more bytes than max_total_tokens of the longest token can spell does not fit whatever the tokenizer does,
 * so no time is spent on it.  (Tokenizers that drop or fuse characters could make an exception; such a text is noise.)
 * Not with `truncate`: there any length is legal, and the bound is the body's. */
static bool check_bytes(const struct generate_params *p, const struct generate_limits *lim, struct err *e)
{
    size_t most = (size_t)lim->max_total_tokens * lim->longest_token;
    if (p->truncate || p->inputs_len <= most) return true;
    return refuse(e, "`inputs` must have less than %d tokens. Given: %zu bytes, more than so many tokens can hold",
                  lim->max_total_tokens, p->inputs_len);
}

static void set_defaults(struct generate_params *p, enum generate_route route)
{
    *p = (struct generate_params){0};
    p->stream = route == ROUTE_STREAM;
    p->return_full_text = route == ROUTE_COMPAT;
    p->gen.sampling = (struct sampling_params){
        .temperature = 1,
        .top_p = 1,
        .typical_p = 1,
        .repetition = 1,
    };
    p->gen.stop = p->stop;
    p->gen.stop_ids = p->stop_ids;
}

int generate_params_parse(struct generate_params *p, enum generate_route route, const struct generate_limits *lim,
                          const char *body, size_t len, struct err *e)
{
    set_defaults(p, route);
    e->code = 0;
    p->tree = json_parse(body, len, e);
    if (!p->tree) return 400;
    struct json_at top = {.obj = p->tree, .path = "", .e = e};
    struct check c = {.p = p, .lim = lim, .at = {.path = "parameters", .e = e}, .e = e};
    bool good = true;
    if (!cJSON_IsObject(p->tree)) good = refuse(e, "expected a JSON object with the field `inputs`");
    if (good && route != ROUTE_STREAM) json_get_bool(&top, "stream", &p->stream);
    if (good) json_get_object(&top, "parameters", &c.at.obj);
    good = good && ok(&c) && check_sampling(&c) && check_stop(&c, "stop") &&
           (p->gen.n_stop || check_stop(&c, "stop_sequences")) && check_stop_ids(&c) && check_lengths(&c) &&
           check_extras(&c) && check_unsupported(&c) && check_grammar(&c) && check_inputs(p, &top) &&
           check_bytes(p, lim, e);
    if (good) return 0;
    if (strncmp(e->msg, "Input validation", 16) != 0) err_prefix(e, "Input validation error");
    return 422;
}

int generate_params_fit(struct generate_params *p, const struct generate_limits *lim, size_t n, size_t *first,
                        struct err *e)
{
    int64_t total = lim->max_total_tokens, input = (int64_t)n;
    *first = 0;
    if (p->truncate && input > p->truncate) {
        *first = (size_t)(input - p->truncate);
        input = p->truncate;
    }
    int64_t rest = total > input ? total - input : 0;
    int64_t wanted = p->max_new_tokens ? p->max_new_tokens : rest;
    int64_t reserve = wanted < TGI_RESERVE ? wanted : TGI_RESERVE;
    bool good = true;
    if (input < 1)
        good = refuse(e, "`inputs` cannot be empty");
    else if (input + reserve > total)
        good = refuse(e,
                      "`inputs` tokens + `max_new_tokens` must be <= %lld. Given: %lld `inputs` tokens and %lld "
                      "`max_new_tokens`",
                      (long long)total, (long long)input, (long long)wanted);
    else if (rest < 1)
        good = refuse(e, "`inputs` must have less than %lld tokens. Given: %lld", (long long)total, (long long)input);
    if (!good) return 422;
    p->gen.n_prompt = (int)input;
    p->gen.max_new_tokens = (int)(wanted < rest ? wanted : rest);
    if (p->gen.min_new_tokens > p->gen.max_new_tokens) p->gen.min_new_tokens = p->gen.max_new_tokens;
    return 0;
}

void generate_params_free(struct generate_params *p)
{
    cJSON_Delete(p->tree);
    free(p->bias);
    constraint_ask_free(&p->ask);
    *p = (struct generate_params){0};
}
