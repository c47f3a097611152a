/* What an index of n-grams proposes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/serve/ngrams.h"

#include <stdlib.h>

static int propose(const int32_t *v, int n, int most, int32_t *out)
{
    struct ngrams g;
    assert_true(ngrams_open(&g, n));
    while (!ngrams_add(&g, v, n)) {
    }
    int agreed, got = ngrams_propose(&g, v, n, most, out, &agreed);
    ngrams_close(&g);
    return got;
}

static void test_what_followed_before(void **state)
{
    static const int32_t v[] = {1, 2, 3, 4, 5, 6, 9, 1, 2, 3};
    int32_t out[8];
    assert_int_equal(propose(v, 10, 3, out), 3);
    assert_true(out[0] == 4 && out[1] == 5 && out[2] == 6);
    assert_int_equal(propose(v, 9, 3, out), 0); /* 9 1 2 is new */
    assert_int_equal(propose(v, 2, 3, out), 0);
    assert_int_equal(propose(v, 10, 0, out), 0);
}

static void test_longest_agreement_wins(void **state)
{
    static const int32_t v[] = {7, 8, 1, 2, 3, 50, 0, 1, 2, 3, 60, 7, 8, 1, 2, 3};
    int32_t out[2];
    assert_int_equal(propose(v, 16, 2, out), 2);
    assert_true(out[0] == 50 && out[1] == 0); /* though 60 is later */
}

static void test_a_period_goes_on(void **state)
{
    static const int32_t v[] = {1, 2, 1, 2, 1, 2};
    int32_t out[7];
    assert_int_equal(propose(v, 6, 7, out), 7);
    for (int i = 0; i < 7; i++) assert_int_equal(out[i], 1 + i % 2);
}

/* A text longer than the index: its end is indexed, its beginning forgotten, and nothing is read beside it. */
static void test_long_text(void **state)
{
    int n = 3 * NGRAMS_MAX + 5;
    int32_t *v = malloc((size_t)n * sizeof *v), out[4];
    struct ngrams g;
    for (int i = 0; i < n; i++) v[i] = i;
    v[n - 3] = 10, v[n - 2] = 11, v[n - 1] = 12;
    assert_int_equal(propose(v, n, 4, out), 0);
    v[n - 3] = n - 1000, v[n - 2] = n - 999, v[n - 1] = n - 998;
    assert_int_equal(propose(v, n, 4, out), 4);
    assert_int_equal(out[0], n - 997);
    assert_true(ngrams_open(&g, n)); /* and a token at a time */
    for (int i = 1; i <= n; i++) assert_int_equal(ngrams_add(&g, v, i), true);
    int agreed;
    assert_int_equal(ngrams_propose(&g, v, n, 4, out, &agreed), 4);
    assert_int_equal(out[0], n - 997);
    ngrams_close(&g);
    free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_followed_before),
        cmocka_unit_test(test_longest_agreement_wins),
        cmocka_unit_test(test_a_period_goes_on),
        cmocka_unit_test(test_long_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
