/* Prepared data sets on disk: found again, made anew when damaged or half written, never half visible; bounded. */
#include "tests/unit/engine/data/rows.h"

#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "engine/base/sha256.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct tokenizer *tokenizer;
static char cache[sizeof scratch + 8];
static struct buf rows;

static int32_t eos(void)
{
    return tokenizer_find(tokenizer, "<|endoftext|>");
}

static struct dataset *open_with(struct dataset_options o, struct dataset_report *r)
{
    struct dataset *d = NULL;
    struct dataset_source s = {.inline_json = rows.data, .inline_bytes = rows.len};
    struct err e = {0};
    o.cache_dir = cache;
    if (dataset_open(&d, &s, &o, tokenizer, NULL, eos(), r, &e)) fail_msg("%s", e.msg);
    return d;
}

static struct dataset_options usual(void)
{
    return (struct dataset_options){.max_length = 64};
}

/* Files in the cache whose names end so; the path of the last one in *path. */
static int files(const char *suffix, struct buf *path)
{
    DIR *d = opendir(cache);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t len = strlen(e->d_name), m = strlen(suffix);
        if (e->d_name[0] == '.' || len < m || strcmp(e->d_name + len - m, suffix) != 0) continue;
        n++;
        if (!path) continue;
        buf_clear(path);
        buf_printf(path, "%s/%s", cache, e->d_name);
    }
    if (d) closedir(d);
    return n;
}

static void empty_cache(void)
{
    struct buf path = {0};
    while (files("", &path)) unlink(path.data);
    buf_free(&path);
}

static uint64_t hash_of(struct dataset_options o, bool *from_cache)
{
    struct dataset_report r;
    struct dataset *d = open_with(o, &r);
    uint64_t hash = dataset_hash(d);
    assert_int_equal(r.kept, dataset_rows(d));
    assert_int_equal(r.seen, 300);
    assert_int_equal(r.skipped, 1);
    assert_int_equal(r.n_problems, 1);
    assert_int_equal(r.problem[0].line, 300);
    *from_cache = r.from_cache;
    dataset_free(d);
    return hash;
}

static void test_found_again(void **state)
{
    bool cached;
    uint64_t hash = hash_of(usual(), &cached);
    assert_false(cached);
    assert_true(hash_of(usual(), &cached) == hash);
    assert_true(cached);
    assert_int_equal(files("", NULL), 1);
    /* other options make another set */
    struct dataset_options o = usual();
    o.max_length = 16;
    assert_true(hash_of(o, &cached) != hash);
    assert_false(cached);
    o.train_on_prompt = true;
    hash_of(o, &cached);
    assert_false(cached);
    /* but threads do not */
    o.threads = 3;
    hash_of(o, &cached);
    assert_true(cached);
    /* other data */
    rows.data[3]++;
    assert_int_equal(files("", NULL), 3);
    hash_of(usual(), &cached);
    assert_false(cached);
    rows.data[3]--;
    empty_cache();
}

static void test_damaged(void **state)
{
    bool cached;
    struct buf path = {0};
    uint64_t hash = hash_of(usual(), &cached);
    assert_int_equal(files("", &path), 1);
    struct stat st;
    assert_int_equal(stat(path.data, &st), 0);
    for (off_t at = 0; at < st.st_size; at += at < 256 ? 1 : at < 4096 ? 64 : 997) {
        int fd = open(path.data, O_RDWR);
        unsigned char byte;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 0x10;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        close(fd);
        assert_true(hash_of(usual(), &cached) == hash);
        /* what is behind the header's fields means nothing */
        if (at < 96 || at >= 4096) assert_false(cached);
        assert_true(hash_of(usual(), &cached) == hash);
        assert_true(cached);
    }
    for (off_t size = 0; size < st.st_size; size += 1 + st.st_size / 20) {
        assert_int_equal(truncate(path.data, size), 0);
        assert_true(hash_of(usual(), &cached) == hash);
        assert_false(cached);
    }
    buf_free(&path);
    empty_cache();
}

/* Killed at any moment: what is there under the name is whole, and the next one goes on. */
static void test_killed(void **state)
{
    bool cached;
    uint64_t start = clock_now(), hash = hash_of(usual(), &cached), whole = clock_now() - start;
    empty_cache();
    int found = 0;
    for (int i = 0; i < 40; i++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (!pid) {
            struct dataset_report r;
            dataset_free(open_with(usual(), &r));
            _exit(0);
        }
        usleep((useconds_t)(whole / 1000 * (uint64_t)i / 25));
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        assert_true(hash_of(usual(), &cached) == hash);
        found += cached;
        assert_int_equal(files(".tokens", NULL), 1);
        assert_int_equal(files(".part", NULL), 0);
        empty_cache();
    }
    print_message("%d of 40 were whole when they were killed\n", found);
}

static void test_two_at_once(void **state)
{
    bool cached;
    uint64_t hash = hash_of(usual(), &cached);
    empty_cache();
    pid_t pid[3];
    for (int i = 0; i < 3; i++) {
        pid[i] = fork();
        if (pid[i]) continue;
        _exit(hash_of(usual(), &cached) != hash);
    }
    for (int i = 0; i < 3; i++) {
        int status = -1;
        waitpid(pid[i], &status, 0);
        assert_int_equal(status, 0);
    }
    assert_int_equal(files("", NULL), 1);
    empty_cache();
}

static bool second_time(void *arg)
{
    return ++*(int *)arg > 1;
}

/* Waiting for another writer of the same set ends when the job is cancelled. */
static void test_cancelled_while_waiting(void **state)
{
    bool cached;
    struct buf path = {0};
    hash_of(usual(), &cached);
    files(".tokens", &path);
    unlink(path.data);
    buf_str(&path, ".part");
    int other = open(path.data, O_CREAT | O_RDWR, 0600), asked = 0;
    assert_int_equal(flock(other, LOCK_EX), 0);
    struct dataset *d;
    struct dataset_source s = {.inline_json = rows.data, .inline_bytes = rows.len};
    struct dataset_options o = usual();
    struct err e = {0};
    o.cache_dir = cache;
    o.cancelled = second_time;
    o.arg = &asked;
    assert_int_not_equal(dataset_open(&d, &s, &o, tokenizer, NULL, eos(), NULL, &e), 0);
    assert_string_equal(e.msg, "cancelled");
    assert_int_equal(access(path.data, F_OK), 0); /* the other's */
    close(other);
    buf_free(&path);
    empty_cache();
}

/* Whenever it is cancelled, also while threads that run only now and then have rows in work. */
static void test_cancelled_with_threads(void **state)
{
    int whole = 0;
    for (int polls = 0; polls < 12; polls++) {
        struct dataset *d;
        struct dataset_source s = {.inline_json = rows.data, .inline_bytes = rows.len};
        struct dataset_options o = usual();
        struct err e = {0};
        int asked = 1 - polls;
        o.threads = 3;
        o.background = true;
        o.cancelled = second_time;
        o.arg = &asked;
        if (dataset_open(&d, &s, &o, tokenizer, NULL, eos(), NULL, &e))
            assert_string_equal(e.msg, "cancelled");
        else
            whole++;
        dataset_free(d);
        assert_int_equal(files("", NULL), 0);
    }
    print_message("%d of 12 were whole\n", whole);
    assert_true(whole < 12);
}

/* As on a full disk: a file may not grow past some bytes. */
static void test_no_room(void **state)
{
    struct rlimit before, small;
    struct dataset *d;
    struct dataset_report r;
    struct dataset_source s = {.inline_json = rows.data, .inline_bytes = rows.len};
    struct dataset_options o = usual();
    o.cache_dir = cache;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    for (rlim_t room = 0; room < 60000; room += 7001) {
        struct err e = {0};
        small = before;
        small.rlim_cur = room;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        int rc = dataset_open(&d, &s, &o, tokenizer, NULL, eos(), &r, &e);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        if (!rc) {
            dataset_free(d);
            break;
        }
        assert_int_equal(rc, ERR_IO);
        assert_non_null(strstr(e.msg, "File too large"));
        assert_int_equal(files("", NULL), 0);
    }
    empty_cache();
}

static void test_sweep(void **state)
{
    bool cached;
    struct dataset_options o = usual();
    struct buf path = {0};
    struct stat st;
    hash_of(o, &cached);
    files(".tokens", &path);
    assert_int_equal(stat(path.data, &st), 0);
    /* a writer that died left this */
    buf_str(&path, ".part");
    close(open(path.data, O_CREAT | O_WRONLY, 0600));
    struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    path.data[path.len - 5] = 0;
    assert_int_equal(utimensat(AT_FDCWD, path.data, old, 0), 0);
    o.keep_duplicates = true;
    hash_of(o, &cached); /* used last */
    assert_int_equal(files(".tokens", NULL), 2);
    assert_int_equal(files(".part", NULL), 0);
    o.no_eos = true;
    o.cache_bytes = (uint64_t)st.st_size * 5 / 2;
    struct dataset_report r;
    struct dataset *d = open_with(o, &r);
    assert_int_equal(files(".tokens", NULL), 2);
    assert_int_equal(access(path.data, F_OK), -1);
    assert_true(dataset_row(d, dataset_rows(d) - 1).n > 0); /* mapped */
    dataset_free(d);
    buf_free(&path);
    empty_cache();
}

static void test_unnamed(void **state)
{
    struct dataset *d;
    struct dataset_report r;
    struct dataset_source s = {.inline_json = rows.data, .inline_bytes = rows.len};
    struct dataset_options o = usual();
    struct err e = {0};
    if (dataset_open(&d, &s, &o, tokenizer, NULL, eos(), &r, &e)) fail_msg("%s", e.msg);
    assert_int_equal(dataset_rows(d), r.kept);
    dataset_free(d);
    assert_int_equal(files("", NULL), 0);
}

/* FIPS 180-4's examples, and in pieces */
static void test_sha256(void **state)
{
    static const struct {
        const char *text, *digest;
    } known[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t n = strlen(known[i].text);
        for (size_t cut = 0; cut <= n; cut++) {
            struct sha256 h;
            unsigned char digest[SHA256_BYTES];
            struct buf hex = {0};
            sha256_start(&h);
            sha256_add(&h, known[i].text, cut);
            sha256_add(&h, known[i].text + cut, n - cut);
            sha256_end(&h, digest);
            for (int k = 0; k < SHA256_BYTES; k++) buf_printf(&hex, "%02x", digest[k]);
            assert_string_equal(hex.data, known[i].digest);
            buf_free(&hex);
        }
    }
    struct sha256 h;
    unsigned char digest[SHA256_BYTES], all[1000] = {0};
    sha256_start(&h);
    for (size_t at = 0, n = 1; at < sizeof all; at += n, n = n * 7 % 131 + 1)
        sha256_add(&h, all + at, n < sizeof all - at ? n : sizeof all - at);
    sha256_end(&h, digest);
    struct sha256 once;
    unsigned char same[SHA256_BYTES];
    sha256_start(&once);
    sha256_add(&once, all, sizeof all);
    sha256_end(&once, same);
    assert_memory_equal(digest, same, sizeof same);
}

static int start(void **state)
{
    tokenizer = byte_level();
    if (scratch_make(state)) return -1;
    snprintf(cache, sizeof cache, "%s/cache", scratch);
    buf_str(&rows, "[");
    for (int i = 0; i < 299; i++) buf_printf(&rows, "\"%d, a text of some %d words %d\",", i, i * 7 % 100, i * i);
    buf_str(&rows, "\"\"]");
    return 0;
}

static int end(void **state)
{
    tokenizer_close(tokenizer);
    buf_free(&rows);
    return rmdir(cache) | scratch_remove(state);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_found_again),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_two_at_once),
        cmocka_unit_test(test_cancelled_while_waiting),
        cmocka_unit_test(test_cancelled_with_threads),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_sweep),
        cmocka_unit_test(test_unnamed),
        cmocka_unit_test(test_sha256),
    };
    if (argc < 2) return 2;
    fixtures = argv[1];
    return cmocka_run_group_tests(tests, start, end);
}
