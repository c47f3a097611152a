/* Serving adapters: a batch that mixes them changes no text, bit for bit; the prefix cache never mixes versions; what
 * is replaced or deleted lives until its last request ends.
 *
 *   adapters_test FIXTURES_DIR */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/model/adapter.h"
#include "engine/model/step_batch.h"
#include "engine/serve/engine.h"
#include "engine/serve/manual_step.h"
#include "engine/train/train.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef TANDEM_SANITIZED
enum { SCALE = 4 }; /* sanitizers are slow: a quarter of the work */
#else
enum { SCALE = 1 };
#endif

static const char *fixtures;
static char root[] = "/tmp/tandem-test-XXXXXX";

/* ---- adapters on the disk: "llama-gqa" with random matrices ---- */

static const struct kind {
    const char *name;
    unsigned targets;
    bool odd; /* another rank in each module, none in some layers */
} kinds[] = {
    {"qv", TARGET_Q | TARGET_V, false}, {"all", TARGET_ALL, false}, {"odd", TARGET_ALL, true},
    {"down", TARGET_DOWN, false},       {"up", TARGET_UP, false},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static char *model_dir(void)
{
    return file_join(fixtures, "llama-gqa");
}

static struct adapter *build(const struct model_config *c, const struct kind *k, int r, uint32_t seed)
{
    struct adapter *a = adapter_new(c, k->targets, r, 2.0 * r, false);
    if (k->odd) {
        int rank[64];
        for (int i = 0; i < a->layers * a->n_modules; i++) {
            bool present = lora_module_present(c, i / a->n_modules, &a->module[i % a->n_modules]);
            rank[i] = !present || (i / a->n_modules == 1 && i % 2) ? 0 : 1 + i % 5;
        }
        adapter_free(a);
        a = adapter_of_ranks(c, rank);
        a->r = r;
        a->alpha = 4;
        for (int i = 0; i < a->layers * a->n_modules; i++)
            if (rank[i]) a->pair[i].scale = (float)(4.0 / rank[i]);
    }
    for (int i = 0; i < a->layers * a->n_modules; i++) {
        const struct lora_module *m = &a->module[i % a->n_modules];
        for (int half = 0; half < 2; half++) {
            float *p = half ? a->pair[i].b : a->pair[i].a;
            for (int n = 0; n < a->pair[i].r * (half ? m->n : m->k); n++) {
                seed = seed * 1664525 + 1013904223;
                p[n] = (float)(int32_t)seed * 0x1p-33f;
            }
        }
    }
    return a;
}

/* root/NAME, with another seed another adapter */
static void write_adapter(const char *name, const struct kind *k, int r, uint32_t seed)
{
    struct model_config c;
    struct err e = {0};
    char *model = model_dir(), *dir = file_join(root, name);
    assert_int_equal(model_config_read(model, &c, &e), 0);
    struct adapter *a = build(&c, k, r, seed);
    if (adapter_write(a, &c, "llama-gqa", dir, &e)) fail_msg("%s", e.msg);
    adapter_free(a);
    free(dir);
    free(model);
}

static void load(struct engine *g, const char *name, const char *dir_name)
{
    struct err e = {0};
    char *dir = file_join(root, dir_name);
    if (engine_adapter_load(g, name, dir, NULL, &e)) fail_msg("%s", e.msg);
    free(dir);
}

static int make_all(void **state)
{
    assert_non_null(mkdtemp(root));
    for (int i = 0; i < KINDS; i++) write_adapter(kinds[i].name, &kinds[i], 4, (uint32_t)i + 1);
    write_adapter("all-2", &kinds[1], 4, 100);
    write_adapter("all-3", &kinds[1], 6, 200);
    return 0;
}

static int remove_all(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

/* ---- driving an engine ---- */

enum { MAX_TOKENS = 320 };

struct reply {
    int n, n_cached;
    int32_t ids[MAX_TOKENS];
    float logprobs[MAX_TOKENS];
    enum finish_reason finish;
    bool done;
};

struct rig {
    struct engine *g;
    sem_t wake;
    int left;
    bool by_hand; /* no thread: the test turns the engine's loop, so it knows where requests are */
};

static void wake(void *arg)
{
    sem_post(&((struct rig *)arg)->wake);
}

static void rig_begin(struct rig *r, struct engine_config c, bool adapters, bool by_hand)
{
    struct err e = {0};
    char *model = model_dir();
    c.model = model;
    *r = (struct rig){.g = engine_open(&c, &e), .by_hand = by_hand};
    if (!r->g) fail_msg("%s", e.msg);
    sem_init(&r->wake, 0, 0);
    if (adapters) load(r->g, kinds[0].name, kinds[0].name); /* before the thread runs */
    if (!r->by_hand) assert_int_equal(engine_start(r->g, wake, r, &e), 0);
    for (int i = 1; i < KINDS && adapters; i++) load(r->g, kinds[i].name, kinds[i].name);
    free(model);
}

static void rig_open(struct rig *r, struct engine_config c, bool adapters)
{
    rig_begin(r, c, adapters, false);
}

static void rig_close(struct rig *r)
{
    engine_close(r->g);
    sem_destroy(&r->wake);
}

static bool pump(struct rig *r)
{
    struct event_batch *all = engine_events(r->g);
    for (struct event_batch *b = all; b; b = b->next)
        for (int i = 0; i < b->n; i++) {
            const struct event *v = &b->v[i];
            struct reply *y = v->user;
            if (v->kind == EV_DONE) {
                y->done = true;
                y->finish = v->finish;
                y->n_cached = v->n_cached;
                r->left--;
            } else if (v->kind == EV_TOKEN) {
                y->ids[y->n] = v->token;
                y->logprobs[y->n++] = v->logprob;
            }
        }
    engine_events_done(r->g, all);
    return all != NULL;
}

static void wait_for_events(struct rig *r)
{
    if (r->by_hand)
        engine_step_once(r->g, false);
    else
        sem_wait(&r->wake);
    pump(r);
}

static void run_out(struct rig *r)
{
    while (r->left) wait_for_events(r);
}

static void run_until(struct rig *r, const struct reply *y, int n)
{
    while (y->n < n && r->left) wait_for_events(r);
}

static struct gen_request greedy(const int32_t *prompt, int n, int max_new, const char *adapter)
{
    return (struct gen_request){.prompt = prompt,
                                .n_prompt = n,
                                .max_new_tokens = max_new,
                                .ignore_eos = true,
                                .adapter = adapter,
                                .sampling = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition = 1}};
}

static uint64_t submit(struct rig *r, struct gen_request q, struct reply *y)
{
    struct err e = {0};
    *y = (struct reply){0};
    q.user = y;
    uint64_t id = engine_submit(r->g, &q, &e);
    if (!id) fail_msg("%s", e.msg);
    r->left++;
    return id;
}

static bool same(const struct reply *a, const struct reply *b)
{
    return a->n == b->n && memcmp(a->ids, b->ids, (size_t)a->n * sizeof *a->ids) == 0 &&
           memcmp(a->logprobs, b->logprobs, (size_t)a->n * sizeof *a->logprobs) == 0; /* bit for bit */
}

static void random_prompt(int32_t *prompt, int n, uint32_t seed)
{
    for (int i = 0; i < n; i++) prompt[i] = 3 + (int32_t)((seed = seed * 1664525 + 1013904223) >> 8) % 280;
}

/* ---- a batch changes nothing ---- */

enum { JOBS = 18 };

struct job {
    int32_t prompt[MAX_TOKENS];
    int n, want;
    const char *adapter;
};

static void make_jobs(struct job *job)
{
    for (int i = 0; i < JOBS; i++) {
        job[i].n = 1 + i * 13 % 70;
        job[i].want = 4 + i * 11 % 50;
        job[i].adapter = i % 6 ? kinds[i % 6 - 1].name : NULL;                /* none, and each kind, three times */
        random_prompt(job[i].prompt, job[i].n, i % 2 ? 7 : (uint32_t)i + 50); /* some begin alike */
    }
}

static struct gen_request request(const struct job *j, int i)
{
    struct gen_request q = greedy(j->prompt, j->n, j->want, j->adapter);
    if (i % 3 == 0) {
        q.sampling.sample = true;
        q.sampling.temperature = 0.9f;
        q.sampling.seed = (uint64_t)i + 1000;
    }
    return q;
}

static void run_together(struct rig *r, const struct job *job, struct reply *y)
{
    for (int i = 0; i < JOBS; i++) {
        submit(r, request(&job[i], i), &y[i]);
        if (i % 5 == 4) pump(r);
    }
    run_out(r);
}

static void expect_all(struct engine_config c, const struct job *job, const struct reply *want, const char *what,
                       int *preemptions)
{
    struct rig r;
    struct reply *got = calloc(JOBS, sizeof *got);
    struct engine_stats s;
    rig_open(&r, c, true);
    run_together(&r, job, got);
    engine_stats_read(r.g, &s);
    for (int i = 0; i < JOBS; i++)
        if (!same(&got[i], &want[i]))
            fail_msg("%s: request %d with %s differs from the one computed alone", what, i,
                     job[i].adapter ? job[i].adapter : "no adapter");
    assert_int_equal(s.pages_used, 0);
    if (preemptions) *preemptions = (int)s.preemptions;
    free(got);
    rig_close(&r);
}

static void batching_changes_nothing(struct engine_config c)
{
    struct job *job = calloc(JOBS, sizeof *job);
    struct reply *want = calloc(JOBS, sizeof *want);
    struct rig r;
    int preemptions = 0;
    make_jobs(job);
    c.kv_cache_bytes = 16 << 20;
    c.threads = 1;
    c.no_prefix_cache = true;
    rig_open(&r, c, true);
    for (int i = 0; i < JOBS; i++) {
        submit(&r, request(&job[i], i), &want[i]);
        run_out(&r);
    }
    rig_close(&r);
    rig_open(&r, c, false); /* without an adapter in the process */
    for (int i = 0; i < JOBS; i += 6) {
        struct reply bare;
        submit(&r, request(&job[i], i), &bare);
        run_out(&r);
        assert_true(same(&bare, &want[i]));
    }
    rig_close(&r);
    for (int i = 1; i < 6; i++) { /* and each adapter makes a difference */
        struct reply *a = &want[i], *b = &want[i + 6];
        assert_true(a->n && b->n && a->logprobs[0] != b->logprobs[0]);
    }
    c.max_seqs = 40;
    c.threads = 2;
    expect_all(c, job, want, "together", NULL);
    c.no_prefix_cache = false;
    expect_all(c, job, want, "with the prefix cache", NULL);
    if (SCALE == 1) {
        c.max_batch_tokens = 40;
        expect_all(c, job, want, "in chunks of 40", NULL);
        c.max_batch_tokens = 512;
        c.kv_pages = 9;
        c.max_total_tokens = 128;
        expect_all(c, job, want, "with few pages", &preemptions);
        assert_true(preemptions > 0);
    }
    free(job);
    free(want);
}

static void test_batching_f32(void **state)
{
    batching_changes_nothing((struct engine_config){.kv_type = "f32"});
}

static void test_batching_int8(void **state)
{
    batching_changes_nothing((struct engine_config){.quantize = "int8", .kv_type = "int8", .no_calibration = true});
}

static void test_batching_as_served(void **state)
{
    batching_changes_nothing((struct engine_config){.device = "cpu"});
}

/* ---- versions ---- */

static struct engine_config small(void)
{
    return (struct engine_config){.kv_type = "f32", .kv_cache_bytes = 16 << 20, .threads = 1};
}

static void ask(struct rig *r, const int32_t *prompt, int n, const char *adapter, struct reply *y)
{
    submit(r, greedy(prompt, n, 8, adapter), y);
    run_out(r);
}

static void test_prefix_cache_knows_versions(void **state)
{
    struct rig r;
    int32_t prompt[64];
    struct reply base, one, again, two, back, fresh;
    random_prompt(prompt, 64, 9);
    rig_open(&r, small(), false);
    load(r.g, "a", "all");
    ask(&r, prompt, 64, NULL, &base);
    ask(&r, prompt, 64, "a", &one);
    assert_int_equal(one.n_cached, 0); /* not the base's pages */
    ask(&r, prompt, 64, "a", &again);
    assert_int_equal(again.n_cached, 48);
    assert_true(same(&one, &again) && !same(&one, &base));
    load(r.g, "a", "all-2");
    ask(&r, prompt, 64, "a", &two);
    assert_int_equal(two.n_cached, 0); /* not the old version's */
    assert_false(same(&two, &one));
    load(r.g, "a", "all");
    ask(&r, prompt, 64, "a", &back);
    assert_int_equal(back.n_cached, 0); /* the same bytes are another version all the same */
    assert_true(same(&back, &one));
    ask(&r, prompt, 64, NULL, &again);
    assert_int_equal(again.n_cached, 48); /* the base's own are still there */
    assert_true(same(&again, &base));
    rig_close(&r);
    rig_open(&r, small(), false);
    load(r.g, "b", "all-2");
    ask(&r, prompt, 64, "b", &fresh);
    assert_true(same(&fresh, &two));
    rig_close(&r);
}

/* more rows than are taken through gate and up at once */
static void test_long_prompt(void **state)
{
    struct rig r;
    int32_t prompt[300];
    struct reply want, got;
    random_prompt(prompt, 300, 13);
    struct engine_config c = small();
    c.max_batch_tokens = 64;
    rig_open(&r, c, true);
    ask(&r, prompt, 300, "all", &want);
    rig_close(&r);
    c.max_batch_tokens = 512;
    rig_open(&r, c, true);
    ask(&r, prompt, 300, "all", &got);
    assert_true(same(&want, &got));
    rig_close(&r);
}

static struct adapter_info info_of(struct engine *g, const char *name)
{
    struct adapter_info all[8];
    int n = engine_adapters_list(g, all, 8);
    for (int i = 0; i < n; i++)
        if (strcmp(all[i].name, name) == 0) return all[i];
    return (struct adapter_info){0};
}

static void test_replaced_and_deleted_in_flight(void **state)
{
    struct rig r;
    int32_t prompt[20];
    struct reply want_one, want_two, old, newer, gone, last;
    struct err e;
    random_prompt(prompt, 20, 10);
    rig_begin(&r, small(), false, true);
    load(r.g, "a", "all");
    submit(&r, greedy(prompt, 20, 100, "a"), &want_one);
    run_out(&r);
    load(r.g, "a", "all-3");
    assert_int_equal(info_of(r.g, "a").version, 2);
    assert_int_equal(info_of(r.g, "a").r, 6);
    submit(&r, greedy(prompt, 20, 100, "a"), &want_two);
    run_out(&r);
    load(r.g, "a", "all");
    submit(&r, greedy(prompt, 20, 100, "a"), &old);
    run_until(&r, &old, 3);
    assert_false(old.done);
    assert_int_equal(info_of(r.g, "a").requests, 1);
    load(r.g, "a", "all-3"); /* under it */
    assert_int_equal(info_of(r.g, "a").requests, 0);
    submit(&r, greedy(prompt, 20, 100, "a"), &newer);
    run_until(&r, &newer, 3);
    submit(&r, greedy(prompt, 20, 100, "a"), &gone);
    assert_int_equal(engine_adapter_unload(r.g, "a", &e), 0);
    assert_int_equal(info_of(r.g, "a").version, 0);
    struct gen_request q = greedy(prompt, 20, 4, "a");
    assert_int_equal(engine_submit(r.g, &q, &e), 0);
    assert_int_equal(e.code, ERR_NOT_FOUND);
    assert_non_null(strstr(e.msg, "\"a\"; none is loaded"));
    run_out(&r);
    assert_true(same(&old, &want_one) && same(&newer, &want_two) && same(&gone, &want_two));
    assert_false(same(&want_one, &want_two));
    load(r.g, "a", "all"); /* ended by closing while a request has it */
    submit(&r, greedy(prompt, 20, 100, "a"), &last);
    rig_close(&r);
}

static void test_cancelled_lets_go(void **state)
{
    struct rig r;
    int32_t prompt[20];
    struct reply y;
    random_prompt(prompt, 20, 11);
    rig_begin(&r, small(), true, true);
    uint64_t id = submit(&r, greedy(prompt, 20, 100, "up"), &y);
    run_until(&r, &y, 2);
    engine_cancel(r.g, id);
    run_out(&r);
    assert_int_equal(y.finish, FINISH_CANCELLED);
    assert_int_equal(info_of(r.g, "up").requests, 0);
    rig_close(&r);
}

static void expect_error(struct engine *g, const char *name, const char *dir_name, int code, const char *says)
{
    struct err e = {0};
    char *dir = file_join(root, dir_name);
    int rc = engine_adapter_load(g, name, dir, NULL, &e);
    if (rc != code || !strstr(e.msg, says)) fail_msg("%s: %d, \"%s\"", name, rc, rc ? e.msg : "(loaded)");
    free(dir);
}

static void test_limits(void **state)
{
    struct rig r;
    struct err e;
    struct engine_config c = small();
    c.max_adapters = 2;
    c.max_lora_rank = 4;
    rig_open(&r, c, false);
    load(r.g, "b", "all");
    load(r.g, "a", "qv");
    expect_error(r.g, "c", "all", ERR_FULL, "2 adapters are loaded");
    load(r.g, "a", "all-2"); /* in its own place */
    expect_error(r.g, "a", "all-3", ERR_INVALID, "rank 6; --max-lora-rank is 4");
    expect_error(r.g, "a", "none", ERR_NOT_FOUND, "none: ");
    expect_error(r.g, "", "all", ERR_INVALID, "name");
    expect_error(r.g, "../a", "all", ERR_INVALID, "name");
    expect_error(r.g, ".a", "all", ERR_INVALID, "name");
    expect_error(r.g, "a b", "all", ERR_INVALID, "name");
    assert_int_equal(info_of(r.g, "a").version, 3); /* kept: none of these took its place */
    assert_string_equal(info_of(r.g, "b").targets, "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj");
    struct adapter_info one;
    assert_int_equal(engine_adapters_list(r.g, &one, 1), 1);
    assert_string_equal(one.name, "a");
    assert_int_equal(engine_adapter_check(r.g, "x", &e), ERR_NOT_FOUND);
    assert_non_null(strstr(e.msg, "loaded: a, b"));
    assert_int_equal(engine_adapter_check(r.g, "b", &e), 0);
    assert_int_equal(engine_adapter_unload(r.g, "x", &e), ERR_NOT_FOUND);
    assert_int_equal(engine_adapter_unload(r.g, "b", &e), 0);
    load(r.g, "c", "down");
    rig_close(&r);
}

/* ---- loads, deletions and requests at once ---- */

struct loader {
    struct engine *g;
    int n;
};

static void *load_often(void *arg)
{
    struct loader *l = arg;
    char *dir[2] = {file_join(root, "all"), file_join(root, "all-2")};
    for (int i = 0; i < l->n; i++) {
        struct err e = {0};
        if (i % 7 == 6)
            engine_adapter_unload(l->g, "a", &e);
        else if (engine_adapter_load(l->g, "a", dir[i % 2], NULL, &e))
            fail_msg("%s", e.msg);
    }
    free(dir[0]);
    free(dir[1]);
    return NULL;
}

static void test_reload_under_load(void **state)
{
    enum { REQUESTS = 60 / SCALE };
    struct rig r;
    int32_t prompt[24];
    struct reply want[2], *y = calloc(REQUESTS, sizeof *y);
    random_prompt(prompt, 24, 12);
    rig_open(&r, small(), false);
    for (int i = 0; i < 2; i++) {
        load(r.g, "a", i ? "all-2" : "all");
        submit(&r, greedy(prompt, 24, 12, "a"), &want[i]);
        run_out(&r);
    }
    pthread_t thread[2];
    struct loader l = {r.g, 80 / SCALE};
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&thread[i], NULL, load_often, &l), 0);
    int sent = 0, refused = 0;
    while (sent < REQUESTS) {
        struct err e;
        struct gen_request q = greedy(prompt, 24, 12, "a");
        q.user = &y[sent];
        y[sent] = (struct reply){0};
        if (engine_submit(r.g, &q, &e)) {
            r.left++;
            sent++;
        } else {
            assert_int_equal(e.code, ERR_NOT_FOUND); /* deleted just now */
            if (++refused > 100000) break;           /* the loaders ended with a deletion */
        }
        while (r.left > 6) wait_for_events(&r);
    }
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    run_out(&r);
    for (int i = 0; i < sent; i++) /* one version or the other, never a mixture */
        if (!same(&y[i], &want[0]) && !same(&y[i], &want[1])) fail_msg("request %d is of no version", i);
    free(y);
    rig_close(&r);
}

/* ---- the rows of a batch ---- */

static void expect_run(const struct step_batch *b, int row, int end, bool changed)
{
    bool c = !changed;
    int got = step_batch_run(b, 0, GEMM_UP, row, &c);
    if (got != end || c != changed) fail_msg("from %d: to %d, changed %d", row, got, c);
}

static void test_runs_of_rows(void **state)
{
    struct lora_gemm with[LORA_GEMMS] = {[GEMM_UP] = {.n = 2}}, without[LORA_GEMMS] = {[GEMM_QKV] = {.n = 1}};
    struct lora_weights w = {.layer = &with}, o = {.layer = &without};
    struct step_batch_group g[] = {{2, 3, &o}, {5, 2, &w}, {7, 1, &w}, {10, 4, &o}, {14, 2, &w}};
    struct lora_group lora[8];
    struct step_batch b = {.n_tokens = 20, .n_groups = 5, .group = g, .lora = lora};
    expect_run(&b, 0, 5, false);
    expect_run(&b, 3, 5, false);
    expect_run(&b, 5, 8, true);
    expect_run(&b, 6, 8, true);
    expect_run(&b, 8, 14, false);
    expect_run(&b, 14, 16, true);
    expect_run(&b, 16, 20, false);
    assert_int_equal(step_batch_lora(&b, 0, GEMM_UP, 6, 9), 3);
    assert_true(lora[0].row0 == 0 && lora[0].rows == 1);
    assert_true(lora[1].row0 == 1 && lora[1].rows == 1);
    assert_true(lora[2].row0 == 8 && lora[2].rows == 1);
    assert_int_equal(step_batch_lora(&b, 0, GEMM_QKV, 0, 20), 2);
    assert_int_equal(step_batch_lora(&b, 0, GEMM_O, 0, 20), 0);
    b.n_groups = 0;
    expect_run(&b, 0, 20, false);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: adapters_test FIXTURES_DIR\n");
        return 2;
    }
    fixtures = argv[1];
    log_set_level(LOG_WARN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_of_rows),
        cmocka_unit_test(test_batching_f32),
        cmocka_unit_test(test_batching_int8),
        cmocka_unit_test(test_batching_as_served),
        cmocka_unit_test(test_long_prompt),
        cmocka_unit_test(test_prefix_cache_knows_versions),
        cmocka_unit_test(test_replaced_and_deleted_in_flight),
        cmocka_unit_test(test_cancelled_lets_go),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_reload_under_load),
    };
    return cmocka_run_group_tests(tests, make_all, remove_all);
}
