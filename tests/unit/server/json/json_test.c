/* server/json/json.c and json/check.c: what is accepted, what is refused and with which words, exact integers, writing.
 */
#include "server/json/json.h"

#include <math.h>
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
    assert_int_equal(e.code, ERR_OK);
    return tree;
}

static void check_refused(const char *text, size_t n, const char *message)
{
    struct err e = {0};
    cJSON *tree = json_parse(text, n, &e);
    if (tree) print_error("accepted: %s\n", text);
    assert_null(tree);
    assert_int_equal(e.code, ERR_INVALID);
    assert_string_equal(e.msg, message);
}

static void accepts(void **state)
{
    static const char *const good[] = {
        "0",
        "-0",
        "1e5",
        "1E+5",
        "1e-400",
        "0.5",
        "-12.5e-3",
        "true",
        " null ",
        "\"\"",
        "[]",
        "{}",
        "[[],{}]",
        "\t\r\n [1 , 2] ",
        "{\"a\" : 1 , \"a\":2}",
        "\"\\u00e9\\ud83d\\ude00\\n\\/\"",
        "\"\xc3\xa9\xf0\x9f\x98\x80\"",
        "\"\x7f\"",
        "\"\\u0001\"",
        "[123456789012345678901234567890]",
        "\"\xef\xbf\xbf\"",
        "1.7976931348623157e308",
    };
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) cJSON_Delete(parse(good[i]));
}

static void refuses(void **state)
{
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"", "malformed JSON at byte 0: the text is empty"},
        {"  ", "malformed JSON at byte 2: the text is empty"},
        {"\xef\xbb\xbf{}", "malformed JSON at byte 0: byte order mark"},
        {"{\"a\":1,}", "malformed JSON at byte 7: expected a field name in double quotes"},
        {"[1,]", "malformed JSON at byte 3: expected a value"},
        {"[1 2]", "malformed JSON at byte 3: expected ',' or ']'"},
        {"{\"a\" 1}", "malformed JSON at byte 5: expected ':' after the field name"},
        {"{'a':1}", "malformed JSON at byte 1: expected a field name in double quotes"},
        {"{\"a\":1", "malformed JSON at byte 6: expected ',' or '}'"},
        {"{\"a\":", "malformed JSON at byte 5: the text ends where a value is expected"},
        {"[1]x", "malformed JSON at byte 3: text after the end of the value"},
        {"nul", "malformed JSON at byte 0: expected a value"},
        {"True", "malformed JSON at byte 0: expected a value"},
        {"NaN", "malformed JSON at byte 0: expected a value"},
        {"Infinity", "malformed JSON at byte 0: expected a value"},
        {"-Infinity", "malformed JSON at byte 1: expected a digit"},
        {"01", "malformed JSON at byte 0: number with a leading zero"},
        {"+1", "malformed JSON at byte 0: expected a value"},
        {".5", "malformed JSON at byte 0: expected a value"},
        {"1.", "malformed JSON at byte 2: expected a digit after the decimal point"},
        {"1e", "malformed JSON at byte 2: expected a digit in the exponent"},
        {"[1e400]", "malformed JSON at byte 1: number out of range"},
        {"-1e400", "malformed JSON at byte 0: number out of range"},
        {"\"abc", "malformed JSON at byte 4: the text ends inside a string"},
        {"\"a\nb\"", "malformed JSON at byte 2: control character in a string: it must be escaped"},
        {"\"\\x41\"", "malformed JSON at byte 1: unknown escape in a string"},
        {"\"\\u12g4\"", "malformed JSON at byte 1: \\u needs four hexadecimal digits"},
        {"\"a\\u0000\"", "malformed JSON at byte 2: the NUL character (\\u0000) is not allowed"},
        {"\"\\ud800\"", "malformed JSON at byte 1: unpaired surrogate"},
        {"\"\\ud800\\u0041\"", "malformed JSON at byte 1: unpaired surrogate"},
        {"\"\\udc00\"", "malformed JSON at byte 1: unpaired surrogate"},
        {"\"\xff\"", "malformed JSON at byte 1: the text is not valid UTF-8"},
        {"\"\xc0\xaf\"", "malformed JSON at byte 1: the text is not valid UTF-8"},
        {"\"\xed\xa0\x80\"", "malformed JSON at byte 1: the text is not valid UTF-8"},
        {"\"\xf4\x90\x80\x80\"", "malformed JSON at byte 1: the text is not valid UTF-8"},
        {"\"\xe2\x82\"", "malformed JSON at byte 1: the text is not valid UTF-8"},
        {"// c\n1", "malformed JSON at byte 0: expected a value"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"content\":\"a\\u0000\"}]}",
         "malformed JSON at byte 56: the NUL character (\\u0000) is not allowed, in messages[1].content"},
        {"{\"a\":{\"b\":[1,[true,{}],\"\\\"]{,\",{\"c\":[0,\"\\u0000\"]}]}}",
         "malformed JSON at byte 40: the NUL character (\\u0000) is not allowed, in a.b[3].c[1]"},
        {"[\"a\",\"\\u0000\"]", "malformed JSON at byte 6: the NUL character (\\u0000) is not allowed, in [1]"},
        {"{\"a\":{\"x\":1,\"\\u0000\":1}}",
         "malformed JSON at byte 13: the NUL character (\\u0000) is not allowed, in a"},
        {"{\"\\u0000\":1}", "malformed JSON at byte 2: the NUL character (\\u0000) is not allowed"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check_refused(bad[i].text, strlen(bad[i].text), bad[i].message);
    check_refused("\"a\0b\"", 5, "malformed JSON at byte 2: control character in a string: it must be escaped");
    check_refused("1\0", 2, "malformed JSON at byte 1: text after the end of the value");
    /* "\xff" followed by digits is what we tell cJSON a big number is: a client must not be able to say it. */
    check_refused("\"\xff"
                  "1\"",
                  4, "malformed JSON at byte 1: the text is not valid UTF-8");
    char digits[1003] = {0};
    memset(digits, '1', 1001);
    digits[1] = '.';
    check_refused(digits, 1001, "malformed JSON at byte 0: number with too many digits");
    cJSON_Delete(json_parse(digits, 1000, NULL));
}

static void nesting(void **state)
{
    char text[200];
    struct err e = {0};
    (void)state;
    memset(text, '[', 64);
    memset(text + 64, ']', 64);
    cJSON *tree = json_parse(text, 128, &e);
    assert_non_null(tree);
    cJSON_Delete(tree);
    memset(text, '[', 65);
    memset(text + 65, ']', 65);
    check_refused(text, 130, "malformed JSON at byte 64: nested deeper than 64 levels");
}

/* Reads {"x": literal} as a u64 and an int64; NULL message: expected to work. */
static void check_u64(const char *literal, uint64_t want, bool good)
{
    char text[1200];
    uint64_t got = 0;
    snprintf(text, sizeof text, "{\"x\":%s}", literal);
    cJSON *tree = parse(text);
    struct err e = {0};
    struct json_at at = {tree, "", &e};
    bool found = json_get_u64(&at, "x", &got);
    if (found != good) print_error("%s\n", literal);
    assert_int_equal(found, good);
    if (good) {
        assert_true(got == want);
    } else {
        assert_string_equal(e.msg, "x: expected a whole number between 0 and 18446744073709551615");
    }
    cJSON_Delete(tree);
}

static void u64_exact(void **state)
{
    (void)state;
    check_u64("0", 0, true);
    check_u64("-0", 0, true);
    check_u64("9007199254740993", 9007199254740993u, true);
    check_u64("999999999999999", 999999999999999u, true);
    check_u64("1000000000000001", 1000000000000001u, true);
    check_u64("18446744073709551615", UINT64_MAX, true);
    check_u64("18446744073709551614", UINT64_MAX - 1, true);
    check_u64("12345678901234567890", 12345678901234567890u, true);
    check_u64("18446744073709551616", 0, false);
    check_u64("1e2", 100, true);
    check_u64("1.0", 1, true);
    check_u64("1.50e1", 15, true);
    check_u64("12345678901e9", 12345678901000000000u, true);
    check_u64("0.00000000000000000001e20", 1, true);
    check_u64("0e99", 0, true);
    check_u64("1e20", 0, false);
    check_u64("-1", 0, false);
    check_u64("1.5", 0, false);
    check_u64("1e-1", 0, false);
    check_u64("9007199254740993.5", 0, false);
    check_u64("\"1\"", 0, false);
    check_u64("true", 0, false);
    /* every bit position, exactly */
    for (int bit = 0; bit < 64; bit++) {
        char literal[32];
        uint64_t v = (uint64_t)1 << bit;
        snprintf(literal, sizeof literal, "%llu", (unsigned long long)v);
        check_u64(literal, v, true);
        snprintf(literal, sizeof literal, "%llu", (unsigned long long)(v - 1));
        check_u64(literal, v - 1, true);
        snprintf(literal, sizeof literal, "%llu", (unsigned long long)(v | 1));
        check_u64(literal, v | 1, true);
    }
}

static void check_int(const char *literal, int64_t min, int64_t max, int64_t want, const char *message)
{
    char text[200];
    int64_t got = 0;
    snprintf(text, sizeof text, "{\"x\":%s}", literal);
    cJSON *tree = parse(text);
    struct err e = {0};
    struct json_at at = {tree, "parameters", &e};
    bool good = json_get_int(&at, "x", min, max, &got);
    assert_int_equal(good, message == NULL);
    if (message) {
        assert_string_equal(e.msg, message);
    } else {
        assert_true(got == want);
    }
    cJSON_Delete(tree);
}

static void int_ranges(void **state)
{
    (void)state;
    check_int("5", 0, 10, 5, NULL);
    check_int("1.0", 0, 10, 1, NULL);
    check_int("1e2", 0, 100, 100, NULL);
    check_int("-3", -3, 3, -3, NULL);
    check_int("-9223372036854775808", INT64_MIN, INT64_MAX, INT64_MIN, NULL);
    check_int("9223372036854775807", INT64_MIN, INT64_MAX, INT64_MAX, NULL);
    check_int("9223372036854775808", 0, 7, 0, "parameters.x: must be between 0 and 7");
    check_int("-9223372036854775809", 0, 7, 0, "parameters.x: must be between 0 and 7");
    check_int("1e300", 0, 7, 0, "parameters.x: must be between 0 and 7");
    check_int("11", 0, 10, 0, "parameters.x: must be between 0 and 10");
    check_int("1.5", 0, 10, 0, "parameters.x: expected a whole number");
    check_int("\"5\"", 0, 10, 0, "parameters.x: expected a whole number");
}

static void typed(void **state)
{
    (void)state;
    cJSON *tree = parse("{\"b\":true,\"s\":\"x\",\"n\":0.25,\"o\":{\"i\":1},\"a\":[1],\"z\":null,\"d\":1,\"d\":2,"
                        "\"big\":12345678901234567890,\"q\":1,\"q\":null}");
    struct err e = {0};
    struct json_at at = {tree, "", &e};
    bool b = false;
    const char *s = NULL;
    double n = 0;
    int64_t i = 0;
    const cJSON *child = NULL;
    assert_true(json_get_bool(&at, "b", &b) && b);
    assert_true(json_get_string(&at, "s", &s));
    assert_string_equal(s, "x");
    assert_true(json_get_number(&at, "n", &n) && n == 0.25);
    assert_true(json_get_number(&at, "big", &n) && n == 12345678901234567890.0);
    assert_true(json_get_array(&at, "a", &child) && cJSON_GetArraySize(child) == 1);
    assert_true(json_get_int(&at, "d", 0, 9, &i) && i == 2); /* the last one wins */
    assert_false(json_get_int(&at, "q", 0, 9, &i));          /* also when it is null */
    assert_false(json_get_int(&at, "z", 0, 9, &i));
    assert_false(json_get_int(&at, "nope", 0, 9, &i));
    assert_false(json_get_int(&at, "B", 0, 9, &i)); /* names are case-sensitive */
    assert_int_equal(e.code, ERR_OK);
    assert_true(json_get_object(&at, "o", &child));
    struct json_at inner = {child, "o", &e};
    assert_false(json_get_string(&inner, "i", &s));
    assert_string_equal(e.msg, "o.i: expected a string");
    assert_false(json_get_bool(&at, "b", &b)); /* the first error sticks */
    assert_string_equal(e.msg, "o.i: expected a string");
    cJSON_Delete(tree);
}

/* A long number is a number to everyone, not only to the getters. */
static void big_numbers_are_numbers(void **state)
{
    (void)state;
    cJSON *tree = parse("{\"stop\":[12345678901234567890,\"x\"],\"12345678901234567890\":1}");
    struct err e = {0};
    struct json_at at = {tree, "", &e};
    const char *s;
    const cJSON *stop = cJSON_GetObjectItemCaseSensitive(tree, "stop");
    assert_true(cJSON_IsNumber(cJSON_GetArrayItem(stop, 0)));
    assert_true(cJSON_IsString(cJSON_GetArrayItem(stop, 1)));
    assert_non_null(cJSON_GetObjectItemCaseSensitive(tree, "12345678901234567890"));
    assert_false(json_get_string(&at, "stop", &s));
    assert_string_equal(e.msg, "stop: expected a string");
    cJSON_Delete(tree);
}

static void check_number(double v, const char *want)
{
    struct buf b = {0};
    json_put_number(&b, v);
    assert_string_equal(b.data, want);
    buf_free(&b);
}

static void numbers_out(void **state)
{
    (void)state;
    check_number(0, "0");
    check_number(-0.0, "-0");
    check_number(1, "1");
    check_number(-100000, "-100000");
    check_number(0.1f, "0.1");
    check_number(-1.5318298f, "-1.5318298");
    check_number(0.1, "0.1");
    check_number(1.0 / 3.0, "0.3333333333333333");
    check_number(3.4028234663852886e38, "3.4028235e+38");
    check_number(1e300, "1e+300");
    check_number(1e-45, "1e-45");
    check_number(NAN, "null");
    check_number(INFINITY, "null");
    check_number(-INFINITY, "null");
    /* every float reads back as itself */
    uint32_t bits = 1;
    for (int i = 0; i < 20000; i++) {
        bits = bits * 1664525u + 1013904223u;
        float f;
        memcpy(&f, &bits, sizeof f);
        if (!isfinite(f)) continue;
        struct buf b = {0};
        json_put_number(&b, f);
        assert_true(strtof(b.data, NULL) == f);
        buf_free(&b);
    }
}

static void check_string(const char *s, size_t n, const char *want)
{
    struct buf b = {0};
    json_put_string(&b, s, n);
    assert_string_equal(b.data, want);
    buf_free(&b);
}

static void strings_out(void **state)
{
    (void)state;
    check_string("", 0, "\"\"");
    check_string("a\"b\\c/", 6, "\"a\\\"b\\\\c/\"");
    check_string("\n\r\t\b\f\x01\x1f\x7f", 8, "\"\\n\\r\\t\\b\\f\\u0001\\u001f\x7f\"");
    check_string("a\0b", 3, "\"a\\u0000b\"");
    check_string("\xc3\xa9\xf0\x9f\x98\x80", 6, "\"\xc3\xa9\xf0\x9f\x98\x80\"");
    check_string("\xff", 1, "\"\xef\xbf\xbd\"");
    check_string("x\xe2\x82", 3, "\"x\xef\xbf\xbd\xef\xbf\xbd\"");
    check_string("\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
}

static bool equal(const char *x, const char *y)
{
    cJSON *a = parse(x), *b = parse(y);
    bool same = json_equal(a, b);
    assert_int_equal(json_equal(b, a), same);
    cJSON_Delete(a);
    cJSON_Delete(b);
    return same;
}

static void equality(void **state)
{
    (void)state;
    assert_true(equal("{\"a\":1,\"b\":[true,null,\"x\"]}", "{\"b\":[true,null,\"x\"],\"a\":1.0}"));
    assert_true(equal("{\"a\":1,\"a\":2}", "{\"a\":2}"));
    assert_true(equal("[0,1e2,0.5]", "[-0,100,5e-1]"));
    assert_true(equal("[]", "[]") && equal("{}", "{}"));
    assert_false(equal("[]", "{}"));
    assert_false(equal("[1]", "[1,2]"));
    assert_false(equal("{\"a\":1}", "{\"b\":1}"));
    assert_false(equal("{\"a\":1}", "{\"a\":1,\"b\":1}"));
    assert_false(equal("9007199254740993", "9007199254740992"));
    assert_false(equal("true", "false"));
    assert_false(equal("\"1\"", "1"));
}

/* 60 levels: cJSON_Compare would never end */
static void equality_is_fast(void **state)
{
    (void)state;
    struct buf text = {0};
    for (int i = 0; i < 60; i++) buf_str(&text, "{\"a\":");
    buf_char(&text, '1');
    for (int i = 0; i < 60; i++) buf_char(&text, '}');
    assert_true(equal(text.data, text.data));
    buf_clear(&text);
    for (int i = 0; i < 100000; i++) buf_printf(&text, "%c\"k%d\":%d", i ? ',' : '{', i, i);
    buf_char(&text, '}');
    cJSON *a = parse(text.data);
    buf_clear(&text);
    for (int i = 100000; i-- > 0;) buf_printf(&text, "%c\"k%d\":%d", i < 99999 ? ',' : '{', i, i);
    buf_char(&text, '}');
    cJSON *b = parse(text.data);
    assert_true(json_equal(a, b));
    cJSON_Delete(a);
    cJSON_Delete(b);
    buf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts),
        cmocka_unit_test(refuses),
        cmocka_unit_test(nesting),
        cmocka_unit_test(u64_exact),
        cmocka_unit_test(int_ranges),
        cmocka_unit_test(typed),
        cmocka_unit_test(big_numbers_are_numbers),
        cmocka_unit_test(numbers_out),
        cmocka_unit_test(strings_out),
        cmocka_unit_test(equality),
        cmocka_unit_test(equality_is_fast),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
