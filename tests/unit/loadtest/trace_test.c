/* Traces: the known formats, and lines that nobody should have written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/rng.h"
#include "loadtest/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int parse(struct trace *t, const char *text, struct err *e)
{
    /* in memory of exactly its size, so that a sanitizer sees a byte too far */
    size_t n = strlen(text);
    char *copy = malloc(n ? n : 1);
    memcpy(copy, text, n);
    *e = (struct err){0};
    int code = trace_parse(t, copy, n, e);
    free(copy);
    return code;
}

static void check_rows(const char *text, size_t n, const double (*rows)[3])
{
    struct trace t;
    struct err e;
    if (parse(&t, text, &e)) fail_msg("%s: %s", text, e.msg);
    assert_int_equal(t.n, n);
    for (size_t i = 0; i < n; i++) {
        if (fabs(t.rows[i].at - rows[i][0]) > 1e-5) fail_msg("%s: row %zu at %.9f", text, i, t.rows[i].at);
        assert_int_equal(t.rows[i].prompt, (int)rows[i][1]);
        assert_int_equal(t.rows[i].output, (int)rows[i][2]);
    }
    trace_free(&t);
}

static void known_formats(void **state)
{
    (void)state;
    check_rows("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
               "2023-11-16 18:15:50.9951690,396,109\n2023-11-17 00:00:00,1,2\n",
               3, (const double[][3]){{0, 374, 44}, {4.314579, 396, 109}, {20653.31941, 1, 2}});
    check_rows("TIMESTAMP,ContextTokens,GeneratedTokens\r\n2024-02-28 23:59:59.5+00:00,10,5\r\n2024-03-01 "
               "00:00:00+01:00,7,6\r\n",
               2, (const double[][3]){{0, 10, 5}, {82800.5, 7, 6}}); /* over the leap day, in another zone */
    check_rows(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
        "45.5,GPT-4,1087,230,1317,Conversation log",
        2, (const double[][3]){{0, 472, 18}, {40.5, 1087, 230}});
    check_rows("0.5,10,20\n\n0.25,30,40\n", 2,
               (const double[][3]){{0, 30, 40}, {0.25, 10, 20}}); /* no names; out of order */
    check_rows("output_tokens,\"prompt-tokens\", time \n3,4,2023-11-16T00:00:00Z\n", 1, (const double[][3]){{0, 4, 3}});
    check_rows("1,0,0", 1, (const double[][3]){{0, 1, 1}});
}

static void hostile_lines_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "\n\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n",
        "a,b,c\n",
        "1,2\n",
        "1,2,-3\n",
        "1,2,1e9\n",
        "1,nan,3\n",
        "inf,2,3\n",
        "1,2,0x10\n",
        "1,2,3z\n",
        "1,,3\n",
        ",,\n",
        "2023-13-01 00:00:00,1,1\n",
        "2023-00-01 00:00:00,1,1\n",
        "2023-01-32 00:00:00,1,1\n",
        "2023-01-01 24:00:00,1,1\n",
        "2023-01-01 00:60:00,1,1\n",
        "2023-1-1 0:0:0,1,1\n",
        "2023-01-01 00:00:00+,1,1\n",
        "2023-01-01 00:00:00+01:0,1,1\n",
        "2023-01-01 00:00:00 x,1,1\n",
        "2023-01-01,1,1\n",
        "TIMESTAMP,ContextTokens\n1,2\n",
        "1e300,1,1\n",
        "\"\",\"\",\"\"\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct trace t;
        struct err e;
        if (parse(&t, bad[i], &e) != ERR_INVALID) fail_msg("taken: %s", bad[i]);
        assert_true(e.msg[0] != 0 && t.rows == NULL && t.n == 0);
    }
    struct trace t;
    struct err e;
    assert_int_equal(parse(&t, "1,2,3\n\n4,x,6\n", &e), ERR_INVALID);
    assert_non_null(strstr(e.msg, "line 3"));
}

static void random_bytes_do_no_harm(void **state)
{
    (void)state;
    static const char *const pieces[] = {"1",         ",",
                                         "\n",        "2023-11-16 18:15:46.68",
                                         "TIMESTAMP", "ContextTokens",
                                         "\"",        "-",
                                         ":",         ".",
                                         "e5",        "+01:00",
                                         "T",         "99999999999999999999",
                                         " ",         "\r",
                                         "\xff",      "GeneratedTokens"};
    for (uint64_t round = 0; round < 20000; round++) {
        char text[512];
        size_t n = 0;
        for (uint64_t i = 0; i < 16; i++) {
            const char *p = pieces[rng_at(round, i) % (sizeof pieces / sizeof *pieces)];
            memcpy(text + n, p, strlen(p));
            n += strlen(p);
        }
        text[n] = 0;
        struct trace t;
        struct err e;
        if (!parse(&t, text, &e))
            for (size_t i = 0; i < t.n; i++)
                assert_true(t.rows[i].prompt >= 1 && t.rows[i].output >= 1 && t.rows[i].at >= 0);
        trace_free(&t);
    }
}

static void a_line_of_commas(void **state)
{
    (void)state;
    char text[10001];
    memset(text, ',', 10000);
    text[10000] = 0;
    struct trace t;
    struct err e;
    assert_int_equal(parse(&t, text, &e), ERR_INVALID);
    assert_int_equal(trace_read(&t, "/no/such/file", &e), ERR_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_formats),
        cmocka_unit_test(hostile_lines_are_refused),
        cmocka_unit_test(random_bytes_do_no_harm),
        cmocka_unit_test(a_line_of_commas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
