#include "server/api/messages_answer.h"

#include "server/json/json.h"
#include "server/net/http.h"

#include <string.h>

static void put_buf(struct buf *out, const struct buf *b)
{
    json_put_string(out, b->data ? b->data : "", b->len);
}

static void put_text(struct buf *out, const char *s)
{
    json_put_string(out, s, strlen(s));
}

/* Anthropic's input_tokens are those that were not in the cache. */
static void put_usage(struct buf *out, const struct openai_usage *u)
{
    int64_t cached = u->cached > 0 ? u->cached : 0;
    buf_printf(out,
               "\"usage\":{\"input_tokens\":%lld,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%lld,"
               "\"output_tokens\":%lld}",
               (long long)(u->prompt - cached), (long long)cached, (long long)u->completion);
}

/* A text cut off by the deadline counts as one that reached max_tokens: there is no name for it. */
static void put_stop(struct buf *out, const struct choice *v)
{
    bool cut = v->finish == FINISH_LENGTH || v->finish == FINISH_TIMEOUT || v->finish == FINISH_ABORTED;
    bool called = v->parser && tool_parser_calls(v->parser);
    bool by_text = v->finish == FINISH_STOP && v->stop_index >= 0 && v->stop_index < v->c->params->gen.n_stop;
    const char *reason = cut ? "max_tokens" : called ? "tool_use" : by_text ? "stop_sequence" : "end_turn";
    buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (by_text && !cut && !called)
        put_text(out, v->c->params->gen.stop[v->stop_index]);
    else
        buf_str(out, "null");
}

static void put_head(struct buf *out, const struct openai_head *h)
{
    buf_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", h->id);
    put_text(out, h->model);
}

/* "call_..." of the parser as an id of Anthropic's kind */
static void put_tool(struct buf *out, const struct tool_call *call)
{
    const char *mark = strchr(call->id, '_');
    buf_printf(out, "{\"type\":\"tool_use\",\"id\":\"toolu_%s\",\"name\":", mark ? mark + 1 : call->id);
    put_text(out, call->name);
    buf_str(out, ",\"input\":");
}

/* ---- the whole answer ------------------------------------------------------------------------------------------ */

static void put_blocks(struct buf *out, const struct choice *v)
{
    const struct buf *text = choice_text(v), *thoughts = choice_thoughts(v);
    size_t n = v->c->params->parallel_tool_calls || !v->answer.n ? v->answer.n : 1, first = out->len;
    if (thoughts->len) {
        buf_str(out, "{\"type\":\"thinking\",\"thinking\":");
        put_buf(out, thoughts);
        buf_str(out, ",\"signature\":\"\"}");
    }
    if (text->len) {
        if (out->len > first) buf_char(out, ',');
        buf_str(out, "{\"type\":\"text\",\"text\":");
        put_buf(out, text);
        buf_char(out, '}');
    }
    for (size_t i = 0; i < n; i++) {
        const struct tool_call *call = &v->answer.calls[i];
        if (out->len > first) buf_char(out, ',');
        put_tool(out, call);
        buf_str(out, call->arguments.len ? call->arguments.data : "{}");
        buf_char(out, '}');
    }
}

void messages_put_whole(struct buf *out, const struct openai_head *h, const struct choice *v,
                        const struct openai_usage *usage)
{
    put_head(out, h);
    buf_str(out, ",\"content\":[");
    put_blocks(out, v);
    buf_str(out, "],");
    put_stop(out, v);
    buf_char(out, ',');
    put_usage(out, usage);
    buf_char(out, '}');
}

/* ---- the stream ------------------------------------------------------------------------------------------------ */

/* Begins an event, up to where its fields go; its JSON ends with "}\n\n". */
static void put_event(struct buf *out, const char *name)
{
    buf_printf(out, "event: %s\ndata: {\"type\":\"%s\"", name, name);
}

static void put_block_event(struct buf *out, const struct messages_stream *s, const char *name)
{
    put_event(out, name);
    buf_printf(out, ",\"index\":%d", s->n_blocks - 1);
}

static void put_delta(struct buf *out, const struct messages_stream *s, const char *type, const char *field,
                      const struct buf *value)
{
    put_block_event(out, s, "content_block_delta");
    buf_printf(out, ",\"delta\":{\"type\":\"%s\",\"%s\":", type, field);
    put_buf(out, value);
    buf_str(out, "}}\n\n");
}

static void close_block(struct buf *out, struct messages_stream *s)
{
    static const struct buf none = {0};
    if (s->open == BLOCK_NONE) return;
    if (s->open == BLOCK_THINKING) put_delta(out, s, "signature_delta", "signature", &none);
    put_block_event(out, s, "content_block_stop");
    buf_str(out, "}\n\n");
    s->open = BLOCK_NONE;
}

/* Begins content_block_start, up to the block itself. */
static void open_block(struct buf *out, struct messages_stream *s, int kind)
{
    close_block(out, s);
    s->n_blocks++;
    s->open = kind;
    put_block_event(out, s, "content_block_start");
    buf_str(out, ",\"content_block\":");
}

static void put_part(struct buf *out, struct messages_stream *s, int kind, const struct buf *part)
{
    bool thinking = kind == BLOCK_THINKING;
    if (!part->len) return;
    if ((int)s->open != kind) {
        open_block(out, s, kind);
        buf_str(out, thinking ? "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}\n\n"
                              : "{\"type\":\"text\",\"text\":\"\"}}\n\n");
    }
    put_delta(out, s, thinking ? "thinking_delta" : "text_delta", thinking ? "thinking" : "text", part);
}

static void put_call(struct buf *out, struct messages_stream *s, const struct tool_call *call)
{
    if (call->name) {
        open_block(out, s, BLOCK_TOOL);
        put_tool(out, call);
        buf_str(out, "{}}}\n\n");
    }
    if (call->arguments.len && s->open == BLOCK_TOOL)
        put_delta(out, s, "input_json_delta", "partial_json", &call->arguments);
}

void messages_put_start(struct buf *out, const struct openai_head *h, const struct openai_usage *usage)
{
    put_event(out, "message_start");
    buf_str(out, ",\"message\":");
    put_head(out, h);
    buf_str(out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,");
    put_usage(out, usage);
    buf_str(out, "}}\n\n" MESSAGES_PING);
}

/* The rest of a call that has begun comes before the text, a new call behind it. */
void messages_put_ready(struct buf *out, struct messages_stream *s, const struct choice *v)
{
    const struct tool_call *call = v->answer.n ? &v->answer.calls[0] : NULL;
    if (call && !call->name) put_call(out, s, call);
    put_part(out, s, BLOCK_THINKING, &v->thoughts);
    put_part(out, s, BLOCK_TEXT, &v->text);
    if (call && call->name) put_call(out, s, call);
}

void messages_put_end(struct buf *out, struct messages_stream *s, const struct choice *v,
                      const struct openai_usage *usage)
{
    close_block(out, s);
    put_event(out, "message_delta");
    buf_str(out, ",\"delta\":{");
    put_stop(out, v);
    buf_str(out, "},");
    put_usage(out, usage);
    buf_str(out, "}\n\n");
    put_event(out, "message_stop");
    buf_str(out, "}\n\n");
}

void messages_put_error_event(struct buf *out, int status, const char *msg)
{
    buf_str(out, "event: error\ndata: ");
    http_put_anthropic_error(out, status, msg, NULL);
    buf_str(out, "\n\n");
}
