#include "server/access/origin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

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

static const char *const always[] = {"127.0.0.1:8080", "127.0.0.1",         "[::1]:8080",  "[::1]",
                                     "192.168.1.5:80", "localhost",         "LocalHost:1", "localhost.:8080",
                                     "a.localhost",    "[fe80::1%25eth0]:1"};
static const char *const names_of_networks[] = {
    "tandem",    "tandem:8080",       "tandem.default.svc", "tandem.x.svc.cluster.local",
    "box.local", "api.internal:8080", "nas.home.arpa"};
static const char *const strange[] = {"evil.example:8080",
                                      "evil.example",
                                      "localhost.evil.example",
                                      "127.0.0.1.nip.io",
                                      "local",
                                      "127.0.0.1x",
                                      "[::1",
                                      "[::1]x",
                                      "",
                                      ":8080",
                                      "localhost:a",
                                      "evil.svc.example",
                                      "[evil.example]:8080"};

static void test_hosts_of_this_machine(void **state)
{
    (void)state;
    struct origin_names names = {.listen = "127.0.0.1", .allowed = "", .local = true};
    assert_true(origin_host_known(NULL, &names));
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (!origin_host_known(always[i], &names)) fail_msg("%s", always[i]);
    for (size_t i = 0; i < sizeof names_of_networks / sizeof *names_of_networks; i++)
        if (origin_host_known(names_of_networks[i], &names)) fail_msg("%s", names_of_networks[i]);
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++)
        if (origin_host_known(strange[i], &names)) fail_msg("%s", strange[i]);
    names.listen = "gpu1.corp.example";
    assert_true(origin_host_known("GPU1.corp.example:8080", &names));
    assert_false(origin_host_known("corp.example:8080", &names));
}

static void test_hosts_of_a_network(void **state)
{
    (void)state;
    struct origin_names names = {.listen = "0.0.0.0"};
    for (size_t i = 0; i < sizeof names_of_networks / sizeof *names_of_networks; i++)
        if (!origin_host_known(names_of_networks[i], &names)) fail_msg("%s", names_of_networks[i]);
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++)
        if (strcmp(strange[i], "local") != 0 && origin_host_known(strange[i], &names)) fail_msg("%s", strange[i]);
}

static void test_hosts_that_are_allowed(void **state)
{
    (void)state;
    struct origin_names names = {.allowed = "api.example, .in.example ,,tandem.default", .local = true};
    assert_true(origin_host_known("api.example:443", &names));
    assert_true(origin_host_known("API.example", &names));
    assert_true(origin_host_known("a.in.example", &names));
    assert_true(origin_host_known("tandem.default", &names));
    assert_false(origin_host_known("in.example", &names));
    assert_false(origin_host_known("ain.example", &names));
    assert_false(origin_host_known("x.api.example", &names));
    names.allowed = "*";
    assert_true(origin_host_known("evil.example", &names));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_browser),
        cmocka_unit_test(test_own_page),
        cmocka_unit_test(test_foreign_page),
        cmocka_unit_test(test_allowed),
        cmocka_unit_test(test_hosts_of_this_machine),
        cmocka_unit_test(test_hosts_of_a_network),
        cmocka_unit_test(test_hosts_that_are_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
