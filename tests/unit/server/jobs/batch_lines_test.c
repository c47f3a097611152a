/* The lines of a batch's input: which are accepted, what is said of others; the lines that an output answers. */
#include "server/jobs/batch_lines.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define LINE(id)                                                                                                       \
    "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"a\"}}\n"
#define ANSWER(id, status)                                                                                             \
    "{\"id\":\"batch_req_0\",\"custom_id\":\"" id "\",\"response\":{\"status_code\":" status                           \
    ",\"request_id\":\"r\",\"body\":{}},\"error\":null}\n"

static char input[] = "/tmp/tandem-batch-lines-XXXXXX", output[sizeof input + 4];

static int make_names(void **state)
{
    (void)state;
    int fd = mkstemp(input);
    if (fd < 0) return -1;
    close(fd);
    snprintf(output, sizeof output, "%s.out", input);
    return 0;
}

static int remove_files(void **state)
{
    (void)state;
    unlink(output);
    return unlink(input);
}

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

static int open_text(struct batch_lines *l, const char *text, const struct batch_limits *lim)
{
    struct err e = {0};
    write_file(input, text);
    return batch_lines_open(l, input, lim, &e);
}

static const struct batch_limits any = {.endpoint = -1, .lines = 100, .line_bytes = 1000};

static void test_lines(void **state)
{
    struct batch_lines l;
    struct buf body = {0};
    struct err e = {0};
    (void)state;
    assert_int_equal(open_text(&l,
                               LINE("b") "\r\n  \n" LINE(
                                   "a") "{\"custom_id\":\"\\u00e9\",\"url\":\"/v1/embeddings\","
                                        "\"method\":\"POST\",\"body\":{\"n\":0.125,\"big\":18446744073709551615}}",
                               &any),
                     0);
    assert_int_equal(l.n_wrong, 0);
    assert_int_equal(l.n, 3);
    assert_string_equal(batch_custom_id(&l, 0), "b");
    assert_string_equal(batch_custom_id(&l, 2), "\xc3\xa9");
    assert_int_equal(l.v[1].number, 4);
    assert_string_equal(batch_endpoints[l.v[0].endpoint].path, "/v1/completions");
    assert_string_equal(batch_endpoints[l.v[2].endpoint].path, "/v1/embeddings");
    assert_int_equal(batch_line_body(&l, 2, &body, &e), 0);
    assert_string_equal(body.data, "{\"n\":0.125,\"big\":18446744073709551615}"); /* numbers as they were written */
    buf_free(&body);
    batch_lines_free(&l);
}

static void test_wrong(void **state)
{
    static const struct {
        const char *text, *first;
    } rows[] = {
        {"", "the file has no lines"},
        {"\n\n", "the file has no lines"},
        {LINE("a") "nothing\n", "line 2: malformed JSON"},
        {LINE("a") LINE("b") LINE("a"), "line 3: custom_id: a is that of line 1, too"},
        {LINE(""), "line 1: custom_id: the text is empty"},
        {"{\"custom_id\":\"a\",\"method\":\"PUT\",\"url\":\"/v1/completions\",\"body\":{}}",
         "line 1: method: must be POST"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/\",\"body\":{}}", "line 1: url: / cannot be asked"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":[]}", "line 1: body: "},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/"
         "completions\",\"body\":{\"stream\":false,\"stream\":true}}",
         "line 1: body.stream: "},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct batch_lines l;
        assert_int_equal(open_text(&l, rows[i].text, &any), 0);
        assert_int_equal(l.n_wrong, 1);
        assert_memory_equal(l.first_wrong, rows[i].first, strlen(rows[i].first));
        assert_non_null(l.wrong.data);
        batch_lines_free(&l);
    }
}

static void test_limits(void **state)
{
    struct batch_lines l;
    (void)state;
    assert_int_equal(open_text(&l, LINE("a") LINE("b"), &(struct batch_limits){-1, 1, 1000}), 0);
    assert_string_equal(l.first_wrong, "line 2: a batch has at most 1 lines");
    batch_lines_free(&l);
    assert_int_equal(open_text(&l, LINE("a"), &(struct batch_limits){-1, 1, 20}), 0);
    assert_memory_equal(l.first_wrong, "line 1: the line has", 20);
    batch_lines_free(&l);
    int chat = batch_endpoint_find("/v1/chat/completions");
    assert_true(chat >= 0);
    assert_int_equal(open_text(&l, LINE("a"), &(struct batch_limits){chat, 1, 1000}), 0);
    assert_memory_equal(l.first_wrong, "line 1: url: must be the batch's endpoint", 41);
    batch_lines_free(&l);
}

/* No memory now is no fault of the file. */
static void test_no_memory(void **state)
{
    struct batch_lines l;
    struct reservation all = {0};
    (void)state;
    reservation_budget(1 << 20);
    assert_true(reserve(&all, (1 << 20) - 100, "everything", NULL));
    assert_int_equal(open_text(&l, LINE("a"), &any), ERR_FULL);
    batch_lines_free(&l);
    reservation_free(&all);
    assert_int_equal(open_text(&l, LINE("a"), &any), 0);
    assert_int_equal(l.n_wrong, 0);
    batch_lines_free(&l);
    reservation_budget(0);
}

static void test_marks(void **state)
{
    static const struct {
        const char *text, *error;
    } wrong[] = {
        {ANSWER("a", "200") ANSWER("a", "200"), "line 2: custom_id: a is answered twice"},
        {ANSWER("x", "200"), "line 1: custom_id: the input has no line with x"},
        {"{\"custom_id\":\"a\"}\n", "line 1: response: the field is missing"},
        {"[]\n", "line 1: expected an object"},
    };
    struct batch_lines l;
    struct err e = {0};
    int good = 0, bad = 0;
    (void)state;
    static const char text[] = ANSWER("c", "200") ANSWER("a", "404");
    static const char expired[] = "{\"custom_id\":\"d\",\"response\":null,\"error\":{\"code\":\"batch_expired\"}}\n";
    assert_int_equal(open_text(&l, LINE("a") LINE("b") LINE("c") LINE("d"), &any), 0);
    write_file(output, text);
    assert_int_equal(batch_lines_mark(&l, output, sizeof text - 1, &good, &bad, &e), 0);
    assert_true(l.v[0].done && !l.v[1].done && l.v[2].done && good == 1 && bad == 1);
    write_file(output, expired);
    assert_int_equal(batch_lines_mark(&l, output, sizeof expired - 1, &good, &bad, &e), 0);
    assert_true(l.v[3].done && good == 1 && bad == 2);
    write_file(output, ANSWER("b", "200"));
    assert_int_equal(batch_lines_mark(&l, output, 0, &good, &bad, &e), 0); /* what is not committed does not count */
    assert_false(l.v[1].done);
    assert_int_equal(batch_lines_mark(&l, output, 10000, &good, &bad, &e), ERR_INVALID); /* it is shorter */
    batch_lines_free(&l);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        e.code = 0;
        assert_int_equal(open_text(&l, LINE("a"), &any), 0);
        write_file(output, wrong[i].text);
        assert_int_equal(batch_lines_mark(&l, output, strlen(wrong[i].text), &good, &bad, &e), ERR_INVALID);
        assert_non_null(strstr(e.msg, wrong[i].error));
        batch_lines_free(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),     cmocka_unit_test(test_wrong), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_no_memory), cmocka_unit_test(test_marks),
    };
    return cmocka_run_group_tests(tests, make_names, remove_files);
}
