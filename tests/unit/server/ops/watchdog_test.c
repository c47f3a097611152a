/* Who is stuck: the pure part of watchdog.h. */
#include "server/ops/watchdog.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define S UINT64_C(1000000000)

static void test_late(void **state)
{
    (void)state;
    assert_false(watchdog_late(0, 100 * S, 1)); /* nothing to do */
    assert_false(watchdog_late(100 * S, 100 * S, 0.1));
    assert_false(watchdog_late(100 * S, 109 * S, 10));
    assert_true(watchdog_late(100 * S, 110 * S, 10));
    assert_false(watchdog_late(200 * S, 100 * S, 1)); /* due in the future */
}

static void test_judge(void **state)
{
    (void)state;
    struct watchdog_view well = {.now = 1000 * S, .loop_asked = 995 * S, .loop_seen = 996 * S, .limit = 10};
    struct watchdog_view v = well;
    assert_int_equal(watchdog_judge(&v), WATCHDOG_WELL);
    v.engine_since = 991 * S;
    assert_int_equal(watchdog_judge(&v), WATCHDOG_WELL);
    v.engine_since = 990 * S;
    assert_int_equal(watchdog_judge(&v), WATCHDOG_ENGINE_STUCK);
    v = well;
    v.loop_asked = 990 * S;
    v.loop_seen = 989 * S;
    assert_int_equal(watchdog_judge(&v), WATCHDOG_LOOP_STUCK);
    v.loop_asked = 991 * S; /* not for so long */
    assert_int_equal(watchdog_judge(&v), WATCHDOG_WELL);
    v = well;
    v.loop_asked = 900 * S; /* long ago, but answered */
    v.loop_seen = 901 * S;
    assert_int_equal(watchdog_judge(&v), WATCHDOG_WELL);
}

/* After the whole process stood still, whatever it was doing has its full time again. */
static void test_resumed(void **state)
{
    (void)state;
    struct watchdog_view v = {.now = 1000 * S,
                              .engine_since = 500 * S,
                              .loop_asked = 500 * S,
                              .loop_seen = 499 * S,
                              .resumed = 999 * S,
                              .limit = 10};
    assert_int_equal(watchdog_judge(&v), WATCHDOG_WELL);
    v.now = 1009 * S;
    assert_int_equal(watchdog_judge(&v), WATCHDOG_LOOP_STUCK);
    v.loop_seen = 1001 * S;
    assert_int_equal(watchdog_judge(&v), WATCHDOG_ENGINE_STUCK);
}

static void test_period(void **state)
{
    (void)state;
    assert_int_equal(watchdog_period(60, 0), 5 * S);
    assert_int_equal(watchdog_period(60, 6000000), 2 * S); /* thrice within the manager's time */
    assert_int_equal(watchdog_period(4, 6000000), 1 * S);
    assert_int_equal(watchdog_period(0.001, 0), S / 100);
    assert_int_equal(watchdog_period(60, 1), S / 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late),
        cmocka_unit_test(test_judge),
        cmocka_unit_test(test_resumed),
        cmocka_unit_test(test_period),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
