#include "server/api/openai_params.h"

#include "engine/base/mem.h"
#include "server/api/chat_format.h"
#include "server/api/request_fields.h"
#include "server/api/tokens_params.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOOLS_MAX = 512 }; /* OpenAI allows 128; agents with several MCP servers have more */

struct check {
    struct openai_params *p;
    enum openai_route route;
    const struct openai_limits *lim;
    struct request_fields f;
};

/* ---- sampling -------------------------------------------------------------------------------------------------- */

/* Defaults from generation_config.json, as in vLLM; explicit fields override them.  Those of token ids are vLLM's own:
 * a trainer wants the distribution of the weights. */
static void set_defaults(struct openai_params *p, enum openai_route route, const struct engine_info *m)
{
    static const struct engine_info plain = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    if (route == OPENAI_TOKENS) m = &plain;
    *p = (struct openai_params){
        .code = "invalid_value",
        .n = 1,
        .logprobs = -1,
        .prompt_logprobs = -1,
        .max_tokens_field = "max_tokens",
        .parallel_tool_calls = true,
        .add_generation_prompt = true,
        .n_prompts = 1,
        .think_budget = -1,
    };
    p->gen.sampling = (struct sampling_params){
        .temperature = isnan(m->temperature) ? 1 : m->temperature,
        .top_p = isnan(m->top_p) ? 1 : m->top_p,
        .top_k = m->top_k < 0 ? 0 : m->top_k,
        .typical_p = 1,
        .repetition = isnan(m->repetition_penalty) ? 1 : m->repetition_penalty,
    };
}

static bool check_sampling(struct check *c)
{
    struct sampling_params *s = &c->p->gen.sampling;
    struct request_fields *f = &c->f;
    int64_t top_k = s->top_k;
    if (!fields_float(f, "temperature", &s->temperature, NULL) || !fields_float(f, "top_p", &s->top_p, NULL) ||
        !fields_int(f, "top_k", INT64_MIN, INT64_MAX, &top_k, NULL) || !fields_float(f, "min_p", &s->min_p, NULL) ||
        !fields_float(f, "typical_p", &s->typical_p, NULL))
        return false;
    if (!(s->temperature >= 0)) return fields_refuse(f, "temperature", "`temperature` must be >= 0");
    if (!(s->top_p >= 0 && s->top_p <= 1)) return fields_refuse(f, "top_p", "`top_p` must be >= 0 and <= 1");
    if (top_k < -1) return fields_refuse(f, "top_k", "`top_k` must be -1 or 0 (off), or at least 1");
    if (!(s->min_p >= 0 && s->min_p <= 1)) return fields_refuse(f, "min_p", "`min_p` must be >= 0 and <= 1");
    if (!(s->typical_p > 0 && s->typical_p <= 1))
        return fields_refuse(f, "typical_p", "`typical_p` must be > 0 and <= 1");
    /* lower is greedy and higher uniform in effect: the engine accepts 1e-4 to 1e4 */
    s->sample = s->temperature > 0;
    s->temperature = fields_clamp(s->temperature, 2e-4f, 1e4f);
    s->top_p = fields_clamp(s->top_p, 1e-6f, 1); /* 0, which OpenAI accepts: only the likeliest token */
    s->top_k = top_k < 1 ? 0 : top_k > c->lim->info->vocab ? c->lim->info->vocab : (int)top_k;
    return fields_penalties(f, s);
}

static bool check_seed(struct check *c)
{
    int64_t seed;
    if (!fields_int(&c->f, "seed", INT64_MIN, INT64_MAX, &seed, &c->p->has_seed)) return false;
    if (c->p->has_seed) c->p->gen.sampling.seed = (uint64_t)seed;
    return true;
}

/* ---- how many, and how long ------------------------------------------------------------------------------------ */

static bool check_counts(struct check *c)
{
    struct openai_params *p = c->p;
    int64_t n = 1, best_of;
    bool given;
    if (!fields_int(&c->f, "n", 1, OPENAI_N_MAX, &n, NULL)) return false;
    p->n = (int)n;
    best_of = n;
    if (c->route == OPENAI_COMPLETIONS) {
        if (!fields_int(&c->f, "best_of", 1, OPENAI_N_MAX, &best_of, &given)) return false;
        if (best_of < n) return fields_refuse(&c->f, "best_of", "`best_of` must not be less than `n`");
        if (best_of > n && p->stream)
            return fields_refuse(&c->f, "best_of", "`best_of` greater than `n` cannot be streamed");
    }
    p->best_of = (int)best_of;
    return true;
}

static bool check_stream(struct check *c)
{
    struct openai_params *p = c->p;
    struct request_fields options = {.at = {.path = "stream_options", .e = c->f.e}, .e = c->f.e};
    if (!fields_bool(&c->f, "stream", &p->stream)) return false;
    if (!fields_object(&c->f, "stream_options", &options.at.obj)) return false;
    if (!options.at.obj) return true;
    if (!p->stream)
        return fields_refuse(&c->f, "stream_options", "`stream_options` is only allowed when `stream` is true");
    if (fields_bool(&options, "include_usage", &p->include_usage) &&
        fields_bool(&options, "continuous_usage_stats", &p->continuous_usage))
        return true;
    c->f.param = "stream_options";
    return false;
}

static bool check_lengths(struct check *c)
{
    struct openai_params *p = c->p;
    struct request_fields *f = &c->f;
    int64_t v = 0, least = 0;
    bool given, newer = false;
    if (!fields_int(f, "max_tokens", 0, INT32_MAX, &v, &given)) return false;
    if (c->route == OPENAI_CHAT) {
        if (!fields_int(f, "max_completion_tokens", 0, INT32_MAX, &v, &newer)) return false;
        if (newer) p->max_tokens_field = "max_completion_tokens";
    }
    p->max_tokens = v;
    if ((given || newer) && v == 0) {
        if (!p->echo) return fields_refuse(f, p->max_tokens_field, "`%s` must be at least 1", p->max_tokens_field);
        p->nothing_wanted = true;
        p->max_tokens = 1;
    }
    if (!fields_int(f, "min_tokens", 0, INT32_MAX, &least, NULL)) return false;
    if (p->max_tokens && least > p->max_tokens)
        return fields_refuse(f, "min_tokens", "`min_tokens` must not be greater than `%s` (%lld)", p->max_tokens_field,
                             (long long)p->max_tokens);
    p->gen.min_new_tokens = (int)least;
    int64_t most = c->lim->info->max_total_tokens - 1, keep = 0;
    if (!fields_int(f, "truncate_prompt_tokens", -1, most, &keep, &given)) return false;
    if (given && keep == 0) return fields_refuse(f, "truncate_prompt_tokens", "`truncate_prompt_tokens` must not be 0");
    p->truncate = keep < 0 ? most : keep;
    return true;
}

#define SCORED "prompt_logprob_token_ids"

/* One list of ids, -1 in a list of lists: none. */
static bool check_scored_ids(struct check *c, const cJSON *list, bool row)
{
    int n = 0;
    for (const cJSON *v = list->child; v; v = v->next, n++)
        if (!fields_is_token(&c->f, v) && !(row && cJSON_IsNumber(v) && v->valuedouble == -1))
            return fields_refuse(&c->f, SCORED, "`" SCORED "` must be lists of token ids");
    if (n > ENGINE_TOP_MAX)
        return fields_refuse(&c->f, SCORED, "`" SCORED "` may have %d ids in a row. Given: %d", ENGINE_TOP_MAX, n);
    if (n > c->p->n_scored) c->p->n_scored = n;
    return true;
}

/* vLLM's prompt_logprob_token_ids: ids for all rows, or a list of lists, and prompt_logprob_start. */
static bool check_scored(struct check *c)
{
    struct openai_params *p = c->p;
    const cJSON *list = fields_find(&c->f, SCORED);
    bool given;
    if (!fields_int(&c->f, "prompt_logprob_start", 0, INT32_MAX - 1, &p->score_start, &given)) return false;
    if (list && !cJSON_IsArray(list)) return fields_refuse(&c->f, SCORED, "`" SCORED "` must be a list");
    if (!list || !list->child)
        return !p->score_start ||
               fields_refuse(&c->f, "prompt_logprob_start", "`prompt_logprob_start` is only allowed with `" SCORED "`");
    bool rows = cJSON_IsArray(list->child);
    if (!rows && !check_scored_ids(c, list, false)) return false;
    for (const cJSON *row = rows ? list->child : NULL; row; row = row->next) {
        if (!cJSON_IsArray(row)) return fields_refuse(&c->f, SCORED, "`" SCORED "` must be lists of token ids");
        if (!check_scored_ids(c, row, true)) return false;
    }
    if (p->stream) return fields_refuse(&c->f, SCORED, "`" SCORED "` is not available when `stream` is true");
    if (p->score_start && p->prompt_logprobs >= 0)
        return fields_refuse(&c->f, "prompt_logprob_start", "`prompt_logprob_start` excludes `prompt_logprobs`");
    if (!p->n_scored) return fields_refuse(&c->f, SCORED, "`" SCORED "` has no id");
    p->scored = list->child;
    p->gen.prompt_logprobs = true;
    p->gen.logprobs_from = p->prompt_logprobs >= 0 ? 0 : (int)p->score_start + 1;
    return true;
}

/* @return whether there is a list for each row, of a prompt of n tokens. */
static bool fit_scored(const struct openai_params *p, size_t n, struct err *e, const char **param)
{
    int64_t rows = (int64_t)n - 1 - p->score_start, lists = 0;
    *param = rows < 1 ? "prompt_logprob_start" : SCORED;
    if (rows < 1) {
        err_set(e, ERR_INVALID, "`" SCORED "`: the prompt of %zu tokens has no row behind `prompt_logprob_start`", n);
        return false;
    }
    if (!cJSON_IsArray(p->scored)) return true;
    for (const cJSON *v = p->scored; v; v = v->next) lists++;
    if (lists == rows) return true;
    err_set(e, ERR_INVALID, "`" SCORED "` must have a list for each of the %lld rows. Given: %lld", (long long)rows,
            (long long)lists);
    return false;
}

int32_t *openai_params_scored(const struct openai_params *p, size_t n)
{
    size_t rows = n - 1 - (size_t)p->score_start, columns = (size_t)p->n_scored;
    int32_t *ids = mem_array(rows * columns, sizeof *ids);
    const cJSON *row = p->scored;
    bool each = cJSON_IsArray(row);
    for (size_t i = 0; i < rows; i++, row = each ? row->next : row) {
        const cJSON *v = each ? row->child : row;
        for (size_t k = 0; k < columns; k++, v = v ? v->next : NULL)
            ids[i * columns + k] = v ? (int32_t)v->valuedouble : -1;
    }
    return ids;
}

/* completions: a number; chat: a switch and a number */
static bool check_logprobs(struct check *c)
{
    struct openai_params *p = c->p;
    struct request_fields *f = &c->f;
    const char *name = c->route == OPENAI_CHAT ? "top_logprobs" : "logprobs";
    int64_t v = 0;
    bool given, wanted = false;
    if (c->route == OPENAI_CHAT && !fields_bool(f, "logprobs", &wanted)) return false;
    if (!fields_int(f, name, 0, c->route == OPENAI_TOKENS ? ENGINE_TOP_MAX : OPENAI_TOP_MAX, &v, &given)) return false;
    if (c->route == OPENAI_CHAT && v && !wanted)
        return fields_refuse(f, "top_logprobs", "`top_logprobs` is only allowed when `logprobs` is true");
    if (c->route == OPENAI_CHAT ? wanted : given) p->logprobs = (int)v;
    v = -1;
    if (!fields_int(f, "prompt_logprobs", 0, ENGINE_TOP_MAX, &v, &given)) return false;
    if (given && p->stream)
        return fields_refuse(f, "prompt_logprobs", "`prompt_logprobs` are not available when `stream` is true");
    p->prompt_logprobs = (int)v;
    int most = p->logprobs > p->prompt_logprobs ? p->logprobs : p->prompt_logprobs;
    p->gen.top_n = most > 0 ? most : 0;
    p->gen.prompt_logprobs = p->prompt_logprobs >= 0 || (p->echo && p->logprobs >= 0);
    return c->route != OPENAI_TOKENS || check_scored(c);
}

/* ---- prompts --------------------------------------------------------------------------------------------------- */

static bool is_ids(const struct check *c, const cJSON *list)
{
    for (const cJSON *i = list->child; i; i = i->next)
        if (!fields_is_token(&c->f, i)) return false;
    return cJSON_IsArray(list) && list->child;
}

/* The field of a route that has the prompt. */
static const char *prompt_field(enum openai_route route)
{
    return route == OPENAI_CHAT ? "messages" : route == OPENAI_TOKENS ? "token_ids" : "prompt";
}

static bool add_prompt(struct check *c, const cJSON *item, int i)
{
    struct openai_params *p = c->p;
    const char *name = prompt_field(c->route);
    char path[24];
    snprintf(path, sizeof path, "prompt[%d]", i);
    struct openai_prompt *v = &p->prompts[p->n_prompts++];
    if (cJSON_IsString(item)) {
        *v = (struct openai_prompt){.text = item->valuestring, .len = strlen(item->valuestring)};
        if (text_may_fit(v->len, c->lim->info->max_total_tokens, c->lim->longest_token) || p->truncate) return true;
        p->code = "context_length_exceeded";
        return fields_refuse(&c->f, name,
                             "This model's maximum context length is %d tokens. However, your prompt has %zu bytes, "
                             "more than so many tokens can hold.",
                             c->lim->info->max_total_tokens, v->len);
    }
    *v = (struct openai_prompt){.ids = item->child, .len = (size_t)cJSON_GetArraySize(item)};
    if (v->len > (size_t)c->lim->info->max_total_tokens && !p->truncate) { /* too long for any model input */
        p->code = "context_length_exceeded";
        return fields_refuse(&c->f, name,
                             "This model's maximum context length is %d tokens. However, your prompt has %zu.",
                             c->lim->info->max_total_tokens, v->len);
    }
    if (is_ids(c, item)) return true;
    return fields_refuse(&c->f, name, "%s: expected token ids from 0 to %d", c->route == OPENAI_TOKENS ? name : path,
                         c->f.vocab - 1);
}

/* A string, a list of strings, a list of token ids, or a list of such lists. */
static bool check_prompts(struct check *c)
{
    struct openai_params *p = c->p;
    const cJSON *prompt = fields_find(&c->f, "prompt"), *first = prompt ? prompt->child : NULL;
    if (!prompt) return fields_refuse(&c->f, "prompt", "prompt: the field is missing");
    bool list = cJSON_IsArray(prompt) && (cJSON_IsString(first) || cJSON_IsArray(first));
    if (!list && !cJSON_IsString(prompt) && !(cJSON_IsArray(prompt) && cJSON_IsNumber(first)))
        return fields_refuse(&c->f, "prompt",
                             "prompt: expected a string, a list of strings, token ids, or lists of token ids");
    int n = list ? cJSON_GetArraySize(prompt) : 1, i = 0;
    p->n_prompts = 0;
    p->prompts = mem_array((size_t)n, sizeof *p->prompts);
    if (!list) return add_prompt(c, prompt, 0);
    for (const cJSON *item = first; item; item = item->next, i++) {
        if ((item->type & 0xff) != (first->type & 0xff))
            return fields_refuse(&c->f, "prompt", "prompt[%d]: the list mixes texts and token ids", i);
        if (!add_prompt(c, item, i)) return false;
    }
    return true;
}

/* ---- chat ------------------------------------------------------------------------------------------------------ */

static bool check_tool(struct check *c, const cJSON *tool, int i)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(tool, "type");
    const cJSON *function = cJSON_GetObjectItemCaseSensitive(tool, "function");
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(function, "name");
    const cJSON *parameters = cJSON_GetObjectItemCaseSensitive(function, "parameters");
    if (!cJSON_IsObject(tool)) return fields_refuse(&c->f, "tools", "tools[%d]: expected an object", i);
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "function") != 0)
        return fields_refuse(&c->f, "tools", "tools[%d].type: only \"function\" is supported", i);
    if (!cJSON_IsString(name) || !*name->valuestring)
        return fields_refuse(&c->f, "tools", "tools[%d].function.name: expected a name", i);
    if (parameters && !cJSON_IsObject(parameters) && !cJSON_IsNull(parameters))
        return fields_refuse(&c->f, "tools", "tools[%d].function.parameters: expected a JSON schema", i);
    c->p->tool_names[c->p->n_tools++] = name->valuestring;
    return true;
}

/* @return the index of the tool of that name; -1: none. */
static int find_tool(const struct openai_params *p, const char *name)
{
    for (int i = 0; name && i < p->n_tools; i++)
        if (strcmp(p->tool_names[i], name) == 0) return i;
    return -1;
}

static bool demand_tool(struct check *c, const char *name)
{
    struct openai_params *p = c->p;
    int i = find_tool(p, name);
    if (i < 0) return fields_refuse(&c->f, "tool_choice", "tool_choice: there is no tool \"%.100s\"", name);
    p->tool_name = p->tool_names[i];
    p->tool_choice = TOOL_CHOICE_NAMED;
    return true;
}

/* OpenAI's keywords; any other text is a tool's name, as in TGI. */
static bool check_choice_word(struct check *c, const char *word)
{
    static const char *const names[] = {"none", "auto", "required"};
    struct openai_params *p = c->p;
    int i = 0;
    while (i < 3 && strcmp(word, names[i]) != 0) i++;
    if (i == 3 && find_tool(p, word) < 0)
        return fields_refuse(&c->f, "tool_choice",
                             "tool_choice: expected \"none\", \"auto\", \"required\" or a function, and no tool is "
                             "named \"%.100s\"",
                             word);
    if (i == 3) return demand_tool(c, word);
    if (i == TOOL_CHOICE_NONE || p->tools) p->tool_choice = (enum tool_choice)i;
    if (i == TOOL_CHOICE_REQUIRED && !p->tools)
        return fields_refuse(&c->f, "tool_choice", "`tool_choice` is only allowed when `tools` are given");
    return true;
}

/* The function's name in {"type": "function", "function": {"name": ...}}; NULL: malformed. */
static const char *function_name(const cJSON *tool)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(tool, "type");
    if (type && (!cJSON_IsString(type) || strcmp(type->valuestring, "function") != 0)) return NULL;
    return cJSON_GetStringValue(
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(tool, "function"), "name"));
}

/* Removes the tools that are not in allowed (p->n_tools) from the request: the template then does not show them, so
 * that the model does not call them when unconstrained. */
static void keep_tools(struct openai_params *p, const bool *allowed)
{
    cJSON *tools = (cJSON *)(uintptr_t)p->tools, *next; /* the tree is owned by p */
    int kept = 0, i = 0;
    for (cJSON *t = tools->child; t; t = next, i++) {
        next = t->next;
        if (allowed[i])
            p->tool_names[kept++] = p->tool_names[i];
        else
            cJSON_Delete(cJSON_DetachItemViaPointer(tools, t));
    }
    p->n_tools = kept;
}

/* {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required", "tools": [...]}} */
static bool check_allowed_tools(struct check *c, const cJSON *choice)
{
    struct openai_params *p = c->p;
    const cJSON *allowed = cJSON_GetObjectItemCaseSensitive(choice, "allowed_tools");
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(allowed, "tools");
    const char *mode = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(allowed, "mode"));
    if (!mode || (strcmp(mode, "auto") != 0 && strcmp(mode, "required") != 0))
        return fields_refuse(&c->f, "tool_choice", "tool_choice.allowed_tools.mode: expected \"auto\" or \"required\"");
    if (!cJSON_IsArray(list) || !list->child || cJSON_GetArraySize(list) > TOOLS_MAX)
        return fields_refuse(&c->f, "tool_choice", "tool_choice.allowed_tools.tools: expected a list of 1 to %d tools",
                             TOOLS_MAX);
    bool keep[TOOLS_MAX] = {0};
    int i = 0;
    for (const cJSON *t = list->child; t; t = t->next, i++) {
        const char *name = function_name(t);
        int found = find_tool(p, name);
        if (!name)
            return fields_refuse(&c->f, "tool_choice",
                                 "tool_choice.allowed_tools.tools[%d]: expected {\"type\": \"function\", \"function\": "
                                 "{\"name\": ...}}",
                                 i);
        if (found < 0)
            return fields_refuse(&c->f, "tool_choice",
                                 "tool_choice.allowed_tools.tools[%d]: there is no tool \"%.100s\"", i, name);
        keep[found] = true;
    }
    p->tool_choice = strcmp(mode, "auto") == 0 ? TOOL_CHOICE_AUTO : TOOL_CHOICE_REQUIRED;
    keep_tools(p, keep);
    return true;
}

static bool check_tool_choice(struct check *c)
{
    struct openai_params *p = c->p;
    const cJSON *choice = fields_find(&c->f, "tool_choice");
    p->tool_choice = p->tools ? TOOL_CHOICE_AUTO : TOOL_CHOICE_NONE;
    if (!choice) return true;
    if (cJSON_IsString(choice)) return check_choice_word(c, choice->valuestring);
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(choice, "type");
    if (cJSON_IsString(type) && strcmp(type->valuestring, "allowed_tools") == 0) return check_allowed_tools(c, choice);
    const char *name = function_name(choice);
    if (!name)
        return fields_refuse(&c->f, "tool_choice",
                             "tool_choice: expected {\"type\": \"function\", \"function\": {\"name\": ...}}");
    return demand_tool(c, name);
}

static bool check_tools(struct check *c)
{
    struct openai_params *p = c->p;
    const cJSON *tools = fields_find(&c->f, "tools");
    int i = 0;
    if (fields_find(&c->f, "functions") || fields_find(&c->f, "function_call"))
        return fields_refuse(&c->f, "functions", "`functions` and `function_call` are not supported: use `tools`");
    if (tools && !cJSON_IsArray(tools)) return fields_refuse(&c->f, "tools", "tools: expected an array");
    if (tools && !tools->child) return fields_refuse(&c->f, "tools", "tools: the list is empty; leave it out");
    if (cJSON_GetArraySize(tools) > TOOLS_MAX)
        return fields_refuse(&c->f, "tools", "tools: at most %d are allowed", TOOLS_MAX);
    if (tools) p->tool_names = mem_array((size_t)cJSON_GetArraySize(tools), sizeof *p->tool_names);
    for (const cJSON *t = tools ? tools->child : NULL; t; t = t->next, i++)
        if (!check_tool(c, t, i)) return false;
    p->tools = tools;
    if (!check_tool_choice(c)) return false;
    if (p->tool_choice == TOOL_CHOICE_NONE) p->tools = NULL;
    return fields_bool(&c->f, "parallel_tool_calls", &p->parallel_tool_calls);
}

/* How much the model is to think: OpenAI's reasoning_effort, OpenRouter's `reasoning`, Anthropic's `thinking` and the
 * budgets of vLLM and Qwen.  The effort, and whether to think at all, are variables of templates; what
 * chat_template_kwargs has comes first. */
static bool check_reasoning(struct check *c)
{
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    static const char *const budgets[] = {"thinking_token_budget", "thinking_budget"};
    struct openai_params *p = c->p;
    struct request_fields f = c->f;
    const cJSON *reasoning = NULL, *thinking = NULL;
    const char *effort = NULL, *type = NULL;
    bool given = false, include = true, exclude = false, on = true, known = false;
    if (!fields_object(&c->f, "reasoning", &reasoning) || !fields_object(&c->f, "thinking", &thinking)) return false;
    for (size_t i = 0; i < 2 && !given; i++)
        if (!fields_int(&c->f, budgets[i], -1, INT32_MAX, &p->think_budget, &given)) return false;
    if (!fields_string(&c->f, "reasoning_effort", &effort)) return false;
    if (!fields_bool(&c->f, "include_reasoning", &include)) return false;
    f.at = (struct json_at){.obj = reasoning, .path = "reasoning", .e = c->f.e};
    c->f.param = "reasoning";
    if (reasoning && ((!given && !fields_int(&f, "max_tokens", 0, INT32_MAX, &p->think_budget, &given)) ||
                      (!effort && !fields_string(&f, "effort", &effort)) || !fields_bool(&f, "exclude", &exclude) ||
                      !fields_bool(&f, "enabled", &on)))
        return false;
    f.at = (struct json_at){.obj = thinking, .path = "thinking", .e = c->f.e};
    c->f.param = "thinking";
    if (thinking && ((!given && !fields_int(&f, "budget_tokens", 0, INT32_MAX, &p->think_budget, &given)) ||
                     !fields_string(&f, "type", &type)))
        return false;
    c->f.param = NULL;
    for (size_t i = 0; effort && i < sizeof efforts / sizeof *efforts; i++) known |= !strcmp(effort, efforts[i]);
    if (effort && !known)
        return fields_refuse(&c->f, "reasoning_effort",
                             "`reasoning_effort` must be none, minimal, low, medium, high, xhigh or max");
    p->hide_thoughts = !include || exclude;
    if (!effort && !type && on) return true;
    if (!p->template_kwargs) p->template_kwargs = cJSON_CreateObject();
    on = on && !(effort && strcmp(effort, "none") == 0) && !(type && strcmp(type, "disabled") == 0);
    static const char *const switches[] = {"enable_thinking", "thinking"};
    for (size_t i = 0; i < 2; i++)
        if (!cJSON_GetObjectItemCaseSensitive(p->template_kwargs, switches[i]))
            cJSON_AddBoolToObject(p->template_kwargs, switches[i], on);
    if (effort && !cJSON_GetObjectItemCaseSensitive(p->template_kwargs, "reasoning_effort"))
        cJSON_AddStringToObject(p->template_kwargs, "reasoning_effort", effort);
    return true;
}

/* chat_template_kwargs, and the top-level fields that are passed to templates */
static bool check_template(struct check *c)
{
    struct openai_params *p = c->p;
    const cJSON *kwargs = NULL, *documents = fields_find(&c->f, "documents");
    if (fields_find(&c->f, "chat_template"))
        return fields_refuse(&c->f, "chat_template",
                             "chat_template: requests cannot bring their own; --chat-template sets the server's");
    if (!fields_object(&c->f, "chat_template_kwargs", &kwargs)) return false;
    if (documents && !cJSON_IsArray(documents))
        return fields_refuse(&c->f, "documents", "documents: expected an array");
    if ((kwargs || documents) && !reserve(&p->held, json_reserved(p->tree), "chat_template_kwargs", c->f.e))
        return false;
    if (kwargs || documents) p->template_kwargs = kwargs ? cJSON_Duplicate(kwargs, true) : cJSON_CreateObject();
    if (documents) cJSON_AddItemToObject(p->template_kwargs, "documents", cJSON_Duplicate(documents, true));
    if (!fields_bool(&c->f, "continue_final_message", &p->continue_final)) return false;
    p->add_generation_prompt = !p->continue_final;
    if (!fields_bool(&c->f, "add_generation_prompt", &p->add_generation_prompt)) return false;
    if (p->add_generation_prompt && p->continue_final)
        return fields_refuse(&c->f, "continue_final_message",
                             "`continue_final_message` and `add_generation_prompt` exclude each other");
    return true;
}

static bool check_chat(struct check *c)
{
    struct openai_params *p = c->p;
    const cJSON *messages = fields_find(&c->f, "messages");
    if (!messages) return fields_refuse(&c->f, "messages", "messages: the field is missing");
    if (!cJSON_IsArray(messages)) return fields_refuse(&c->f, "messages", "messages: expected an array");
    if (!messages->child) return fields_refuse(&c->f, "messages", "messages: the list is empty");
    p->messages = (cJSON *)(uintptr_t)messages; /* the tree is owned by p */
    if (chat_messages_check(p->messages, c->f.e)) {
        c->f.param = "messages";
        return false;
    }
    return check_tools(c) && check_template(c) && check_reasoning(c);
}

/* ---- the whole ------------------------------------------------------------------------------------------------- */

/* Refuses fields of other servers that tandem does not support, since ignoring them would change the text.  Values that
 * mean "off" are accepted. */
static bool check_unsupported(struct check *c)
{
    static const char *const names[] = {
        "suffix", "use_beam_search", "bad_words",         "allowed_token_ids", "prompt_embeds", "logits_processors",
        "audio",  "prediction",      "web_search_options"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const cJSON *v = fields_find(&c->f, names[i]);
        bool off = !v || cJSON_IsFalse(v) || (cJSON_IsArray(v) && !v->child) || (cJSON_IsString(v) && !*v->valuestring);
        if (!off) return fields_refuse(&c->f, names[i], "`%s` is not supported", names[i]);
    }
    const cJSON *modalities = fields_find(&c->f, "modalities");
    for (const cJSON *m = cJSON_IsArray(modalities) ? modalities->child : NULL; m; m = m->next)
        if (cJSON_IsString(m) && strcmp(m->valuestring, "text") != 0)
            return fields_refuse(&c->f, "modalities", "modalities: \"%.40s\" is not supported", m->valuestring);
    return true;
}

static bool check_output(struct check *c)
{
    struct openai_params *p = c->p;
    struct request_fields *f = &c->f;
    bool skip_special = true;
    p->add_special = c->route == OPENAI_COMPLETIONS;
    if (!fields_bool(f, "echo", &p->echo) || !fields_bool(f, "include_stop_str_in_output", &p->keep_stop) ||
        !fields_bool(f, "skip_special_tokens", &skip_special) || !fields_bool(f, "return_token_ids", &p->return_ids) ||
        !fields_bool(f, "return_tokens_as_token_ids", &p->tokens_as_ids) ||
        !fields_bool(f, "add_special_tokens", &p->add_special))
        return false;
    p->keep_special = !skip_special;
    if (c->route == OPENAI_TOKENS) p->return_ids = p->tokens_as_ids = true;
    if (c->route == OPENAI_CHAT && p->echo) return fields_refuse(f, "echo", "`echo` is not supported for chats");
    return true;
}

/* Error messages of a constraint begin with the field at fault. */
static bool check_constraint(struct check *c)
{
    if (constraint_read_openai(&c->p->constraint, c->p->tree, c->f.e)) return true;
    static const char *const names[] = {"response_format", "structured_outputs", "guided_json", "guided_regex",
                                        "guided_choice"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(c->f.e->msg, names[i], strlen(names[i])) == 0) c->f.param = names[i];
    return false;
}

static bool check_request_id(struct check *c)
{
    struct openai_params *p = c->p;
    if (!fields_string(&c->f, "request_id", &p->request_id)) return false;
    size_t n = p->request_id ? strlen(p->request_id) : 1;
    if (n >= 1 && n <= TOKENS_REQUEST_ID_MAX) return true;
    return fields_refuse(&c->f, "request_id", "`request_id` must have 1 to %d bytes. Given: %zu", TOKENS_REQUEST_ID_MAX,
                         n);
}

static bool check_total(struct check *c)
{
    const struct openai_params *p = c->p;
    int most = c->lim->max_choices, queue = c->lim->info->max_queue;
    if (most > queue) most = queue; /* they are queued at once */
    if ((int64_t)p->n_prompts * p->best_of <= most) return true;
    const char *name = p->n_prompts > 1 ? "prompt" : p->best_of > p->n ? "best_of" : "n";
    return fields_refuse(&c->f, name, "%d prompts x %d texts are more than the %d that one request may ask for",
                         p->n_prompts, p->best_of, most);
}

int openai_params_parse(struct openai_params *p, enum openai_route route, const struct openai_limits *lim,
                        const char *body, size_t len, struct err *e, const char **param)
{
    set_defaults(p, route, lim->info);
    e->code = 0;
    *param = NULL;
    p->tree = json_parse_body(body, len, e);
    if (!p->tree) return 400;
    struct check c = {
        .p = p,
        .route = route,
        .lim = lim,
        .f = {.at = {.obj = p->tree, .path = "", .e = e}, .e = e, .vocab = lim->info->vocab},
    };
    if (!fields_few(p->tree, e)) return 400;
    bool good = cJSON_IsObject(p->tree) || fields_refuse(&c.f, NULL, "expected a JSON object");
    if (route == OPENAI_TOKENS) good = good && tokens_to_completion(&c.f, p->tree) && check_request_id(&c);
    good = good && fields_string(&c.f, "model", &p->model) && check_stream(&c) && check_output(&c) &&
           check_sampling(&c) && check_seed(&c) && check_counts(&c) && check_lengths(&c) && check_logprobs(&c) &&
           fields_stop(&c.f, lim->messages ? "stop_sequences" : "stop", lim->max_stop, &p->gen, p->stop) &&
           fields_stop_ids(&c.f, &p->gen, p->stop_ids) && fields_bias(&c.f, &p->gen, &p->bias) &&
           fields_extras(&c.f, &p->gen) && fields_timeout(&c.f, &p->timeout_ms) && check_unsupported(&c) &&
           (route == OPENAI_CHAT ? check_chat(&c) : check_prompts(&c)) && check_constraint(&c) && check_total(&c);
    *param = c.f.param;
    return good ? 0 : 400;
}

int openai_params_fit(struct openai_params *p, enum openai_route route, const struct openai_limits *lim, size_t n,
                      struct err *e, const char **param)
{
    int64_t total = lim->info->max_total_tokens, rest = total - (int64_t)n;
    const char *where = prompt_field(route);
    int64_t usual = route != OPENAI_COMPLETIONS || rest < OPENAI_DEFAULT_TOKENS ? rest : OPENAI_DEFAULT_TOKENS;
    int64_t wanted = p->max_tokens ? p->max_tokens : usual;
    int copies = route == OPENAI_COMPLETIONS ? p->best_of : 1; /* of a prompt's log-probabilities in the answer */
    *param = where;
    if (lim->at_most && rest >= 1 && wanted > rest) wanted = rest; /* Claude Code always asks for 32,000 and more */
    if (lim->messages &&
        rest < 1) { /* in these words, which Claude Code looks for: it then shortens the conversation */
        err_set(e, ERR_INVALID, "prompt is too long: %zu tokens > %lld maximum", n, (long long)total - 1);
        return 400;
    }
    if (n < 1) return err_set(e, ERR_INVALID, "%s: there are no tokens in it", where), 400;
    if (rest < 1 || wanted > rest) {
        p->code = "context_length_exceeded";
        err_set(e, ERR_INVALID,
                "This model's maximum context length is %lld tokens. However, you requested %lld tokens (%zu in the "
                "%s, %lld in the completion).",
                (long long)total, (long long)n + (p->max_tokens ? wanted : 1), n, where,
                (long long)(p->max_tokens ? wanted : 1));
        return 400;
    }
    if (p->n_scored && !fit_scored(p, n, e, param)) return 400;
    *param = where;
    p->prompt_entries += (int64_t)n * p->n_scored;
    if (p->gen.prompt_logprobs) p->prompt_entries += (int64_t)n * copies * (p->gen.top_n + 1);
    if (p->prompt_entries > OPENAI_PROMPT_ENTRIES_MAX) {
        const char *name = p->prompt_logprobs >= p->logprobs ? "prompt_logprobs" : "logprobs";
        *param = copies > 1 ? "n" : name;
        err_set(e, ERR_INVALID,
                "%s: one answer may have %d log-probabilities of prompts at most (tokens x `n` x (`%s` + 1)): lower "
                "`n` or `%s`, or send fewer prompts",
                p->prompt_logprobs < 0 ? "`echo` with `logprobs`" : "`prompt_logprobs`", OPENAI_PROMPT_ENTRIES_MAX,
                name, name);
        return 400;
    }
    p->gen.n_prompt = (int)n;
    p->gen.max_new_tokens = (int)wanted;
    return 0;
}

void openai_params_free(struct openai_params *p)
{
    cJSON_Delete(p->template_kwargs);
    json_free(p->tree);
    reservation_free(&p->held);
    constraint_request_free(&p->constraint);
    free(p->prompts);
    free(p->tool_names);
    free(p->bias);
    *p = (struct openai_params){0};
}
