/* The rows of evaluations: what is claimed, and what ends without running. */
#include "server/jobs/evaluation_db.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

struct world {
    char dir[40];
    struct db db;
};

static int open_world(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    struct err e = {0};
    if (!w) return -1;
    snprintf(w->dir, sizeof w->dir, "/tmp/tandem-eval-db-XXXXXX");
    w->db.lock_fd = w->db.dir_fd = -1;
    *state = w;
    return !mkdtemp(w->dir) || db_open(&w->db, w->dir, &e);
}

static int close_world(void **state)
{
    struct world *w = *state;
    db_close(&w->db);
    data_remove(w->dir);
    free(w);
    return 0;
}

/* One that was cancelled while it ran, and whose daemon was killed before it ended. */
static void nothing_is_left_of_one_that_does_not_run(void **state)
{
    struct world *w = *state;
    struct evaluation_claimed got = {0};
    struct evaluation_key key;
    bool runs = false;
    assert_true(evaluation_insert(&w->db, &(struct evaluation_new){.id = "eval-1", .spec = "{}"}) > 0);
    assert_true(evaluation_claim(&w->db, &got));
    assert_string_equal(got.id, "eval-1");
    free(got.spec);
    free(got.filename);
    assert_true(evaluation_find(&w->db, "eval-1", &key));
    assert_true(evaluation_cancel(&w->db, &key, &runs) && runs);
    assert_false(evaluation_claim(&w->db, &got));
    assert_null(got.spec);
    assert_null(got.filename);
    assert_true(evaluation_find(&w->db, "eval-1", &key));
    assert_string_equal(key.status, "cancelled");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_is_left_of_one_that_does_not_run, open_world, close_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
