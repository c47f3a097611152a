/* server/json/scan.c against json/check.c: the same texts are accepted, and a value is done at its last byte. */
#include "engine/base/buf.h"
#include "server/json/json.h"
#include "server/json/scan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Bytes up to the end of the value; 0: refused, or not complete. */
static size_t scan(const char *text, size_t n)
{
    struct json_scan s = {0};
    for (size_t i = 0; i < n; i++) {
        enum scan_result r = json_scan_byte(&s, (unsigned char)text[i]);
        if (r == SCAN_BAD) return 0;
        if (r == SCAN_DONE) return i + 1;
    }
    return 0;
}

static void check_same(const char *text, size_t n)
{
    struct err e = {0};
    cJSON *tree = json_parse(text, n, &e);
    bool good = tree && !cJSON_IsNumber(tree);
    size_t end = scan(text, n), space = end;
    while (space && space < n && strchr(" \t\r\n", text[space]) && text[space]) space++;
    if (good != (end && space == n) && !strstr(e.msg, "out of range")) {
        print_error("%.*s: json_parse %s, json_scan %zu of %zu\n", (int)n, text, tree ? "accepts" : e.msg, end, n);
        fail();
    }
    cJSON_Delete(tree);
}

static void strings_of_bytes(void **state)
{
    (void)state;
    char text[16];
    /* all that can follow a quote, twice, and all UTF-8 sequences by their first two bytes */
    for (int a = 0; a < 256; a++) {
        for (int b = 0; b < 256; b++) {
            int n = snprintf(text, sizeof text, "[\"%c%c\"]", 'x', 'y');
            text[2] = (char)a;
            text[3] = (char)b;
            check_same(text, (size_t)n);
            memcpy(text, (const char[]){'"', (char)a, (char)b, (char)0x80, '"'}, 5);
            check_same(text, 5);
            memcpy(text, (const char[]){'"', (char)a, (char)b, (char)0xbf, (char)0x80, '"'}, 6);
            check_same(text, 6);
        }
    }
}

static void texts(void **state)
{
    static const char *const some[] = {
        "{}",
        "{\"a\":1}",
        "{\"a\":1,}",
        "{\"a\"}",
        "{,}",
        "{1:2}",
        "{\"a\":[1,2,{\"b\":null}],\"c\":true}",
        "{\"a\":nul}",
        "[]",
        "[,]",
        "[1,]",
        "[1 2]",
        "[1}",
        "{\"a\":1]",
        "[0,-0,01]",
        "[0,-0,10]",
        "[-]",
        "[-1]",
        "[1.]",
        "[1.5]",
        "[.5]",
        "[1e]",
        "[1e+]",
        "[1e+5]",
        "[1E-5 ]",
        "[1.5e7,2]",
        "[1.5e7.2]",
        "[1e5e5]",
        "[0e1]",
        "[00]",
        "[0.0]",
        "[+1]",
        "[1e999]",
        "\"\\u00e9\"",
        "\"\\u0000\"",
        "\"\\ud83d\\ude00\"",
        "\"\\ud83d\"",
        "\"\\ud83dx\"",
        "\"\\ud83d\\n\"",
        "\"\\ud83d\\ud83d\"",
        "\"\\ude00\"",
        "\"\\uD83D\\uDE00\\u12G4\"",
        "\"\\u12\"",
        "\"\\x\"",
        "\"\\/\\b\\f\\n\\r\\t\\\\\\\"\"",
        "\"\t\"",
        "true",
        "true ",
        "truex",
        "tru",
        " \t\r\n[ ] ",
        "[true,false,null]",
        "[truefalse]",
        "\x0b[]",
        "[[[[[[[[]]]]]]]]",
        "[]]",
        "[] []",
        "",
        "  ",
    };
    (void)state;
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) check_same(some[i], strlen(some[i]));
}

static void depth_and_digits(void **state)
{
    (void)state;
    struct buf b = {0};
    for (int depth = 63; depth <= 66; depth++) {
        buf_clear(&b);
        for (int i = 0; i < depth; i++) buf_str(&b, i % 3 ? "[" : "{\"k\":");
        buf_str(&b, "1");
        for (int i = depth - 1; i >= 0; i--) buf_char(&b, i % 3 ? ']' : '}');
        check_same(b.data, b.len);
        assert_int_equal(scan(b.data, b.len) == b.len, depth <= 64);
    }
    for (int digits = 999; digits <= 1001; digits++) {
        buf_clear(&b);
        buf_str(&b, "[0.");
        for (int i = 2; i < digits; i++) buf_char(&b, '7');
        buf_char(&b, ']');
        check_same(b.data, b.len);
        assert_int_equal(scan(b.data, b.len) == b.len, digits <= 1000);
    }
    buf_free(&b);
}

/* Pieces put together at random: mostly nearly JSON. */
static void random_texts(void **state)
{
    static const char *const pieces[] = {
        "{",  "}", "[",    "]",    ",",  ":",  "\"a\"",   "\"b\":", "1",  "-2",      "0",  ".5",
        "e3", " ", "true", "null", "\"", "\\", "\\u00e9", "{}",     "[]", "\"k\":[", "}]", "\xc3\xa9",
    };
    (void)state;
    uint32_t x = 1;
    char text[256];
    for (int round = 0; round < 100000; round++) {
        size_t n = 0;
        x = x * 1664525u + 1013904223u;
        int count = 1 + (int)(x >> 28);
        for (int i = 0; i < count; i++) {
            x = x * 1664525u + 1013904223u;
            const char *piece = pieces[(x >> 16) % (sizeof pieces / sizeof *pieces)];
            memcpy(text + n, piece, strlen(piece));
            n += strlen(piece);
        }
        check_same(text, n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings_of_bytes),
        cmocka_unit_test(texts),
        cmocka_unit_test(depth_and_digits),
        cmocka_unit_test(random_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
