/* server/schema/constraint.c: the forms in which requests ask, and their mistakes; jexpr_fit.c: lengths.  What schemas
 * mean is checked against Python's jsonschema in tests/schema. */
#include "server/json/json.h"
#include "server/schema/constraint.h"
#include "server/schema/jexpr.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static cJSON *parse(const char *text)
{
    struct err e = {0};
    cJSON *tree = json_parse(text, strlen(text), &e);
    if (!tree) print_error("%s: %s\n", text, e.msg);
    assert_non_null(tree);
    return tree;
}

static bool matches(const struct constraint_request *ask, const char *text)
{
    struct err e = {0};
    struct grammar *g = constraint_build(ask, &e);
    if (!g) print_error("%s\n", e.msg);
    assert_non_null(g);
    int rc = grammar_matches(g, text, strlen(text), &e);
    assert_true(rc >= 0);
    grammar_unref(g);
    return rc == 1;
}

struct row {
    const char *request;
    enum constraint_kind kind;
    const char *good, *bad; /* texts; or the error, and NULL */
};

static void check_rows(const struct row *rows, size_t n, bool tgi)
{
    for (size_t i = 0; i < n; i++) {
        struct constraint_request ask = {0};
        struct err e = {0};
        cJSON *tree = parse(rows[i].request);
        bool good = tgi ? constraint_read_tgi(&ask, tree, &e) : constraint_read_openai(&ask, tree, &e);
        if (good != (rows[i].bad || !rows[i].good)) print_error("%s: %s\n", rows[i].request, e.msg);
        assert_int_equal(good, rows[i].bad || !rows[i].good);
        if (!good) {
            assert_string_equal(e.msg, rows[i].good);
        } else {
            assert_int_equal(ask.kind, rows[i].kind);
            if (ask.kind) {
                assert_true(matches(&ask, rows[i].good));
                assert_false(matches(&ask, rows[i].bad));
                assert_non_null(ask.field);
            }
        }
        constraint_request_free(&ask);
        cJSON_Delete(tree);
    }
}

static void tgi_forms(void **state)
{
    static const struct row rows[] = {
        {"null", CONSTRAINT_NONE, NULL, NULL},
        {"{\"type\":\"json\",\"value\":{\"properties\":{\"a\":{\"type\":\"null\"}}}}", CONSTRAINT_JSON_SCHEMA,
         "{\"a\": null}", "{\"b\": null}"},
        {"{\"type\":\"json\",\"value\":\"{\\\"type\\\":\\\"null\\\"}\"}", CONSTRAINT_JSON_SCHEMA, "null", "1"},
        {"{\"type\":\"json_object\"}", CONSTRAINT_JSON_OBJECT, "{}", "[]"},
        {"{\"type\":\"json_object\",\"value\":{\"type\":\"null\"}}", CONSTRAINT_JSON_SCHEMA, "null", "{}"},
        {"{\"type\":\"json_schema\",\"value\":{\"name\":\"n\",\"schema\":{\"const\":1.50}}}", CONSTRAINT_JSON_SCHEMA,
         "1.5", "1"},
        {"{\"type\":\"regex\",\"value\":\"a+b?\"}", CONSTRAINT_REGEX, "aab", "aabb"},
        {"{\"type\":\"regex\",\"value\":5}", 0, "the regular expression must be a string", NULL},
        {"{\"type\":\"json\",\"value\":\"{\"}", 0,
         "the schema: malformed JSON at byte 1: expected a field name in double quotes", NULL},
        {"{\"type\":\"json\"}", 0, "there is no schema", NULL},
        {"{\"type\":\"json\",\"value\":5}", 0, "the schema must be an object", NULL},
        {"{\"type\":\"lark\",\"value\":\"\"}", 0, "the type lark is not supported", NULL},
        {"{\"value\":\"\"}", 0, "expected an object with the fields `type` and `value`", NULL},
        {"\"json\"", 0, "expected an object with the fields `type` and `value`", NULL},
    };
    (void)state;
    check_rows(rows, sizeof rows / sizeof *rows, true);
}

static void openai_forms(void **state)
{
    static const struct row rows[] = {
        {"{}", CONSTRAINT_NONE, NULL, NULL},
        {"{\"response_format\":{\"type\":\"text\"},\"structured_outputs\":null}", CONSTRAINT_NONE, NULL, NULL},
        {"{\"response_format\":{\"type\":\"json_object\"}}", CONSTRAINT_JSON_OBJECT, "{\"a\": 1}", "1"},
        {"{\"response_format\":{\"type\":\"json_object\",\"value\":{\"const\":2}}}", CONSTRAINT_JSON_SCHEMA, "2", "1"},
        {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"strict\":true,\"schema\":{"
         "\"type\":\"boolean\"}}}}",
         CONSTRAINT_JSON_SCHEMA, "true", "null"},
        {"{\"structured_outputs\":{\"choice\":[\"yes\",\"no\\n\"]}}", CONSTRAINT_CHOICE, "no\n", "no"},
        {"{\"structured_outputs\":{\"json\":\"true\",\"regex\":null}}", CONSTRAINT_JSON_SCHEMA, "[1, null]",
         "[1,null]"},
        {"{\"structured_outputs\":{\"regex\":\"[0-9]{2}\"}}", CONSTRAINT_REGEX, "12", "123"},
        {"{\"structured_outputs\":{\"json_object\":true}}", CONSTRAINT_JSON_OBJECT, "{}", "1"},
        {"{\"guided_json\":{\"type\":\"null\"}}", CONSTRAINT_JSON_SCHEMA, "null", "1"},
        {"{\"guided_regex\":\"a\"}", CONSTRAINT_REGEX, "a", "b"},
        {"{\"guided_choice\":[\"a\"]}", CONSTRAINT_CHOICE, "a", "b"},
        {"{\"guided_grammar\":\"root\"}", 0, "guided_grammar: not supported", NULL},
        {"{\"response_format\":\"json\"}", 0, "response_format: expected an object with the field `type`", NULL},
        {"{\"response_format\":{\"type\":\"json_schema\"}}", 0,
         "response_format: json_schema: expected an object with the field `schema`", NULL},
        {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\"}}}", 0,
         "response_format: json_schema: the field `schema` is missing", NULL},
        {"{\"structured_outputs\":{\"grammar\":\"root\"}}", 0, "structured_outputs: `grammar` is not supported", NULL},
        {"{\"structured_outputs\":{}}", 0,
         "structured_outputs: one of `json`, `regex`, `choice` and `json_object` is needed", NULL},
        {"{\"structured_outputs\":{\"regex\":\"a\",\"choice\":[\"a\"]}}", 0,
         "structured_outputs: exactly one of `json`, `regex`, `choice` and `json_object` is allowed", NULL},
        {"{\"structured_outputs\":{\"choice\":[]}}", 0, "structured_outputs: the choice must be a list of strings",
         NULL},
        {"{\"structured_outputs\":{\"choice\":[\"a\",1]}}", 0,
         "structured_outputs: the choice must be a list of strings", NULL},
        {"{\"response_format\":{\"type\":\"json_object\"},\"guided_regex\":\"a\"}", 0,
         "guided_regex: the form of the output is asked for twice", NULL},
    };
    (void)state;
    check_rows(rows, sizeof rows / sizeof *rows, false);
}

static void between_texts(void **state)
{
    struct constraint_request ask = {0};
    struct err e = {0};
    cJSON *schema = parse("{\"const\":1}");
    (void)state;
    assert_true(constraint_set_schema(&ask, "tools", "<tool>\n", schema, "\n</tool>", &e));
    assert_true(matches(&ask, "<tool>\n1\n</tool>"));
    assert_false(matches(&ask, "1"));
    assert_string_equal(ask.field, "tools");
    constraint_request_free(&ask);
    cJSON_Delete(schema);
}

static void too_long(void **state)
{
    struct constraint_request ask = {0};
    struct err e = {0};
    struct buf b = {0};
    (void)state;
    buf_str(&b, "{\"type\":\"regex\",\"value\":\"");
    for (int i = 0; i <= CONSTRAINT_REGEX_MAX; i++) buf_char(&b, 'a');
    buf_str(&b, "\"}");
    cJSON *tree = parse(b.data);
    assert_false(constraint_read_tgi(&ask, tree, &e));
    assert_string_equal(e.msg, "the regular expression is longer than 16384 bytes");
    cJSON_Delete(tree);
    buf_clear(&b);
    buf_str(&b, "{\"type\":\"json\",\"value\":{\"title\":\"");
    for (int i = 0; i <= CONSTRAINT_TEXT_MAX; i++) buf_char(&b, 'a');
    buf_str(&b, "\"}}");
    tree = parse(b.data);
    assert_false(constraint_read_tgi(&ask, tree, &e));
    assert_string_equal(e.msg, "the schema is longer than 131072 bytes");
    cJSON_Delete(tree);
    buf_free(&b);
    constraint_request_free(&ask);
}

static void lengths(void **state)
{
    struct jpool *p = jpool_new();
    jx any = jx_any_char(p), a = jx_chars(p, &(struct grange){'a', 'a'}, 1);
    jx some = jx_repeat(p, any, 1, JX_MANY), pair = jx_seq3(p, some, a, some); /* .+a.+ */
    (void)state;
    jx fit = jx_fit(p, pair, 5, 11);
    assert_true(fit != JX_NONE);
    assert_true(jx_min_length(p, fit) >= 5 && jx_max_length(p, fit) <= 11);
    assert_int_equal(jx_fit(p, pair, 0, 2), JX_NONE);
    assert_int_equal(jx_fit(p, jx_seq3(p, a, a, a), 4, 9), JX_NONE);
    fit = jx_fit(p, jx_repeat(p, jx_seq2(p, a, jx_repeat(p, any, 0, 3)), 2, JX_MANY), 0, 5); /* (a.{0,3}){2,} */
    assert_true(jx_min_length(p, fit) == 2 && jx_max_length(p, fit) <= 5);
    fit = jx_fit(p, jx_alt2(p, jx_repeat(p, a, 9, 9), jx_repeat(p, any, 0, 4)), 2, 8);
    assert_true(jx_min_length(p, fit) >= 2 && jx_max_length(p, fit) <= 8);
    assert_false(jpool_failed(p));
    jpool_free(p);
}

static void limits(void **state)
{
    struct jpool *p = jpool_new();
    struct err e = {0};
    (void)state;
    jx x = jx_text(p, "a");
    for (int i = 0; i < JX_DEPTH_MAX + 2; i++) x = jx_seq2(p, jx_text(p, "b"), jx_optional(p, x));
    assert_true(jpool_failed(p));
    assert_null(jexpr_grammar(p, x, &e));
    assert_string_equal(e.msg, "the schema is nested too deeply");
    jpool_free(p);
    p = jpool_new();
    x = jx_text(p, "abcdefgh");
    for (int i = 0; i < 20; i++) x = jx_seq2(p, x, x);
    assert_null(jexpr_grammar(p, x, &e));
    assert_string_equal(e.msg, "the schema is too large");
    jpool_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tgi_forms), cmocka_unit_test(openai_forms), cmocka_unit_test(between_texts),
        cmocka_unit_test(too_long),  cmocka_unit_test(lengths),      cmocka_unit_test(limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
