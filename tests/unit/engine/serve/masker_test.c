/* Masks for many requests at once: by hand and by the masker's thread they are the same, a request that is held is told
 * when its mask is there, and requests may be given up at any time.
 *
 *   masker_test MODELS_DIR */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/serve/masker.h"
#include "engine/serve/step_times.h"
#include "kernels/rng.h"
#include "tests/grammar/json_grammar.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

enum { IDS = 64 };

static const char *models;
static struct tokenizer *tokenizer;
static const int32_t eos[1] = {2};

struct told { /* by ready() */
    sem_t any;
    _Atomic int times[IDS];
};

static void ready(void *arg, uint64_t id)
{
    struct told *t = arg;
    atomic_fetch_add(&t->times[id % IDS], 1);
    sem_post(&t->any);
}

static struct masker *open_masker(struct told *t)
{
    sem_init(&t->any, 0, 0);
    return masker_new(tokenizer, tokenizer_size(tokenizer) + 5, eos, 1, ready, t);
}

static struct grammar *json(uint32_t longest)
{
    struct err e = {0};
    struct grammar_builder *b = grammar_builder_new();
    struct grammar *g = grammar_build(b, json_value(b, longest), &e);
    if (!g) fail_msg("%s", e.msg);
    grammar_builder_free(b);
    return g;
}

/* A token that the mask allows, drawn by (seed, step); -1: only eos. */
static int32_t draw(const uint32_t *bits, uint64_t seed, uint64_t step)
{
    int n = tokenizer_size(tokenizer), start = (int)(rng_at(seed, step) % (uint64_t)n);
    for (int k = 0; k < n; k++) {
        int32_t id = (start + k) % n;
        if (id != eos[0] && bits[id / 32] >> id % 32 & 1) return id;
    }
    return -1;
}

/* The bytes that come of one request; inline_ns: how long the caller works itself. */
static void run(struct masker *k, struct grammar *g, struct told *told, uint64_t id, uint64_t inline_ns,
                struct buf *out)
{
    struct err e = {0};
    struct masked *m = masked_new(k, g, id, &e);
    assert_non_null(m);
    masked_begin(m, id % 3 == 0);
    for (uint64_t step = 0; step < 60; step++) {
        if (step % 3 == 0) {
            int before = atomic_load(&told->times[id % IDS]);
            if (masked_notify(m))
                while (atomic_load(&told->times[id % IDS]) == before) sem_wait(&told->any);
        }
        while (masked_poll(m, clock_now() + 1000000) == MASK_WAIT) {
        }
        assert_int_equal(masked_poll(m, 0), MASK_READY);
        int n_forced;
        const int32_t *forced = masked_forced(m, &n_forced);
        for (int i = 0; i < n_forced; i++) tokenizer_bytes(tokenizer, forced[i], out);
        assert_null(masked_forced(m, &n_forced)); /* once */
        if (masked_ends(m)) break;
        int32_t token = draw(masked_bits(m), id, step);
        assert_true(token >= 0);
        tokenizer_bytes(tokenizer, token, out);
        masked_token(m, token, clock_now() + inline_ns);
    }
    masked_free(m);
}

static void test_both_ways(void **state)
{
    struct told told = {0};
    struct masker *k = open_masker(&told);
    for (uint64_t id = 1; id <= 12; id++) {
        struct buf a = {0}, b = {0};
        struct grammar *g = json(id % 2 ? 8 : UINT32_MAX), *again = json(id % 2 ? 8 : UINT32_MAX);
        run(k, g, &told, id, 0, &a);
        run(k, again, &told, id, 1000000000, &b);
        assert_int_equal(a.len, b.len);
        assert_memory_equal(a.data, b.data, a.len);
        grammar_unref(g);
        grammar_unref(again);
        buf_free(&a);
        buf_free(&b);
    }
    masker_stop(k);
    masker_free(k);
}

static void test_many(void **state)
{
    enum { N = 24 };
    struct told told = {0};
    struct err e = {0};
    struct masker *k = open_masker(&told);
    struct grammar *g[3] = {json(4), json(300), json(UINT32_MAX)};
    struct masked *m[N] = {0};
    uint64_t at = 0;
    for (int turn = 0; turn < 400; turn++) {
        int i = (int)(rng_at(5, at++) % N);
        if (!m[i]) {
            m[i] = masked_new(k, g[rng_at(5, at++) % 3], (uint64_t)i, &e);
            if (rng_at(5, at++) % 8 == 0) masked_free(m[i]), m[i] = masked_new(k, g[0], (uint64_t)i, &e);
            masked_begin(m[i], i % 2);
        }
        if (rng_at(5, at++) % 6 == 0) {
            masked_free(m[i]); /* whatever is done for it */
            m[i] = NULL;
            continue;
        }
        if (masked_poll(m[i], rng_at(5, at++) % 2 ? clock_now() + 200000 : 0) != MASK_READY) {
            masked_notify(m[i]);
            continue;
        }
        int32_t token = masked_ends(m[i]) ? -1 : draw(masked_bits(m[i]), 1, at);
        if (token >= 0) {
            masked_token(m[i], token, clock_now() + rng_at(5, at++) % 3 * 20000);
        } else {
            masked_free(m[i]);
            m[i] = NULL;
        }
    }
    for (int i = 0; i < 3; i++) grammar_unref(g[i]); /* the requests have their own references */
    masker_stop(k);
    for (int i = 0; i < N; i++) masked_free(m[i]);
    masker_free(k);
}

/* How long a step waits for masks: on a device that only enqueues the time its calls took says nothing. */
static void test_wait(void **state)
{
    (void)state;
    const uint64_t START = 1000000, MS = 1000000, ENQUEUED = START + 20000;
    struct step_times t = {0};
    /* the ops have run when they return: a share of that time, or all of it again */
    assert_int_equal(step_times_mask_wait(&t, true, false, START, START + 32 * MS, true), START + 33 * MS);
    assert_int_equal(step_times_mask_wait(&t, true, false, START, START + 32 * MS, false), START + 64 * MS);
    /* they have not: until the end of what the device still computes, by the last step of the kind, and the same share
     * of the real time beyond it */
    step_times_note(&t, true, 8 * MS);
    step_times_note(&t, false, 320 * MS);
    assert_int_equal(step_times_mask_wait(&t, true, true, START, ENQUEUED, true), START + 8 * MS + MS / 4);
    assert_int_equal(step_times_mask_wait(&t, true, true, START, ENQUEUED, false), START + 16 * MS);
    assert_int_equal(step_times_mask_wait(&t, false, true, START, ENQUEUED, true), START + 330 * MS);
    /* a device that waited meanwhile, a first step: what is seen of this one */
    assert_int_equal(step_times_mask_wait(&t, true, true, START, START + 64 * MS, true), START + 66 * MS);
    assert_int_equal(step_times_mask_wait(&(struct step_times){0}, true, true, START, ENQUEUED, false), START + 40000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_both_ways), cmocka_unit_test(test_many),
                                       cmocka_unit_test(test_wait)};
    char path[1200];
    struct err e = {0};
    if (argc != 2) return 2;
    models = argv[1];
    snprintf(path, sizeof path, "%s/tinystories-656k/tokenizer.json", models);
    tokenizer = tokenizer_open(path, &e);
    if (!tokenizer) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_close(tokenizer);
    return failed;
}
