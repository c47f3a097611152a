/* The rows of batches: what counts as an attempt, and what is published of a batch that ends. */
#include "server/jobs/batch_db.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct world {
    char dir[40];
    struct db db;
    struct batch_row row;
};

static int open_world(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    struct err e = {0};
    if (!w) return -1;
    snprintf(w->dir, sizeof w->dir, "/tmp/tandem-batch-db-XXXXXX");
    w->db.lock_fd = w->db.dir_fd = -1;
    *state = w;
    if (!mkdtemp(w->dir) || db_open(&w->db, w->dir, &e)) return -1;
    return data_mkdir(w->dir, "files", NULL, &e);
}

static int close_world(void **state)
{
    struct world *w = *state;
    db_close(&w->db);
    data_remove(w->dir);
    free(w);
    return 0;
}

static const struct batch_clients none = {0};

static int64_t new_batch_of(struct world *w, const char *client)
{
    const struct batch_new b = {
        .client = client, .endpoint = "/v1/completions", .input = "file-in", .window = "1d", .seconds = 86400};
    int64_t seq = batch_insert(&w->db, &b);
    assert_true(seq > 0);
    return seq;
}

static int64_t new_batch(struct world *w)
{
    return new_batch_of(w, "");
}

/* A batch of three lines that is taken up to run. */
static int64_t running(struct world *w)
{
    int64_t seq = new_batch(w);
    batch_validated(&w->db, seq, 3, NULL);
    assert_true(batch_next(&w->db, false, &none, &w->row));
    assert_int_equal(w->row.seq, seq);
    return seq;
}

static void write_file(const struct world *w, const char *id, const char *text)
{
    char *path = data_path(w->dir, "files", id);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
    free(path);
}

static void check_text(struct world *w, int64_t seq, const char *part, bool there)
{
    struct buf out = {0};
    batch_put(&w->db, &out, seq);
    if (!strstr(out.data, part) == there) print_error("%s\n", out.data);
    assert_int_equal(strstr(out.data, part) != NULL, there);
    buf_free(&out);
}

static void check(struct world *w, int64_t seq, const char *part)
{
    check_text(w, seq, part, true);
}

static void test_five_ends_give_up(void **state)
{
    struct world *w = *state;
    int64_t seq = running(w);
    for (int i = 1; i < 5; i++) {
        check(w, seq, "\"status\":\"in_progress\"");
        assert_true(batch_next(&w->db, false, &none, &w->row));
    }
    assert_false(batch_next(&w->db, false, &none, &w->row));
    check(w, seq, "\"status\":\"failed\"");
    check(w, seq, "\"code\":\"crashed\"");
}

/* Put back, a batch is as it was before it was taken up: earlier ends of the daemon still count. */
static void test_put_back(void **state)
{
    struct world *w = *state;
    int64_t seq = new_batch(w);
    for (int i = 0; i < 20; i++) {
        assert_true(batch_next(&w->db, true, &none, &w->row));
        batch_put_back(&w->db, seq);
    }
    for (int i = 0; i < 4; i++) assert_true(batch_next(&w->db, true, &none, &w->row));
    for (int i = 0; i < 20; i++) {
        assert_true(batch_next(&w->db, true, &none, &w->row));
        batch_put_back(&w->db, seq);
    }
    check(w, seq, "\"status\":\"validating\"");
    assert_true(batch_next(&w->db, true, &none, &w->row));
    assert_false(batch_next(&w->db, true, &none, &w->row));
    check(w, seq, "\"code\":\"crashed\"");
}

static void test_answers_begin_the_count_anew(void **state)
{
    struct world *w = *state;
    int64_t seq = running(w);
    for (int i = 0; i < 20; i++) {
        batch_advance(&w->db, seq, &(struct batch_progress){3, 1, 0, 4, 0});
        batch_put_back(&w->db, seq);
        assert_true(batch_next(&w->db, false, &none, &w->row));
    }
    check(w, seq, "\"status\":\"in_progress\"");
}

static void test_all_lines_answered(void **state)
{
    struct world *w = *state;
    int64_t seq = running(w);
    write_file(w, w->row.output, "one\ntorn");
    batch_advance(&w->db, seq, &(struct batch_progress){3, 1, 0, 4, 0});
    check(w, seq, "\"finalizing_at\":null");
    write_file(w, w->row.errors, "two\nthree\n");
    batch_advance(&w->db, seq, &(struct batch_progress){3, 1, 2, 4, 10});
    check(w, seq, "\"status\":\"finalizing\"");
    check_text(w, seq, "\"finalizing_at\":null", false);
    batch_finish(&w->db, seq, BATCH_COMPLETED, NULL);
    check(w, seq, "\"status\":\"completed\"");
    check(w, seq, "\"request_counts\":{\"total\":3,\"completed\":1,\"failed\":2}");
    assert_int_equal(db_number(&w->db, 0, "SELECT sum(bytes) FROM files", ""), 14);
    assert_false(batch_next(&w->db, false, &none, &w->row));
}

/* Whatever the end, what was committed is published. */
static void test_ends_keep_the_answers(void **state)
{
    static const enum batch_end ends[] = {BATCH_FAILED, BATCH_CRASHED, BATCH_CANCELLED, BATCH_EXPIRED};
    struct world *w = *state;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        int64_t seq = running(w);
        write_file(w, w->row.output, "one\ntwo\n");
        batch_advance(&w->db, seq, &(struct batch_progress){3, 1, 0, 4, 0});
        batch_finish(&w->db, seq, ends[i], "why");
        check(w, seq, w->row.output);
        check(w, seq, "\"completed\":1,\"failed\":0");
        if (ends[i] == BATCH_FAILED || ends[i] == BATCH_CRASHED) check(w, seq, "\"message\":\"why\"");
        assert_int_equal(db_number(&w->db, 0, "SELECT bytes FROM files WHERE id = ?", "t", w->row.output), 4);
    }
}

/* A file with less than was committed is not filled up with zeros, and its answers are not counted. */
static void test_files_that_are_shorter(void **state)
{
    static const enum batch_end ends[] = {BATCH_COMPLETED, BATCH_CANCELLED, BATCH_FAILED};
    struct world *w = *state;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        for (int gone = 0; gone < 2; gone++) {
            int64_t seq = running(w);
            if (!gone) write_file(w, w->row.output, "on");
            write_file(w, w->row.errors, "two\nthree\n");
            batch_advance(&w->db, seq, &(struct batch_progress){3, 1, 2, 4, 10});
            batch_finish(&w->db, seq, ends[i], "why");
            assert_int_equal(w->db.e.code, 0);
            check(w, seq, "\"status\":\"failed\"");
            check(w, seq, "\"output_file_id\":null");
            check(w, seq, w->row.errors);
            check(w, seq, "\"completed\":0,\"failed\":2");
            if (ends[i] != BATCH_FAILED)
                check(w, seq, gone ? ": No such file or directory" : ": has 2 bytes, and 4 were written");
            check_text(w, seq, w->dir, false);
        }
    }
}

/* The oldest of a client that has none running. */
static void test_one_of_each_client(void **state)
{
    struct world *w = *state;
    const char *const clients[] = {"a", "a", "", "b", ""};
    struct batch_clients but = {0};
    for (int i = 0; i < 5; i++) batch_validated(&w->db, new_batch_of(w, clients[i]), 3, NULL);
    for (int i = 0; i < 3; i++) {
        static const int64_t want[] = {1, 3, 4};
        assert_true(batch_next(&w->db, false, &but, &w->row));
        assert_int_equal(w->row.seq, want[i]);
        snprintf(but.name[but.n++], BATCH_CLIENT, "%s", w->row.client);
    }
    assert_false(batch_next(&w->db, false, &but, &w->row));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_five_ends_give_up, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_put_back, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_answers_begin_the_count_anew, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_all_lines_answered, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_ends_keep_the_answers, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_files_that_are_shorter, open_world, close_world),
        cmocka_unit_test_setup_teardown(test_one_of_each_client, open_world, close_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
