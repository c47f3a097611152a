/* The file of a teacher's answers: what is whole is found, whatever its order; what is not, or of something else, is
 * not. */
#include "engine/train/teacher_file.h"

#include "tests/unit/engine/train/train_rig.h"

enum { ROWS = 8, K = 3 };

static void answer(const struct dataset *set, uint32_t row, int32_t *id, float *logprob)
{
    for (int i = 0; i < dataset_row(set, row).n_trained * K; i++) {
        id[i] = (int32_t)row * 100 + i;
        logprob[i] = -(float)i / 7 - (float)row;
    }
}

static void put(struct buf *b, const struct dataset *set, uint32_t row)
{
    int32_t id[ROW_TOKENS_MAX * K];
    float logprob[ROW_TOKENS_MAX * K];
    answer(set, row, id, logprob);
    teacher_file_put(b, K, row, (uint32_t)dataset_row(set, row).n_trained, id, logprob);
}

/* Its head, and all rows, the last one first or last. */
static struct buf whole(const struct teacher_file_of *of, bool last_first)
{
    struct buf b = {0};
    teacher_file_put_head(&b, of);
    if (last_first) put(&b, of->set, ROWS - 1);
    for (uint32_t i = 0; i + 1 < ROWS; i++) put(&b, of->set, i);
    if (!last_first) put(&b, of->set, ROWS - 1);
    return b;
}

static struct teacher_file read_back(const struct buf *b, size_t n, const struct teacher_file_of *of)
{
    char *path = path_to("answers");
    struct teacher_file f;
    struct err e = {0};
    assert_int_equal(file_write_sync(path, b->data, n, &e), 0);
    assert_int_equal(teacher_file_open(&f, path, of, &e), 0);
    free(path);
    return f;
}

static void test_rows(void **state)
{
    (void)state;
    struct dataset *set = rows_make(ROWS, 200, 3);
    struct teacher_file_of of = {.set = set, .teacher = 5, .k = K};
    struct buf a = whole(&of, false), b = whole(&of, true);
    struct teacher_file f = read_back(&a, a.len, &of);
    uint64_t hash = f.hash;
    teacher_file_close(&f);
    f = read_back(&b, b.len, &of);
    assert_int_equal(f.known, ROWS);
    assert_int_equal(f.whole, b.len);
    assert_true(f.hash == hash && hash);
    for (uint32_t i = 0; i < ROWS; i++) {
        int32_t id[ROW_TOKENS_MAX * K];
        float logprob[ROW_TOKENS_MAX * K];
        const int32_t *found;
        const float *values;
        size_t n = (size_t)dataset_row(set, i).n_trained * K;
        answer(set, i, id, logprob);
        teacher_file_row(&f, i, &found, &values);
        assert_memory_equal(found, id, n * sizeof *id);
        assert_memory_equal(values, logprob, n * sizeof *logprob);
    }
    teacher_file_close(&f);
    buf_free(&a);
    buf_free(&b);
    free(set);
}

/* Cut anywhere, or with any byte changed: the records before are there, and no other. */
static void test_damage(void **state)
{
    (void)state;
    struct dataset *set = rows_make(ROWS, 200, 3);
    struct teacher_file_of of = {.set = set, .teacher = 5, .k = K};
    struct buf b = whole(&of, false);
    size_t end[ROWS + 1], rows = 0;
    struct buf head = {0};
    teacher_file_put_head(&head, &of);
    for (uint32_t i = 0; i < ROWS; i++) end[i] = head.len, put(&head, set, i);
    end[ROWS] = head.len;
    for (size_t at = 0; at < b.len; at += 5) {
        while (rows < ROWS && end[rows + 1] <= at) rows++;
        size_t good = at < end[0] ? 0 : end[rows];
        struct teacher_file f = read_back(&b, at, &of);
        assert_int_equal(f.known, rows);
        assert_int_equal(f.whole, good);
        teacher_file_close(&f);
        b.data[at] ^= 1;
        f = read_back(&b, b.len, &of);
        assert_int_equal(f.known, rows);
        assert_int_equal(f.whole, good);
        teacher_file_close(&f);
        b.data[at] ^= 1;
    }
    buf_free(&b);
    buf_free(&head);
    free(set);
}

static void test_of_something_else(void **state)
{
    (void)state;
    struct dataset *set = rows_make(ROWS, 200, 3), *other = rows_make(ROWS, 200, 4);
    other->hash = set->hash + 1;
    struct teacher_file_of of = {.set = set, .teacher = 5, .k = K};
    const struct teacher_file_of others[] = {
        {.set = other, .teacher = 5, .k = K}, {.set = set, .teacher = 6, .k = K}, {.set = set, .teacher = 5, .k = 2}};
    struct buf b = whole(&of, false);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct teacher_file f = read_back(&b, b.len, &others[i]);
        assert_int_equal(f.known, 0);
        assert_int_equal(f.whole, 0);
        teacher_file_close(&f);
    }
    of.teacher = 0; /* whichever */
    struct teacher_file f = read_back(&b, b.len, &of);
    assert_int_equal(f.known, ROWS);
    teacher_file_close(&f);
    buf_free(&b);
    free(set);
    free(other);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_damage),
                                       cmocka_unit_test(test_of_something_else)};
    struct err e = {0};
    rig_begin(argc, argv);
    assert_int_equal(dir_make(scratch, &e), 0);
    int failed = cmocka_run_group_tests_name("teacher_file", tests, NULL, NULL);
    remove_tree(scratch);
    return failed;
}
