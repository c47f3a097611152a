/* engine/serve/thoughts.c: where thoughts begin and end however the text is split into tokens, what is counted, and
 * when the budget is used up. */
#include "engine/serve/thoughts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct thoughts think(bool inside, int budget)
{
    return (struct thoughts){
        .state = inside ? THOUGHTS_INSIDE : THOUGHTS_FIRST, .begin = "<think>", .end = "</think>", .left = budget};
}

static enum thoughts_change feed(struct thoughts *t, const char *const *tokens)
{
    enum thoughts_change change = THOUGHTS_GO_ON;
    for (; *tokens; tokens++) change = thoughts_token(t, *tokens, strlen(*tokens), false);
    return change;
}

#define FEED(t, ...) feed(t, (const char *const[]){__VA_ARGS__, NULL})

static void marks_of_one_token(void **state)
{
    (void)state;
    struct thoughts t = think(false, -1);
    assert_int_equal(FEED(&t, "\n", "<think>", "a", "\n", " <b> </t"), THOUGHTS_GO_ON);
    assert_int_equal(t.state, THOUGHTS_INSIDE);
    assert_int_equal(FEED(&t, "</think>"), THOUGHTS_ENDED);
    assert_int_equal(t.count, 3);
    assert_int_equal(FEED(&t, "<think>", "a", "</think>"), THOUGHTS_GO_ON); /* only at the start */
    assert_int_equal(t.count, 3);
}

static void marks_of_several_tokens(void **state)
{
    (void)state;
    struct thoughts t = think(false, -1);
    assert_int_equal(FEED(&t, "<th", "ink>a", "b", "<", "/thi", "nk> c"), THOUGHTS_ENDED);
    assert_int_equal(t.state, THOUGHTS_OVER);
    t = think(false, -1);
    assert_int_equal(FEED(&t, "<thin", " ice", "<think>"), THOUGHTS_GO_ON);
    assert_int_equal(t.state, THOUGHTS_OVER);
    t = think(true, -1);
    assert_int_equal(FEED(&t, "<", "</", "<</think", ">"), THOUGHTS_ENDED);
    assert_int_equal(t.count, 3);
    t = (struct thoughts){0};
    assert_int_equal(FEED(&t, "<think>", "a", "</think>"), THOUGHTS_GO_ON);
    assert_int_equal(t.count, 0);
}

static void budget(void **state)
{
    (void)state;
    struct thoughts t = think(true, 2);
    assert_int_equal(FEED(&t, "a"), THOUGHTS_GO_ON);
    assert_int_equal(FEED(&t, "b"), THOUGHTS_USED_UP);
    assert_int_equal(FEED(&t, "</", "th", "ink>"), THOUGHTS_ENDED); /* what was forced counts for nothing */
    assert_int_equal(t.count, 2);
    t = think(true, 2);
    assert_int_equal(FEED(&t, "a", "</think>"), THOUGHTS_ENDED);
    assert_int_equal(FEED(&t, "b", "c", "d"), THOUGHTS_GO_ON);
    t = think(false, 0);
    assert_int_equal(FEED(&t, "\n"), THOUGHTS_GO_ON);
    assert_int_equal(FEED(&t, "<think>"), THOUGHTS_USED_UP);
    t = think(false, 0);
    assert_int_equal(FEED(&t, "a", "b"), THOUGHTS_GO_ON);
    t = think(true, 1);
    assert_int_equal(thoughts_token(&t, "", 0, true), THOUGHTS_GO_ON); /* not within a character */
    assert_int_equal(thoughts_token(&t, "", 0, true), THOUGHTS_GO_ON);
    assert_int_equal(thoughts_token(&t, "\xe6\x97\xa5", 3, false), THOUGHTS_USED_UP);
    assert_int_equal(t.count, 3);
}

static void channels(void **state)
{
    (void)state;
    struct thoughts t = {
        .state = THOUGHTS_FIRST, .begin = "<|channel|>analysis<|message|>", .end = "<|end|>", .again = true, .left = 3};
    assert_int_equal(
        FEED(&t, "<|channel|>", "commentary", "<|message|>", "I look.", "<|end|>", "<|start|>", "assistant"),
        THOUGHTS_GO_ON);
    assert_int_equal(FEED(&t, "<|channel|>", "analysis", "<|message|>", "a", "b", "<|end|>"), THOUGHTS_ENDED);
    assert_int_equal(t.count, 2);
    assert_int_equal(FEED(&t, "<|start|>", "assistant", "<|channel|>", "analysis", "<|message|>"), THOUGHTS_GO_ON);
    assert_int_equal(FEED(&t, "c"), THOUGHTS_USED_UP); /* the budget is that of all */
    assert_int_equal(FEED(&t, "<|end|>"), THOUGHTS_ENDED);
    assert_int_equal(FEED(&t, "<|channel|>", "analysis", "<|message|>"), THOUGHTS_USED_UP);
    assert_int_equal(t.count, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marks_of_one_token),
        cmocka_unit_test(marks_of_several_tokens),
        cmocka_unit_test(budget),
        cmocka_unit_test(channels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
