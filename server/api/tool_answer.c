/* What a parser's events come to, as JSON (tool_calls.h). */
#include "engine/base/mem.h"
#include "server/api/tool_calls.h"
#include "server/json/json.h"

#include <stdlib.h>
#include <string.h>

static void put_function(struct buf *out, const char *id, const char *name, const char *arguments, size_t n)
{
    if (id) buf_printf(out, "\"id\":\"%s\",\"type\":\"function\",", id);
    buf_str(out, "\"function\":{");
    if (name) {
        buf_str(out, "\"name\":");
        json_put_string(out, name, strlen(name));
        buf_char(out, ',');
    }
    buf_str(out, "\"arguments\":");
    json_put_string(out, arguments, n);
    buf_str(out, "}}");
}

static void put_call(struct buf *out, const struct tool_call *c)
{
    put_function(out, c->name ? c->id : NULL, c->name, c->arguments.data ? c->arguments.data : "", c->arguments.len);
}

void tool_put_delta(struct buf *out, const struct tool_answer *a)
{
    buf_printf(out, "{\"index\":%d,", a->calls[0].index);
    put_call(out, &a->calls[0]);
}

static struct tool_call *last_call(struct tool_answer *a, int index)
{
    if (a->n && a->calls[a->n - 1].index == index) return &a->calls[a->n - 1];
    mem_grow(&a->calls, &a->cap, a->n + 1, sizeof *a->calls);
    struct tool_call *c = &a->calls[a->n++];
    *c = (struct tool_call){.index = index};
    return c;
}

void tool_answer_add(struct tool_answer *a, struct tool_events events)
{
    for (int i = 0; i < events.n; i++) {
        const struct tool_event *ev = &events.v[i];
        if (ev->kind == TOOL_THOUGHT) buf_append(&a->thoughts, ev->text, ev->n);
        if (ev->kind == TOOL_CONTENT) buf_append(&a->content, ev->text, ev->n);
        if (ev->kind == TOOL_ARGUMENTS) buf_append(&last_call(a, ev->index)->arguments, ev->text, ev->n);
        if (ev->kind != TOOL_BEGIN) continue;
        struct tool_call *c = last_call(a, ev->index);
        c->name = mem_strdup(ev->name);
        memcpy(c->id, ev->id, sizeof c->id);
    }
}

void tool_answer_drop(struct tool_answer *a)
{
    if (!a->n) return;
    free(a->calls[0].name);
    buf_free(&a->calls[0].arguments);
    memmove(a->calls, a->calls + 1, --a->n * sizeof *a->calls);
}

void tool_answer_put(struct buf *out, const struct tool_answer *a)
{
    buf_char(out, '[');
    for (size_t i = 0; i < a->n; i++) {
        buf_str(out, i ? ",{" : "{");
        put_call(out, &a->calls[i]);
    }
    buf_char(out, ']');
}

void tool_answer_free(struct tool_answer *a)
{
    for (size_t i = 0; i < a->n; i++) {
        free(a->calls[i].name);
        buf_free(&a->calls[i].arguments);
    }
    free(a->calls);
    buf_free(&a->thoughts);
    buf_free(&a->content);
    *a = (struct tool_answer){0};
}
