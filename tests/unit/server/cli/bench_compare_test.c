/* Two reports of tandem bench compared, and one held against targets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/cli/bench_compare.h"

#include <string.h>

static cJSON *parse(const char *text)
{
    struct err e = {0};
    cJSON *v = json_parse(text, strlen(text), &e);
    if (!v) fail_msg("%s", e.msg);
    return v;
}

#define ROW(name, median, least, most, bytes)                                                                          \
    "{\"name\":\"" name "\",\"tokens_per_s\":" #median ",\"tokens_per_s_min\":" #least ",\"tokens_per_s_max\":" #most  \
    ",\"activation_bytes\":" #bytes "}"

static void test_compare(void **state)
{
    (void)state;
    cJSON *before =
        parse("{\"system\":{\"threads\":2},\"results\":[{\"phase\":\"decode\",\"batch\":8,\"tokens_per_s\":100,"
              "\"tokens_per_s_min\":99,\"tokens_per_s_max\":101}],\"rows\":[" ROW("1 x 64", 100, 90, 110, 1000) "," ROW(
                  "4 x 64", 100, 95, 105, 1000) "," ROW("gone", 1, 1, 1, 1) "]}");
    cJSON *now =
        parse("{\"system\":{\"threads\":4},\"results\":[{\"phase\":\"decode\",\"batch\":8,\"tokens_per_s\":80,"
              "\"tokens_per_s_min\":79,\"tokens_per_s_max\":81}],\"rows\":[" ROW("1 x 64", 120, 105, 130, 1000) "," ROW(
                  "4 x 64", 101, 95, 105, 1500) ",{\"name\":\"new\",\"refused\":\"no memory\"}]}");
    struct buf says = {0};
    assert_int_equal(bench_compare(&says, before, now), 2);
    assert_non_null(strstr(says.data, "decode 8: tokens/s 100 -> 80 (-20.0 %), from 99..101 to 79..81\n"));
    assert_non_null(strstr(says.data, "4 x 64: activations, MB 0.001 -> 0.0015 (+50.0 %)\n"));
    assert_null(strstr(says.data, "1 x 64")); /* its ranges overlap */
    assert_non_null(strstr(says.data, "not the same threads"));
    assert_non_null(strstr(says.data, "gone: only in the baseline\n"));
    assert_non_null(strstr(says.data, "new: not in the baseline\n"));
    buf_clear(&says);
    assert_int_equal(bench_compare(&says, now, now), 0);
    assert_string_equal(says.data, "nothing changed beyond the noise\n");
    buf_free(&says);
    json_free(before);
    json_free(now);
}

static void test_refused(void **state)
{
    (void)state;
    cJSON *measured = parse("{\"rows\":[" ROW("a", 1, 1, 1, 1) "]}"), *refused = parse("{\"rows\":[{\"name\":\"a\"}]}");
    struct buf says = {0};
    assert_int_equal(bench_compare(&says, measured, refused), 1);
    assert_non_null(strstr(says.data, "a: could not be measured any more\n"));
    buf_clear(&says);
    assert_int_equal(bench_compare(&says, refused, measured), 1);
    assert_non_null(strstr(says.data, "a: could not be measured before\n"));
    buf_free(&says);
    json_free(measured);
    json_free(refused);
}

static void test_check(void **state)
{
    (void)state;
    static const struct {
        const char *targets, *says;
        int missed; /* -1: an error */
    } cases[] = {
        {"{\"prefill\":{\"tokens_per_s\":{\"min\":100}}}", "met: prefill tokens_per_s is 200, at least 100\n", 0},
        {"{\"prefill\":{\"tokens_per_s\":{\"min\":300,\"max\":900}}}",
         "missed: prefill tokens_per_s is 200, at least 300, at most 900\n", 1},
        {"{\"prefill\":{\"step_ms.p99\":{\"max\":4}}}", "missed: prefill step_ms.p99 is 5, at most 4\n", 1},
        {"{\"prefill\":{\"step_ms.p98\":{\"max\":4},\"phase\":{\"min\":1}}}", "step_ms.p98 is not in the report", 2},
        {"{\"decode 8\":{\"tokens_per_s\":{\"min\":1}}}", "missed: decode 8 tokens_per_s is not in the report", 1},
        {"{}", "wants an object of rows", -1},
        {"[1]", "wants an object of rows", -1},
        {"{\"prefill\":3}", "prefill: wants an object of figures", -1},
        {"{\"prefill\":{\"a\":{}}}", "prefill, a: wants", -1},
        {"{\"prefill\":{\"a\":7}}", "prefill, a: wants", -1},
        {"{\"prefill\":{\"a\":{\"mni\":1}}}", "not mni", -1},
        {"{\"prefill\":{\"a\":{\"min\":\"1\"}}}", "has numbers", -1},
    };
    cJSON *report = parse("{\"results\":[{\"phase\":\"prefill\",\"tokens_per_s\":200,\"step_ms\":{\"p99\":5}}]}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf says = {0};
        struct err e = {0};
        cJSON *targets = parse(cases[i].targets);
        int missed = bench_check(&says, targets, report, &e);
        const char *text = missed < 0 ? e.msg : says.data;
        if (missed != cases[i].missed || !strstr(text, cases[i].says))
            fail_msg("%s: %d, %s", cases[i].targets, missed, text);
        json_free(targets);
        buf_free(&says);
    }
    json_free(report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compare),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_check),
    };
    return cmocka_run_group_tests_name("bench_compare", tests, NULL, NULL);
}
