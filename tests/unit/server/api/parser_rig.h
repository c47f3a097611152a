/* The parser of server/api/tool_calls.h on texts that are cut in all ways: what tool_calls_test.c and call_forms_test.c
 * share. */
#ifndef TANDEM_TESTS_UNIT_SERVER_API_PARSER_RIG_H
#define TANDEM_TESTS_UNIT_SERVER_API_PARSER_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/buf.h"
#include "server/api/tool_calls.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define CALL(body) "<tool_call>\n" body "\n</tool_call>"
#define F1 "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"
#define SAME NULL
#define L1 "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}"
#define W(i) "[" #i " get_weather {\"city\": \"Paris\"}]"
#define UNCHANGED(text)                                                                                                \
    {                                                                                                                  \
        text, text, SAME                                                                                               \
    }

static const char *const tools[] = {"f", "get_weather", "na\"me"};
static enum reasoning_format reasoning; /* of the parsers */
static bool inside;
static struct buf thoughts; /* of the answer that note() was told of */

/* The including file frees all of it at its end. */
static cJSON *described; /* the tools, as new_parser makes them once */

static struct tool_parser *new_parser(enum tool_format format, bool stream)
{
    static const char list[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
        "\"n\":{\"type\":\"integer\"},\"x\":{\"type\":\"number\"},\"on\":{\"type\":\"boolean\"},"
        "\"s\":{\"type\":\"string\"},\"maybe\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},"
        "\"list\":{\"type\":\"array\"},\"map\":{\"$ref\":\"#/$defs/m\"},\"c\":{\"enum\":[1,\"1x\"]}},"
        "\"$defs\":{\"m\":{\"type\":[\"object\",\"null\"]}}}}}]";
    if (!described) described = cJSON_Parse(list);
    assert_non_null(described);
    return tool_parser_new(&(struct tool_parser_config){.format = format,
                                                        .reasoning = reasoning,
                                                        .thinking = inside,
                                                        .stream = stream,
                                                        .names = tools,
                                                        .n_names = 3,
                                                        .tools = described});
}

/* Content as it is, thoughts to their buffer, calls as [index name arguments], or [index name arguments! where they
 * break off. */
static void note(struct buf *log, struct tool_events events)
{
    for (int i = 0; i < events.n; i++) {
        const struct tool_event *ev = &events.v[i];
        if (ev->kind == TOOL_BEGIN) {
            assert_int_equal(strlen(ev->id), TOOL_ID_SIZE - 1);
            assert_memory_equal(ev->id, "call_", 5);
            for (const char *p = ev->id + 5; *p; p++) assert_true(isalnum((unsigned char)*p));
            buf_printf(log, "[%d %s ", ev->index, ev->name);
        } else if (ev->kind == TOOL_THOUGHT) {
            assert_true(ev->n > 0);
            buf_append(&thoughts, ev->text, ev->n);
        } else if (ev->kind == TOOL_END) {
            buf_char(log, ev->broken ? '!' : ']');
        } else {
            assert_true(ev->n > 0);
            buf_append(log, ev->text, ev->n);
        }
    }
}

static void run(struct buf *log, enum tool_format format, bool stream, const char *text, size_t n, const size_t *cuts,
                int n_cuts)
{
    struct tool_parser *p = new_parser(format, stream);
    size_t at = 0;
    buf_clear(log);
    buf_str(log, "");
    buf_clear(&thoughts);
    for (int i = 0; i <= n_cuts; i++) {
        size_t end = i < n_cuts ? cuts[i] : n;
        char *piece = malloc(end - at + 1); /* so that reading past the end is seen */
        memcpy(piece, text + at, end - at);
        note(log, tool_parser_feed(p, piece, end - at));
        free(piece);
        at = end;
    }
    note(log, tool_parser_finish(p));
    tool_parser_free(p);
    if (!thoughts.len) return;
    buf_str(&thoughts, "|"); /* thoughts|the rest */
    buf_append(&thoughts, log->data, log->len);
    buf_clear(log);
    buf_append(log, thoughts.data, thoughts.len);
}

/* Whole, byte by byte, and in all ways to cut it once or twice. */
static void check(enum tool_format format, bool stream, const char *text, const char *expected)
{
    size_t n = strlen(text), each[512] = {0};
    struct buf log = {0};
    run(&log, format, stream, text, n, NULL, 0);
    if (strcmp(log.data, expected) != 0)
        print_error("%s\n(%s) gives\n%s\nand not\n%s\n", text, stream ? "stream" : "whole", log.data, expected);
    assert_string_equal(log.data, expected);
    assert_true(n < sizeof each / sizeof *each);
    for (size_t i = 0; i < n; i++) each[i] = i;
    run(&log, format, stream, text, n, each, (int)n);
    assert_string_equal(log.data, expected);
    for (size_t a = 1; a < n; a++) {
        for (size_t b = a; b < n; b += 1 + n / 64) {
            run(&log, format, stream, text, n, (const size_t[]){a, b}, 2);
            assert_string_equal(log.data, expected);
        }
    }
    buf_free(&log);
}

struct example {
    const char *text, *whole, *stream; /* stream NULL: as whole */
};

static inline void check_all(enum tool_format format, const struct example *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        check(format, false, v[i].text, v[i].whole);
        check(format, true, v[i].text, v[i].stream ? v[i].stream : v[i].whole);
    }
}

static void rig_free(void)
{
    cJSON_Delete(described);
    buf_free(&thoughts);
}

#endif
