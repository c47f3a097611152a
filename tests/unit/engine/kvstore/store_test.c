/* The store of KV pages: what was put is got, also after reopening; what a crash or damage leaves is either the page of
 * its name or nothing; the limits of size and age. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/kvstore/dir.h"
#include "engine/kvstore/index.h"
#include "engine/kvstore/pager.h"
#include "engine/kvstore/store.h"
#include "tests/unit/engine/kvstore/scratch.h"

#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 3000, SLOT = 3072 }; /* with the head, in units of 512 */

static uint64_t time_now = 1000000; /* seconds */

static uint64_t test_clock(void)
{
    return time_now * UINT64_C(1000000000);
}

static struct kv_store_config config(int model)
{
    struct kv_store_config c = {.dir = dir, .page_bytes = PAGE, .limit = 1 << 24, .now = test_clock};
    memset(&c.model, 0x10 + model, sizeof c.model);
    return c;
}

static struct kv_store *open_with(struct kv_store_config c)
{
    struct err e = {0};
    struct kv_store *s = kv_store_open(&c, &e);
    if (!s) fail_msg("%s", e.msg);
    return s;
}

/* Page i of text t: its name and its bytes, which differ from those of all others. */
static struct kv_name name_of(int t, int i)
{
    struct kv_name n = {0};
    uint64_t z = (uint64_t)t << 32 | (uint32_t)i;
    for (size_t k = 0; k < sizeof n; k++) n.b[k] = (unsigned char)((z = z * 6364136223846793005u + 12345) >> 33);
    return n;
}

static void fill(unsigned char *page, int t, int i)
{
    for (int k = 0; k < PAGE; k++) page[k] = (unsigned char)(t * 31 + i * 7 + k * (1 + i % 5) + k / 256);
}

static bool put(struct kv_store *s, int t, int i)
{
    unsigned char page[PAGE];
    struct kv_name name = name_of(t, i), parent = name_of(t, i - 1);
    fill(page, t, i);
    return kv_store_put(s, &name, &parent, (uint32_t)i, page);
}

/* @return whether it is there; then it must be right. */
static bool get(struct kv_store *s, int t, int i)
{
    unsigned char page[PAGE], right[PAGE];
    struct kv_name name = name_of(t, i);
    if (!kv_store_get(s, &name, page)) return false;
    fill(right, t, i);
    assert_memory_equal(page, right, PAGE);
    return true;
}

static bool has(struct kv_store *s, int t, int i)
{
    struct kv_name name = name_of(t, i);
    return kv_store_prefix(s, &name, 1) == 1;
}

static struct kv_store_stats stats(struct kv_store *s)
{
    struct kv_store_stats out;
    kv_store_stats(s, &out);
    return out;
}

static char *path_of(int model, const char *file)
{
    static char path[256];
    int n = snprintf(path, sizeof path, "%s/", dir);
    for (int i = 0; i < 16; i++) n += snprintf(path + n, sizeof path - (size_t)n, "%02x", 0x10 + model);
    snprintf(path + n, sizeof path - (size_t)n, "%s%s", *file ? "/" : "", file);
    return path;
}

static void test_put_get_reopen(void **state)
{
    (void)state;
    struct kv_store *s = open_with(config(0));
    for (int i = 0; i < 300; i++) assert_true(put(s, 1, i));
    assert_true(put(s, 1, 5)); /* it is there */
    assert_int_equal(stats(s).written, 300);
    for (int i = 0; i < 300; i++) assert_true(get(s, 1, i));
    assert_false(get(s, 2, 0));
    struct kv_name names[4] = {name_of(1, 0), name_of(1, 1), name_of(2, 0), name_of(1, 2)};
    assert_int_equal(kv_store_prefix(s, names, 4), 2);
    kv_store_close(s);
    s = open_with(config(0));
    assert_int_equal(stats(s).pages, 300);
    for (int i = 299; i >= 0; i--) assert_true(get(s, 1, i));
    assert_int_equal(stats(s).corrupt, 0);
    kv_store_close(s);
    struct stat st;
    assert_int_equal(stat(path_of(0, ""), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(stat(path_of(0, "pages"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static void test_lock(void **state)
{
    (void)state;
    struct kv_store_config c = config(0);
    struct kv_store *s = open_with(c), *other = open_with(config(1));
    struct err e = {0};
    assert_null(kv_store_open(&c, &e));
    assert_int_equal(e.code, ERR_FULL);
    assert_non_null(strstr(e.msg, "another model of this server"));
    char *lock = path_of(0, "lock");
    FILE *f = fopen(lock, "w"); /* as if it were another process's */
    assert_true(f && fputs("1\n", f) >= 0 && fclose(f) == 0);
    assert_null(kv_store_open(&c, &e));
    assert_non_null(strstr(e.msg, "another tandem"));
    assert_true(put(s, 1, 0) && put(other, 2, 0));
    assert_false(has(other, 1, 0)); /* of another model */
    kv_store_close(s);
    kv_store_close(other);
    kv_store_close(open_with(c));
}

/* The names do not decide alone: a page of another name in the slot is not given out. */
static void test_foreign(void **state)
{
    (void)state;
    struct kv_store *s = open_with(config(0));
    for (int i = 0; i < 8; i++) assert_true(put(s, 1, i));
    kv_store_close(s);
    char page[SLOT];
    int fd = open(path_of(0, "pages"), O_RDWR);
    assert_int_equal(pread(fd, page, SLOT, 2 * SLOT), SLOT);
    assert_int_equal(pwrite(fd, page, SLOT, 5 * SLOT), SLOT); /* whole, with its checksums, but that of another text */
    close(fd);
    s = open_with(config(0));
    for (int i = 0; i < 8; i++) assert_int_equal(get(s, 1, i), i != 5);
    assert_int_equal(stats(s).corrupt, 1);
    assert_int_equal(stats(s).pages, 7);
    assert_true(put(s, 1, 5) && get(s, 1, 5));
    kv_store_close(s);
    /* the files of another model in this one's folder */
    char to[256];
    kv_store_close(open_with(config(1)));
    snprintf(to, sizeof to, "%s", path_of(1, "index"));
    assert_int_equal(rename(path_of(0, "index"), to), 0);
    snprintf(to, sizeof to, "%s", path_of(1, "pages"));
    assert_int_equal(rename(path_of(0, "pages"), to), 0);
    s = open_with(config(1));
    assert_int_equal(stats(s).pages, 0);
    assert_true(put(s, 3, 0) && get(s, 3, 0));
    kv_store_close(s);
    /* a link to a file of others is not followed */
    assert_int_equal(unlink(path_of(1, "pages")), 0);
    assert_int_equal(symlink("/etc/passwd", path_of(1, "pages")), 0);
    struct kv_store_config c = config(1);
    struct err e = {0};
    assert_null(kv_store_open(&c, &e));
    assert_int_equal(e.code, ERR_IO);
}

enum { ROUNDS = 60 };

/* Random bytes of either file change, or it is cut off, while the store is closed or open: never a wrong page. */
static void test_corruption(void **state)
{
    (void)state;
    uint64_t lost = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct kv_store *s = open_with(config(0));
        for (int i = 0; i < 40; i++) assert_true(put(s, round % 3, i));
        bool while_open = round % 4 == 0;
        if (!while_open) kv_store_close(s);
        int fd = open(path_of(0, round % 2 ? "index" : "pages"), O_RDWR);
        struct stat st;
        assert_int_equal(fstat(fd, &st), 0);
        if (round % 10 == 9) {
            assert_int_equal(ftruncate(fd, chance(st.st_size)), 0);
        } else {
            for (int k = 0; k < 12; k++) {
                unsigned char c;
                off_t at = chance(st.st_size);
                assert_int_equal(pread(fd, &c, 1, at), 1);
                c ^= (unsigned char)(1 + chance(255));
                assert_int_equal(pwrite(fd, &c, 1, at), 1);
            }
        }
        close(fd);
        if (!while_open) s = open_with(config(0));
        for (int t = 0; t < 3; t++)
            for (int i = 0; i < 40; i++) get(s, t, i); /* right if there */
        for (int i = 0; i < 40; i++) assert_true(put(s, round % 3, i) && get(s, round % 3, i));
        lost += stats(s).corrupt;
        kv_store_close(s);
    }
    assert_true(lost > ROUNDS);
}

/* A process that writes is killed at any moment. */
static void test_kill(void **state)
{
    (void)state;
    int survived = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int ready[2];
        time_now += 100;
        assert_int_equal(pipe(ready), 0);
        pid_t child = fork();
        if (child == 0) {
            struct kv_store_config c = config(0);
            c.limit = 100 * (SLOT + 128); /* so that slots are used again */
            struct kv_store *s = kv_store_open(&c, &(struct err){0});
            if (!s) _exit(1);
            for (int i = 0;; i++) {
                put(s, round, i);
                if (i == 20) (void)!write(ready[1], "", 1);
            }
        }
        char c;
        assert_int_equal(read(ready[0], &c, 1), 1);
        usleep((unsigned)(chance(3000)));
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        close(ready[0]);
        close(ready[1]);
        struct kv_store *s = open_with(config(0));
        for (int i = 0; i < 5000; i++) survived += has(s, round, i) && get(s, round, i);
        kv_store_close(s);
    }
    assert_true(survived > 20 * ROUNDS);
}

static void test_limit(void **state)
{
    (void)state;
    struct kv_store_config c = config(0);
    c.limit = 100 * (SLOT + 128);
    struct kv_store *s = open_with(c);
    for (int i = 0; i < 40; i++) assert_true(put(s, 1, i));
    for (int use = 0; use < 5; use++)
        for (int i = 0; i < 40; i++) {
            struct kv_name name = name_of(1, i);
            assert_true(kv_store_use(s, &name));
        }
    for (int t = 2; t < 12; t++) {
        time_now += 100;
        for (int i = 0; i < 20; i++) assert_true(put(s, t, i));
    }
    assert_true(stats(s).pages <= 100 && stats(s).evicted > 0);
    for (int i = 0; i < 40; i++) assert_true(has(s, 1, i)); /* older, but used more often */
    for (int t = 1; t < 12; t++) {                          /* no page whose beginning is gone */
        for (int i = 1; i < 40; i++) assert_true(has(s, t, i - 1) || !has(s, t, i));
    }
    kv_store_close(s);
    struct stat st;
    assert_int_equal(stat(path_of(0, "pages"), &st), 0);
    assert_true(st.st_size <= 100 * SLOT);
    c.limit = 30 * (SLOT + 128); /* less than is there */
    s = open_with(c);
    assert_true(stats(s).pages <= 30);
    kv_store_close(s);
    assert_int_equal(stat(path_of(0, "pages"), &st), 0);
    assert_true(st.st_size <= 30 * SLOT);
}

/* Another model's pages make room when nobody has them open. */
static void test_models_share(void **state)
{
    (void)state;
    struct kv_store_config a = config(0), b = config(1);
    a.limit = b.limit = 100 * (SLOT + 128);
    struct kv_store *s = open_with(a);
    for (int i = 0; i < 80; i++) assert_true(put(s, 1, i));
    struct kv_store *t = open_with(b);
    for (int i = 0; i < 80; i++) put(t, 1, i);
    assert_true(stats(t).pages < 40); /* the other is open */
    assert_true(stats(t).limit < b.limit);
    for (int i = 0; i < 80; i++) assert_true(get(s, 1, i));
    kv_store_close(s);
    time_now += 60;
    for (int i = 0; i < 80; i++) assert_true(put(t, 2, i));
    assert_true(stats(t).pages >= 80);
    assert_int_equal(stats(t).limit, b.limit);
    assert_int_not_equal(access(path_of(0, "pages"), F_OK), 0);
    kv_store_close(t);
}

static void test_ttl(void **state)
{
    (void)state;
    struct kv_store_config c = config(0);
    c.ttl = 100;
    struct kv_store *s = open_with(c);
    for (int i = 0; i < 10; i++) assert_true(put(s, 1, i));
    time_now += 60;
    assert_true(put(s, 2, 0));
    struct kv_name used = name_of(1, 0);
    assert_true(kv_store_use(s, &used));
    kv_store_sweep(s);
    assert_int_equal(stats(s).pages, 11);
    kv_store_close(s);
    time_now += 60;
    s = open_with(c);
    uint64_t next = kv_store_sweep(s);
    assert_int_equal(stats(s).pages, 2); /* what was used later, which the index says */
    assert_int_equal(stats(s).expired, 9);
    assert_true(has(s, 1, 0) && has(s, 2, 0));
    assert_true(next > 0 && next <= UINT64_C(40000000000));
    time_now += 41;
    kv_store_sweep(s);
    assert_int_equal(stats(s).pages, 0);
    kv_store_close(s);
}

static void test_secret(void **state)
{
    (void)state;
    unsigned char a[KV_SECRET_BYTES] = {0}, b[KV_SECRET_BYTES] = {0};
    char path[128];
    struct err e = {0};
    assert_int_equal(kv_dir_secret(dir, a, &e), 0);
    assert_int_equal(kv_dir_secret(dir, b, &e), 0);
    assert_memory_equal(a, b, sizeof a);
    snprintf(path, sizeof path, "%s/secret", dir);
    assert_int_equal(truncate(path, 5), 0); /* a new one */
    assert_int_equal(kv_dir_secret(dir, b, &e), 0);
    assert_memory_not_equal(a, b, sizeof a);
    snprintf(path, sizeof path, "%s/secret/no", dir);
    assert_int_not_equal(kv_dir_secret(path, b, &e), 0);
    assert_non_null(strstr(e.msg, "--kv-disk"));
}

static void test_disk_full(void **state)
{
    (void)state;
    int status;
    pid_t child = fork();
    if (child == 0) {
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){40000, 40000});
        struct kv_store *s = open_with(config(0));
        int n = 0;
        while (n < 100 && put(s, 1, n)) n++;
        bool right = n > 5 && n < 20 && stats(s).write_errors > 0;
        for (int i = 0; i < n; i++) right &= get(s, 1, i);
        right &= !put(s, 1, n); /* not tried again at once */
        right &= stats(s).write_errors == 1;
        kv_store_close(s);
        _exit(right ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static sem_t woken;

static void wake(void *arg)
{
    (void)arg;
    sem_post(&woken);
}

static void test_pager(void **state)
{
    (void)state;
    struct err e = {0};
    sem_init(&woken, 0, 0);
    struct pager *p = pager_open(open_with(config(0)), PAGE, wake, NULL, &e);
    assert_non_null(p);
    int n = 0;
    for (; n < 5000; n++) {
        struct page_job *j;
        while (!(j = pager_take(p, JOB_WRITE))) sem_wait(&woken);
        j->name = name_of(1, n);
        j->parent = name_of(1, n - 1);
        j->depth = (uint32_t)n;
        fill(j->page, 1, n);
        pager_submit(p, j);
    }
    assert_true(pager_flush(p, clock_now() + UINT64_C(600000000000)));
    assert_true(stats(pager_store(p)).written == 5000);
    int asked = 0, came = 0;
    while (came < 1000) {
        struct page_job *j, *next;
        while (asked < 1000 && (j = pager_take(p, JOB_READ))) {
            j->name = name_of(1, 4000 + asked);
            j->index = asked++;
            pager_submit(p, j);
        }
        for (j = pager_done(p); j; j = next) {
            unsigned char right[PAGE];
            next = j->next;
            assert_int_equal(j->index, came++);
            assert_true(j->right);
            fill(right, 1, 4000 + j->index);
            assert_memory_equal(j->page, right, PAGE);
            pager_give(p, j);
            if (!next) break;
        }
        if (came < asked) sem_wait(&woken);
    }
    pager_close(p);
    sem_destroy(&woken);
}

int main(void)
{
#define TEST(t) cmocka_unit_test_setup_teardown(t, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_put_get_reopen), TEST(test_lock),      TEST(test_foreign),      TEST(test_corruption),
        TEST(test_kill),           TEST(test_limit),     TEST(test_models_share), TEST(test_ttl),
        TEST(test_secret),         TEST(test_disk_full), TEST(test_pager),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
