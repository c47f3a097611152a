/* server/json/find.c: the string that a full parser finds, or none; and nothing is read beyond the text. */
#include "server/json/find.h"
#include "server/json/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* In memory that ends with the text. */
static const char *find(const char *text, const char *path)
{
    static char out[32];
    size_t n = strlen(text);
    char *exact = malloc(n ? n : 1);
    memcpy(exact, text, n);
    bool found = json_find_string(exact, n, path, out, sizeof out);
    free(exact);
    return found ? out : NULL;
}

static void test_finds(void **state)
{
    assert_string_equal(find("{\"model\":\"a\"}", "model"), "a");
    assert_string_equal(find(" {\n \"x\" : [1, {\"model\":\"no\"}], \"model\" : \"b/c\" , \"y\":1}", "model"), "b/c");
    assert_string_equal(find("{\"s\":\"\\\"model\\\":\\\"no\\\"\",\"model\":\"yes\"}", "model"), "yes");
    assert_string_equal(find("{\"parameters\":{\"n\":{},\"adapter_id\":\"p\"}}", "parameters.adapter_id"), "p");
    assert_string_equal(find("{\"model\":\"a\\u00e4\\/\"}", "model"), "a\xc3\xa4/");
    assert_string_equal(find("{\"model\":\"first\",\"model\":\"second\"}", "model"), "second");
    assert_string_equal(find("{\"model\":\"first\",\"x\":[\"model\"],\"model\":\"second\",\"y\":{}}", "model"),
                        "second");
    assert_string_equal(find("{\"p\":{\"a\":\"1\",\"a\":\"2\"},\"p\":{\"a\":\"3\",\"a\":\"4\"}}", "p.a"), "4");
    assert_null(find("{\"model\":\"first\",\"model\":null}", "model")); /* it counts, and names none */
    assert_null(find("{\"p\":{\"a\":\"1\"},\"p\":{}}", "p.a"));
    assert_string_equal(find("{\"model\":\"a\",", "model"), "a"); /* what is wrong is the parser's to say */
}

static void test_finds_nothing(void **state)
{
    static const char *const texts[] = {
        "",
        "{",
        "{}",
        "[\"model\",\"a\"]",
        "\"model\"",
        "{\"model\"",
        "{\"model\":",
        "{\"model\":\"",
        "{\"model\":\"a",
        "{\"model\":\"a\\",
        "{\"model\":\"a\\\"",
        "{\"model\":1}",
        "{\"model\":null}",
        "{\"model\":\"\"}",
        "{\"model\":{\"model\":\"a\"}}",
        "{\"models\":\"a\"}",
        "{\"mode\":\"a\"}",
        "{\"x\":{\"model\":\"a\"}}",
        "{\"x\":[[[",
        "{\"x\":\"",
        "{\"x\":1 \"model\":\"a\"}",
        "{\"model\":\"\\ud800\"}",
        "{\"model\":\"0123456789012345678901234567890123456789\"}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (find(texts[i], "model")) fail_msg("%s: found %s", texts[i], find(texts[i], "model"));
    assert_null(find("{\"parameters\":1}", "parameters.adapter_id"));
    assert_null(find("{\"parameters\":{}}", "parameters.adapter_id"));
}

/* Random texts of JSON's characters: where they are valid, both find the same. */
static void test_agrees_with_the_parser(void **state)
{
    static const char *const parts[] = {"{",    "}", "[", "]",  ",",         ":",          "\"model\"",        "\"a\"",
                                        "\"\"", "1", " ", "\n", "\"x\\\"\"", "\"model\":", "{\"model\":\"b\"}"};
    uint32_t seed = 7;
    int valid = 0;
    for (int round = 0; round < 200000; round++) {
        char text[160] = "{";
        for (int i = 0; i < 6; i++) {
            seed = seed * 1664525u + 1013904223u;
            strcat(text, parts[(seed >> 16) % (sizeof parts / sizeof *parts)]);
        }
        if (round % 2) strcat(text, "}");
        struct err e = {0};
        const char *found = find(text, "model");
        cJSON *tree = json_parse(text, strlen(text), &e);
        if (!tree) continue;
        struct json_at top = {.obj = tree, .path = "", .e = &e};
        const char *right = NULL;
        if (cJSON_IsObject(tree)) json_get_string(&top, "model", &right);
        if (right && !*right) right = NULL;
        if ((right == NULL) != (found == NULL) || (right && strcmp(right, found) != 0))
            fail_msg("%s: %s, not %s", text, found ? found : "none", right ? right : "none");
        valid++;
        json_free(tree);
    }
    assert_true(valid > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds),
        cmocka_unit_test(test_finds_nothing),
        cmocka_unit_test(test_agrees_with_the_parser),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
