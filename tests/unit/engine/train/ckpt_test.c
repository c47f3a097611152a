/* Checkpoints: whole or not there, whatever happens to their files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/train/ckpt.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[128];

enum { JOB = 77, N = 1000 };

static char small[32];
static float big[N];

static struct ckpt_part parts[2] = {{"small", small, sizeof small, {0}}, {"big", big, sizeof big, {0}}};

static void fill(int64_t step)
{
    snprintf(small, sizeof small, "step %lld", (long long)step);
    for (int i = 0; i < N; i++) big[i] = (float)(i * step);
}

static void write_step(int64_t step)
{
    struct err e = {0};
    fill(step);
    if (ckpt_write(dir, JOB, step, -1, parts, 2, &e)) fail_msg("%s", e.msg);
}

/* The step found, with its values in the parts. */
static int64_t read_newest(int *warnings)
{
    struct err e = {0};
    struct buf b = {0};
    int64_t step = 0;
    memset(small, 0, sizeof small);
    memset(big, 0, sizeof big);
    if (ckpt_read(dir, JOB, INT64_MAX, parts, 2, &step, &b, &e)) fail_msg("%s", e.msg);
    *warnings = b.len > 0;
    for (size_t i = 0; i < b.len; i++) *warnings += b.data[i] == '\n';
    buf_free(&b);
    if (step >= 0) {
        char want[32] = "";
        snprintf(want, sizeof want, "step %lld", (long long)step);
        assert_string_equal(small, want);
        for (int i = 0; i < N; i++) assert_true(big[i] == (float)(i * step));
    }
    return step;
}

static int entries(void)
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *f; d && (f = readdir(d));) n += strcmp(f->d_name, ".") && strcmp(f->d_name, "..");
    if (d) closedir(d);
    return n;
}

static char *file_of(int64_t step, const char *file)
{
    static char path[512];
    char name[CKPT_NAME_MAX];
    ckpt_name(step, name);
    snprintf(path, sizeof path, "%s/%s/%s", dir, name, file);
    return path;
}

static void clear(void)
{
    char cmd[256];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    assert_int_equal(system(cmd), 0);
}

static void test_newest(void **state)
{
    (void)state;
    int warnings;
    clear();
    assert_int_equal(read_newest(&warnings), -1);
    assert_int_equal(warnings, 0);
    for (int64_t s = 0; s < 5; s++) {
        write_step(s * 1000);
        assert_int_equal(read_newest(&warnings), s * 1000);
        assert_int_equal(warnings, 0);
        assert_int_equal(entries(), s ? CKPT_KEEP : 1);
    }
    write_step(4000); /* again: after going back */
    assert_int_equal(read_newest(&warnings), 4000);
    ckpt_prune(dir, 1, -1);
    assert_int_equal(entries(), 1);
}

/* One that is named stays however old it is; what is newer than it can be passed over, and forgotten. */
static void test_kept(void **state)
{
    (void)state;
    struct err e = {0};
    struct buf warnings = {0};
    int64_t step;
    int n;
    clear();
    for (int64_t s = 0; s < 6; s++) {
        fill(s);
        assert_int_equal(ckpt_write(dir, JOB, s, 1, parts, 2, &e), 0);
    }
    assert_int_equal(entries(), 1 + CKPT_KEEP);
    assert_int_equal(ckpt_read(dir, JOB, 3, parts, 2, &step, &warnings, &e), 0);
    assert_int_equal(step, 1);
    assert_string_equal(small, "step 1");
    assert_int_equal(ckpt_read(dir, JOB, 0, parts, 2, &step, &warnings, &e), 0);
    assert_int_equal(step, -1);
    assert_int_equal(warnings.len, 0);
    ckpt_delete_after(dir, 4);
    assert_int_equal(entries(), 2);
    assert_int_equal(read_newest(&n), 4);
    ckpt_prune(dir, 0, 1);
    assert_int_equal(read_newest(&n), 1);
}

static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at, at < 0 ? SEEK_END : SEEK_SET);
    int c = fgetc(f);
    fseek(f, -1, SEEK_CUR);
    fputc(c ^ 4, f);
    fclose(f);
}

/* Any damage of the newest: the one before, and a word about it. */
static void test_damage(void **state)
{
    (void)state;
    for (int kind = 0; kind < 8; kind++) {
        int warnings;
        clear();
        write_step(1);
        write_step(2);
        switch (kind) {
        case 0: flip(file_of(2, "big.bin"), 1234); break;
        case 1: flip(file_of(2, "small.bin"), -1); break;
        case 2: flip(file_of(2, "manifest"), 30); break;
        case 3: assert_int_equal(truncate(file_of(2, "big.bin"), 3999), 0); break;
        case 4: assert_int_equal(truncate(file_of(2, "manifest"), 60), 0); break;
        case 5: assert_int_equal(unlink(file_of(2, "manifest")), 0); break;
        case 6: assert_int_equal(unlink(file_of(2, "small.bin")), 0); break;
        default: assert_int_equal(truncate(file_of(2, "small.bin"), 0), 0); break;
        }
        if (read_newest(&warnings) != 1) fail_msg("damage %d: the one before is not found", kind);
        assert_int_equal(warnings, 1);
        assert_int_equal(entries(), 1); /* the damaged one is gone */
    }
}

/* Every byte of the manifest and a sample of the others matters. */
static void test_every_byte(void **state)
{
    (void)state;
    struct stat st;
    clear();
    write_step(3);
    assert_int_equal(stat(file_of(3, "manifest"), &st), 0);
    for (long at = 0; at < st.st_size; at++) {
        clear();
        write_step(3);
        flip(file_of(3, "manifest"), at);
        struct err e = {0};
        struct buf b = {0};
        int64_t step = 0;
        int rc = ckpt_read(dir, JOB, INT64_MAX, parts, 2, &step, &b, &e);
        if (rc || step != -1) fail_msg("byte %ld of the manifest: %d, step %lld", at, rc, (long long)step);
        buf_free(&b);
    }
}

static void test_other_job(void **state)
{
    (void)state;
    struct err e = {0};
    struct buf b = {0};
    int64_t step;
    clear();
    write_step(3);
    fill(9);
    assert_int_equal(ckpt_read(dir, JOB + 1, INT64_MAX, parts, 2, &step, &b, &e), ERR_INVALID);
    assert_non_null(strstr(e.msg, "another job"));
    assert_string_equal(small, "step 9"); /* left alone */
    assert_int_equal(ckpt_read(dir, JOB, INT64_MAX, parts, 1, &step, &b, &e), ERR_INVALID);
    assert_int_equal(entries(), 1); /* nobody deleted it */
    buf_free(&b);
}

/* A crash between the two renames of a replacement, or behind them. */
static void test_moved_aside(void **state)
{
    (void)state;
    int warnings;
    char path[256], old[300];
    clear();
    write_step(3);
    write_step(4);
    snprintf(path, sizeof path, "%s/step-0000000004", dir);
    snprintf(old, sizeof old, "%s.old", path);
    assert_int_equal(rename(path, old), 0);
    assert_int_equal(read_newest(&warnings), 4);
    assert_int_equal(warnings, 0);
    assert_int_equal(mkdir(old, 0755), 0);
    assert_int_equal(read_newest(&warnings), 4);
    assert_int_equal(entries(), 2);
}

/* One of an earlier version is refused, as that. */
static void test_other_version(void **state)
{
    (void)state;
    struct err e = {0};
    struct buf b = {0};
    char text[512];
    int64_t step;
    clear();
    write_step(3);
    FILE *f = fopen(file_of(3, "manifest"), "r+");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f), end = sizeof "end 01234567\n" - 1;
    text[n] = 0;
    char *version = strstr(text, "checkpoint 2\n");
    assert_non_null(version);
    version[sizeof "checkpoint"] = '1';
    snprintf(text + n - end, sizeof text - n + end, "end %08x\n", (unsigned)crc32c(0, text, n - end));
    rewind(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
    assert_int_equal(ckpt_read(dir, JOB, INT64_MAX, parts, 2, &step, &b, &e), ERR_INVALID);
    assert_non_null(strstr(e.msg, "another version of tandem"));
    assert_null(strstr(e.msg, "were others"));
    assert_int_equal(entries(), 1);
    buf_free(&b);
}

static void test_unfinished(void **state)
{
    (void)state;
    int warnings;
    char path[256];
    clear();
    write_step(3);
    snprintf(path, sizeof path, "%s/.tmp-step-0000000004", dir);
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/.tmp-step-0000000004/big.bin", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(read_newest(&warnings), 3);
    assert_int_equal(warnings, 0);
    assert_int_equal(entries(), 1);
}

/* A disk that takes no more: an error that says so, and what was there is still there. */
static void test_full_disk(void **state)
{
    (void)state;
    struct rlimit was, low;
    struct err e = {0};
    int warnings;
    clear();
    write_step(3);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &was);
    low = was;
    low.rlim_cur = 2000;
    setrlimit(RLIMIT_FSIZE, &low);
    fill(4);
    int rc = ckpt_write(dir, JOB, 4, -1, parts, 2, &e);
    setrlimit(RLIMIT_FSIZE, &was);
    assert_int_equal(rc, ERR_IO);
    assert_non_null(strstr(e.msg, "big.bin"));
    assert_int_equal(entries(), 1);
    assert_int_equal(read_newest(&warnings), 3);
}

/* An array that is somewhere else, and what fails there at this byte; -1: nothing. */
struct elsewhere {
    char *data;
    size_t next;
    int64_t fails;
};

static int get(void *arg, size_t at, size_t n, void *out, struct err *e)
{
    struct elsewhere *x = arg;
    assert_true(at == x->next && n && n <= CKPT_STRETCH);
    x->next += n;
    if (x->fails >= 0 && (size_t)x->fails < x->next) return err_set(e, ERR_IO, "it is gone");
    memcpy(out, x->data + at, n);
    return 0;
}

static int put(void *arg, size_t at, size_t n, const void *data, struct err *e)
{
    struct elsewhere *x = arg;
    assert_true(at == x->next && n && n <= CKPT_STRETCH);
    x->next += n;
    if (x->fails >= 0 && (size_t)x->fails < x->next) return err_set(e, ERR_IO, "it is gone");
    memcpy(x->data + at, data, n);
    return 0;
}

/* The files are those of an array that is here. */
static void test_elsewhere(void **state)
{
    (void)state;
    enum { BYTES = 2 * CKPT_STRETCH + 12345 };
    char *data = malloc(BYTES), *copy = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++) data[i] = copy[i] = (char)(i * 7 + i / 1000);
    struct elsewhere x = {data, 0, -1};
    struct ckpt_part there = {"array", NULL, BYTES, {get, put, &x}}, here = {"array", copy, BYTES, {0}};
    struct err e = {0};
    struct buf warnings = {0};
    int64_t step;
    clear();
    assert_int_equal(ckpt_write(dir, JOB, 1, -1, &there, 1, &e), 0);
    assert_int_equal(x.next, BYTES);
    memset(copy, 0, BYTES);
    assert_int_equal(ckpt_read(dir, JOB, INT64_MAX, &here, 1, &step, &warnings, &e), 0);
    assert_true(step == 1 && memcmp(data, copy, BYTES) == 0);
    memset(data, 0, BYTES);
    x.next = 0;
    assert_int_equal(ckpt_read(dir, JOB, INT64_MAX, &there, 1, &step, &warnings, &e), 0);
    assert_true(step == 1 && x.next == BYTES && memcmp(data, copy, BYTES) == 0);
    x = (struct elsewhere){data, 0, CKPT_STRETCH + 5};
    assert_int_equal(ckpt_write(dir, JOB, 2, -1, &there, 1, &e), ERR_IO);
    assert_string_equal(e.msg, "it is gone");
    x.next = 0;
    e = (struct err){0};
    assert_int_equal(ckpt_read(dir, JOB, INT64_MAX, &there, 1, &step, &warnings, &e), ERR_IO);
    assert_int_equal(entries(), 1); /* that of step 1, which is as good as before */
    assert_int_equal(warnings.len, 0);
    free(data);
    free(copy);
}

static void test_replace(void **state)
{
    (void)state;
    struct err e = {0};
    char a[256], b[256], path[512];
    clear();
    for (int round = 0; round < 3; round++) { /* not there, then there */
        snprintf(a, sizeof a, "%s/new", dir);
        snprintf(b, sizeof b, "%s/result", dir);
        assert_int_equal(dir_make(a, &e), 0);
        snprintf(path, sizeof path, "%s/round%d", a, round);
        assert_int_equal(file_write_sync(path, "x", 1, &e), 0);
        assert_int_equal(dir_replace(a, b, &e), 0);
        snprintf(path, sizeof path, "%s/round%d", b, round);
        assert_int_equal(access(path, F_OK), 0);
        assert_int_equal(entries(), 1);
    }
    snprintf(path, sizeof path, "%s/round1", b);
    assert_int_not_equal(access(path, F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept),          cmocka_unit_test(test_newest),    cmocka_unit_test(test_damage),
        cmocka_unit_test(test_every_byte),    cmocka_unit_test(test_other_job), cmocka_unit_test(test_unfinished),
        cmocka_unit_test(test_full_disk),     cmocka_unit_test(test_replace),   cmocka_unit_test(test_moved_aside),
        cmocka_unit_test(test_other_version), cmocka_unit_test(test_elsewhere),
    };
    snprintf(dir, sizeof dir, "/tmp/tandem-ckpt-%d", (int)getpid());
    int failed = cmocka_run_group_tests_name("ckpt", tests, NULL, NULL);
    clear();
    return failed;
}
