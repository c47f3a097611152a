/* Lists of cores: what is one, and which cores this process may name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/cpus.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

static int first_allowed(void)
{
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET((size_t)i, &set)) return i;
    return -1;
}

static void test_none(void **state)
{
    struct cpus c = {.n = 7};
    struct err e = {0};
    assert_int_equal(cpus_parse(&c, NULL, &e), 0);
    assert_int_equal(c.n, 0);
    assert_int_equal(cpus_parse(&c, "", &e), 0);
    assert_int_equal(c.n, 0);
}

static void test_one(void **state)
{
    struct cpus c;
    struct err e = {0};
    char text[32];
    int core = first_allowed();
    snprintf(text, sizeof text, "%d-%d", core, core);
    assert_int_equal(cpus_parse(&c, text, &e), 0);
    assert_int_equal(c.n, 1);
    assert_int_equal(c.v[0], core);
    snprintf(text, sizeof text, "%d,%d", core, core);
    assert_int_equal(cpus_parse(&c, text, &e), ERR_INVALID);
    assert_non_null(strstr(e.msg, "named twice"));
}

static void test_no_list(void **state)
{
    static const char *const bad[] = {"x", "0-", "3-1", "-1", "0,", ",0", "0;1", "1024", "0-99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct cpus c;
        struct err e = {0};
        assert_int_equal(cpus_parse(&c, bad[i], &e), ERR_INVALID);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_none), cmocka_unit_test(test_one),
                                       cmocka_unit_test(test_no_list)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
