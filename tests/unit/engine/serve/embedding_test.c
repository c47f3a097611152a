/* Requests with pooling: the vectors are transformers' (tests/model/make_embedding_fixtures.py) for every family on
 * every device, and the same bits alone, in chunks, beside generations, from the prefix cache and after preemptions.
 *
 *   embedding_test FIXTURES/models */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/model/safetensors.h"
#include "engine/serve/manual_step.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double TOLERANCE = 1e-3; /* absolute, on values of about 1 */

static const char *fixtures;

/* ---- what is expected ---- */

struct expected {
    struct tensor_source *file;
    const int32_t *ids, *lengths;
    const float *pooled[3]; /* by enum pooling: (n, hidden) */
    int n, hidden;
};

static const struct tensor *tensor(const struct tensor_source *f, const char *name)
{
    const struct tensor *t = tensor_source_find(f, name);
    if (!t) fail_msg("no %s", name);
    return t;
}

static struct expected expected_open(const char *dir)
{
    char path[1200];
    struct err e;
    struct expected x = {0};
    snprintf(path, sizeof path, "%s/embeddings.safetensors", dir);
    if (!(x.file = safetensors_open(path, &e))) fail_msg("%s", e.msg);
    x.ids = tensor(x.file, "ids")->data;
    x.lengths = tensor(x.file, "lengths")->data;
    x.n = (int)tensor(x.file, "lengths")->dims[0];
    x.hidden = (int)tensor(x.file, "mean")->dims[1];
    x.pooled[POOLING_MEAN] = tensor(x.file, "mean")->data;
    x.pooled[POOLING_LAST] = tensor(x.file, "last")->data;
    return x;
}

static const int32_t *prompt(const struct expected *x, int i)
{
    const int32_t *ids = x->ids;
    while (i > 0) ids += x->lengths[--i];
    return ids;
}

/* ---- driving an engine by hand ---- */

enum { HIDDEN_MAX = 512, TOKENS_MAX = 64 };

struct answer {
    int n_values, n_tokens, n_cached;
    float values[HIDDEN_MAX];
    int32_t tokens[TOKENS_MAX];
    enum finish_reason finish;
    const char *error;
};

static struct engine *open_engine(const char *dir, struct engine_config c)
{
    struct err e = {0};
    c.model = dir;
    c.kv_type = "f32";
    c.activations = "f32";
    c.threads = 2;
    if (!c.kv_pages) c.kv_pages = 200;
    struct engine *g = engine_open(&c, &e);
    if (!g) fail_msg("%s: %s", dir, e.msg);
    return g;
}

static uint64_t submit(struct engine *g, struct gen_request r, struct answer *a)
{
    struct err e = {0};
    *a = (struct answer){0};
    r.user = a;
    uint64_t id = engine_submit(g, &r, &e);
    if (!id) fail_msg("%s", e.msg);
    return id;
}

static uint64_t embed(struct engine *g, const int32_t *ids, int n, enum pooling how, const char *adapter,
                      struct answer *a)
{
    return submit(g, (struct gen_request){.prompt = ids, .n_prompt = n, .pooling = {{how}, 1}, .adapter = adapter}, a);
}

static uint64_t generate(struct engine *g, const int32_t *ids, int n, int max_new, struct answer *a)
{
    return submit(g,
                  (struct gen_request){.prompt = ids,
                                       .n_prompt = n,
                                       .max_new_tokens = max_new,
                                       .ignore_eos = true,
                                       .sampling = {.repetition = 1, .top_p = 1, .typical_p = 1}},
                  a);
}

static void take(const struct event_batch *b, const struct event *v)
{
    struct answer *a = v->user;
    assert_int_equal(a->finish, FINISH_NONE);
    if (v->kind == EV_EMBEDDING) {
        assert_true(a->n_values == 0 && v->n_values <= HIDDEN_MAX);
        a->n_values = v->n_values;
        memcpy(a->values, b->values + v->values, (size_t)v->n_values * sizeof *a->values);
    } else if (v->kind == EV_TOKEN) {
        a->tokens[a->n_tokens++] = v->token;
    } else if (v->kind == EV_DONE) {
        a->finish = v->finish;
        a->n_cached = v->n_cached;
        a->error = v->error;
    }
}

/* One turn and its events; how many tokens it computed. */
static int turn(struct engine *g)
{
    int n = engine_step_once(g, false);
    struct event_batch *all = engine_events(g);
    for (struct event_batch *b = all; b; b = b->next)
        for (int i = 0; i < b->n; i++) take(b, &b->v[i]);
    engine_events_done(g, all);
    return n;
}

static void run_out(struct engine *g)
{
    while (turn(g) > 0) {
    }
}

static void assert_embedded(const struct answer *a, int hidden)
{
    if (a->finish != FINISH_EMBEDDED) fail_msg("finish %d: %s", a->finish, a->error ? a->error : "");
    assert_int_equal(a->n_values, hidden);
    assert_int_equal(a->n_tokens, 0);
}

static void assert_same(const struct answer *a, const struct answer *b)
{
    assert_int_equal(a->n_values, b->n_values);
    assert_memory_equal(a->values, b->values, (size_t)a->n_values * sizeof *a->values);
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_memory_equal(a->tokens, b->tokens, sizeof a->tokens);
}

/* ---- transformers' vectors ---- */

static double worst_difference(const struct answer *a, const float *want, int n)
{
    double worst = 0;
    for (int i = 0; i < n; i++) {
        double d = fabs((double)a->values[i] - (double)want[i]);
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

/* All prompts, both ways, in one batch and in chunks of at most 24 tokens. */
static void check_golden(const char *dir, const char *device, const char *adapter_dir)
{
    struct expected x = expected_open(adapter_dir ? adapter_dir : dir);
    struct engine *g =
        open_engine(dir, (struct engine_config){.device = device, .max_batch_tokens = 24, .max_seqs = 8});
    struct answer *a = calloc((size_t)x.n * 2, sizeof *a);
    struct err e;
    double worst = 0;
    if (adapter_dir && engine_adapter_load(g, "a", adapter_dir, NULL, &e)) fail_msg("%s", e.msg);
    for (int i = 0; i < 2 * x.n; i++)
        embed(g, prompt(&x, i / 2), x.lengths[i / 2], i % 2 ? POOLING_LAST : POOLING_MEAN, adapter_dir ? "a" : NULL,
              &a[i]);
    run_out(g);
    for (int i = 0; i < 2 * x.n; i++) {
        assert_embedded(&a[i], x.hidden);
        const float *want = x.pooled[i % 2 ? POOLING_LAST : POOLING_MEAN] + i / 2 * x.hidden;
        double d = worst_difference(&a[i], want, x.hidden);
        if (!(d <= worst)) worst = d;
    }
    const char *name = strrchr(adapter_dir ? adapter_dir : dir, '/') + 1;
    printf("%-24s %-14s worst difference %.1e\n", name, device, worst);
    assert_true(worst <= TOLERANCE);
    free(a);
    engine_close(g);
    tensor_source_close(x.file);
}

static void check_devices(const char *dir, const char *adapter_dir)
{
#ifdef TANDEM_SANITIZED
    const char *devices[] = {"cpu"};
#else
    const char *devices[] = {"ref", "cpu:portable", "cpu"};
#endif
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) check_golden(dir, devices[i], adapter_dir);
}

static void test_every_family_gives_what_transformers_gives(void **state)
{
    int models = 0;
    DIR *d = opendir(fixtures);
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d));) {
        char dir[1024], path[1100];
        snprintf(dir, sizeof dir, "%.700s/%.255s", fixtures, f->d_name);
        snprintf(path, sizeof path, "%s/embeddings.safetensors", dir);
        FILE *probe = fopen(path, "rb");
        if (!probe) continue;
        fclose(probe);
        models++;
        check_devices(dir, NULL);
    }
    closedir(d);
    assert_true(models >= 10);
}

static void test_through_an_adapter(void **state)
{
    const char *const names[] = {"llama-gqa--qv", "gpt2--conv1d"};
    for (int i = 0; i < 2; i++) {
        char dir[1024], adapter[1024];
        snprintf(dir, sizeof dir, "%.700s/%.*s", fixtures, (int)strcspn(names[i], "-") + (i == 0 ? 4 : 0), names[i]);
        snprintf(adapter, sizeof adapter, "%.700s/../adapters/%s", fixtures, names[i]);
        check_devices(dir, adapter);
    }
}

/* ---- the same bits ---- */

static char *qwen2(char dir[static 1024])
{
    snprintf(dir, 1024, "%.700s/qwen2", fixtures);
    return dir;
}

static void test_alone_in_chunks_and_beside_generations(void **state)
{
    char dir[1024];
    struct expected x = expected_open(qwen2(dir));
    struct engine *g = open_engine(dir, (struct engine_config){.max_batch_tokens = 512, .max_seqs = 16});
    struct answer alone[8], text, busy[8], texts[3];
    assert_int_equal(x.n, 4);
    for (int i = 0; i < 8; i++) {
        embed(g, prompt(&x, i / 2), x.lengths[i / 2], i % 2 ? POOLING_LAST : POOLING_MEAN, NULL, &alone[i]);
        run_out(g);
        assert_embedded(&alone[i], x.hidden);
    }
    generate(g, prompt(&x, 1), 16, 40, &text);
    run_out(g);
    engine_close(g);

    const int budgets[] = {16, 23, 512};
    for (int b = 0; b < 3; b++) {
        g = open_engine(
            dir, (struct engine_config){.max_batch_tokens = budgets[b], .max_seqs = 12, .no_prefix_cache = true});
        for (int i = 0; i < 3; i++) generate(g, prompt(&x, 1), 16, 40, &texts[i]);
        for (int i = 0; i < 5; i++) turn(g);
        for (int i = 0; i < 8; i++)
            embed(g, prompt(&x, i / 2), x.lengths[i / 2], i % 2 ? POOLING_LAST : POOLING_MEAN, NULL, &busy[i]);
        run_out(g);
        for (int i = 0; i < 8; i++) assert_same(&alone[i], &busy[i]);
        for (int i = 0; i < 3; i++) assert_same(&text, &texts[i]);
        engine_close(g);
    }
    tensor_source_close(x.file);
}

static void test_only_last_starts_from_the_prefix_cache(void **state)
{
    char dir[1024];
    struct expected x = expected_open(qwen2(dir));
    struct engine *g = open_engine(dir, (struct engine_config){.max_batch_tokens = 512, .max_seqs = 16});
    struct answer first[2], again[2], text;
    const int32_t *ids = prompt(&x, 3);
    for (int i = 0; i < 2; i++) {
        embed(g, ids, 90, i ? POOLING_LAST : POOLING_MEAN, NULL, &first[i]);
        run_out(g);
    }
    for (int i = 0; i < 2; i++) {
        embed(g, ids, 90, i ? POOLING_LAST : POOLING_MEAN, NULL, &again[i]);
        run_out(g);
        assert_same(&first[i], &again[i]);
    }
    assert_int_equal(again[0].n_cached, 0);
    assert_int_equal(again[1].n_cached, 80);
    generate(g, ids, 90, 4, &text); /* and what they computed is there for generations */
    run_out(g);
    assert_int_equal(text.n_cached, 80);
    engine_close(g);
    tensor_source_close(x.file);
}

static void test_after_a_preemption(void **state)
{
    char dir[1024];
    struct expected x = expected_open(qwen2(dir));
    struct engine *g = open_engine(dir, (struct engine_config){.max_batch_tokens = 512, .max_seqs = 4});
    struct answer alone[2], late, text[2];
    struct engine_stats s;
    for (int i = 0; i < 2; i++) embed(g, prompt(&x, 3), 90, i ? POOLING_LAST : POOLING_MEAN, NULL, &alone[i]);
    run_out(g);
    engine_close(g);

    for (int i = 0; i < 2; i++) { /* it gets two tokens a step, while the texts before it grow into its pages */
        g = open_engine(dir, (struct engine_config){.max_batch_tokens = 4, .max_seqs = 3, .kv_pages = 10});
        for (int k = 0; k < 2; k++) generate(g, prompt(&x, 1 + k), 1, 60, &text[k]);
        turn(g);
        embed(g, prompt(&x, 3), 90, i ? POOLING_LAST : POOLING_MEAN, NULL, &late);
        run_out(g);
        engine_stats_read(g, &s);
        assert_true(s.preemptions > 0);
        assert_int_equal(text[0].finish, FINISH_LENGTH);
        assert_embedded(&late, x.hidden);
        assert_same(&alone[i], &late);
        engine_close(g);
    }
    tensor_source_close(x.file);
}

/* ---- ends and errors ---- */

static void test_cancelled_half_way(void **state)
{
    char dir[1024];
    struct expected x = expected_open(qwen2(dir));
    struct engine *g = open_engine(dir, (struct engine_config){.max_batch_tokens = 16, .max_seqs = 4});
    struct answer a;
    struct engine_stats s;
    uint64_t id = embed(g, prompt(&x, 3), 90, POOLING_MEAN, NULL, &a);
    turn(g);
    engine_cancel(g, id);
    run_out(g);
    assert_int_equal(a.finish, FINISH_CANCELLED);
    assert_int_equal(a.n_values, 0);
    engine_stats_read(g, &s);
    assert_int_equal(s.pages_used, 0);
    engine_close(g);
    tensor_source_close(x.file);
}

/* The mean of a causal model's last positions, from the means of the whole and of the first ones. */
static void test_first_positions_left_out(void **state)
{
    char dir[1024];
    struct expected x = expected_open(qwen2(dir));
    struct engine *g = open_engine(dir, (struct engine_config){.max_seqs = 4, .max_batch_tokens = 16});
    enum { N = 40, FROM = 21 };
    struct answer whole, first, rest;
    const int32_t *ids = prompt(&x, 3);
    embed(g, ids, N, POOLING_MEAN, NULL, &whole);
    embed(g, ids, FROM, POOLING_MEAN, NULL, &first);
    submit(g, (struct gen_request){.prompt = ids, .n_prompt = N, .pooling = {{POOLING_MEAN}, 1}, .pool_from = FROM},
           &rest);
    run_out(g);
    assert_embedded(&rest, x.hidden);
    for (int i = 0; i < x.hidden; i++) {
        double want = (N * (double)whole.values[i] - FROM * (double)first.values[i]) / (N - FROM);
        if (!(fabs((double)rest.values[i] - want) <= 1e-4)) fail_msg("%d: %g, not %g", i, (double)rest.values[i], want);
    }
    engine_close(g);
    tensor_source_close(x.file);
}

static void test_limits(void **state)
{
    char dir[1024];
    int32_t ids[64] = {0};
    struct err e = {0};
    struct answer a;
    struct engine *g =
        open_engine(qwen2(dir), (struct engine_config){.max_seqs = 4, .max_batch_tokens = 16, .max_total_tokens = 48});
    embed(g, ids, 48, POOLING_MEAN, NULL, &a); /* as many as the limit: nothing is to be generated */
    run_out(g);
    assert_int_equal(a.finish, FINISH_EMBEDDED);
    const struct gen_request bad[] = {
        {.prompt = ids, .n_prompt = 0, .pooling = {{POOLING_MEAN}, 1}},
        {.prompt = ids, .n_prompt = 49, .pooling = {{POOLING_LAST}, 1}},
        {.prompt = (int32_t[]){-1}, .n_prompt = 1, .pooling = {{POOLING_LAST}, 1}},
        {.prompt = (int32_t[]){1 << 20}, .n_prompt = 1, .pooling = {{POOLING_MEAN}, 1}},
        {.prompt = ids, .n_prompt = 3, .pooling = {{POOLING_MEAN, POOLING_LAST}, 2}},
        {.prompt = ids, .n_prompt = 3, .pooling = {{POOLING_MEAN}, 1}, .pool_from = 3},
        {.prompt = ids, .n_prompt = 3, .pooling = {{POOLING_MEAN}, 1}, .pool_from = -1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(engine_submit(g, &bad[i], &e), 0);
        assert_int_equal(e.code, ERR_INVALID);
    }
    engine_close(g);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_family_gives_what_transformers_gives),
        cmocka_unit_test(test_through_an_adapter),
        cmocka_unit_test(test_alone_in_chunks_and_beside_generations),
        cmocka_unit_test(test_only_last_starts_from_the_prefix_cache),
        cmocka_unit_test(test_after_a_preemption),
        cmocka_unit_test(test_cancelled_half_way),
        cmocka_unit_test(test_first_positions_left_out),
        cmocka_unit_test(test_limits),
    };
    if (argc != 2) return 2;
    fixtures = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
