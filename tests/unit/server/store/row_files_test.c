/* server/store/row_files.c: rows are appended whole or not at all, what a crash tore is cut off, and a file that a job
 * can name never changes again. */
#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "server/store/data_dir.h"
#include "server/store/row_files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { PLENTY = 1 << 20 };

static char *dir;

static int make_dir(void **state)
{
    static char name[] = "/tmp/tandem-rows-XXXXXX";
    (void)state;
    strcpy(name, "/tmp/tandem-rows-XXXXXX");
    dir = mkdtemp(name);
    return dir ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    data_remove(dir);
    return 0;
}

static struct row_file_line line(const char *kind, const char *text)
{
    return (struct row_file_line){.kind = kind, .text = text, .len = strlen(text)};
}

static int add(const char *set, const char *kind, const char *text)
{
    struct err e = {0};
    struct row_file_line l = line(kind, text);
    return row_files_append(dir, "demo", set, &l, 1, PLENTY, &e);
}

/* A file's content; "" where there is none. */
static const char *content(const char *name)
{
    static char out[256];
    char *data = NULL, *path = data_path(dir, "feedback/demo", name);
    size_t n = 0;
    *out = 0;
    if (file_read(path, sizeof out - 1, &data, &n, NULL) == 0) memcpy(out, data, n + 1);
    free(data);
    free(path);
    return out;
}

static void test_appends(void **state)
{
    struct err e = {0};
    (void)state;
    const struct row_file_line two[] = {line("kto", "{\"a\":1}\n"), line("sft", "{\"b\":1}\n")};
    assert_int_equal(row_files_append(dir, "demo", "default", two, 2, PLENTY, &e), 0);
    assert_int_equal(add("default", "kto", "{\"a\":2}\n"), 0);
    assert_string_equal(content("default/kto.open"), "{\"a\":1}\n{\"a\":2}\n");
    assert_string_equal(content("default/sft.open"), "{\"b\":1}\n");
}

static void test_torn(void **state)
{
    (void)state;
    assert_int_equal(add("default", "kto", "{\"a\":1}\n"), 0);
    char *path = data_path(dir, "feedback/demo/default", "kto.open");
    FILE *f = fopen(path, "ab");
    for (int i = 0; i < 70000; i++) fputc('x', f); /* longer than a block */
    fclose(f);
    assert_int_equal(add("default", "kto", "{\"a\":2}\n"), 0);
    assert_string_equal(content("default/kto.open"), "{\"a\":1}\n{\"a\":2}\n");
    f = fopen(path, "wb"); /* nothing but a torn row */
    fputs("{\"a\":", f);
    fclose(f);
    assert_int_equal(row_files_seal(dir, "feedback/demo/default/kto-*.jsonl", &(struct err){0}), 0);
    assert_string_equal(content("default/kto-000001.jsonl"), "");
    assert_int_equal(add("default", "kto", "{\"a\":3}\n"), 0);
    assert_string_equal(content("default/kto.open"), "{\"a\":3}\n");
    free(path);
}

static void test_sealed(void **state)
{
    struct err e = {0};
    char **path = NULL;
    size_t n = 0;
    (void)state;
    assert_int_equal(add("default", "kto", "1\n"), 0);
    assert_int_equal(add("default", "sft", "2\n"), 0);
    assert_int_equal(add("other", "kto", "3\n"), 0);
    /* a file that still grows cannot be named */
    for (int i = 0; i < 2; i++) {
        const char *growing = i ? "feedback/demo/default/*" : "feedback/demo/default/kto.open";
        assert_int_not_equal(data_find_all(dir, growing, 8, &path, &n, &e), 0);
        free(path);
    }
    e = (struct err){0};
    for (int i = 0; i < 2; i++) /* again: nothing is left to be sealed */
        assert_int_equal(row_files_seal(dir, "feedback/demo/default/kto-*.jsonl", &e), 0);
    assert_string_equal(content("default/kto-000001.jsonl"), "1\n");
    assert_string_equal(content("default/sft-000001.jsonl"), "2\n");
    assert_string_equal(content("default/kto-000002.jsonl"), "");
    assert_string_equal(content("other/kto.open"), "3\n");
    assert_int_equal(add("default", "kto", "4\n"), 0);
    assert_string_equal(content("default/kto-000001.jsonl"), "1\n");
    assert_int_equal(row_files_seal(dir, "feedback/*/*/kto-*.jsonl", &e), 0);
    assert_string_equal(content("default/kto-000002.jsonl"), "4\n");
    assert_string_equal(content("other/kto-000001.jsonl"), "3\n");
    assert_int_equal(data_find_all(dir, "feedback/demo/default/kto-*.jsonl", 8, &path, &n, &e), 0);
    assert_int_equal(n, 2);
    assert_string_equal(path[0], "feedback/demo/default/kto-000001.jsonl");
    for (size_t i = 0; i < n; i++) free(path[i]);
    free(path);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(row_files_seal(dir, (const char *[]){"feedback/", "rows.jsonl", "feedbackx/y"}[i], &e), 0);
}

/* Where a folder cannot be read, no file gets a name that another one has. */
static void test_no_handles(void **state)
{
    struct rlimit was, few;
    (void)state;
    assert_int_equal(add("default", "kto", "1\n"), 0);
    assert_int_equal(row_files_seal(dir, "feedback/demo/default/x", &(struct err){0}), 0);
    assert_int_equal(add("default", "kto", "2\n"), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    int next = dup(0), failed = 0;
    close(next);
    for (int more = 0; more < 5; more++) {
        struct err e = {0};
        few = (struct rlimit){(rlim_t)(next + more), was.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        int rc = row_files_seal(dir, "feedback/demo/default/x", &e);
        setrlimit(RLIMIT_NOFILE, &was);
        failed += rc == ERR_IO;
        assert_string_equal(content("default/kto-000001.jsonl"), "1\n");
        assert_string_equal(content(rc ? "default/kto.open" : "default/kto-000002.jsonl"), "2\n");
    }
    assert_int_equal(failed, 4); /* folders of all, a model, a set, and a file */
}

/* An error takes back the lines that were written before it. */
static void test_all_or_none(void **state)
{
    struct err e = {0};
    (void)state;
    assert_int_equal(add("default", "kto", "1\n"), 0);
    char *path = data_path(dir, "feedback/demo/default", "sft.open");
    assert_int_equal(mkdir(path, 0700), 0);
    const struct row_file_line two[] = {line("kto", "2\n"), line("sft", "3\n")};
    assert_int_equal(row_files_append(dir, "demo", "default", two, 2, PLENTY, &e), ERR_IO);
    assert_string_equal(content("default/kto.open"), "1\n");
    free(path);
}

static void test_limit(void **state)
{
    struct err e = {0};
    struct row_file_line l = line("kto", "12345\n");
    (void)state;
    for (int i = 0; i < 3; i++) assert_int_equal(row_files_append(dir, "demo", "a", &l, 1, 20, &e), 0);
    assert_int_equal(row_files_append(dir, "demo", "b", &l, 1, 20, &e), ERR_FULL);
    assert_int_equal(row_files_append(dir, "demo", "b", &l, 1, 24, &e), 0);
    assert_int_equal(row_files_append(dir, "demo", "b", &l, 1, 10, &e), ERR_FULL); /* a limit that was lowered */
}

static void add_up(void *arg, const struct row_files_kind *k)
{
    struct row_files_kind *sum = arg;
    assert_string_equal(k->model, "demo");
    sum->rows += k->rows;
    sum->bytes += k->bytes;
    sum->files += k->files;
}

static void test_list_and_remove(void **state)
{
    struct err e = {0};
    struct row_files_kind sum = {0};
    (void)state;
    row_files_list(dir, add_up, &sum);
    assert_int_equal(sum.files, 0);
    assert_int_equal(add("default", "kto", "1\n"), 0);
    assert_int_equal(row_files_seal(dir, "feedback/demo/default/x", &e), 0);
    assert_int_equal(add("default", "kto", "22\n"), 0);
    assert_int_equal(add("other", "sft", "3\n"), 0);
    row_files_list(dir, add_up, &sum);
    assert_int_equal(sum.rows, 3);
    assert_int_equal(sum.bytes, 7);
    assert_int_equal(sum.files, 3);
    assert_int_equal(row_files_remove(dir, "demo", "default", &e), 0);
    for (int i = 0; i < 4; i++) {
        const char *none[] = {"default", "..", "", "other/sft.open"};
        assert_int_equal(row_files_remove(dir, "demo", none[i], &e), ERR_NOT_FOUND);
    }
    assert_int_equal(row_files_remove(dir, "..", "adapters", &e), ERR_NOT_FOUND);
    assert_string_equal(content("other/sft.open"), "3\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_appends, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_torn, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_sealed, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_no_handles, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_all_or_none, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_limit, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_list_and_remove, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
