/* Several files as one set: their order, duplicates across them, what is counted, and rows drawn by weight. */
#include "tests/unit/engine/data/rows.h"

static struct tokenizer *t;

/* The completion's first letters are the row's name: files of rows "a0", "a1"... */
static char *file_of_rows(char letter, int n)
{
    struct buf b = {0};
    char name[] = "x.jsonl";
    name[0] = letter;
    for (int i = 0; i < n; i++)
        buf_printf(&b, "{\"prompt\": \"%c%d\", \"completion\": \"%c%d\"}\n", letter, i, letter, i);
    char *path = file_of(name, b.data, b.len);
    buf_free(&b);
    return path;
}

static struct dataset *open_all(const struct dataset_source *v, int n, const struct dataset_options *o,
                                struct dataset_report *r)
{
    struct dataset *d = NULL;
    struct err e = {0};
    if (dataset_open_all(&d, v, n, o, t, NULL, -1, r, &e)) fail_msg("%s", e.msg);
    assert_int_equal(r->seen, r->kept + r->skipped + r->duplicates);
    return d;
}

static void check_error(const struct dataset_source *v, int n, const struct dataset_options *o, const char *text)
{
    struct dataset *d = NULL;
    struct err e = {0};
    assert_int_not_equal(dataset_open_all(&d, v, n, o, t, NULL, -1, NULL, &e), 0);
    assert_null(d);
    if (!strstr(e.msg, text)) fail_msg("%s", e.msg);
}

static void shown(const struct dataset *d, struct buf *b)
{
    buf_clear(b);
    for (uint64_t i = 0; i < dataset_rows(d); i++) {
        struct dataset_row row = dataset_row(d, i);
        int n = 0;
        while (!row.trained[n]) n++;
        for (int k = n; k < row.n; k++) tokenizer_decode(t, &row.id[k], 1, false, b);
        buf_char(b, ' ');
    }
}

static void test_files_in_order(void **state)
{
    char *a = file_of_rows('a', 3), *b = file_of("b.json", "[{\"text\": \"bb\"}, 7, {\"text\": \"cc\"}]", 35);
    struct dataset_source v[] = {{.path = a, .name = "a"}, {.path = b, .name = "b"}, {.path = a, .name = "again"}};
    struct dataset_options o = {.max_length = 32};
    struct dataset_report r;
    struct buf got = {0};
    (void)state;
    struct dataset *d = open_all(v, 2, &o, &r);
    shown(d, &got);
    assert_string_equal(got.data, "a0 a1 a2 b c ");
    assert_string_equal(dataset_row_source(d, 2), "a");
    assert_string_equal(dataset_row_source(d, 3), "b");
    uint64_t hash = dataset_hash(d);
    assert_int_equal(r.skipped, 1);
    assert_int_equal(r.problem[0].source, 1);
    assert_int_equal(r.problem[0].line, 2);
    assert_int_equal(r.tokens, 3 * 4 + 2 * 2);
    assert_int_equal(r.drawn, 0);
    dataset_free(d);
    d = open_all(v, 3, &o, &r);
    assert_int_equal(r.duplicates, 3);
    assert_int_equal(dataset_rows(d), 5);
    assert_int_equal(r.tokens, 3 * 4 + 2 * 2);
    assert_int_equal(r.trained_tokens, 3 * 2 + 2);
    assert_true(dataset_hash(d) != hash); /* of all files, also of one that adds nothing */
    dataset_free(d);
    o.keep_duplicates = true;
    d = open_all(v, 3, &o, &r);
    assert_int_equal(dataset_rows(d), 8);
    assert_int_not_equal(dataset_row_origin(d, 0), dataset_row_origin(d, 5));
    dataset_free(d);
    struct dataset_source other[] = {v[1], v[0]};
    o.keep_duplicates = false;
    d = open_all(other, 2, &o, &r);
    shown(d, &got);
    assert_string_equal(got.data, "b c a0 a1 a2 ");
    assert_true(dataset_hash(d) != hash);
    dataset_free(d);
    buf_free(&got);
    unlink(a);
    unlink(b);
    free(a);
    free(b);
}

static int count(const struct dataset *d, char letter)
{
    struct buf got = {0};
    int n = 0;
    shown(d, &got);
    for (const char *p = got.data; *p; p++) n += *p == letter;
    buf_free(&got);
    return n;
}

static void test_weights(void **state)
{
    char *a = file_of_rows('a', 30), *b = file_of_rows('b', 6), *c = file_of_rows('c', 4);
    /* b and c are one set: 10 rows, which three quarters of 40 repeat three times */
    struct dataset_source v[] = {{.path = a, .name = "a", .set = 0, .weight = 1},
                                 {.path = b, .name = "b", .set = 1, .weight = 3},
                                 {.path = c, .name = "c", .set = 1, .weight = 3}};
    struct dataset_options o = {.max_length = 32, .seed = 5};
    struct dataset_report r;
    struct buf first = {0}, got = {0};
    (void)state;
    struct dataset *d = open_all(v, 3, &o, &r);
    assert_int_equal(r.kept, 40);
    assert_int_equal(r.drawn, 40);
    assert_true(dataset_rows(d) == 40 && count(d, 'a') == 10 && count(d, 'b') == 18 && count(d, 'c') == 12);
    assert_true(dataset_row_origin(d, 10) == dataset_row_origin(d, 20)); /* a repetition */
    shown(d, &first);
    uint64_t hash = dataset_hash(d), tokens = 0;
    for (uint64_t i = 0; i < 40; i++) tokens += (uint64_t)dataset_row(d, i).n;
    assert_int_equal(r.drawn_tokens, tokens);
    dataset_free(d);
    d = open_all(v, 3, &o, &r); /* the same again */
    shown(d, &got);
    assert_string_equal(got.data, first.data);
    assert_true(dataset_hash(d) == hash);
    dataset_free(d);
    o.seed = 6;
    d = open_all(v, 3, &o, &r);
    shown(d, &got);
    assert_string_not_equal(got.data, first.data);
    assert_true(dataset_hash(d) != hash && count(d, 'a') == 10);
    dataset_free(d);
    v[0].weight = 1e-9; /* a set gives a row at least */
    d = open_all(v, 3, &o, &r);
    assert_int_equal(count(d, 'a'), 1);
    dataset_free(d);
    v[0].weight = 0;
    check_error(v, 3, &o, "b has a weight and a has none");
    struct dataset_source twice[] = {{.path = a, .name = "a", .weight = 1},
                                     {.path = a, .name = "b", .set = 1, .weight = 1}};
    check_error(twice, 2, &o, "b: no row of it is left");
    buf_free(&first);
    buf_free(&got);
    char *paths[] = {a, b, c};
    for (int i = 0; i < 3; i++) {
        unlink(paths[i]);
        free(paths[i]);
    }
}

static void test_limits(void **state)
{
    char *a = file_of_rows('a', 1000), *b = file_of_rows('b', 1000);
    struct dataset_source v[] = {
        {.path = a, .name = "a"}, {.path = b, .name = "b"}, {.path = "/nowhere/c", .name = "c"}};
    struct dataset_options o = {.max_length = 32};
    (void)state;
    check_error(v, 3, &o, "c: no such file");
    check_error(v, 0, &o, "no data set is given");
    check_error(v, DATASET_SOURCES_MAX + 1, &o, "more than 4096 files");
    o.max_rows = 1200;
    check_error(v, 2, &o, "more than the limit of 1200 rows");
    o.max_rows = 0;
    o.max_bytes = 80000; /* either file, as it is and prepared */
    check_error(v, 2, &o, "b: the files together have more than the limit");
    unlink(a);
    unlink(b);
    free(a);
    free(b);
}

/* What one process sends, and another receives. */
struct wire {
    struct buf b;
    size_t at, end;
};

static void put(void *arg, const void *p, size_t n)
{
    struct wire *w = arg;
    assert_true(n > 0 && n <= 1 << 20);
    buf_append(&w->b, p, n);
}

static void get(void *arg, void *p, size_t n)
{
    struct wire *w = arg;
    size_t there = w->at < w->end ? w->end - w->at : 0;
    memcpy(p, w->b.data + w->at, n < there ? n : there);
    w->at += n;
}

static void check_sent(const struct dataset *d, struct wire *w)
{
    struct dataset *copy = NULL;
    struct buf a = {0}, b = {0};
    struct err e = {0};
    *w = (struct wire){0};
    dataset_send(d, put, w);
    w->end = w->b.len;
    if (dataset_receive(&copy, get, w, &e)) fail_msg("%s", e.msg);
    assert_int_equal(w->at, w->b.len);
    assert_int_equal(dataset_rows(copy), dataset_rows(d));
    assert_true(dataset_hash(copy) == dataset_hash(d));
    shown(d, &a);
    shown(copy, &b);
    assert_string_equal(a.data, b.data);
    for (uint64_t i = 0; i < dataset_rows(d); i++) {
        const char *from = dataset_row_source(d, i), *to = dataset_row_source(copy, i);
        assert_true(dataset_row_origin(d, i) == dataset_row_origin(copy, i) && !from == !to);
        if (from) assert_string_equal(from, to);
    }
    dataset_free(copy);
    buf_free(&a);
    buf_free(&b);
}

/* One file and several, and what does not arrive whole or unchanged. */
static void test_for_other_processes(void **state)
{
    char *a = file_of_rows('a', 30), *b = file_of_rows('b', 6);
    struct dataset_source v[] = {{.path = a, .name = "a", .weight = 1},
                                 {.path = b, .name = "b", .set = 1, .weight = 1}};
    struct dataset_options o = {.max_length = 32, .seed = 3};
    struct dataset_report r;
    struct wire w;
    (void)state;
    struct dataset *d = open_all(v, 1, &o, &r), *none = NULL;
    check_sent(d, &w);
    buf_free(&w.b);
    dataset_free(d);
    d = open_all(v, 2, &o, &r);
    check_sent(d, &w);
    size_t bytes = w.at;
    for (size_t end = 0; end < bytes; end += end < 200 ? 1 : 997) { /* the other process is gone */
        struct err e = {0};
        w.at = 0;
        w.end = end;
        assert_int_not_equal(dataset_receive(&none, get, &w, &e), 0);
        assert_null(none);
        assert_int_not_equal(e.msg[0], 0);
    }
    w.at = 0;
    w.end = bytes;
    w.b.data[bytes / 2] ^= 1;
    struct err e = {0};
    assert_int_equal(dataset_receive(&none, get, &w, &e), ERR_INVALID);
    assert_non_null(strstr(e.msg, "damaged"));
    assert_int_equal(w.at, bytes); /* the rest is taken all the same */
    dataset_free(d);
    buf_free(&w.b);
    unlink(a);
    unlink(b);
    free(a);
    free(b);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_in_order),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_for_other_processes),
    };
    if (argc < 2) return 2;
    fixtures = argv[1];
    t = byte_level();
    int rc = cmocka_run_group_tests(tests, scratch_make, scratch_remove);
    tokenizer_close(t);
    return rc;
}
