/* TGI's GenerateRequest: field by field in the order in which TGI checks, with TGI's own messages, and the fields that
 * tandem adds.  tandem also accepts values that TGI refuses although they mean "off" (top_p = 1).  Unknown fields are
 * ignored, as TGI does. */
#include "server/api/generate_params.h"

#include "server/api/request_fields.h"

#include <stdlib.h>
#include <string.h>

enum { TGI_RESERVE = 1024 /* TGI's reservation unit, in tokens; visible to clients through its length rule */ };

struct check {
    struct generate_params *p;
    const struct generate_limits *lim;
    struct request_fields f; /* of the parameters object */
};

/* ---- the sampling rules, in TGI's order ------------------------------------------------------------------------ */

static bool check_best_of(struct check *c)
{
    int64_t v = 1;
    bool given;
    if (!fields_int(&c->f, "best_of", INT64_MIN, INT64_MAX, &v, &given)) return false;
    if (v < 1 || v > c->lim->max_best_of)
        return fields_refuse(&c->f, "best_of", "`best_of` must be > 0 and <= %d. Given: %lld", c->lim->max_best_of,
                             (long long)v);
    c->p->best_of = (int)v;
    return true;
}

/* Decides whether the request samples: do_sample, or any parameter that has an effect only when sampling.  As in TGI,
 * without a `parameters` object the answer is sampled, but with one that lacks do_sample it is greedy. */
static bool check_sampling_switch(struct check *c)
{
    struct sampling_params *s = &c->p->gen.sampling;
    bool do_sample = c->f.at.obj == NULL;
    if (!fields_bool(&c->f, "do_sample", &do_sample)) return false;
    s->sample = do_sample || s->temperature != 1 || s->top_k || s->top_p < 1 || s->typical_p < 1 || s->min_p > 0;
    if (c->p->best_of > 1 && !s->sample)
        return fields_refuse(&c->f, "best_of", "you must use sampling when `best_of` is > 1");
    if (!fields_u64(&c->f, "seed", &s->seed, &c->p->has_seed)) return false;
    if (c->p->best_of > 1 && c->p->has_seed)
        return fields_refuse(&c->f, "seed", "`seed` must not be set when `best_of` > 1");
    if (c->p->best_of > 1 && c->p->stream)
        return fields_refuse(&c->f, "best_of", "`best_of` != 1 is not supported when streaming tokens");
    return true;
}

/* Reads the numbers that check_sampling_switch uses, and leaves range checks for later, to keep TGI's order of
 * errors. */
static bool read_sampling(struct check *c, bool given[static 4])
{
    struct sampling_params *s = &c->p->gen.sampling;
    int64_t top_k = 0;
    if (!fields_float(&c->f, "temperature", &s->temperature, &given[0])) return false;
    if (!fields_int(&c->f, "top_k", INT64_MIN, INT64_MAX, &top_k, &given[1])) return false;
    if (!fields_float(&c->f, "top_p", &s->top_p, &given[2])) return false;
    if (!fields_float(&c->f, "typical_p", &s->typical_p, &given[3])) return false;
    bool min_p;
    if (!fields_float(&c->f, "min_p", &s->min_p, &min_p)) return false;
    if (given[1] && top_k <= 0)
        s->top_k = -1; /* checked below */
    else
        s->top_k = top_k > c->lim->vocab ? c->lim->vocab : (int)top_k;
    return true;
}

static bool check_top_n(struct check *c)
{
    int64_t v = 0;
    bool given;
    if (!fields_int(&c->f, "top_n_tokens", INT64_MIN, INT64_MAX, &v, &given)) return false;
    if (v < 0 || v > c->lim->max_top_n)
        return fields_refuse(&c->f, "top_n_tokens", "`top_n_tokens` must be >= 0 and <= %d. Given: %lld",
                             c->lim->max_top_n, (long long)v);
    c->p->gen.top_n = (int)v;
    return true;
}

static bool check_details(struct check *c)
{
    struct generate_params *p = c->p;
    if (!fields_bool(&c->f, "details", &p->details) ||
        !fields_bool(&c->f, "decoder_input_details", &p->decoder_input_details) ||
        !fields_bool(&c->f, "return_full_text", &p->return_full_text))
        return false;
    if (p->decoder_input_details && p->stream)
        return fields_refuse(&c->f, "decoder_input_details",
                             "`decoder_input_details` == true is not supported when streaming tokens");
    p->gen.prompt_logprobs = p->decoder_input_details;
    return true;
}

static bool check_sampling(struct check *c)
{
    struct sampling_params *s = &c->p->gen.sampling;
    bool given[4];
    if (!check_best_of(c) || !read_sampling(c, given) || !check_sampling_switch(c)) return false;
    if (!check_top_n(c) || !check_details(c)) return false;
    if (given[0] && !(s->temperature > 0))
        return fields_refuse(&c->f, "temperature", "`temperature` must be strictly positive");
    /* lower is greedy and higher uniform in effect: the engine accepts 1e-4 to 1e4 */
    s->temperature = fields_clamp(s->temperature, 2e-4f, 1e4f);
    if (!fields_penalties(&c->f, s)) return false;
    if (given[2] && !(s->top_p > 0 && s->top_p <= 1))
        return fields_refuse(&c->f, "top_p", "`top_p` must be > 0.0 and < 1.0");
    if (s->top_k < 0) return fields_refuse(&c->f, "top_k", "`top_k` must be strictly positive");
    if (given[3] && !(s->typical_p > 0 && s->typical_p <= 1))
        return fields_refuse(&c->f, "typical_p", "`typical_p` must be > 0.0 and < 1.0");
    if (!(s->min_p >= 0 && s->min_p <= 1)) return fields_refuse(&c->f, "min_p", "`min_p` must be >= 0.0 and <= 1.0");
    return true;
}

/* ---- how the text ends ----------------------------------------------------------------------------------------- */

static bool check_lengths(struct check *c)
{
    struct generate_params *p = c->p;
    bool given;
    int64_t v = 0;
    if (!fields_int(&c->f, "max_new_tokens", INT64_MIN, INT64_MAX, &v, &given)) return false;
    if (given && v <= 0) return fields_refuse(&c->f, "max_new_tokens", "`max_new_tokens` must be strictly positive");
    if (v > UINT32_MAX)
        return fields_refuse(&c->f, "max_new_tokens", "`max_new_tokens` is too large. Given: %lld", (long long)v);
    p->max_new_tokens = v;

    int64_t least = 0;
    const char *name = "min_new_tokens";
    if (!fields_int(&c->f, name, INT64_MIN, INT64_MAX, &least, &given)) return false;
    if (!given && !fields_int(&c->f, name = "min_tokens", INT64_MIN, INT64_MAX, &least, &given)) return false;
    if (least < 0 || least > INT32_MAX)
        return fields_refuse(&c->f, name, "`%s` must be >= 0. Given: %lld", name, (long long)least);
    if (p->max_new_tokens && least > p->max_new_tokens)
        return fields_refuse(&c->f, name, "`%s` must be <= `max_new_tokens`. Given: %lld", name, (long long)least);
    p->gen.min_new_tokens = (int)least;

    int64_t most = c->lim->max_total_tokens - 1;
    if (!fields_int(&c->f, "truncate", INT64_MIN, INT64_MAX, &p->truncate, &given)) return false;
    if (given && (p->truncate < 1 || p->truncate > most))
        return fields_refuse(&c->f, "truncate", "`truncate` must be strictly positive and less than %lld. Given: %lld",
                             (long long)most + 1, (long long)p->truncate);
    return true;
}

/* ---- the rest -------------------------------------------------------------------------------------------------- */

static bool check_extras(struct check *c)
{
    struct gen_request *r = &c->p->gen;
    return fields_string(&c->f, "adapter_id", &r->adapter) && fields_extras(&c->f, r) &&
           fields_bool(&c->f, "ignore_eos_token", &r->ignore_eos) && fields_bias(&c->f, r, &c->p->bias);
}

/* Refuses TGI's fields that tandem does not support, since ignoring them would change the text. */
static bool check_unsupported(struct check *c)
{
    bool watermark = false;
    if (!fields_bool(&c->f, "watermark", &watermark)) return false;
    if (watermark) return fields_refuse(&c->f, "watermark", "watermark is not supported");
    return true;
}

/* TGI's `grammar`; also LoRAX's `response_format` and vLLM's `structured_outputs`. */
static bool check_grammar(struct check *c)
{
    struct err e = {0};
    if (!constraint_read_tgi(&c->p->constraint, fields_find(&c->f, "grammar"), &e))
        return fields_refuse(&c->f, "grammar", "grammar is not valid: %s", e.msg);
    if (!constraint_read_openai(&c->p->constraint, c->f.at.obj, &e))
        return fields_refuse(&c->f, "response_format", "parameters.%s", e.msg);
    return true;
}

static bool check_inputs(struct generate_params *p, struct request_fields *top)
{
    if (!fields_string(top, "inputs", &p->inputs)) return false;
    if (!p->inputs) return fields_refuse(top, "inputs", "inputs: the field is missing");
    p->inputs_len = strlen(p->inputs);
    if (!p->inputs_len) return fields_refuse(top, "inputs", "`inputs` cannot be empty");
    return true;
}

/* Not with `truncate`, which allows any length that fits in the body. */
static bool check_bytes(const struct generate_params *p, const struct generate_limits *lim, struct request_fields *top)
{
    if (p->truncate || text_may_fit(p->inputs_len, lim->max_total_tokens, lim->longest_token)) return true;
    return fields_refuse(top, "inputs",
                         "`inputs` must have less than %d tokens. Given: %zu bytes, more than so many tokens can hold",
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
}

int generate_params_parse(struct generate_params *p, enum generate_route route, const struct generate_limits *lim,
                          const char *body, size_t len, struct err *e)
{
    set_defaults(p, route);
    e->code = 0;
    p->tree = json_parse_body(body, len, e);
    if (!p->tree || !fields_few(p->tree, e)) return 400;
    struct request_fields top = {.at = {.obj = p->tree, .path = "", .e = e}, .e = e, .vocab = lim->vocab};
    struct check c = {.p = p, .lim = lim, .f = {.at = {.path = "parameters", .e = e}, .e = e, .vocab = lim->vocab}};
    bool good = true;
    if (!cJSON_IsObject(p->tree)) good = fields_refuse(&top, NULL, "expected a JSON object with the field `inputs`");
    if (good && route != ROUTE_STREAM) good = fields_bool(&top, "stream", &p->stream);
    good = good && fields_object(&top, "parameters", &c.f.at.obj);
    if (good && !fields_few(c.f.at.obj, e)) return err_prefix(e, "parameters"), 400;
    good = good && check_sampling(&c) && fields_stop(&c.f, "stop", lim->max_stop, &p->gen, p->stop) &&
           (p->gen.n_stop || fields_stop(&c.f, "stop_sequences", lim->max_stop, &p->gen, p->stop)) &&
           fields_stop_ids(&c.f, &p->gen, p->stop_ids) && check_lengths(&c) && check_extras(&c) &&
           fields_timeout(&top, &p->timeout_ms) && fields_timeout(&c.f, &p->timeout_ms) && check_unsupported(&c) &&
           check_grammar(&c) && check_inputs(p, &top) && check_bytes(p, lim, &top);
    if (good) return 0;
    err_prefix(e, "Input validation error");
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
    int rc = 0;
    if (input < 1)
        rc = err_set(e, ERR_INVALID, "`inputs` cannot be empty");
    else if (input + reserve > total)
        rc = err_set(e, ERR_INVALID,
                     "`inputs` tokens + `max_new_tokens` must be <= %lld. Given: %lld `inputs` tokens and %lld "
                     "`max_new_tokens`",
                     (long long)total, (long long)input, (long long)wanted);
    else if (rest < 1)
        rc = err_set(e, ERR_INVALID, "`inputs` must have less than %lld tokens. Given: %lld", (long long)total,
                     (long long)input);
    if (rc) return err_prefix(e, "Input validation error"), 422;
    p->gen.n_prompt = (int)input;
    p->gen.max_new_tokens = (int)(wanted < rest ? wanted : rest);
    if (p->gen.min_new_tokens > p->gen.max_new_tokens) p->gen.min_new_tokens = p->gen.max_new_tokens;
    return 0;
}

void generate_params_free(struct generate_params *p)
{
    json_free(p->tree);
    free(p->bias);
    constraint_request_free(&p->constraint);
    *p = (struct generate_params){0};
}
