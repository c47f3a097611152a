/* server/api/thinking.c: the same thoughts and the same text, however the answer is split. */
#include "server/api/thinking.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void split(const char *answer, size_t piece, bool inside, struct buf *out)
{
    struct thinking t = {0};
    struct buf thoughts = {0}, text = {0};
    size_t n = strlen(answer);
    thinking_begin(&t, REASONING_THINK, inside);
    for (size_t at = 0; at < n; at += piece)
        thinking_feed(&t, answer + at, n - at < piece ? n - at : piece, false, &thoughts, &text);
    thinking_feed(&t, NULL, 0, true, &thoughts, &text);
    buf_printf(out, "%s|%s", thoughts.len ? thoughts.data : "", text.len ? text.data : "");
    buf_free(&thoughts);
    buf_free(&text);
    thinking_free(&t);
}

static void check(const char *answer, bool inside, const char *expected)
{
    for (size_t piece = 1; piece <= strlen(answer) + 1; piece++) {
        struct buf out = {0};
        split(answer, piece, inside, &out);
        assert_string_equal(out.data, expected);
        buf_free(&out);
    }
}

static void texts(void **state)
{
    (void)state;
    check("", false, "|");
    check("Hello <think>a</think>", false, "|Hello <think>a</think>");
    check("<thin ice>", false, "|<thin ice>");
    check("  plain ", false, "|  plain ");
    check("<th", false, "|<th");
    check(" \n", false, "| \n");
}

static void thoughts(void **state)
{
    (void)state;
    check("<think>\na b\n\n</think>\n\nText.\n", false, "a b|Text.\n");
    check("\n<think></think>Text", false, "|Text");
    check("<think>a </thin b</think> c </think>", false, "a </thin b|c </think>");
    check("<think>never ends \n", false, "never ends \n|");
    check("<think>never ends</thi", false, "never ends</thi|");
    check("inside\n</think>\nText", true, "inside|Text");
    check("inside", true, "inside|");
}

/* Endless white space is passed on rather than looked through again for every token. */
static void much_space(void **state)
{
    (void)state;
    char *answer = calloc(1, 10020);
    struct buf out = {0};
    assert_non_null(answer);
    memcpy(answer, "<think>a", 8);
    memset(answer + 8, '\n', 10000);
    memcpy(answer + 10008, "</think>b", 10);
    split(answer, 3, false, &out);
    assert_true(out.len > 4096 && out.data[0] == 'a' && strcmp(out.data + out.len - 2, "|b") == 0);
    buf_free(&out);
    memset(answer, ' ', 10000);
    split(answer, 7, false, &out);
    assert_string_equal(out.data + 1, answer);
    buf_free(&out);
    free(answer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts), cmocka_unit_test(thoughts),
                                       cmocka_unit_test(much_space)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
