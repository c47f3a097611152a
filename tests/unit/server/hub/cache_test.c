/* What a name means in the cache of the hub, by what its snapshots have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "server/hub/cache.h"
#include "server/hub/lock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

static char root[] = "/tmp/tandem-hub-cache-XXXXXX";
static struct hub hub = {.cache = root, .offline = true};

static void put(const char *path, const char *text)
{
    struct err e = {0};
    char *whole = file_join(root, path), *slash = strrchr(whole, '/');
    *slash = 0;
    assert_int_equal(dir_make(whole, &e), 0);
    *slash = '/';
    if (file_write_sync(whole, text, strlen(text), &e)) fail_msg("%s", e.msg);
    free(whole);
}

/* Files of a snapshot, separated by blanks; an index names model-1 and model-2. */
static void make(const char *repo, const char *names)
{
    char path[400], copy[300];
    snprintf(path, sizeof path, "%s/refs/main", repo);
    put(path, COMMIT);
    snprintf(path, sizeof path, "%s/snapshots/" COMMIT "/x", repo);
    put(path, "");
    snprintf(copy, sizeof copy, "%s", names);
    for (char *save, *name = strtok_r(copy, " ", &save); name; name = strtok_r(NULL, " ", &save)) {
        snprintf(path, sizeof path, "%s/snapshots/" COMMIT "/%s", repo, name);
        put(path, strstr(name, "index.json")
                      ? "{\"weight_map\":{\"a\":\"model-1.safetensors\",\"b\":\"model-2.safetensors\"}}"
                      : "12345");
    }
}

static void test_whole(void **state)
{
    (void)state;
    static const struct {
        const char *files, *quant;
        enum cache_state state;
        const char *ends; /* of the path */
    } cases[] = {
        {"config.json tokenizer.json model.safetensors", "", CACHE_WHOLE, COMMIT},
        {"config.json vocab.txt model.safetensors", "", CACHE_WHOLE, COMMIT},
        {"config.json model.safetensors", "", CACHE_PARTIAL, COMMIT},
        {"config.json tokenizer.json", "", CACHE_PARTIAL, COMMIT},
        {"tokenizer.json model.safetensors", "", CACHE_PARTIAL, COMMIT},
        {"config.json tokenizer.json model.safetensors.index.json model-1.safetensors model-2.safetensors", "",
         CACHE_WHOLE, COMMIT},
        {"config.json tokenizer.json model.safetensors.index.json model-1.safetensors", "", CACHE_PARTIAL, COMMIT},
        {"config.json tokenizer.json pytorch_model.bin", "", CACHE_PARTIAL, COMMIT},
        {"adapter_config.json adapter_model.safetensors", "", CACHE_WHOLE, COMMIT},
        {"adapter_config.json", "", CACHE_PARTIAL, COMMIT},
        {"m-Q4_0.gguf", "", CACHE_WHOLE, "/m-Q4_0.gguf"},
        {"m-Q4_0.gguf config.json", "q4_0", CACHE_WHOLE, "/m-Q4_0.gguf"},
        {"m-Q4_0.gguf", "Q8_0", CACHE_PARTIAL, COMMIT},
        {"d/m-Q4_0-00001-of-00002.gguf d/m-Q4_0-00002-of-00002.gguf", "", CACHE_WHOLE, "/d/m-Q4_0-00001-of-00002.gguf"},
        {"d/m-Q4_0-00001-of-00002.gguf", "", CACHE_PARTIAL, COMMIT},
        {"config.json tokenizer.json model.safetensors", "Q4_0", CACHE_PARTIAL, COMMIT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct repo_name r = {.id = "a/b", .revision = "main"};
        struct err e = {0};
        char *path;
        uint64_t bytes;
        snprintf(r.quant, sizeof r.quant, "%s", cases[i].quant);
        make("models--a--b", cases[i].files);
        enum cache_state got = cache_find(&hub, &r, &path, &e);
        size_t n = path ? strlen(path) : 0, m = strlen(cases[i].ends);
        if (got != cases[i].state || n < m || strcmp(path + n - m, cases[i].ends))
            fail_msg("%s: %d, %s", cases[i].files, got, path ? path : "no path");
        free(path);
        if (cache_remove(&hub, "a/b", &bytes, &e)) fail_msg("%s", e.msg);
        assert_true(bytes > 0);
    }
}

static void test_revisions(void **state)
{
    (void)state;
    struct err e = {0};
    static const char files[] = "config.json tokenizer.json model.safetensors";
    static const struct {
        const char *ref;
        enum cache_state state;
    } refs[] = {{COMMIT, CACHE_WHOLE},
                {COMMIT "\n", CACHE_WHOLE},
                {"", CACHE_NONE},
                {"../../../../etc", CACHE_NONE},
                {COMMIT "/..", CACHE_NONE},
                {"0123456789", CACHE_NONE},
                {"ffffffffffffffffffffffffffffffffffffffff", CACHE_NONE}};
    for (size_t i = 0; i < sizeof refs / sizeof *refs; i++) {
        struct repo_name main = {.id = "a/b", .revision = "main"}, commit = {.id = "a/b", .revision = COMMIT},
                         other = {.id = "a/b", .revision = "v1"};
        char *path;
        uint64_t bytes;
        make("models--a--b", files);
        put("models--a--b/refs/main", refs[i].ref);
        if (cache_find(&hub, &main, &path, &e) != refs[i].state) fail_msg("\"%s\"", refs[i].ref);
        free(path);
        assert_int_equal(cache_find(&hub, &commit, &path, &e), CACHE_WHOLE);
        free(path);
        assert_int_equal(cache_find(&hub, &other, &path, &e), CACHE_NONE);
        assert_null(path);
        assert_int_equal(cache_remove(&hub, "a/b", &bytes, &e), 0);
    }
}

static void test_several_gguf(void **state)
{
    (void)state;
    struct repo_name r = {.id = "a/b", .revision = "main"};
    struct err e = {0};
    char *path;
    uint64_t bytes;
    make("models--a--b", "m-Q4_0.gguf m-Q8_0.gguf");
    assert_int_equal(cache_find(&hub, &r, &path, &e), CACHE_PARTIAL);
    assert_true(e.code == ERR_INVALID && strstr(e.msg, "m-Q4_0.gguf") && strstr(e.msg, "m-Q8_0.gguf"));
    free(path);
    assert_int_equal(cache_remove(&hub, "a/b", &bytes, &e), 0);
}

static void test_list(void **state)
{
    (void)state;
    struct err e = {0};
    uint64_t bytes;
    int n;
    make("models--b--two", "config.json");
    put("models--b--two/blobs/1", "1234567");
    put("models--b--two/blobs/2.incomplete", "123");
    make("models--a--one", "adapter_config.json adapter_model.safetensors");
    put("datasets--a--x/refs/main", COMMIT);
    put("notes.txt", "");
    struct cache_entry *v = cache_list(&hub, &n, &e);
    assert_int_equal(n, 2);
    assert_string_equal(v[0].id, "a/one");
    assert_true(v[0].whole && strcmp(v[0].kind, "adapter") == 0 && v[0].bytes == 0 && v[0].snapshots == 1);
    assert_string_equal(v[1].id, "b/two");
    assert_true(!v[1].whole && strcmp(v[1].kind, "model") == 0 && v[1].bytes == 7 && v[1].incomplete == 3);
    free(v);
    char *lock = file_join(root, ".locks/models--b--two/2.lock");
    put(".locks/models--b--two/2.lock", "");
    int fd = lock_try(lock, &e);
    assert_true(fd >= 0 && lock_try(lock, &e) == -1);
    assert_int_equal(cache_remove(&hub, "b/two", &bytes, &e), ERR_FULL);
    close(fd);
    assert_int_equal(cache_remove(&hub, "b/two", &bytes, &e), 0);
    static const char *const wrong[] = {"b/two", "", ".", "..", "a", "a/one/", "../x", "a--one", "datasets--a--x", "/"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (cache_remove(&hub, wrong[i], &bytes, &e) != ERR_NOT_FOUND) fail_msg("\"%s\": %s", wrong[i], e.msg);
    assert_int_equal(cache_remove(&hub, "a/one", &bytes, &e), 0);
    unlink(lock);
    free(lock);
    struct hub none = {.cache = "/tmp/no/such/cache"}, file = {.cache = "/dev/null"};
    v = cache_list(&none, &n, &e);
    assert_true(v && n == 0);
    free(v);
    assert_null(cache_list(&file, &n, &e));
}

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    char command[100];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_whole), cmocka_unit_test(test_revisions),
                                       cmocka_unit_test(test_several_gguf), cmocka_unit_test(test_list)};
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
