/* The history: which earlier texts are found, what they propose, and how much memory they take. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/serve/history.h"

#include <stdlib.h>
#include <string.h>

enum { PROMPT = 100, TEXT = 40 };

/* A prompt, then a text; those of the same `text` are equal. */
static void fill(int32_t *v, int prompt, int text)
{
    for (int i = 0; i < PROMPT; i++) v[i] = prompt * 1000 + i;
    for (int i = 0; i < TEXT; i++) v[PROMPT + i] = 500000 + text * 1000 + i;
}

static uint64_t key(const struct history *h, const int32_t *v)
{
    return history_key(h, 0, 0, v, PROMPT);
}

static int propose(struct history *h, uint64_t k, const int32_t *v, int n, int32_t *out)
{
    int agreed = 0, found = 0;
    struct history_entry *t = history_find(h, k);
    if (t) found = history_propose(t, v, n, 4, out, &agreed);
    history_unref(t);
    return found;
}

static void test_a_repeated_prompt(void **state)
{
    struct history *h = history_new(1 << 20, 7);
    int32_t v[PROMPT + TEXT], w[PROMPT + TEXT], out[4];
    fill(v, 1, 1);
    assert_int_equal(propose(h, key(h, v), v, PROMPT, out), 0);
    history_add(h, key(h, v), v, PROMPT, PROMPT + TEXT);
    assert_int_equal(propose(h, key(h, v), v, PROMPT, out), 4); /* from its first token */
    assert_memory_equal(out, v + PROMPT, sizeof out);
    assert_int_equal(propose(h, key(h, v), v, PROMPT + TEXT - 2, out), 2); /* to its last */
    assert_int_equal(out[1], v[PROMPT + TEXT - 1]);
    assert_int_equal(propose(h, key(h, v), v, PROMPT + TEXT, out), 0);
    memcpy(w, v, sizeof w); /* a text that left it finds it again */
    w[PROMPT + 5] = 7;
    assert_int_equal(propose(h, key(h, w), w, PROMPT + 7, out), 0);
    assert_int_equal(propose(h, key(h, w), w, PROMPT + 9, out), 4);
    assert_int_equal(out[0], v[PROMPT + 9]);
    w[0] = 3; /* only the end of a prompt counts */
    assert_int_equal(propose(h, key(h, w), v, PROMPT, out), 4);
    w[PROMPT - 1] = 3;
    assert_int_equal(propose(h, key(h, w), v, PROMPT, out), 0);
    history_free(h);
}

static void test_others_learn_nothing(void **state)
{
    struct history *h = history_new(1 << 20, 7);
    int32_t v[PROMPT + TEXT], out[4];
    fill(v, 1, 1);
    history_add(h, history_key(h, 0, 5, v, PROMPT), v, PROMPT, PROMPT + TEXT);
    assert_int_equal(propose(h, history_key(h, 0, 5, v, PROMPT), v, PROMPT, out), 4);
    assert_int_equal(propose(h, history_key(h, 0, 6, v, PROMPT), v, PROMPT, out), 0);
    assert_int_equal(propose(h, history_key(h, 0, 0, v, PROMPT), v, PROMPT, out), 0);
    assert_int_equal(propose(h, history_key(h, 1, 5, v, PROMPT), v, PROMPT, out), 0); /* nor another adapter's */
    history_free(h);
}

static void test_the_last_texts_stay(void **state)
{
    struct history *h = history_new(1 << 20, 7);
    int32_t v[PROMPT + TEXT], out[4];
    for (int text = 1; text <= HISTORY_TEXTS + 1; text++) {
        fill(v, 1, text);
        history_add(h, key(h, v), v, PROMPT, PROMPT + TEXT);
        assert_int_equal(propose(h, key(h, v), v, PROMPT, out), 4);
        assert_memory_equal(out, v + PROMPT, sizeof out); /* the newest */
    }
    size_t bytes = history_bytes(h);
    for (int text = HISTORY_TEXTS + 1; text >= 1; text--) {
        fill(v, 1, text);
        assert_int_equal(propose(h, key(h, v), v, PROMPT + 3, out), text > 1 ? 4 : 0);
        if (text > 1) assert_memory_equal(out, v + PROMPT + 3, sizeof out);
        if (text > 1) history_add(h, key(h, v), v, PROMPT, PROMPT + TEXT - text); /* known: nothing new */
    }
    assert_int_equal(history_bytes(h), bytes);
    assert_int_equal(history_entries(h), 1);
    fill(v, 1, 1); /* a longer text takes the place of its beginning */
    history_add(h, key(h, v), v, PROMPT, PROMPT + 8);
    fill(v, 1, 2);
    assert_int_equal(propose(h, key(h, v), v, PROMPT + 3, out), 0);
    fill(v, 1, 1);
    history_add(h, key(h, v), v, PROMPT, PROMPT + TEXT);
    fill(v, 1, 4);
    assert_int_equal(propose(h, key(h, v), v, PROMPT + 3, out), 4);
    history_free(h);
}

static void test_memory_is_bounded(void **state)
{
    const size_t max = 16 << 10;
    struct history *h = history_new(max, 7);
    int32_t v[PROMPT + TEXT], out[4];
    fill(v, 0, 0);
    history_add(h, key(h, v), v, PROMPT, PROMPT + TEXT);
    struct history_entry *held = history_find(h, key(h, v));
    for (int i = 1; i < 1000; i++) {
        fill(v, i, i);
        history_add(h, key(h, v), v, PROMPT, PROMPT + TEXT);
        assert_true(history_bytes(h) <= max && history_bytes(h) > 0);
        assert_int_equal(propose(h, key(h, v), v, PROMPT, out), 4);
        if (i > 1) fill(v, 1, 1), assert_int_equal(propose(h, key(h, v), v, PROMPT, out), 4); /* it is in use */
    }
    fill(v, 2, 2);
    assert_int_equal(propose(h, key(h, v), v, PROMPT, out), 0);
    fill(v, 0, 0); /* one that a request refers to stays for it */
    int agreed;
    assert_int_equal(history_propose(held, v, PROMPT, 4, out, &agreed), 4);
    history_unref(held);
    int32_t *longest = malloc((size_t)(PROMPT + 3 * HISTORY_TOKENS) * sizeof *longest);
    for (int i = 0; i < PROMPT + 3 * HISTORY_TOKENS; i++) longest[i] = i;
    history_add(h, key(h, longest), longest, PROMPT, PROMPT + 3 * HISTORY_TOKENS); /* more than all there is */
    assert_true(history_bytes(h) <= max);
    free(longest);
    history_free(h);
    h = history_new(0, 7);
    history_add(h, key(h, v), v, PROMPT, PROMPT + TEXT);
    assert_int_equal(history_entries(h), 0);
    history_free(h);
}

static void test_short_prompts_and_texts(void **state)
{
    struct history *h = history_new(1 << 20, 7);
    int32_t v[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[4];
    uint64_t one = history_key(h, 0, 0, v, 1);
    history_add(h, one, v, 1, 8);
    assert_int_equal(propose(h, one, v, 1, out), 0); /* an n-gram is longer */
    assert_int_equal(propose(h, one, v, 3, out), 4);
    assert_int_equal(out[0], 4);
    uint64_t two = history_key(h, 0, 0, v, 2);
    history_add(h, two, v, 2, 4); /* too short to be worth it */
    assert_int_equal(history_entries(h), 1);
    history_free(h);
    history_free(NULL);
    history_unref(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_repeated_prompt),       cmocka_unit_test(test_others_learn_nothing),
        cmocka_unit_test(test_the_last_texts_stay),     cmocka_unit_test(test_memory_is_bounded),
        cmocka_unit_test(test_short_prompts_and_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
