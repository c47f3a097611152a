/* What a model is estimated to take is never less than what it takes, and not much more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/serve/engine.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *fixtures;

static size_t total(const struct engine_memory *m)
{
    return m->weight_bytes + m->kv_bytes + m->workspace_bytes;
}

/* @return whether the model could be opened as asked: not every type suits every model. */
static bool check(const char *dir, const char *quantize, size_t kv_cache_bytes)
{
    struct engine_config c = {.model = dir,
                              .device = "cpu",
                              .threads = 1,
                              .quantize = quantize,
                              .kv_cache_bytes = kv_cache_bytes,
                              .max_seqs = 4,
                              .max_batch_tokens = 32,
                              .no_calibration = true};
    struct engine_memory m;
    struct err e = {0};
    struct engine *g = engine_open(&c, &e);
    if (!g) return false;
    const struct engine_info *i = engine_info(g);
    const struct engine_memory real = {i->weight_bytes, i->kv_bytes, i->workspace_bytes};
    if (engine_estimate(&c, &m, &e)) fail_msg("%s: %s", dir, e.msg);
    if (m.weight_bytes < real.weight_bytes || m.workspace_bytes < real.workspace_bytes || m.kv_bytes < real.kv_bytes)
        fail_msg("%s as %s: weights %zu kv %zu work %zu estimated, %zu %zu %zu real", dir, quantize, m.weight_bytes,
                 m.kv_bytes, m.workspace_bytes, real.weight_bytes, real.kv_bytes, real.workspace_bytes);
    if (total(&m) > 2 * total(&real) + (1 << 20))
        fail_msg("%s as %s: %zu estimated, %zu real", dir, quantize, total(&m), total(&real));
    engine_close(g);
    return true;
}

/* Encoders compute a text in one step, however long. */
static void test_encoders(void **state)
{
    char *root = file_join(fixtures, "../encoders");
    struct dirent **v = NULL;
    int n = scandir(root, &v, NULL, alphasort), opened = 0;
    for (int i = 0; i < n; i++) {
        char *dir = file_join(root, v[i]->d_name), *config = file_join(dir, "config.json");
        if (v[i]->d_name[0] != '.' && access(config, F_OK) == 0) opened += check(dir, "none", 0);
        free(config);
        free(dir);
        free(v[i]);
    }
    free(v);
    free(root);
    assert_true(opened > 1);
}

static void test_draft(void **state)
{
    char *dir = file_join(fixtures, "tinystories-656k");
    struct engine_config c = {.model = dir, .device = "cpu", .threads = 1, .max_seqs = 4, .no_calibration = true};
    struct engine_memory alone, both;
    struct err e = {0};
    assert_int_equal(engine_estimate(&c, &alone, &e), 0);
    c.draft_model = dir;
    c.speculate = "on";
    assert_int_equal(engine_estimate(&c, &both, &e), 0);
    struct engine *g = engine_open(&c, &e);
    assert_non_null(g);
    const struct engine_info *i = engine_info(g);
    assert_true(i->draft_weight_bytes > 0);
    assert_true(both.weight_bytes >= i->weight_bytes + i->draft_weight_bytes);
    assert_true(both.kv_bytes >= i->kv_bytes + i->draft_kv_bytes);
    assert_true(both.workspace_bytes >= i->workspace_bytes + i->draft_workspace_bytes);
    assert_true(total(&both) > total(&alone));
    engine_close(g);
    free(dir);
}

static void test_fixtures(void **state)
{
    static const char *const types[] = {"none", "int8", "int4"};
    struct dirent **v = NULL;
    int n = scandir(fixtures, &v, NULL, alphasort), opened = 0;
    for (int i = 0; i < n; i++) {
        char *dir = file_join(fixtures, v[i]->d_name), *config = file_join(dir, "config.json");
        for (int t = 0; t < 3 && v[i]->d_name[0] != '.' && access(config, F_OK) == 0; t++)
            opened += check(dir, types[t], t ? 1 << 20 : 0);
        free(config);
        free(dir);
        free(v[i]);
    }
    free(v);
    assert_true(opened > 40);
}

static void test_errors(void **state)
{
    struct engine_memory m;
    struct err e = {0};
    assert_int_not_equal(engine_estimate(&(struct engine_config){.model = "/nonexistent"}, &m, &e), 0);
    const struct engine_config own = {.model = "/nonexistent", .gpu_memory_bytes = 12345};
    assert_int_equal(engine_estimate(&own, &m, &e), 0); /* of a device with its own memory */
    assert_int_equal(total(&m), 12345);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_encoders),
        cmocka_unit_test(test_draft),
        cmocka_unit_test(test_errors),
    };
    fixtures = argc > 1 ? argv[1] : "tests/fixtures/models";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
