/* server/api/messages_answer.c: the order of a stream's blocks; tests/http has whole answers. */
#include "server/api/messages_answer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The stream's events in short: "+text", "thinking", "-" for the beginning, the deltas and the end of a block. */
static void check(const struct buf *out, const char *expected)
{
    struct buf seen = {0};
    buf_str(&seen, "");
    for (const char *p = out->data; (p = strstr(p, "\ndata: ")); p++) {
        size_t n = strcspn(p + 1, "\n");
        char *line = strndup(p + 1, n), *kind = strstr(line, "_block\":{\"type\":\"");
        assert_non_null(line);
        if (kind) {
            kind += strlen("_block\":{\"type\":\"");
            buf_printf(&seen, "+%.*s ", (int)strcspn(kind, "\""), kind);
        } else if (strstr(line, "_delta\",\"text\":")) {
            buf_str(&seen, "text ");
        } else if (strstr(line, "partial_json")) {
            buf_str(&seen, "json ");
        } else if (strstr(line, "thinking_delta")) {
            buf_str(&seen, "thinking ");
        } else if (strstr(line, "signature_delta")) {
            buf_str(&seen, "signature ");
        } else if (strstr(line, "content_block_stop")) {
            buf_str(&seen, "- ");
        } else if (strstr(line, "stop_reason")) {
            buf_str(&seen, strstr(line, "\"max_tokens\"") ? "max_tokens " : "end_turn ");
        }
        free(line);
    }
    assert_string_equal(seen.data, expected);
    buf_free(&seen);
}

static void order(void **state)
{
    (void)state;
    const struct openai_params params = {.stream = true, .parallel_tool_calls = true};
    const struct choice_config config = {.params = &params};
    const struct openai_usage usage = {.prompt = 5, .completion = 7, .cached = 3};
    struct choice v = {.c = &config, .stop_index = -1, .finish = FINISH_LENGTH};
    struct messages_stream s = {0};
    struct buf out = {0};
    char name[] = "f";
    struct tool_call call = {.index = 0, .id = "call_abc", .name = name};
    buf_str(&out, "");

    /* thoughts, then text, then the call that follows */
    buf_str(&v.thoughts, "hm");
    buf_str(&v.text, "I look.");
    messages_put_ready(&out, &s, &v);
    check(&out, "+thinking thinking signature - +text text ");
    buf_clear(&out);
    buf_free(&v.thoughts);
    buf_clear(&v.text);
    v.answer.calls = &call;
    v.answer.n = 1;
    messages_put_ready(&out, &s, &v);
    check(&out, "- +tool_use ");
    assert_non_null(strstr(out.data, "\"id\":\"toolu_abc\",\"name\":\"f\",\"input\":{}}"));

    /* the rest of a call comes before the text behind it */
    buf_clear(&out);
    call.name = NULL;
    buf_str(&call.arguments, "{}");
    buf_str(&v.text, "behind");
    messages_put_ready(&out, &s, &v);
    check(&out, "json - +text text ");

    buf_clear(&out);
    messages_put_end(&out, &s, &v, &usage);
    check(&out, "- max_tokens ");
    assert_non_null(strstr(out.data, "\"usage\":{\"input_tokens\":2,\"cache_creation_input_tokens\":0,"
                                     "\"cache_read_input_tokens\":3,\"output_tokens\":7}"));
    buf_free(&call.arguments);
    buf_free(&v.text);
    buf_free(&out);
}

static void unfinished_thoughts(void **state)
{
    (void)state;
    const struct openai_params params = {.stream = true};
    const struct choice_config config = {.params = &params};
    const struct openai_usage usage = {.cached = -1};
    struct choice v = {.c = &config, .stop_index = -1, .finish = FINISH_EOS};
    struct messages_stream s = {0};
    struct buf out = {0};
    buf_str(&v.thoughts, "hm </th");
    messages_put_ready(&out, &s, &v);
    messages_put_end(&out, &s, &v, &usage);
    check(&out, "+thinking thinking signature - end_turn ");
    buf_free(&v.thoughts);
    buf_free(&out);
}

static void errors(void **state)
{
    (void)state;
    struct buf out = {0};
    messages_put_error_event(&out, 504, "too \"late\"");
    assert_string_equal(out.data, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"timeout_error\","
                                  "\"message\":\"too \\\"late\\\"\"}}\n\n");
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(order), cmocka_unit_test(unfinished_thoughts),
                                       cmocka_unit_test(errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
