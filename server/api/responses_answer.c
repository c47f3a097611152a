#include "server/api/responses_answer.h"

#include "server/json/json.h"

#include <stdio.h>
#include <string.h>

static void put_buf(struct buf *out, const struct buf *b)
{
    json_put_string(out, b->data ? b->data : "", b->len);
}

static void put_text(struct buf *out, const char *s)
{
    json_put_string(out, s, strlen(s));
}

/* The id of an item: its kind, the answer's id without "resp_", its place. */
static void put_id(struct buf *out, const struct openai_head *h, enum responses_item kind, int index)
{
    static const char *const leads[] = {"", "rs", "msg", "fc", "ctc"};
    const char *mark = strchr(h->id, '_');
    buf_printf(out, "\"%s_%s_%d\"", leads[kind], mark ? mark + 1 : h->id, index);
}

/* ---- items ----------------------------------------------------------------------------------------------------- */

struct item {
    enum responses_item kind;
    int index;
    const struct buf *text; /* of a call: its arguments */
    const char *call_id, *name;
    const char *status; /* in_progress: the item as it begins, without its text */
};

/* The input of a custom tool's call: the text in its arguments, or these, where they are no JSON. */
static void custom_input(const struct buf *arguments, struct buf *out)
{
    struct err e = {0};
    cJSON *tree = arguments->len ? json_parse(arguments->data, arguments->len, &e) : NULL;
    const char *input = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tree, "input"));
    if (input)
        buf_str(out, input);
    else
        buf_append(out, arguments->data, arguments->len);
    json_free(tree);
}

static void put_part(struct buf *out, enum responses_item kind, const struct buf *text)
{
    buf_printf(out, "{\"type\":\"%s\",\"text\":", kind == ITEM_REASONING ? "reasoning_text" : "output_text");
    put_buf(out, text);
    buf_str(out, kind == ITEM_REASONING ? "}" : ",\"annotations\":[],\"logprobs\":[]}");
}

static void put_call(struct buf *out, const struct item *i, const struct responses_request *r, bool begins)
{
    const struct responses_tool *tool = responses_tool_find(r, i->name);
    size_t space = tool ? tool->space : 0;
    struct buf input = {0};
    buf_str(out, ",\"call_id\":");
    put_text(out, i->call_id);
    buf_str(out, ",\"name\":");
    put_text(out, i->name + (space ? space + 2 : 0));
    if (space) {
        buf_str(out, ",\"namespace\":");
        json_put_string(out, i->name, space);
    }
    buf_str(out, i->kind == ITEM_CUSTOM ? ",\"input\":" : ",\"arguments\":");
    if (!begins && i->kind == ITEM_CUSTOM) custom_input(i->text, &input);
    if (!begins && i->kind == ITEM_CALL) buf_append(&input, i->text->data, i->text->len);
    if (!begins && i->kind == ITEM_CALL && !input.len) buf_str(&input, "{}");
    put_buf(out, &input);
    buf_free(&input);
}

static void put_item(struct buf *out, const struct openai_head *h, const struct responses_request *r,
                     const struct item *i)
{
    static const char *const types[] = {"", "reasoning", "message", "function_call", "custom_tool_call"};
    bool begins = strcmp(i->status, "in_progress") == 0;
    buf_str(out, "{\"id\":");
    put_id(out, h, i->kind, i->index);
    buf_printf(out, ",\"type\":\"%s\",\"status\":\"%s\"", types[i->kind], i->status);
    if (i->kind == ITEM_CALL || i->kind == ITEM_CUSTOM) {
        put_call(out, i, r, begins);
    } else {
        buf_str(out,
                i->kind == ITEM_MESSAGE ? ",\"role\":\"assistant\",\"content\":[" : ",\"summary\":[],\"content\":[");
        if (!begins) put_part(out, i->kind, i->text);
        buf_char(out, ']');
    }
    if (i->kind == ITEM_REASONING && !begins && r->thoughts) {
        struct buf kept = {0};
        buf_str(&kept, RESPONSES_THOUGHTS);
        buf_append(&kept, i->text->data, i->text->len);
        buf_str(out, ",\"encrypted_content\":");
        put_buf(out, &kept);
        buf_free(&kept);
    }
    buf_char(out, '}');
}

/* ---- the object ------------------------------------------------------------------------------------------------ */

static void put_head(struct buf *out, const struct openai_head *h, const char *status)
{
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"model\":", h->id,
               (long long)h->created, status);
    put_text(out, h->model);
}

/* A text cut off by the deadline counts as one that reached max_output_tokens: there is no name for it. */
static bool is_cut(const struct choice *v)
{
    return v->finish == FINISH_LENGTH || v->finish == FINISH_TIMEOUT || v->finish == FINISH_ABORTED;
}

static void put_usage(struct buf *out, const struct openai_usage *u)
{
    buf_printf(
        out,
        ",\"usage\":{\"input_tokens\":%lld,\"input_tokens_details\":{\"cached_tokens\":%lld},\"output_tokens\":%lld,"
        "\"output_tokens_details\":{\"reasoning_tokens\":%lld},\"total_tokens\":%lld}",
        (long long)u->prompt, (long long)(u->cached > 0 ? u->cached : 0), (long long)u->completion,
        (long long)u->reasoning, (long long)u->prompt + (long long)u->completion);
}

/* What follows the output of a generation that is over. */
static void put_tail(struct buf *out, const struct responses_request *r, const struct choice *v,
                     const struct openai_usage *u)
{
    buf_printf(out, ",\"error\":null,\"incomplete_details\":%s",
               is_cut(v) ? "{\"reason\":\"max_output_tokens\"}" : "null");
    put_usage(out, u);
    buf_append(out, r->echo.data, r->echo.len);
    buf_char(out, '}');
}

/* ---- the whole answer ------------------------------------------------------------------------------------------ */

static void put_whole_item(struct buf *out, const struct openai_head *h, const struct responses_request *r, int *n,
                           struct item item)
{
    if (*n) buf_char(out, ',');
    item.index = (*n)++;
    put_item(out, h, r, &item);
}

void responses_put_whole(struct buf *out, const struct openai_head *h, const struct responses_request *r,
                         const struct choice *v, const struct openai_usage *usage)
{
    const struct buf *text = choice_text(v), *thoughts = choice_thoughts(v);
    const char *last = is_cut(v) ? "incomplete" : "completed";
    size_t n = v->c->params->parallel_tool_calls || !v->answer.n ? v->answer.n : 1;
    int items = 0;
    put_head(out, h, last);
    buf_str(out, ",\"output\":[");
    if (thoughts->len)
        put_whole_item(
            out, h, r, &items,
            (struct item){.kind = ITEM_REASONING, .text = thoughts, .status = text->len || n ? "completed" : last});
    if (text->len)
        put_whole_item(out, h, r, &items,
                       (struct item){.kind = ITEM_MESSAGE, .text = text, .status = n ? "completed" : last});
    for (size_t i = 0; i < n; i++) {
        const struct tool_call *call = &v->answer.calls[i];
        const struct responses_tool *tool = responses_tool_find(r, call->name);
        put_whole_item(out, h, r, &items,
                       (struct item){.kind = tool && tool->custom ? ITEM_CUSTOM : ITEM_CALL,
                                     .text = &call->arguments,
                                     .call_id = call->id,
                                     .name = call->name,
                                     .status = "completed"});
    }
    buf_char(out, ']');
    put_tail(out, r, v, usage);
}

/* ---- the stream ------------------------------------------------------------------------------------------------ */

/* Begins an event, up to where its fields go; its JSON ends with "}\n\n". */
static void put_event(struct buf *out, struct responses_stream *s, const char *name)
{
    buf_printf(out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%lld", name, name, (long long)s->sequence++);
}

/* An event about the open item, up to its own fields. */
static void put_item_event(struct buf *out, struct responses_stream *s, const struct openai_head *h, const char *name)
{
    put_event(out, s, name);
    buf_str(out, ",\"item_id\":");
    put_id(out, h, s->open, s->n_items - 1);
    buf_printf(out, ",\"output_index\":%d", s->n_items - 1);
}

static void put_open_item(struct buf *out, const struct responses_stream *s, const struct openai_head *h,
                          const struct responses_request *r, const char *status)
{
    put_item(out, h, r,
             &(struct item){.kind = s->open,
                            .index = s->n_items - 1,
                            .text = &s->text,
                            .call_id = s->id,
                            .name = s->name.data ? s->name.data : "",
                            .status = status});
}

static void put_part_event(struct buf *out, struct responses_stream *s, const struct openai_head *h, const char *name,
                           const struct buf *text)
{
    put_item_event(out, s, h, name);
    buf_str(out, ",\"content_index\":0,\"part\":");
    put_part(out, s->open, text);
    buf_str(out, "}\n\n");
}

static void open_item(struct buf *out, struct responses_stream *s, const struct openai_head *h,
                      const struct responses_request *r, enum responses_item kind)
{
    static const struct buf none = {0};
    s->open = kind;
    s->n_items++;
    put_event(out, s, "response.output_item.added");
    buf_printf(out, ",\"output_index\":%d,\"item\":", s->n_items - 1);
    put_open_item(out, s, h, r, "in_progress");
    buf_str(out, "}\n\n");
    if (kind == ITEM_MESSAGE) put_part_event(out, s, h, "response.content_part.added", &none);
}

/* The events with the whole of a call's arguments or input. */
static void put_call_done(struct buf *out, struct responses_stream *s, const struct openai_head *h,
                          const struct responses_request *r)
{
    const struct responses_tool *tool = responses_tool_find(r, s->name.data);
    struct buf input = {0};
    if (s->open == ITEM_CALL) {
        put_item_event(out, s, h, "response.function_call_arguments.done");
        buf_str(out, ",\"name\":");
        put_text(out, s->name.data + (tool && tool->space ? tool->space + 2 : 0));
        buf_str(out, ",\"arguments\":");
        if (s->text.len)
            put_buf(out, &s->text);
        else
            buf_str(out, "\"{}\"");
        buf_str(out, "}\n\n");
        return;
    }
    custom_input(&s->text, &input); /* it is JSON within JSON: handed out when it is whole */
    put_item_event(out, s, h, "response.custom_tool_call_input.delta");
    buf_str(out, ",\"delta\":");
    put_buf(out, &input);
    buf_str(out, "}\n\n");
    put_item_event(out, s, h, "response.custom_tool_call_input.done");
    buf_str(out, ",\"input\":");
    put_buf(out, &input);
    buf_str(out, "}\n\n");
    buf_free(&input);
}

static void close_item(struct buf *out, struct responses_stream *s, const struct openai_head *h,
                       const struct responses_request *r, const char *status)
{
    if (s->open == ITEM_NONE) return;
    if (s->open == ITEM_CALL || s->open == ITEM_CUSTOM) {
        put_call_done(out, s, h, r);
    } else {
        bool message = s->open == ITEM_MESSAGE;
        put_item_event(out, s, h, message ? "response.output_text.done" : "response.reasoning_text.done");
        buf_str(out, ",\"content_index\":0,\"text\":");
        put_buf(out, &s->text);
        buf_str(out, message ? ",\"logprobs\":[]}\n\n" : "}\n\n");
        if (message) put_part_event(out, s, h, "response.content_part.done", &s->text);
    }
    put_event(out, s, "response.output_item.done");
    buf_printf(out, ",\"output_index\":%d,\"item\":", s->n_items - 1);
    size_t from = out->len;
    put_open_item(out, s, h, r, status);
    if (s->output.len) buf_char(&s->output, ',');
    buf_append(&s->output, out->data + from, out->len - from);
    buf_str(out, "}\n\n");
    s->open = ITEM_NONE;
    buf_clear(&s->text);
}

static void put_text_delta(struct buf *out, struct responses_stream *s, const struct openai_head *h,
                           const struct responses_request *r, enum responses_item kind, const struct buf *part)
{
    bool message = kind == ITEM_MESSAGE;
    if (!part->len) return;
    if (s->open != kind) {
        close_item(out, s, h, r, "completed");
        open_item(out, s, h, r, kind);
    }
    put_item_event(out, s, h, message ? "response.output_text.delta" : "response.reasoning_text.delta");
    buf_str(out, ",\"content_index\":0,\"delta\":");
    put_buf(out, part);
    buf_str(out, message ? ",\"logprobs\":[]}\n\n" : "}\n\n");
    buf_append(&s->text, part->data, part->len);
}

static void put_call_delta(struct buf *out, struct responses_stream *s, const struct openai_head *h,
                           const struct responses_request *r, const struct tool_call *call)
{
    if (call->name) {
        const struct responses_tool *tool = responses_tool_find(r, call->name);
        close_item(out, s, h, r, "completed");
        buf_clear(&s->name);
        buf_str(&s->name, call->name);
        snprintf(s->id, sizeof s->id, "%s", call->id);
        open_item(out, s, h, r, tool && tool->custom ? ITEM_CUSTOM : ITEM_CALL);
    }
    if (!call->arguments.len || (s->open != ITEM_CALL && s->open != ITEM_CUSTOM)) return;
    buf_append(&s->text, call->arguments.data, call->arguments.len);
    if (s->open == ITEM_CUSTOM) return;
    put_item_event(out, s, h, "response.function_call_arguments.delta");
    buf_str(out, ",\"delta\":");
    put_buf(out, &call->arguments);
    buf_str(out, "}\n\n");
}

/* An event with the whole object in a state in which there is no answer yet. */
static void put_state(struct buf *out, struct responses_stream *s, const struct openai_head *h,
                      const struct responses_request *r, const char *name)
{
    put_event(out, s, name);
    buf_str(out, ",\"response\":");
    put_head(out, h, "in_progress");
    buf_str(out, ",\"output\":[],\"error\":null,\"incomplete_details\":null,\"usage\":null");
    buf_append(out, r->echo.data, r->echo.len);
    buf_str(out, "}}\n\n");
}

void responses_put_start(struct buf *out, struct responses_stream *s, const struct openai_head *h,
                         const struct responses_request *r)
{
    put_state(out, s, h, r, "response.created");
    put_state(out, s, h, r, "response.in_progress");
}

/* The rest of a call that has begun comes before the text, a new call behind it. */
void responses_put_ready(struct buf *out, struct responses_stream *s, const struct openai_head *h,
                         const struct responses_request *r, const struct choice *v)
{
    const struct tool_call *call = v->answer.n ? &v->answer.calls[0] : NULL;
    if (call && !call->name) put_call_delta(out, s, h, r, call);
    put_text_delta(out, s, h, r, ITEM_REASONING, &v->thoughts);
    put_text_delta(out, s, h, r, ITEM_MESSAGE, &v->text);
    if (call && call->name) put_call_delta(out, s, h, r, call);
}

void responses_put_end(struct buf *out, struct responses_stream *s, const struct openai_head *h,
                       const struct responses_request *r, const struct choice *v, const struct openai_usage *usage)
{
    const char *status = is_cut(v) ? "incomplete" : "completed";
    char name[32];
    close_item(out, s, h, r, status);
    snprintf(name, sizeof name, "response.%s", status);
    put_event(out, s, name);
    buf_str(out, ",\"response\":");
    put_head(out, h, status);
    buf_str(out, ",\"output\":[");
    buf_append(out, s->output.data, s->output.len);
    buf_char(out, ']');
    put_tail(out, r, v, usage);
    buf_str(out, "}\n\n");
}

void responses_put_failed(struct buf *out, struct responses_stream *s, const struct openai_head *h,
                          const struct responses_request *r, const char *code, const char *msg)
{
    put_event(out, s, "response.failed");
    buf_str(out, ",\"response\":");
    put_head(out, h, "failed");
    buf_str(out, ",\"output\":[");
    buf_append(out, s->output.data, s->output.len);
    buf_str(out, "],\"error\":{\"code\":");
    put_text(out, code);
    buf_str(out, ",\"message\":");
    put_text(out, msg);
    buf_str(out, "},\"incomplete_details\":null,\"usage\":null");
    buf_append(out, r->echo.data, r->echo.len);
    buf_str(out, "}}\n\n");
}

const char *responses_keepalive(struct responses_stream *s)
{
    snprintf(s->keepalive, sizeof s->keepalive,
             "event: keepalive\ndata: {\"type\":\"keepalive\",\"sequence_number\":%lld}\n\n", (long long)s->sequence++);
    return s->keepalive;
}

void responses_stream_free(struct responses_stream *s)
{
    buf_free(&s->text);
    buf_free(&s->name);
    buf_free(&s->output);
}
