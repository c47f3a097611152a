#include "server/api/openai_answer.h"

#include "server/json/json.h"

#include <string.h>

static void put_text(struct buf *out, const struct buf *text)
{
    json_put_string(out, text->data ? text->data : "", text->len);
}

/* vLLM's: an object whose id is the client's. */
static void put_tokens_head(struct buf *out, const struct openai_head *h)
{
    buf_str(out, "{\"request_id\":");
    json_put_string(out, h->id, strlen(h->id));
    buf_printf(out, ",\"created\":%lld,\"model\":", (long long)h->created);
    json_put_string(out, h->model, strlen(h->model));
    buf_str(out, ",\"choices\":[");
}

static void put_head(struct buf *out, const struct openai_head *h, bool chunk)
{
    if (h->route == OPENAI_TOKENS) {
        put_tokens_head(out, h);
        return;
    }
    const char *object = h->route == OPENAI_COMPLETIONS ? "text_completion"
                         : chunk                        ? "chat.completion.chunk"
                                                        : "chat.completion";
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", h->id, object,
               (long long)h->created);
    json_put_string(out, h->model, strlen(h->model));
    buf_printf(out, ",\"system_fingerprint\":\"%s\",\"choices\":[", h->fingerprint);
}

static void put_usage(struct buf *out, const struct openai_usage *u)
{
    buf_printf(out, ",\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld",
               (long long)u->prompt, (long long)u->completion, (long long)u->prompt + (long long)u->completion);
    if (u->reasoning > 0)
        buf_printf(out, ",\"completion_tokens_details\":{\"reasoning_tokens\":%lld}", (long long)u->reasoning);
    if (u->cached >= 0) buf_printf(out, ",\"prompt_tokens_details\":{\"cached_tokens\":%lld}", (long long)u->cached);
    buf_char(out, '}');
}

static void put_finish(struct buf *out, const struct choice *v, bool over)
{
    if (!over) {
        buf_str(out, ",\"finish_reason\":null");
        return;
    }
    buf_printf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":", choice_finish_name(v));
    choice_put_stop_reason(out, v);
}

/* What vLLM adds to a choice; first: with what is said once of a prompt. */
static void put_ids(struct buf *out, const struct choice *v, bool completion, bool first)
{
    if (completion && first && v->c->params->prompt_logprobs >= 0) {
        buf_str(out, ",\"prompt_logprobs\":");
        choice_put_prompt_logprobs(out, v);
    }
    if (!v->c->params->return_ids) return;
    buf_str(out, ",\"token_ids\":");
    choice_put_ids(out, v);
    if (!completion || !first) return;
    buf_str(out, ",\"prompt_token_ids\":");
    choice_put_prompt_ids(out, v);
}

/* What vLLM adds to the answer of a route with one prompt. */
static void put_prompt(struct buf *out, const struct choice *v)
{
    if (v->c->params->prompt_logprobs >= 0 || v->c->route == OPENAI_TOKENS) {
        buf_str(out, ",\"prompt_logprobs\":");
        choice_put_prompt_logprobs(out, v);
    }
    if (v->c->params->n_scored) {
        buf_str(out, ",\"prompt_token_id_logprobs\":");
        choice_put_scores(out, v);
    }
    if (!v->c->params->return_ids || v->c->route != OPENAI_CHAT) return;
    buf_str(out, ",\"prompt_token_ids\":");
    choice_put_prompt_ids(out, v);
}

static void put_tokens(struct buf *out, const struct choice *v, int index, bool over)
{
    buf_printf(out, "{\"index\":%d,\"token_ids\":", index);
    choice_put_ids(out, v);
    buf_str(out, ",\"logprobs\":");
    choice_put_logprobs(out, v);
    put_finish(out, v, over);
    buf_char(out, '}');
}

/* Of a completion; first: the first of a stream, or not of one. */
static void put_completion(struct buf *out, const struct choice *v, int index, bool first, bool over)
{
    if (v->c->route == OPENAI_TOKENS) {
        put_tokens(out, v, index, over);
        return;
    }
    buf_printf(out, "{\"index\":%d,\"text\":", index);
    put_text(out, &v->text);
    buf_str(out, ",\"logprobs\":");
    choice_put_logprobs(out, v);
    put_finish(out, v, over);
    put_ids(out, v, true, first);
    buf_char(out, '}');
}

static void put_delta(struct buf *out, enum openai_chunk kind, const struct choice *v)
{
    const char *comma = "";
    buf_str(out, "\"delta\":{");
    if (kind == CHUNK_ROLE) buf_str(out, "\"role\":\"assistant\",\"content\":\"\"");
    if (kind == CHUNK_TEXT && v->thoughts.len) {
        buf_str(out, "\"reasoning_content\":");
        put_text(out, &v->thoughts);
        comma = ",";
    }
    if (kind == CHUNK_TEXT && (v->text.len || (!v->answer.n && !v->thoughts.len))) {
        buf_printf(out, "%s\"content\":", comma);
        put_text(out, &v->text);
        comma = ",";
    }
    if (kind == CHUNK_TEXT && v->answer.n) {
        buf_printf(out, "%s\"tool_calls\":[", comma);
        tool_put_delta(out, &v->answer);
        buf_char(out, ']');
    }
    buf_char(out, '}');
}

void openai_put_chunk(struct buf *out, const struct openai_head *h, enum openai_chunk kind, const struct choice *v,
                      int index, const struct openai_usage *usage)
{
    put_head(out, h, true);
    if (h->route != OPENAI_CHAT) {
        put_completion(out, v, index, kind == CHUNK_FIRST, v->done.kind == EV_DONE);
    } else {
        buf_printf(out, "{\"index\":%d,", index);
        put_delta(out, kind, v);
        buf_str(out, ",\"logprobs\":");
        if (kind == CHUNK_TEXT && v->tokens.len)
            choice_put_logprobs(out, v);
        else
            buf_str(out, "null");
        put_finish(out, v, kind == CHUNK_END);
        if (kind == CHUNK_TEXT) put_ids(out, v, false, false);
        buf_char(out, '}');
    }
    buf_char(out, ']');
    if (kind == CHUNK_ROLE) put_prompt(out, v);
    if (usage)
        put_usage(out, usage);
    else if (h->params->include_usage)
        buf_str(out, ",\"usage\":null");
    buf_char(out, '}');
}

void openai_put_usage_chunk(struct buf *out, const struct openai_head *h, const struct openai_usage *usage)
{
    put_head(out, h, true);
    buf_char(out, ']');
    put_usage(out, usage);
    buf_char(out, '}');
}

static void put_message(struct buf *out, const struct choice *v, int index)
{
    const struct buf *text = choice_text(v), *thoughts = choice_thoughts(v);
    buf_printf(out, "{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", index);
    if (v->answer.n && !text->len)
        buf_str(out, "null");
    else
        put_text(out, text);
    buf_str(out, ",\"refusal\":null");
    if (thoughts->len) {
        buf_str(out, ",\"reasoning_content\":");
        put_text(out, thoughts);
    }
    if (v->answer.n) {
        struct tool_answer calls = v->answer;
        if (!v->c->params->parallel_tool_calls) calls.n = 1;
        buf_str(out, ",\"tool_calls\":");
        tool_answer_put(out, &calls);
    }
    buf_str(out, "},\"logprobs\":");
    choice_put_logprobs(out, v);
    put_finish(out, v, true);
    put_ids(out, v, false, true);
    buf_char(out, '}');
}

void openai_put_whole(struct buf *out, const struct openai_head *h, struct choice *const *choices, int n,
                      const struct openai_usage *usage)
{
    put_head(out, h, false);
    for (int i = 0; i < n; i++) {
        if (i) buf_char(out, ',');
        if (h->route == OPENAI_CHAT)
            put_message(out, choices[i], i);
        else
            put_completion(out, choices[i], i, true, true);
    }
    buf_char(out, ']');
    if (h->route != OPENAI_COMPLETIONS) put_prompt(out, choices[0]);
    put_usage(out, usage);
    buf_char(out, '}');
}
