/* Files as a command line names them: patterns, weights, and names that look like them. */
#include "engine/data/sources.h"

#include "tests/unit/engine/data/rows.h"

#include <sys/stat.h>

static struct dataset_sources s;

static const char *added(const char *name)
{
    struct buf path = {0};
    static struct err e;
    e = (struct err){0};
    buf_printf(&path, "%s/%s", scratch, name);
    dataset_sources_add(&s, path.data, &e);
    buf_free(&path);
    return e.msg;
}

static const char *name_at(int i)
{
    return strrchr(s.v[i].path, '/') + 1;
}

static void test_names(void **state)
{
    static const char *const names[] = {"b.jsonl", "a.jsonl", "B.jsonl", "c:2.jsonl", "d.jsonl:7", "e[1].txt"};
    enum { N = sizeof names / sizeof *names };
    char *path[N], folder[100];
    (void)state;
    for (int i = 0; i < N; i++) path[i] = file_of(names[i], "x", 1);
    snprintf(folder, sizeof folder, "%s/f.jsonl", scratch);
    assert_int_equal(mkdir(folder, 0700), 0);

    assert_string_equal(added("?.jsonl"), ""); /* sorted by bytes, no directory */
    assert_int_equal(s.n, 3);
    assert_string_equal(name_at(0), "B.jsonl");
    assert_string_equal(name_at(1), "a.jsonl");
    assert_string_equal(name_at(2), "b.jsonl");
    assert_string_equal(added("c:2.jsonl"), "");
    assert_string_equal(added("d.jsonl:7"), ""); /* a file of that name */
    assert_string_equal(added("e[1].txt"), "");
    assert_string_equal(name_at(5), "e[1].txt");
    assert_int_equal(s.sets, 4);
    assert_true(s.v[2].set == 0 && s.v[5].set == 3 && s.v[4].weight == 0);
    assert_non_null(strstr(added("a.jsonl:0.5"), "either all have one, or none"));
    assert_non_null(strstr(added("nothing*"), "no file matches"));
    assert_string_equal(added("missing.jsonl"), ""); /* opening it says that */
    dataset_sources_free(&s);

    assert_string_equal(added("[ab].jsonl:0.25"), "");
    assert_string_equal(added("c:2.jsonl:3e2"), "");
    assert_int_equal(s.n, 3);
    assert_true(s.v[1].weight == 0.25 && s.v[1].set == 0 && s.v[2].weight == 300 && s.v[2].set == 1);
    assert_string_equal(name_at(2), "c:2.jsonl");
    assert_non_null(strstr(added("a.jsonl"), "either all have one, or none"));
    assert_non_null(strstr(added("a.jsonl:0"), "the weight must be above 0"));
    assert_non_null(strstr(added("a.jsonl:-1"), "the weight must be above 0"));
    assert_non_null(strstr(added("a.jsonl:1e99"), "the weight must be above 0"));
    dataset_sources_free(&s);

    rmdir(folder);
    for (int i = 0; i < N; i++) {
        unlink(path[i]);
        free(path[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names)};
    (void)fixtures;
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
