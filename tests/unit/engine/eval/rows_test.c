/* Rows of evaluations: what each kind becomes, and what an error says of a bad one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/eval/evaluation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[] = "/tmp/tandem-rows-XXXXXX";

static int read_named(const char *name, const char *text, size_t limit, struct evaluation_rows *rows, struct err *e)
{
    char path[64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(file_write_sync(path, text, strlen(text), e), 0);
    int rc = evaluation_rows_read(rows, path, NULL, limit, e);
    unlink(path);
    return rc;
}

static void read_good(const char *name, const char *text, size_t limit, struct evaluation_rows *rows)
{
    struct err e = {0};
    if (read_named(name, text, limit, rows, &e)) fail_msg("%s", e.msg);
}

static void test_kinds(void **state)
{
    (void)state;
    struct evaluation_rows r;
    read_good("a.jsonl", "\n{\"text\": \"one\", \"id\": 7}\n\n\"two\"\n{\"text\": \"three\"}\n", 2, &r);
    assert_int_equal(r.kind, EVALUATION_TEXT);
    assert_int_equal(r.n, 2);
    assert_int_equal(r.v[1].line, 4);
    assert_string_equal(r.v[1].prompt, "two");
    assert_int_equal(r.v[0].id->valueint, 7);
    evaluation_rows_free(&r);

    read_good("a.txt", "[plain]\n\n{text}", 0, &r);
    assert_int_equal(r.n, 1);
    assert_string_equal(r.v[0].prompt, "[plain]\n\n{text}");
    evaluation_rows_free(&r);

    read_good(
        "a.json",
        " [{\"noise\": [[1], {\"a\": \"q\"}], \"question\": \"q\", \"choices\": [\"B\", \"A\"], \"answer\": \"A\"},"
        "{\"context\": \"\", \"choices\": [\"x\", \"y\"], \"gold\": 1},"
        "{\"prompt\": \"q\", \"choices\": [\"x\", \"y\"], \"label\": \"b\"}]",
        0, &r);
    assert_int_equal(r.kind, EVALUATION_CHOICE);
    for (size_t i = 0; i < 3; i++) assert_int_equal(r.v[i].answer, 1);
    assert_int_equal(cJSON_GetArraySize(r.v[0].json), 2); /* nothing else is kept */
    assert_string_equal(r.v[0].prompt, "q");
    assert_string_equal(r.v[0].list[1], "A");
    evaluation_rows_free(&r);

    read_good("a.jsonl",
              "{\"prompt\": \"p\", \"reference\": \"\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], "
              "\"references\": [\"a\", \"b\"]}",
              0, &r);
    assert_int_equal(r.kind, EVALUATION_GENERATION);
    assert_null(r.v[1].prompt);
    assert_int_equal(r.v[1].n, 2);
    assert_string_equal(r.v[0].list[0], "");
    evaluation_rows_free(&r);
}

static void test_bad(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text, *says;
    } cases[] = {
        {"a.jsonl", "", "is empty"},
        {"a.jsonl", "\n \n", "has no rows"},
        {"a.jsonl", "{\"text\": \"a\"}\n{\"text\":", "a.jsonl:2: malformed JSON"},
        {"a.jsonl", "{\"text\": \"a\"}\n{\"text\": 3}", "a.jsonl:2: text: expected a string"},
        {"a.jsonl", "{\"text\": \"\"}", ":1: text: is empty"},
        {"a.jsonl", "{\"text\": \"\\u0000\"}", "NUL"},
        {"a.jsonl", "{\"text\": \"\xff\"}", "not UTF-8 at byte"},
        {"a.txt", "abc\xff", "a.txt: not UTF-8"},
        {"a.jsonl", "{\"name\": 1, \"x\": 2}", "an object with the fields name, x"},
        {"a.jsonl", "7", "a number"},
        {"a.jsonl", "{\"prompt\": \"p\"}", "not a row to evaluate"},
        {"a.jsonl", "{\"text\": \"a\"}\n{\"prompt\": \"p\", \"answer\": \"b\"}",
         ":2: a row with references among rows with texts"},
        {"a.json", "[{\"text\": \"a\"}, {\"text\": []}]", "a.json: row 2: text: expected a string"},
        {"a.jsonl", "{\"choices\": [\"a\", \"b\"], \"answer\": 0}", "prompt: missing"},
        {"a.jsonl", "{\"question\": 1, \"choices\": [\"a\", \"b\"], \"answer\": 0}", "question: expected a string"},
        {"a.jsonl", "{\"prompt\": \"\", \"choices\": \"ab\", \"answer\": 0}", "choices: expected a list of strings"},
        {"a.jsonl", "{\"prompt\": \"\", \"choices\": [\"a\"], \"answer\": 0}", "choices: has 1 entries; 2 to 64"},
        {"a.jsonl", "{\"prompt\": \"\", \"choices\": [\"a\", 1], \"answer\": 0}", "choices[1]: expected a string"},
        {"a.jsonl", "{\"prompt\": \"\", \"choices\": [\"a\", \"\"], \"answer\": 0}", "choices[1]: is empty"},
        {"a.jsonl", "{\"prompt\": \"\", \"choices\": [\"a\", \"b\"]}", "answer: missing"},
        {"a.jsonl", "{\"prompt\": \"\", \"choices\": [\"a\", \"b\"], \"answer\": 2}",
         "answer: names none of the 2 choices"},
        {"a.jsonl", "{\"prompt\": \"\", \"choices\": [\"a\", \"b\"], \"answer\": -1}", "answer: names none"},
        {"a.jsonl", "{\"prompt\": \"\", \"choices\": [\"a\", \"b\"], \"answer\": 0.5}", "answer: names none"},
        {"a.jsonl", "{\"prompt\": \"\", \"choices\": [\"x\", \"y\"], \"gold\": \"C\"}", "gold: names none"},
        {"a.jsonl", "{\"prompt\": \"\", \"choices\": [\"x\", \"y\"], \"gold\": [0]}", "gold: names none"},
        {"a.jsonl", "{\"prompt\": \"p\", \"reference\": 3}", "reference: expected a string or a list of strings"},
        {"a.jsonl", "{\"prompt\": \"p\", \"references\": []}", "references: has 0 entries"},
        {"a.jsonl", "{\"prompt\": \"p\", \"references\": [null]}", "references[0]: expected a string"},
        {"a.jsonl", "{\"messages\": [], \"reference\": \"a\"}", "messages: expected a list of 1"},
        {"a.jsonl", "{\"messages\": [{\"role\": 1}], \"reference\": \"a\"}", "messages[0].role: expected a string"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct evaluation_rows r;
        struct err e = {0};
        assert_true(read_named(cases[i].name, cases[i].text, 0, &r, &e) < 0);
        if (!strstr(e.msg, cases[i].says)) fail_msg("'%s' does not say '%s'", e.msg, cases[i].says);
        evaluation_rows_free(&r);
    }
}

static void test_large(void **state)
{
    (void)state;
    struct evaluation_rows r;
    struct err e = {0};
    char *text = mem_zalloc(EVALUATION_ROW_BYTES + 64);
    memset(text, 'a', EVALUATION_ROW_BYTES + 1);
    assert_true(read_named("a.jsonl", text, 0, &r, &e) < 0);
    assert_non_null(strstr(e.msg, ":1: a row of more than"));
    evaluation_rows_free(&r);
    int n = sprintf(text, "{\"prompt\": \"p\", \"reference\": \"");
    memset(text + n, 'a', EVALUATION_REFERENCE_BYTES + 1);
    strcpy(text + n + EVALUATION_REFERENCE_BYTES + 1, "\"}");
    assert_true(read_named("a.jsonl", text, 0, &r, &e) < 0);
    assert_non_null(strstr(e.msg, "reference: 65537 bytes"));
    evaluation_rows_free(&r);
    free(text);
    assert_int_equal(evaluation_rows_read(&r, "/no/such.jsonl", NULL, 0, &e), ERR_NOT_FOUND);
    evaluation_rows_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kinds), cmocka_unit_test(test_bad),
                                       cmocka_unit_test(test_large)};
    if (!mkdtemp(dir)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(dir);
    return failed;
}
