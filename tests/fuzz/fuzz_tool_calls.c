/* Fuzzes server/api/tool_calls.c.  The first two bytes say the formats of calls and thoughts and where to cut, the rest
 * is generated text.
 *   - However the text is cut, the same content and the same calls come out.
 *   - Without a call or a thought the content is the text; with calls nothing is in the content that was not in the
 * text, in order.
 *   - A call that is not broken has a name and arguments that are a JSON object.
 *   - A stream in which nothing broke says what the whole calls said. */
#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "server/api/tool_calls.h"
#include "server/json/json.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct seen {
    struct buf log, thoughts, content, arguments;
    int calls, broken;
    bool open;
};

static void note(struct seen *s, struct tool_events events)
{
    for (int i = 0; i < events.n; i++) {
        const struct tool_event *ev = &events.v[i];
        bool text = ev->kind != TOOL_BEGIN && ev->kind != TOOL_END;
        CHECK(text == (ev->n > 0) && s->open == (ev->kind == TOOL_ARGUMENTS || ev->kind == TOOL_END));
        if (ev->kind == TOOL_THOUGHT) {
            buf_append(&s->thoughts, ev->text, ev->n);
            continue;
        }
        if (ev->kind != TOOL_CONTENT) CHECK(ev->index == s->calls);
        if (ev->kind == TOOL_BEGIN) {
            CHECK(strlen(ev->id) == TOOL_ID_SIZE - 1 && *ev->name && strlen(ev->name) <= TOOL_NAME_MAX);
            buf_printf(&s->log, "\1%s\1", ev->name);
            buf_clear(&s->arguments);
            s->open = true;
        } else if (ev->kind == TOOL_END) {
            struct err e = {0};
            cJSON *json = ev->broken ? NULL : json_parse(s->arguments.data, s->arguments.len, &e);
            CHECK(ev->broken || cJSON_IsObject(json) || strstr(e.msg, "out of range"));
            cJSON_Delete(json);
            buf_char(&s->log, ev->broken ? 3 : 2);
            s->broken += ev->broken;
            s->calls++;
            s->open = false;
        } else {
            buf_append(&s->log, ev->text, ev->n);
            buf_append(ev->kind == TOOL_CONTENT ? &s->content : &s->arguments, ev->text, ev->n);
        }
    }
}

struct mode {
    enum tool_format format;
    enum reasoning_format reasoning;
    bool inside;
    const cJSON *tools;
};

static void run(struct seen *s, struct mode m, bool stream, const char *text, size_t n, size_t piece)
{
    static const char *const names[] = {"f", "get_weather"};
    struct tool_parser *p = tool_parser_new(&(struct tool_parser_config){.format = m.format,
                                                                         .reasoning = m.reasoning,
                                                                         .thinking = m.inside,
                                                                         .stream = stream,
                                                                         .names = names,
                                                                         .n_names = 2,
                                                                         .tools = m.tools});
    for (size_t at = 0; at < n; at += piece) {
        size_t k = n - at < piece ? n - at : piece;
        char *copy = malloc(k); /* exactly as long as it is, so that reading past the end is seen */
        memcpy(copy, text + at, k);
        note(s, tool_parser_feed(p, copy, k));
        free(copy);
    }
    note(s, tool_parser_finish(p));
    CHECK(!s->open && tool_parser_calls(p) == s->calls);
    tool_parser_free(p);
}

static bool same(const struct buf *a, const struct buf *b)
{
    return a->len == b->len && (!a->len || memcmp(a->data, b->data, a->len) == 0);
}

static void check_content(const struct seen *s, struct mode m, const char *text, size_t n)
{
    if (m.format == TOOL_FORMAT_HARMONY || m.reasoning == REASONING_HARMONY) return; /* its marks are no content */
    size_t at = 0;
    for (size_t i = 0; i < s->content.len; i++, at++) {
        while (at < n && text[at] != s->content.data[i]) at++;
        CHECK(at < n);
    }
    if (!s->calls && m.reasoning == REASONING_NONE) CHECK(s->content.len == n);
}

static void seen_free(struct seen *s)
{
    buf_free(&s->log);
    buf_free(&s->thoughts);
    buf_free(&s->content);
    buf_free(&s->arguments);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char described[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"n\":{\"type\":"
        "\"integer\"},\"l\":{\"$ref\":\"#/$defs/l\"}},\"$defs\":{\"l\":{\"anyOf\":[{\"type\":\"array\"},{\"$ref\":"
        "\"#/$defs/l\"}]}}}}}]";
    if (size < 2) return 0;
    cJSON *tools = cJSON_Parse(described);
    CHECK(tools);
    struct mode format = {.format = data[0] % TOOL_FORMATS,
                          .reasoning = data[1] % REASONING_FORMATS,
                          .inside = data[1] / REASONING_FORMATS & 1,
                          .tools = tools};
    const char *text = (const char *)data + 2;
    size_t n = size - 2, piece = 1 + data[0] / TOOL_FORMATS % 16;
    struct seen whole = {0}, whole_cut = {0}, stream = {0}, stream_cut = {0};
    run(&whole, format, false, text, n, n ? n : 1);
    run(&whole_cut, format, false, text, n, piece);
    run(&stream, format, true, text, n, n ? n : 1);
    run(&stream_cut, format, true, text, n, piece);
    CHECK(same(&whole.log, &whole_cut.log) && same(&stream.log, &stream_cut.log) && !whole.broken);
    CHECK(same(&whole.thoughts, &whole_cut.thoughts) && same(&whole.thoughts, &stream.thoughts) &&
          same(&stream.thoughts, &stream_cut.thoughts));
    if (!stream.broken) CHECK(same(&whole.log, &stream.log));
    check_content(&whole, format, text, n);
    check_content(&stream, format, text, n);
    cJSON_Delete(tools);
    seen_free(&whole);
    seen_free(&whole_cut);
    seen_free(&stream);
    seen_free(&stream_cut);
    return 0;
}
