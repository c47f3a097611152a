/* Constrained requests in a running engine: their texts are those of their grammars, whatever the batch, the chunks and
 * the preemptions, and requests without a grammar keep their bits beside them.
 *
 *   constrained_test MODELS_DIR */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/buf.h"
#include "engine/serve/engine.h"
#include "tests/grammar/json_grammar.h"
#include "tests/unit/engine/serve/engine_rig.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

static const char *models;

enum { MAX_TOKENS = 400, JOBS = 24 };

struct reply {
    int n, n_prompt;
    int32_t ids[MAX_TOKENS];
    float logprobs[MAX_TOKENS], prompt_logprobs[MAX_TOKENS];
    struct buf text;
    enum finish_reason finish;
    const char *error;
};

static void take_event(const struct event_batch *b, const struct event *v)
{
    struct reply *y = v->user;
    if (v->kind == EV_PROMPT) {
        y->prompt_logprobs[y->n_prompt++] = v->logprob;
    } else if (v->kind == EV_TOKEN) {
        y->ids[y->n] = v->token;
        y->logprobs[y->n++] = v->logprob;
        buf_append(&y->text, b->text + v->text, v->gen_len);
    } else {
        y->finish = v->finish;
        y->error = v->error;
    }
}

static uint64_t submit(struct rig *r, struct gen_request q, struct reply *y)
{
    struct err e = {0};
    buf_free(&y->text);
    *y = (struct reply){0};
    q.user = y;
    uint64_t id = engine_submit(r->g, &q, &e);
    if (!id) fail_msg("%s", e.msg);
    r->left++;
    return id;
}

static const char *text_of(const struct reply *y)
{
    return y->text.data ? y->text.data : "";
}

static struct gen_request ask(const int32_t *prompt, int n, int max_new, struct grammar *g, int seed)
{
    return (struct gen_request){
        .prompt = prompt,
        .n_prompt = n,
        .max_new_tokens = max_new,
        .grammar = g,
        .sampling = {
            .sample = seed > 0, .temperature = 1, .top_p = 1, .typical_p = 1, .repetition = 1, .seed = (uint64_t)seed}};
}

static struct grammar *regex(const char *pattern)
{
    struct err e = {0};
    struct grammar_builder *b = grammar_builder_new();
    struct grammar *g = grammar_build(b, pattern ? json_regex(b, pattern) : json_value(b, 30), &e);
    if (!g) fail_msg("%s", e.msg);
    grammar_builder_free(b);
    return g;
}

static bool matches(struct grammar *g, const char *text)
{
    struct err e = {0};
    return grammar_matches(g, text, strlen(text), &e) == 1;
}

/* ---- many together ---- */

static const char *const patterns[] = {
    "\\{\"name\": \"(Tom|Lily)\", \"likes\": \"(cats|old trees)\", \"friends\": \\[\\]\\}",
    "[A-Z][a-z]{2,12}( [a-z]{1,9}){2,6}\\.", NULL, "\\d{4}-\\d{2}-\\d{2}T\\d\\d", "(\"[^\"]{0,300}\",? ?){1,3}"};
enum { PATTERNS = sizeof patterns / sizeof *patterns };

/* every third request is free */
static struct grammar *grammar_of(struct grammar *const *g, int i)
{
    return i % 3 == 0 ? NULL : g[i % PATTERNS];
}

static void run_jobs(struct rig *r, struct grammar *const *g, bool alone, bool without, struct reply *y)
{
    int32_t prompt[64];
    int n = encode(r, "Once upon a time, there was a little girl named Lily. She said", prompt);
    for (int i = 0; i < JOBS; i++) {
        if (without && grammar_of(g, i)) continue;
        struct gen_request q = ask(prompt, n - i % 7, 20 + i * 5 % 50, grammar_of(g, i), i % 4);
        if (i % 5 == 1) q.sampling.top_p = 0.9f;
        if (i % 5 == 2) q.sampling.repetition = 1.2f;
        submit(r, q, &y[i]);
        if (alone) run_out(r);
    }
    run_out(r);
}

static void assert_same(int i, const struct reply *a, const struct reply *b)
{
    if (a->n != b->n || a->finish != b->finish || memcmp(a->ids, b->ids, (size_t)a->n * sizeof *a->ids) ||
        memcmp(a->logprobs, b->logprobs, (size_t)a->n * sizeof *a->logprobs))
        fail_msg("request %d: \"%s\" and \"%s\"", i, text_of(a), text_of(b));
}

static void free_all(struct reply *y)
{
    for (int i = 0; i < JOBS; i++) buf_free(&y[i].text);
    free(y);
}

static void compare(struct engine_config c, struct grammar *const *g, const struct reply *want)
{
    struct rig r;
    struct reply *got = calloc(JOBS, sizeof *got);
    rig_open(&r, c);
    run_jobs(&r, g, false, false, got);
    for (int i = 0; i < JOBS; i++) assert_same(i, &got[i], &want[i]);
    struct engine_stats s;
    engine_stats_read(r.g, &s);
    assert_int_equal(s.pages_used, 0);
    rig_close(&r);
    free_all(got);
}

static void test_together(void **state)
{
    struct grammar *g[PATTERNS];
    struct rig r;
    struct reply *alone = calloc(JOBS, sizeof *alone), *plain = calloc(JOBS, sizeof *plain);
    for (int i = 0; i < PATTERNS; i++) g[i] = regex(patterns[i]);
    rig_open(&r, base_config(models));
    run_jobs(&r, g, false, true, plain);
    run_jobs(&r, g, true, false, alone);
    size_t page_bytes = engine_info(r.g)->page_bytes;
    rig_close(&r);
    int whole = 0;
    for (int i = 0; i < JOBS; i++) {
        struct grammar *own = grammar_of(g, i);
        if (!own) assert_same(i, &alone[i], &plain[i]);
        if (!own || alone[i].finish != FINISH_EOS) continue;
        if (!matches(own, text_of(&alone[i]))) fail_msg("%d: \"%s\" is no text of its grammar", i, text_of(&alone[i]));
        whole++;
    }
    assert_true(whole > 6);
    struct engine_config c = base_config(models);
    compare(c, g, alone);
    c.max_batch_tokens = 40;
    c.no_prefix_cache = true;
    c.threads = 1;
    compare(c, g, alone);
    c = base_config(models);
    c.max_seqs = 7;
    c.kv_cache_bytes = page_bytes * 9; /* preemptions */
    compare(c, g, alone);
    for (int i = 0; i < PATTERNS; i++) grammar_unref(g[i]);
    free_all(alone);
    free_all(plain);
}

/* ---- one at a time ---- */

static void test_ends(void **state)
{
    struct rig r;
    struct reply y = {0};
    int32_t p[64], all[128];
    rig_open(&r, base_config(models));
    int n = encode(&r, "Once upon a time", p);
    struct grammar *g = regex("(banana|apple) juice");
    struct gen_request q = ask(p, n, 60, g, 0);
    submit(&r, q, &y);
    run_out(&r);
    assert_int_equal(y.finish, FINISH_EOS);
    assert_true(matches(g, text_of(&y)));
    assert_int_equal(y.ids[y.n - 1], engine_info(r.g)->eos[0]);

    /* the log-probabilities are those of the model without the grammar: what the same text has as a prompt */
    memcpy(all, p, (size_t)n * sizeof *p);
    memcpy(all + n, y.ids, (size_t)y.n * sizeof *p);
    struct reply again = {0};
    q = ask(all, n + y.n, 1, NULL, 0);
    q.prompt_logprobs = true;
    submit(&r, q, &again);
    run_out(&r);
    assert_memory_equal(again.prompt_logprobs + n, y.logprobs, (size_t)y.n * sizeof *y.logprobs);
    buf_free(&again.text);

    q = ask(p, n, 60, g, 0);
    q.ignore_eos = true; /* but nothing else may follow */
    submit(&r, q, &y);
    run_out(&r);
    assert_int_equal(y.finish, FINISH_EOS);
    assert_true(matches(g, text_of(&y)));
    assert_int_equal(y.ids[y.n - 1], engine_info(r.g)->eos[0]);

    struct grammar *open = regex("[^\"]{3,}"); /* could end at any place, but does not */
    q = ask(p, n, 30, open, 3);
    q.ignore_eos = true;
    submit(&r, q, &y);
    run_out(&r);
    assert_int_equal(y.finish, FINISH_LENGTH);
    assert_int_equal(y.n, 30);
    assert_true(matches(open, text_of(&y)));
    grammar_unref(open);

    q = ask(p, n, 60, g, 0);
    q.min_new_tokens = 50; /* cannot be had */
    submit(&r, q, &y);
    run_out(&r);
    assert_int_equal(y.finish, FINISH_EOS);
    assert_true(matches(g, text_of(&y)));

    q = ask(p, n, 2, g, 0);
    submit(&r, q, &y);
    run_out(&r);
    assert_int_equal(y.finish, FINISH_LENGTH);
    assert_int_equal(y.n, 2);
    grammar_unref(g);
    buf_free(&y.text);
    rig_close(&r);
}

static uint64_t forced_so_far(struct rig *r)
{
    struct engine_stats s;
    engine_stats_read(r->g, &s);
    return s.forced_tokens;
}

/* Tokens that must follow are computed together, and look as if they had been sampled one by one. */
static void test_forced(void **state)
{
    struct rig r;
    struct reply y = {0}, again = {0};
    int32_t p[64], all[256];
    struct engine_stats s;
    rig_open(&r, base_config(models));
    int n = encode(&r, "Once upon a time", p);
    struct grammar *g = regex("The little (cat|dog) was very happy and it said to the big bird: (yes|no), my friend");
    struct gen_request q = ask(p, n, 80, g, 0);
    submit(&r, q, &y);
    run_out(&r);
    assert_int_equal(y.finish, FINISH_EOS);
    assert_true(matches(g, text_of(&y)));
    engine_stats_read(r.g, &s);
    /* a row that is held because its mask is late on a loaded machine costs a step of its own */
    assert_true(s.forced_tokens * 2 > (uint64_t)y.n && s.steps - s.held_rows < (uint64_t)y.n / 2 + 2);
    memcpy(all, p, (size_t)n * sizeof *p);
    memcpy(all + n, y.ids, (size_t)y.n * sizeof *p);
    q = ask(all, n + y.n, 1, NULL, 0);
    q.prompt_logprobs = true;
    submit(&r, q, &again);
    run_out(&r);
    assert_memory_equal(again.prompt_logprobs + n, y.logprobs, (size_t)y.n * sizeof *y.logprobs);

    for (int max = 1; max < y.n; max++) { /* cut within them */
        submit(&r, ask(p, n, max, g, 0), &again);
        run_out(&r);
        assert_int_equal(again.finish, FINISH_LENGTH);
        assert_int_equal(again.n, max);
        assert_memory_equal(again.ids, y.ids, (size_t)max * sizeof *y.ids);
    }
    const char *stop = "happy";
    q = ask(p, n, 80, g, 0);
    q.stop = &stop;
    q.n_stop = 1;
    submit(&r, q, &again);
    run_out(&r);
    assert_int_equal(again.finish, FINISH_STOP);
    assert_string_equal(text_of(&again) + again.text.len - 5, "happy");

    q = ask(p, n, 80, g, 0);
    q.prompt_logprobs = true; /* rows of the prompt before them */
    submit(&r, q, &again);
    run_out(&r);
    assert_int_equal(again.n_prompt, n);
    assert_same(0, &again, &y);

    /* a ban of one of the forced tokens holds */
    uint64_t before = forced_so_far(&r);
    struct logit_bias ban = {y.ids[y.n - 2], -100};
    q = ask(p, n, 80, g, 0);
    q.sampling.bias = &ban;
    q.sampling.n_bias = 1;
    submit(&r, q, &again);
    run_out(&r);
    assert_int_equal(forced_so_far(&r), before);
    assert_true(matches(g, text_of(&again)));
    for (int i = 0; i < again.n; i++) assert_int_not_equal(again.ids[i], ban.id);
    grammar_unref(g);
    buf_free(&y.text);
    buf_free(&again.text);
    rig_close(&r);
}

/* a grammar past its limits ends the request, not the engine */
static void test_explosion(void **state)
{
    struct rig r;
    struct reply y[3] = {0};
    int32_t p[64];
    rig_open(&r, base_config(models));
    int n = encode(&r, "Once upon a time", p);
    struct grammar *bad = regex("(([a-z ,.]{0,900}){0,900}[a-m]){0,900}([a-z ]{0,900}){900}"),
                   *good = regex("[a-z]{5}");
    submit(&r, ask(p, n, 40, bad, 1), &y[0]);
    submit(&r, ask(p, n, 40, good, 1), &y[1]);
    submit(&r, ask(p, n, 40, NULL, 1), &y[2]);
    run_out(&r);
    assert_int_equal(y[0].finish, FINISH_ERROR);
    assert_non_null(y[0].error);
    assert_int_equal(y[1].finish, FINISH_EOS);
    assert_true(matches(good, text_of(&y[1])));
    assert_int_not_equal(y[2].finish, FINISH_ERROR);
    grammar_unref(bad);
    grammar_unref(good);
    for (int i = 0; i < 3; i++) buf_free(&y[i].text);
    rig_close(&r);
}

/* cancelled at any time, and closed with requests under way */
static void test_cancels(void **state)
{
    struct rig r;
    struct reply y[30] = {0};
    int32_t p[64];
    struct grammar *g = regex(NULL);
    rig_open(&r, base_config(models));
    int n = encode(&r, "Once upon a time", p);
    for (int i = 0; i < 30; i++) {
        uint64_t id = submit(&r, ask(p, n, 60, g, i + 1), &y[i]);
        if (i % 3 == 0) engine_cancel(r.g, id);
        if (i % 7 == 3) pump(&r);
        if (i % 5 == 4) engine_pause(r.g, id), engine_cancel(r.g, id - 1), engine_resume(r.g, id);
    }
    run_out(&r);
    for (int i = 0; i < 10; i++) submit(&r, ask(p, n, 60, g, i + 1), &y[i]);
    rig_close(&r);
    grammar_unref(g);
    for (int i = 0; i < 30; i++) buf_free(&y[i].text);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_together),  cmocka_unit_test(test_ends),    cmocka_unit_test(test_forced),
        cmocka_unit_test(test_explosion), cmocka_unit_test(test_cancels),
    };
    if (argc != 2) return 2;
    models = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
