#include "server/tinker/sample_params.h"

#include "engine/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool read_id(const cJSON *v, int32_t *out)
{
    if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0 && v->valuedouble <= INT32_MAX)) return false;
    *out = (int32_t)v->valuedouble;
    return *out == v->valuedouble;
}

/* ---- prompt.chunks ----------------------------------------------------------------------------------------------- */

/* @return the chunk's list of tokens; NULL and *e. */
static const cJSON *chunk_tokens(const cJSON *chunk, int i, struct err *e)
{
    const char *type = NULL;
    const cJSON *tokens = NULL;
    char path[64];
    snprintf(path, sizeof path, "prompt.chunks[%d]", i);
    struct json_at at = {chunk, path, e};
    if (!cJSON_IsObject(chunk)) return err_set(e, ERR_INVALID, "`%s` must be an object", path), NULL;
    json_get_string(&at, "type", &type);
    json_get_array(&at, "tokens", &tokens);
    if (!e->code && type && strcmp(type, "encoded_text"))
        err_set(e, ERR_UNSUPPORTED, "`%s.type` must be encoded_text: models here read tokens only", path);
    if (!e->code && !tokens) err_set(e, ERR_INVALID, "`%s.tokens` is needed", path);
    return e->code ? NULL : tokens;
}

static int read_prompt(struct sample_params *p, struct json_at *body, struct err *e)
{
    const cJSON *prompt = NULL, *chunks = NULL, *chunk, *token;
    size_t n = 0, at = 0;
    int i = 0;
    if (!json_get_object(body, "prompt", &prompt))
        return e->code ? e->code : err_set(e, ERR_INVALID, "`prompt` is needed");
    struct json_at in = {prompt, "prompt", e};
    if (!json_get_array(&in, "chunks", &chunks))
        return e->code ? e->code : err_set(e, ERR_INVALID, "`prompt.chunks` is needed");
    cJSON_ArrayForEach(chunk, chunks)
    {
        const cJSON *tokens = chunk_tokens(chunk, i++, e);
        if (!tokens) return e->code;
        n += (size_t)cJSON_GetArraySize(tokens);
    }
    if (!n || n > INT32_MAX) return err_set(e, ERR_INVALID, "`prompt` must have tokens");
    if (!reserve(&p->held, n * sizeof *p->prompt, "the prompt", e)) return e->code;
    p->prompt = mem_array(n, sizeof *p->prompt);
    i = 0;
    cJSON_ArrayForEach(chunk, chunks)
    {
        cJSON_ArrayForEach(token, chunk_tokens(chunk, i, e))
        {
            if (!read_id(token, &p->prompt[at++]))
                return err_set(e, ERR_INVALID, "`prompt.chunks[%d].tokens` must be ids of tokens", i);
        }
        i++;
    }
    p->gen.prompt = p->prompt;
    p->gen.n_prompt = p->shape.n_prompt = (int)n;
    return 0;
}

/* ---- sampling_params --------------------------------------------------------------------------------------------- */

static int add_stop(struct sample_params *p, const cJSON *v, struct err *e)
{
    if (p->gen.n_stop + p->gen.n_stop_ids == ENGINE_STOP_MAX)
        return err_set(e, ERR_INVALID, "`sampling_params.stop` may have %d entries", ENGINE_STOP_MAX);
    if (cJSON_IsString(v)) {
        p->stop[p->gen.n_stop++] = mem_strdup(v->valuestring);
        return 0;
    }
    if (read_id(v, &p->stop_ids[p->gen.n_stop_ids])) {
        p->gen.n_stop_ids++;
        return 0;
    }
    return err_set(e, ERR_INVALID, "`sampling_params.stop` must be a text, or a list of texts or ids of tokens");
}

/* An empty list: not even the end of the text ends it. */
static int read_stop(struct sample_params *p, const cJSON *params, struct err *e)
{
    const cJSON *stop = cJSON_GetObjectItemCaseSensitive(params, "stop"), *v;
    if (!stop || cJSON_IsNull(stop)) return 0;
    p->gen.stop = (const char *const *)p->stop;
    p->gen.stop_ids = p->stop_ids;
    if (!cJSON_IsArray(stop)) return add_stop(p, stop, e);
    p->gen.ignore_eos = !cJSON_GetArraySize(stop);
    cJSON_ArrayForEach(v, stop)
    {
        if (add_stop(p, v, e)) return e->code;
    }
    return 0;
}

static int read_sampling(struct sample_params *p, struct json_at *body, struct err *e)
{
    const cJSON *params = NULL;
    int64_t max = 0, top_k = -1, seed = 0;
    double temperature = 1, top_p = 1;
    if (json_get_object(body, "sampling_params", &params)) {
        struct json_at at = {params, "sampling_params", e};
        json_get_int(&at, "max_tokens", 1, INT32_MAX, &max);
        json_get_number(&at, "temperature", &temperature);
        json_get_int(&at, "top_k", -1, INT32_MAX, &top_k);
        json_get_number(&at, "top_p", &top_p);
        p->has_seed = json_get_int(&at, "seed", INT64_MIN, INT64_MAX, &seed);
    }
    if (e->code || (params && read_stop(p, params, e))) return e->code;
    if (!(temperature >= 0 && temperature <= 100))
        return err_set(e, ERR_INVALID, "`sampling_params.temperature` must be from 0 to 100");
    if (!(top_p > 0 && top_p <= 1))
        return err_set(e, ERR_INVALID, "`sampling_params.top_p` must be above 0, at most 1");
    p->gen.max_new_tokens = (int)max;
    p->gen.sampling = (struct sampling_params){.sample = temperature > 0,
                                               .temperature = (float)temperature,
                                               .top_k = top_k > 0 ? (int)top_k : 0,
                                               .top_p = (float)top_p,
                                               .typical_p = 1,
                                               .seed = (uint64_t)seed,
                                               .repetition = 1};
    return 0;
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

static int read_logprobs(struct sample_params *p, struct json_at *at, struct err *e)
{
    int64_t topk_prompt = 0, topk_sample = 0, last = 0, alternatives = 0;
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(at->obj, "target_prompt_logprobs");
    struct prompt_targets *targets = &p->shape.targets;
    json_get_bool(at, "prompt_logprobs", &p->shape.prompt_logprobs);
    json_get_int(at, "topk_prompt_logprobs", 0, ENGINE_TOP_MAX, &topk_prompt);
    json_get_int(at, "topk_sample_logprobs", 0, ENGINE_TOP_MAX, &topk_sample);
    json_get_int(at, "prompt_alt_tokens_k", 0, ENGINE_TOP_MAX, &alternatives);
    bool suffix = json_get_int(at, "prompt_logprobs_last_n", 1, p->gen.n_prompt - 1, &last);
    if (e->code) return e->code;
    if (v && !cJSON_IsNull(v) && prompt_targets_read(targets, v, p->gen.n_prompt, e)) return e->code;
    if (targets->widest + alternatives > ENGINE_TOP_MAX)
        return err_set(e, ERR_INVALID,
                       "`prompt_alt_tokens_k` and the ids in a row of `target_prompt_logprobs` may be %d in all",
                       ENGINE_TOP_MAX);
    if (suffix && !p->shape.prompt_logprobs && !topk_prompt)
        return err_set(e, ERR_INVALID, "`prompt_logprobs_last_n` needs `prompt_logprobs`");
    p->shape.topk_prompt = (int)topk_prompt;
    p->shape.topk_sample = (int)topk_sample;
    p->shape.alternatives = (int)alternatives;
    p->shape.from = suffix ? p->gen.n_prompt - (int)last : 0;
    p->gen.logprobs_from = p->gen.n_prompt - 1;
    if (p->shape.prompt_logprobs || topk_prompt) p->gen.logprobs_from = p->shape.from;
    if (targets->rows && targets->first + 1 < p->gen.logprobs_from) p->gen.logprobs_from = targets->first + 1;
    if (alternatives) p->gen.logprobs_from = 0;
    return 0;
}

int sample_params_read(struct sample_params *p, const cJSON *body, struct err *e)
{
    int64_t n = 1;
    struct json_at at = {body, "", e};
    if (!json_get_int(&at, "seq_id", 0, INT64_MAX, &p->seq))
        return e->code ? e->code : err_set(e, ERR_INVALID, "`seq_id` is needed");
    json_get_int(&at, "num_samples", 1, SAMPLES_MAX, &n);
    p->n = (int)n;
    if (e->code || read_prompt(p, &at, e) || read_sampling(p, &at, e)) return e->code;
    return read_logprobs(p, &at, e);
}

void sample_params_free(struct sample_params *p)
{
    for (int i = 0; i < ENGINE_STOP_MAX; i++) free(p->stop[i]);
    free(p->prompt);
    prompt_targets_free(&p->shape.targets);
    reservation_free(&p->held);
    *p = (struct sample_params){0};
}
