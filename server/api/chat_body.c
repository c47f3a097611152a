#include "server/api/chat_body.h"

#include "server/json/json.h"

#include <string.h>

const char *chat_body_text_of(const cJSON *object, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
}

static void put_text(struct buf *out, const char *s)
{
    json_put_string(out, s, strlen(s));
}

/* Begins a message of the conversation, up to where its fields go. */
static void put_role(struct chat_body *b, const char *role)
{
    if (b->n_messages++) buf_char(b->out, ',');
    buf_printf(b->out, "{\"role\":\"%s\"", role);
}

void chat_body_begin(struct chat_body *b, const char *role)
{
    if (b->role && strcmp(b->role, role) == 0) return;
    chat_body_end(b);
    b->role = role;
}

void chat_body_text(struct chat_body *b, const char *text)
{
    if (!*text) return;
    if (b->parts.len) buf_char(&b->parts, ',');
    buf_str(&b->parts, "{\"type\":\"text\",\"text\":");
    put_text(&b->parts, text);
    buf_char(&b->parts, '}');
}

void chat_body_thought(struct chat_body *b, const char *text)
{
    if (b->thoughts.len && *text) buf_char(&b->thoughts, '\n');
    buf_str(&b->thoughts, text);
}

struct buf *chat_body_call(struct chat_body *b, const char *id, const char *name)
{
    if (b->calls.len) buf_char(&b->calls, ',');
    buf_str(&b->calls, "{\"type\":\"function\",\"id\":");
    put_text(&b->calls, id);
    buf_str(&b->calls, ",\"function\":{\"name\":");
    put_text(&b->calls, name);
    buf_str(&b->calls, ",\"arguments\":");
    return &b->calls;
}

void chat_body_call_end(struct chat_body *b)
{
    buf_str(&b->calls, "}}");
}

void chat_body_result(struct chat_body *b, const char *call_id, bool failed)
{
    put_role(b, "tool");
    buf_str(b->out, ",\"tool_call_id\":");
    put_text(b->out, call_id);
    buf_str(b->out, ",\"content\":[");
    if (failed) buf_str(b->out, b->parts.len ? "\"Error:\"," : "\"Error\"");
    buf_append(b->out, b->parts.data, b->parts.len);
    buf_str(b->out, "]}");
    buf_clear(&b->parts);
    b->open_ended = false;
}

void chat_body_end(struct chat_body *b)
{
    if (!b->role) return;
    put_role(b, b->role);
    buf_str(b->out, ",\"content\":[");
    buf_append(b->out, b->parts.data, b->parts.len);
    buf_char(b->out, ']');
    if (b->thoughts.len) {
        buf_str(b->out, ",\"reasoning_content\":");
        json_put_string(b->out, b->thoughts.data, b->thoughts.len);
    }
    if (b->calls.len) {
        buf_str(b->out, ",\"tool_calls\":[");
        buf_append(b->out, b->calls.data, b->calls.len);
        buf_char(b->out, ']');
    }
    buf_char(b->out, '}');
    b->open_ended = strcmp(b->role, "assistant") == 0 && b->parts.len && !b->calls.len;
    b->role = NULL;
    buf_clear(&b->parts);
    buf_clear(&b->thoughts);
    buf_clear(&b->calls);
}

void chat_body_free(struct chat_body *b)
{
    buf_free(&b->parts);
    buf_free(&b->thoughts);
    buf_free(&b->calls);
}

void chat_body_put_tool(struct buf *out, bool first, const char *name, const char *description)
{
    buf_str(out, &",{\"type\":\"function\",\"function\":{\"name\":"[first]);
    put_text(out, name);
    buf_str(out, ",\"description\":");
    put_text(out, description ? description : "");
    buf_str(out, ",\"parameters\":");
}

bool chat_tool_deferred(const cJSON *tool)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(tool, "defer_loading"));
}
