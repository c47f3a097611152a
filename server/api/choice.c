#include "server/api/choice.h"

#include "engine/base/check.h"
#include "server/json/check.h"
#include "server/json/json.h"

#include <math.h>
#include <string.h>

void choice_init(struct choice *v, const struct choice_config *c, const char *echo, size_t n)
{
    const struct openai_params *p = c->params;
    *v = (struct choice){.c = c, .stop_index = -1};
    buf_str(&v->text, "");
    buf_append(&v->text, echo, n);
    if (c->tools == TOOL_FORMAT_NONE && c->reasoning == REASONING_NONE) return;
    v->parser = tool_parser_new(&(struct tool_parser_config){
        .format = c->tools,
        .reasoning = c->reasoning,
        .stream = p->stream,
        .thinking = c->thinking,
        .names = p->tool_names,
        .n_names = p->n_tools,
        .tools = p->tools,
    });
}

void choice_free(struct choice *v)
{
    tool_parser_free(v->parser);
    tool_answer_free(&v->answer);
    buf_free(&v->text);
    buf_free(&v->held);
    buf_free(&v->thoughts);
    buf_free(&v->tokens);
    buf_free(&v->values);
    buf_free(&v->top);
    buf_free(&v->offsets);
    buf_free(&v->ids);
    buf_free(&v->prompt);
    buf_free(&v->scores);
    *v = (struct choice){0};
}

/* ---- text ------------------------------------------------------------------------------------------------------ */

static void take_tools(struct choice *v, struct tool_events events)
{
    if (!v->c->params->stream) {
        tool_answer_add(&v->answer, events);
        if (v->c->params->hide_thoughts) buf_clear(&v->answer.thoughts);
        return;
    }
    for (int i = 0; i < events.n; i++) {
        const struct tool_event *t = &events.v[i];
        if (t->kind == TOOL_THOUGHT && !v->c->params->hide_thoughts) buf_append(&v->thoughts, t->text, t->n);
        if (t->kind == TOOL_CONTENT) buf_append(&v->text, t->text, t->n);
        if (t->kind != TOOL_BEGIN && t->kind != TOOL_ARGUMENTS) continue;
        if (t->index && !v->c->params->parallel_tool_calls) continue; /* only one call was requested */
        tool_answer_add(&v->answer, (struct tool_events){t, 1});
    }
}

/* Moves the first n held bytes to the text. */
static void release(struct choice *v, size_t n)
{
    if (!n) return;
    if (v->parser)
        take_tools(v, tool_parser_feed(v->parser, v->held.data, n));
    else
        buf_append(&v->text, v->held.data, n);
    memmove(v->held.data, v->held.data + n, v->held.len - n + 1);
    v->held.len -= n;
}

static bool held_ends_with(const struct choice *v, const char *s, size_t n)
{
    return v->held.len >= n && memcmp(v->held.data + v->held.len - n, s, n) == 0;
}

/* @return how many of the last held bytes may be the beginning of a stop text. */
static size_t bytes_to_hold(const struct choice *v)
{
    const struct gen_request *r = &v->c->params->gen;
    size_t most = 0;
    for (int i = 0; i < r->n_stop; i++) {
        size_t n = strlen(r->stop[i]) - 1;
        if (n > v->held.len) n = v->held.len;
        while (n > most && !held_ends_with(v, r->stop[i], n)) n--;
        if (n > most) most = n;
    }
    return most;
}

/* The engine ended by length, but the last token completed a stop text: counts as a stop. */
static void notice_stop(struct choice *v)
{
    const struct gen_request *r = &v->c->params->gen;
    if (v->finish != FINISH_LENGTH) return;
    for (int i = 0; i < r->n_stop; i++) {
        if (!held_ends_with(v, r->stop[i], strlen(r->stop[i]))) continue;
        v->finish = FINISH_STOP;
        v->stop_index = i;
        return;
    }
}

static void end_text(struct choice *v)
{
    const struct openai_params *p = v->c->params;
    notice_stop(v);
    bool by_text = v->finish == FINISH_STOP && v->stop_index >= 0 && v->stop_index < p->gen.n_stop;
    if (by_text && !p->keep_stop) {
        const char *stop = p->gen.stop[v->stop_index];
        if (held_ends_with(v, stop, strlen(stop))) v->held.len -= strlen(stop);
    }
    release(v, v->held.len);
    if (v->parser) take_tools(v, tool_parser_finish(v->parser));
}

/* @return how many bytes of a token's text belong to the answer. */
static size_t text_of(const struct choice *v, const struct event *ev, const char *text)
{
    const struct openai_params *p = v->c->params;
    bool by_id = ev->finish == FINISH_STOP && ev->stop_index >= p->gen.n_stop;
    if ((ev->finish == FINISH_EOS || by_id) && !p->keep_stop) return 0;
    bool whole = p->keep_special || (v->parser && (tool_format_is_mark(v->c->tools, text, ev->text_len) ||
                                                   reasoning_is_mark(v->c->reasoning, text, ev->text_len)));
    return ev->special && whole ? ev->text_len : ev->gen_len;
}

/* ---- log-probabilities ----------------------------------------------------------------------------------------- */

static size_t count_characters(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count;
}

static bool is_text(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        int len = utf8_length((const unsigned char *)s + i, n - i);
        if (!len) return false;
        i += (size_t)len;
    }
    return true;
}

/* A token as text, in quotes.  A partial character is spelled as OpenAI does: "bytes:\xe2\x80" in completions,
 * "\\xe2\\x80" in chats; so every token is unique. */
static void put_token(struct buf *out, const struct choice *v, int32_t id, const char *bytes, size_t n)
{
    if (v->c->params->tokens_as_ids) {
        buf_printf(out, "\"token_id:%d\"", id);
        return;
    }
    if (is_text(bytes, n)) {
        json_put_string(out, bytes, n);
        return;
    }
    buf_str(out, v->c->route == OPENAI_CHAT ? "\"" : "\"bytes:");
    for (size_t i = 0; i < n; i++) buf_printf(out, "\\\\x%02x", (unsigned char)bytes[i]);
    buf_char(out, '"');
}

static void put_bytes(struct buf *out, const char *bytes, size_t n)
{
    buf_str(out, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++) buf_printf(out, i ? ",%u" : "%u", (unsigned char)bytes[i]);
    buf_char(out, ']');
}

/* {"token","logprob","bytes", and what the caller adds */
static void put_entry(struct buf *out, const struct choice *v, int32_t id, const struct buf *bytes, float logprob)
{
    buf_str(out, "{\"token\":");
    put_token(out, v, id, bytes->data, bytes->len);
    buf_str(out, ",\"logprob\":");
    json_put_number(out, logprob);
    if (v->c->route == OPENAI_CHAT) put_bytes(out, bytes->data, bytes->len);
}

static void token_bytes(const struct choice *v, int32_t id, struct buf *out)
{
    buf_clear(out);
    buf_str(out, "");
    tokenizer_bytes(v->c->tokenizer, id, out);
}

/* How many of an event's alternatives an array of so many has: the engine gives both arrays the longer one's. */
static int shown(const struct event *ev, int most)
{
    return ev->n_top < most ? ev->n_top : most;
}

static void add_chat_entry(struct choice *v, const struct event *ev, const struct event_batch *batch)
{
    struct buf bytes = {0};
    if (v->tokens.len) buf_char(&v->tokens, ',');
    token_bytes(v, ev->token, &bytes);
    put_entry(&v->tokens, v, ev->token, &bytes, ev->logprob);
    buf_str(&v->tokens, ",\"top_logprobs\":[");
    for (int i = 0; i < shown(ev, v->c->params->logprobs); i++) {
        const struct top_token *t = &batch->top[ev->top + (uint32_t)i];
        if (i) buf_char(&v->tokens, ',');
        token_bytes(v, t->id, &bytes);
        put_entry(&v->tokens, v, t->id, &bytes, t->logprob);
        buf_char(&v->tokens, '}');
    }
    buf_str(&v->tokens, "]}");
    buf_free(&bytes);
}

/* {"token": logprob}: the alternatives, and the token itself if it is not among them */
static void put_top(struct choice *v, const struct event *ev, const struct event_batch *batch, const struct buf *own)
{
    struct buf bytes = {0};
    bool among = false;
    buf_char(&v->top, '{');
    int n = shown(ev, v->c->params->logprobs);
    for (int i = 0; i < n; i++) {
        const struct top_token *t = &batch->top[ev->top + (uint32_t)i];
        token_bytes(v, t->id, &bytes);
        among = among || t->id == ev->token;
        if (i) buf_char(&v->top, ',');
        put_token(&v->top, v, t->id, bytes.data, bytes.len);
        buf_char(&v->top, ':');
        json_put_number(&v->top, t->logprob);
    }
    if (!among) {
        if (n) buf_char(&v->top, ',');
        put_token(&v->top, v, ev->token, own->data, own->len);
        buf_char(&v->top, ':');
        json_put_number(&v->top, ev->logprob);
    }
    buf_char(&v->top, '}');
    buf_free(&bytes);
}

static void add_entry(struct choice *v, const struct event *ev, const struct event_batch *batch)
{
    struct buf bytes = {0};
    const char *comma = v->tokens.len ? "," : "";
    token_bytes(v, ev->token, &bytes);
    buf_str(&v->tokens, comma);
    buf_str(&v->values, comma);
    buf_str(&v->top, comma);
    /* detokenising may have dropped the leading space of the first token */
    if (ev->text_len && !v->c->params->tokens_as_ids && is_text(bytes.data, bytes.len))
        json_put_string(&v->tokens, batch->text + ev->text, ev->text_len);
    else
        put_token(&v->tokens, v, ev->token, bytes.data, bytes.len);
    json_put_number(&v->values, ev->logprob); /* NAN is written as null */
    if (isnan(ev->logprob))
        buf_str(&v->top, "null");
    else
        put_top(v, ev, batch, &bytes);
    buf_printf(&v->offsets, "%s%zu", comma, v->chars);
    buf_free(&bytes);
}

static void add_logprobs(struct choice *v, const struct event *ev, const struct event_batch *batch)
{
    if (v->c->params->logprobs < 0) return;
    if (v->c->route == OPENAI_COMPLETIONS)
        add_entry(v, ev, batch);
    else
        add_chat_entry(v, ev, batch);
}

void choice_put_logprobs(struct buf *out, const struct choice *v)
{
    const char *tokens = v->tokens.len ? v->tokens.data : "";
    if (v->c->params->logprobs < 0)
        buf_str(out, "null");
    else if (v->c->route == OPENAI_CHAT)
        buf_printf(out, "{\"content\":[%s],\"refusal\":null}", tokens);
    else if (v->c->route == OPENAI_TOKENS)
        buf_printf(out, "{\"content\":[%s]}", tokens);
    else
        buf_printf(out, "{\"tokens\":[%s],\"token_logprobs\":[%s],\"top_logprobs\":[%s],\"text_offset\":[%s]}", tokens,
                   v->values.len ? v->values.data : "", v->top.len ? v->top.data : "",
                   v->offsets.len ? v->offsets.data : "");
}

/* "7":{"logprob":-1.5,"rank":1,"decoded_token":" a"} */
static void put_prompt_entry(struct choice *v, int32_t id, float logprob, int rank)
{
    struct buf bytes = {0};
    token_bytes(v, id, &bytes);
    buf_printf(&v->prompt, "\"%d\":{\"logprob\":", id);
    json_put_number(&v->prompt, logprob);
    buf_printf(&v->prompt, ",\"rank\":%d,\"decoded_token\":", rank);
    json_put_string(&v->prompt, bytes.data, bytes.len);
    buf_char(&v->prompt, '}');
    buf_free(&bytes);
}

/* The token itself comes first, as in vLLM. */
static void add_prompt_logprobs(struct choice *v, const struct event *ev, const struct event_batch *batch)
{
    int most = v->c->params->prompt_logprobs;
    if (most < 0) return;
    if (v->prompt.len) buf_char(&v->prompt, ',');
    if (isnan(ev->logprob)) { /* the first: nothing predicts it */
        buf_str(&v->prompt, "null");
        return;
    }
    const struct top_token *top = ev->n_top > 0 ? batch->top + ev->top : NULL;
    buf_char(&v->prompt, '{');
    put_prompt_entry(v, ev->token, ev->logprob, ev->rank);
    for (int i = 0; top && i < shown(ev, most); i++) {
        if (top[i].id < 0 || top[i].id == ev->token) continue;
        buf_char(&v->prompt, ',');
        put_prompt_entry(v, top[i].id, top[i].logprob, i + 1);
    }
    buf_char(&v->prompt, '}');
}

static void put_list(struct buf *out, const struct buf *contents)
{
    buf_char(out, '[');
    buf_append(out, contents->data, contents->len);
    buf_char(out, ']');
}

void choice_put_prompt_logprobs(struct buf *out, const struct choice *v)
{
    if (v->c->params->prompt_logprobs < 0)
        buf_str(out, "null");
    else
        put_list(out, v->first ? &v->first->prompt : &v->prompt);
}

void choice_put_scores(struct buf *out, const struct choice *v)
{
    put_list(out, v->first ? &v->first->scores : &v->scores);
}

void choice_put_prompt_ids(struct buf *out, const struct choice *v)
{
    buf_char(out, '[');
    for (size_t i = 0; i < v->n_prompt_ids; i++) buf_printf(out, i ? ",%d" : "%d", v->prompt_ids[i]);
    buf_char(out, ']');
}

void choice_put_ids(struct buf *out, const struct choice *v)
{
    put_list(out, &v->ids);
}

/* ---- events ---------------------------------------------------------------------------------------------------- */

static void add_scores(struct choice *v, const struct event *ev, const struct event_batch *batch)
{
    if (!ev->n_scored) return;
    buf_str(&v->scores, v->scores.len ? ",[" : "[");
    for (int i = 0; i < ev->n_scored; i++) {
        if (i) buf_char(&v->scores, ',');
        json_put_number(&v->scores, batch->top[ev->scored + (uint32_t)i].logprob); /* NAN is written as null */
    }
    buf_char(&v->scores, ']');
}

static void add_prompt_token(struct choice *v, const struct event *ev, const struct event_batch *batch)
{
    add_scores(v, ev, batch);
    add_prompt_logprobs(v, ev, batch);
    if (!v->c->params->echo) return;
    add_logprobs(v, ev, batch);
    if (!ev->special) v->chars += count_characters(batch->text + ev->text, ev->text_len);
}

static void add_token(struct choice *v, const struct event *ev, const struct event_batch *batch)
{
    if (v->c->params->nothing_wanted) return;
    const char *text = batch->text + ev->text;
    size_t n = text_of(v, ev, text);
    if (!v->n_tokens && v->c->params->echo) v->chars = count_characters(v->text.data, v->text.len);
    v->n_tokens++;
    v->sum_logprob += ev->logprob;
    add_logprobs(v, ev, batch);
    if (v->c->params->return_ids) buf_printf(&v->ids, v->ids.len ? ",%d" : "%d", ev->token);
    v->chars += count_characters(text, n);
    buf_append(&v->held, text, n);
    v->finish = ev->finish;
    v->stop_index = ev->stop_index;
    if (ev->finish == FINISH_NONE) release(v, v->held.len - bytes_to_hold(v));
}

enum { ENTRY = 256 /* a token as JSON, with its bytes as numbers */, ID = 12, SCORE = 24 };

static size_t scores_of(const struct event *ev)
{
    return ev->n_scored > 0 ? ((size_t)ev->n_scored + 1) * SCORE : 0;
}

static size_t prompt_entries_of(const struct choice *v, const struct event *ev)
{
    return ev->kind == EV_PROMPT && v->c->params->prompt_logprobs >= 0 ? 1 + (size_t)(ev->n_top > 0 ? ev->n_top : 0)
                                                                       : 0;
}

static size_t entries_of(const struct choice *v, const struct event *ev)
{
    return ev->kind == EV_DONE || v->c->params->logprobs < 0 ? 0 : 1 + (size_t)(ev->n_top > 0 ? ev->n_top : 0);
}

bool choice_room(struct choice *v, const struct event *ev)
{
    size_t entries = entries_of(v, ev);
    bool objects = v->c->route != OPENAI_COMPLETIONS;
    if (!buf_try_room(&v->held, ev->text_len) || !buf_try_room(&v->text, v->held.len + ev->text_len)) return false;
    if (!buf_try_room(&v->ids, ID) || !buf_try_room(&v->prompt, prompt_entries_of(v, ev) * ENTRY)) return false;
    if (!buf_try_room(&v->scores, scores_of(ev))) return false;
    if (!entries) return true;
    if (objects) return buf_try_room(&v->tokens, entries * ENTRY);
    return buf_try_room(&v->tokens, ENTRY) && buf_try_room(&v->values, ENTRY) &&
           buf_try_room(&v->top, entries * ENTRY) && buf_try_room(&v->offsets, ENTRY);
}

size_t choice_event_bytes(const struct choice *v, const struct event *ev)
{
    size_t entries = entries_of(v, ev);
    size_t prompt = prompt_entries_of(v, ev) * ENTRY, id = v->c->params->return_ids ? ID : 0;
    return ev->kind == EV_DONE
               ? 0
               : 3 * (2 * ev->text_len + (entries ? entries + 3 : 0) * ENTRY + prompt + id + scores_of(ev));
}

size_t choice_bytes(const struct choice *v)
{
    const struct buf *prompt = v->first && v->c->route == OPENAI_COMPLETIONS ? &v->first->prompt : &v->prompt;
    const struct tool_answer *a = &v->answer;
    return 2 * (v->text.len + v->held.len + v->thoughts.len + a->thoughts.len + a->content.len) + v->tokens.len +
           v->values.len + v->top.len + v->offsets.len + v->ids.len + prompt->len + v->scores.len +
           (v->c->params->return_ids ? v->n_prompt_ids * ID : 0);
}

void choice_add(struct choice *v, const struct event *ev, const struct event_batch *batch)
{
    switch (ev->kind) {
    case EV_PROMPT: add_prompt_token(v, ev, batch); break;
    case EV_TOKEN: add_token(v, ev, batch); break;
    case EV_EMBEDDING: break;
    case EV_DONE:
        v->done = *ev;
        if (!v->finish) v->finish = ev->finish;
        end_text(v);
        break;
    }
}

const struct buf *choice_text(const struct choice *v)
{
    return v->parser ? &v->answer.content : &v->text;
}

const struct buf *choice_thoughts(const struct choice *v)
{
    return &v->answer.thoughts;
}

bool choice_ready(const struct choice *v)
{
    if (v->c->route == OPENAI_TOKENS) return v->ids.len;
    return v->ids.len || v->text.len || v->thoughts.len || v->tokens.len || (v->c->params->stream && v->answer.n);
}

void choice_clear(struct choice *v)
{
    buf_clear(&v->text);
    buf_clear(&v->thoughts);
    if (v->c->params->stream) tool_answer_drop(&v->answer);
    buf_clear(&v->tokens);
    buf_clear(&v->values);
    buf_clear(&v->top);
    buf_clear(&v->offsets);
    buf_clear(&v->ids);
}

double choice_score(const struct choice *v)
{
    return v->n_tokens ? v->sum_logprob / v->n_tokens : -INFINITY;
}

const char *choice_finish_name(const struct choice *v)
{
    if (v->finish == FINISH_LENGTH || v->c->params->nothing_wanted) return "length";
    if (v->finish == FINISH_TIMEOUT) return "timeout";
    if (v->finish == FINISH_ABORTED) return "abort";
    bool demanded = v->c->params->tool_choice == TOOL_CHOICE_NAMED; /* then OpenAI says "stop" */
    return v->parser && !demanded && tool_parser_calls(v->parser) ? "tool_calls" : "stop";
}

void choice_put_stop_reason(struct buf *out, const struct choice *v)
{
    const struct gen_request *r = &v->c->params->gen;
    int i = v->finish == FINISH_STOP ? v->stop_index : -1;
    if (i < 0)
        buf_str(out, "null");
    else if (i < r->n_stop)
        json_put_string(out, r->stop[i], strlen(r->stop[i]));
    else
        buf_printf(out, "%d", r->stop_ids[i - r->n_stop]);
}
