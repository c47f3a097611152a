#include "server/api/tokens_params.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const char *const body_fields[] = {"request_id",     "token_ids",  "sampling_params", "model",     "stream",
                                          "stream_options", "cache_salt", "priority",        "timeout_ms"};
/* clang-format off */
static const char *const sampling_fields[] = {
    "n", "max_tokens", "min_tokens", "truncate_prompt_tokens", "seed",
    "temperature", "top_p", "top_k", "min_p", "typical_p",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias",
    "stop", "stop_token_ids", "ignore_eos", "structured_outputs", "logprobs", "prompt_logprobs",
    "prompt_logprob_token_ids", "prompt_logprob_start",
    /* vLLM's, of texts or of its own calls: an answer of ids does not depend on them */
    "detokenize", "output_kind", "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output"};
/* clang-format on */

static bool is_off(const cJSON *v)
{
    return cJSON_IsNull(v) || cJSON_IsFalse(v) || ((cJSON_IsArray(v) || cJSON_IsObject(v)) && !v->child);
}

static bool is_known(const char *name, const char *const *names, size_t n)
{
    size_t i = 0;
    while (i < n && strcmp(name, names[i]) != 0) i++;
    return i < n;
}

static bool is_sampling_field(const char *name)
{
    return is_known(name, sampling_fields, sizeof sampling_fields / sizeof *sampling_fields);
}

static bool only_known(struct request_fields *f, const cJSON *tree, const cJSON *params)
{
    for (const cJSON *v = tree->child; v; v = v->next)
        if (!is_known(v->string, body_fields, sizeof body_fields / sizeof *body_fields) && !is_off(v))
            return fields_refuse(f, NULL, "`%.60s` is not supported", v->string);
    for (const cJSON *v = params ? params->child : NULL; v; v = v->next)
        if (!is_sampling_field(v->string) && !is_off(v))
            return fields_refuse(f, "sampling_params", "`sampling_params.%.60s` is not supported", v->string);
    return true;
}

/* @return the last member of that name, the only one that stays; NULL: none, or null. */
static cJSON *take_out(struct request_fields *f, cJSON *tree, const char *name)
{
    const cJSON *last = fields_find(f, name);
    for (cJSON *v = tree->child, *next; v; v = next) {
        next = v->next;
        if (strcmp(v->string, name) != 0) continue;
        cJSON_DetachItemViaPointer(tree, v);
        if (v != last) cJSON_Delete(v);
    }
    return (cJSON *)(uintptr_t)last; /* the tree is the caller's */
}

/* Adds the fields of sampling_params, which it frees. */
static void move_up(cJSON *tree, cJSON *params)
{
    for (cJSON *v = params ? params->child : NULL, *next; v; v = next) {
        char name[32]; /* that in the item is freed when it is added */
        next = v->next;
        if (!is_sampling_field(v->string)) continue;
        snprintf(name, sizeof name, "%s", v->string);
        cJSON_AddItemToObject(tree, name, cJSON_DetachItemViaPointer(params, v));
    }
    cJSON_Delete(params);
}

bool tokens_to_completion(struct request_fields *f, cJSON *tree)
{
    const cJSON *params = fields_find(f, "sampling_params"), *ids = fields_find(f, "token_ids");
    if (params && !cJSON_IsObject(params))
        return fields_refuse(f, "sampling_params", "sampling_params: expected an object");
    if (!fields_few(params, f->e)) return f->param = "sampling_params", false;
    if (!only_known(f, tree, params)) return false;
    if (!ids) return fields_refuse(f, "token_ids", "token_ids: the field is missing");
    if (!cJSON_IsArray(ids) || !cJSON_IsNumber(ids->child))
        return fields_refuse(f, "token_ids", "token_ids: expected a list of token ids");
    cJSON *prompt = take_out(f, tree, "token_ids");
    move_up(tree, take_out(f, tree, "sampling_params"));
    cJSON_AddItemToObject(tree, "prompt", prompt);
    return true;
}
