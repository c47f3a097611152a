#include "server/origin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const char host[] = "localhost:8080";

static void test_no_browser(void **state)
{
    (void)state;
    assert_false(origin_is_foreign(NULL, NULL, host, NULL));
    assert_false(origin_is_foreign(NULL, NULL, NULL, ""));
}

static void test_own_page(void **state)
{
    (void)state;
    assert_false(origin_is_foreign(NULL, "http://localhost:8080", host, ""));
    assert_false(origin_is_foreign(NULL, "https://LOCALHOST:8080", host, NULL));
    assert_false(origin_is_foreign("same-origin", "http://localhost:8080", host, NULL));
    assert_false(
        origin_is_foreign("same-origin", "https://shown.example", "inner:80", NULL)); /* a proxy that sets Host */
    assert_false(origin_is_foreign("none", NULL, host, NULL));                        /* typed into the address line */
}

static void test_foreign_page(void **state)
{
    (void)state;
    static const char *const pages[] = {"http://evil.example",
                                        "http://localhost:3000",
                                        "http://localhost",
                                        "null",
                                        "",
                                        "http://localhost:8080.evil.example",
                                        "http://evil.example/://localhost:8080"};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        assert_true(origin_is_foreign(NULL, pages[i], host, NULL));
        assert_true(origin_is_foreign(NULL, pages[i], NULL, ""));
        assert_true(origin_is_foreign(NULL, pages[i], host, "http://good.example"));
        assert_false(origin_is_foreign(NULL, pages[i], host, "*"));
    }
    assert_true(origin_is_foreign("cross-site", "http://localhost:8080", host, NULL));
    assert_true(origin_is_foreign("same-site", NULL, host, NULL)); /* another port of this machine */
    assert_true(origin_is_foreign("", NULL, host, NULL));
}

static void test_allowed(void **state)
{
    (void)state;
    assert_false(origin_is_foreign(NULL, "http://good.example", host, "http://good.example"));
    assert_false(origin_is_foreign("cross-site", "http://good.example", host, "http://good.example"));
    assert_true(origin_is_foreign("cross-site", "https://good.example", host, "http://good.example"));
    assert_true(origin_is_foreign("cross-site", NULL, host, "http://good.example"));
    assert_false(origin_is_foreign("cross-site", NULL, host, "*"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_browser),
        cmocka_unit_test(test_own_page),
        cmocka_unit_test(test_foreign_page),
        cmocka_unit_test(test_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
