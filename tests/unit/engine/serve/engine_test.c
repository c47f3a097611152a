/* The engine as a whole, on a trained model: continuous batching changes no text, whatever the batch, the threads, the
 * chunks, the cache and the preemptions; sampling, stops, cancellation, pauses and limits do what engine.h says.
 *
 *   engine_test FIXTURES_DIR */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/buf.h"
#include "engine/base/clock.h"
#include "engine/model/safetensors.h"
#include "engine/serve/engine.h"
#include "engine/serve/manual_step.h"
#include "kernels/rng.h"
#include "tests/unit/engine/serve/engine_rig.h"

#include <math.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TANDEM_SANITIZED
enum { SCALE = 4 }; /* sanitizers are slow: a quarter of the work */
#else
enum { SCALE = 1 };
#endif
/* Under TSan not all types and families: they share work among threads alike, and differ in what a thread computes. */
#ifdef TANDEM_SANITIZED_THREADS
enum { EVERY_TYPE = 0 };
#else
enum { EVERY_TYPE = 1 };
#endif

static const char *fixtures;

/* ---- driving an engine ---- */

enum { MAX_TOKENS = 256 };

struct reply {
    int n, n_prompt_events, n_cached;
    int32_t ids[MAX_TOKENS];
    float logprobs[MAX_TOKENS];
    float prompt_logprobs[MAX_TOKENS];
    int n_top;
    struct top_token top[4];
    struct buf text, token_text; /* generated_text; all pieces */
    enum finish_reason finish, token_finish;
    int stop_index;
    bool done;
};

static void take_event(const struct event_batch *b, const struct event *v)
{
    struct reply *y = v->user;
    assert_false(y->done);
    if (v->kind == EV_DONE) {
        y->done = true;
        y->finish = v->finish;
        y->stop_index = v->stop_index;
        y->n_cached = v->n_cached;
        assert_int_equal(v->n_generated, y->n);
        return;
    }
    if (v->kind == EV_PROMPT) {
        assert_int_equal(y->n, 0);
        y->prompt_logprobs[y->n_prompt_events++] = v->logprob;
        return;
    }
    y->ids[y->n] = v->token;
    y->logprobs[y->n++] = v->logprob;
    y->token_finish = v->finish;
    y->n_top = v->n_top;
    for (int i = 0; i < v->n_top && i < 4; i++) y->top[i] = b->top[v->top + (uint32_t)i];
    buf_append(&y->text, b->text + v->text, v->gen_len);
    buf_append(&y->token_text, b->text + v->text, v->text_len);
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

static void reply_free(struct reply *y)
{
    buf_free(&y->text);
    buf_free(&y->token_text);
}

static struct gen_request greedy(const int32_t *prompt, int n, int max_new)
{
    return (struct gen_request){.prompt = prompt,
                                .n_prompt = n,
                                .max_new_tokens = max_new,
                                .ignore_eos = true,
                                .sampling = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition = 1}};
}

static void assert_same(const struct reply *a, const struct reply *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, (size_t)a->n * sizeof *a->ids);
    assert_memory_equal(a->logprobs, b->logprobs, (size_t)a->n * sizeof *a->logprobs); /* bit for bit */
    assert_string_equal(a->text.data ? a->text.data : "", b->text.data ? b->text.data : "");
}

/* ---- the workload: 32 prompts of different lengths, some sharing a beginning, wanting different lengths ---- */

enum { JOBS = 32 };

static const char *const stories[] = {
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park with her friends.",
    "Tom and Sam were good friends. One day they found a big red ball under the old tree and they were very happy.",
    "The small cat wanted to climb the tall tree, but it was afraid of falling down.",
    "One day,",
};

struct job {
    int32_t prompt[MAX_TOKENS];
    int n, want;
    bool sample;
};

static void make_jobs(struct rig *r, struct job *job)
{
    for (int i = 0; i < JOBS; i++) {
        int32_t all[MAX_TOKENS];
        int n = encode(r, stories[i % 4], all), cut = 2 + i * 5 % 40;
        job[i].n = n < cut ? n : cut;
        memcpy(job[i].prompt, all, (size_t)job[i].n * sizeof *all);
        job[i].want = 3 + i * 7 % 60;
        job[i].sample = i % 3 == 1;
    }
}

static struct gen_request job_request(const struct job *j, int i)
{
    struct gen_request q = greedy(j->prompt, j->n, j->want);
    q.client = i % 7 < 5 ? 0 : (uint64_t)i; /* one with most of them, which others displace */
    if (j->sample) {
        q.sampling.sample = true;
        q.sampling.temperature = 0.9f;
        q.sampling.top_p = 0.95f;
        q.sampling.seed = (uint64_t)i + 1000;
    }
    return q;
}

/* all at once, in bursts so that they begin and end at different steps */
static void run_together(struct rig *r, const struct job *job, struct reply *y)
{
    for (int i = 0; i < JOBS; i++) {
        submit(r, job_request(&job[i], i), &y[i]);
        if (i % 5 == 4) pump(r);
    }
    run_out(r);
}

static void run_alone(struct rig *r, const struct job *job, struct reply *y)
{
    for (int i = 0; i < JOBS; i++) {
        submit(r, job_request(&job[i], i), &y[i]);
        run_out(r);
    }
}

static void free_replies(struct reply *y)
{
    for (int i = 0; i < JOBS; i++) reply_free(&y[i]);
}

static void compare_all(struct engine_config c, const struct job *job, const struct reply *want, const char *what,
                        int *preemptions)
{
    struct rig r;
    struct reply *got = calloc(JOBS, sizeof *got);
    struct engine_stats s;
    rig_open(&r, c);
    run_together(&r, job, got);
    engine_stats_read(r.g, &s);
    for (int i = 0; i < JOBS; i++) {
        if (got[i].n != want[i].n || memcmp(got[i].logprobs, want[i].logprobs, sizeof(float) * (size_t)got[i].n))
            fail_msg("%s: request %d differs from the one computed alone:\n%s\n%s", what, i, got[i].text.data,
                     want[i].text.data);
        assert_same(&got[i], &want[i]);
    }
    assert_int_equal(s.pages_used, 0);
    if (preemptions) *preemptions = (int)s.preemptions;
    free_replies(got);
    free(got);
    rig_close(&r);
}

static void batching_changes_nothing(const char *model, const char *quantize, const char *kv)
{
    char dir[1024];
    struct engine_config c = base_config(fixtures);
    struct rig r;
    struct job *job = calloc(JOBS, sizeof *job);
    struct reply *alone = calloc(JOBS, sizeof *alone);
    int preemptions = 0;
    snprintf(dir, sizeof dir, "%s/%s", fixtures, model);
    c.model = dir;
    c.quantize = quantize;
    c.kv_type = kv;
    rig_open(&r, c);
    make_jobs(&r, job);
    run_alone(&r, job, alone);
    size_t page_bytes = engine_info(r.g)->page_bytes;
    rig_close(&r);

    compare_all(c, job, alone, "together", NULL);
    struct engine_config other = c;
    other.threads = 3;
    other.max_batch_tokens = 40; /* prompts in chunks */
    other.no_prefix_cache = true;
    compare_all(other, job, alone, "3 threads, small chunks, no prefix cache", NULL);
    other = c;
    other.threads = 4;
    other.max_batch_tokens = 100;
    compare_all(other, job, alone, "4 threads, other chunks, prefix cache", NULL);
    other = c;
    other.threads = 1;
    other.max_seqs = 7;
    other.kv_cache_bytes = page_bytes * 8; /* far too few pages for seven */
    compare_all(other, job, alone, "1 thread, few pages", &preemptions);
    assert_true(preemptions > 0);
    other.device = "cpu:portable";
    other.kv_cache_bytes = c.kv_cache_bytes;
    if (SCALE == 1) compare_all(other, job, alone, "portable kernels", NULL);
    free_replies(alone);
    free(alone);
    free(job);
}

static void test_batching_f32(void **state)
{
    batching_changes_nothing("tinystories-656k", "none", "f32");
}

static void test_batching_int8(void **state)
{
    batching_changes_nothing("tinystories-656k", "int8", "f16");
}

static void test_batching_int4(void **state)
{
    if (!EVERY_TYPE) skip();
    batching_changes_nothing("tinystories-656k", "int4", "int8");
}

static void test_batching_nf4(void **state)
{
    batching_changes_nothing("tinystories-656k", "nf4", "f16");
}

static void test_bf16_cache(void **state)
{
    if (!EVERY_TYPE) skip();
    batching_changes_nothing("tinystories-656k", "none", "bf16");
}

/* soft caps, norms after branches, windows in some layers, two rotary tables */
static void test_batching_families(void **state)
{
    batching_changes_nothing("gemma2", "none", "f32");
    if (!EVERY_TYPE) return;
    batching_changes_nothing("gemma3", "int8", "bf16");
    batching_changes_nothing("phi4-mini", "none", "f32");
    batching_changes_nothing("gpt-neox", "int4", "f32");
}

/* What tests/model/golden_test.c asks of whole texts: here a token a step, from the cache, beyond the windows, and from
 * short into long factors (phi3). */
static void test_golden_texts_token_by_token(void **state)
{
    static const char *const models[] = {"mistral", "qwen3-sliding", "gemma2",          "gemma3", "gemma3-bf16",
                                         "phi3",    "phi4-mini",     "smollm3-sliding", "olmo2",  "gpt-neox"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char dir[900], path[1024];
        struct err e;
        struct engine_config c = base_config(fixtures);
        snprintf(dir, sizeof dir, "%s/%s", fixtures, models[i]);
        snprintf(path, sizeof path, "%s/expected.safetensors", dir);
        struct tensor_source *expected = safetensors_open(path, &e);
        if (!expected) fail_msg("%s", e.msg);
        const struct tensor *prompt = tensor_source_find(expected, "greedy_prompt");
        const struct tensor *want = tensor_source_find(expected, "greedy");
        assert_true(prompt && want);
        c.model = dir;
        c.activations = "f32";
        struct rig r;
        struct reply y;
        rig_open(&r, c);
        submit(&r, greedy(prompt->data, (int)prompt->dims[0], (int)want->dims[0]), &y);
        run_out(&r);
        assert_int_equal(y.n, want->dims[0]);
        assert_memory_equal(y.ids, want->data, want->bytes);
        reply_free(&y);
        rig_close(&r);
        tensor_source_close(expected);
    }
}

/* ---- one request at a time ---- */

static void test_same_seed_same_text(void **state)
{
    struct rig r;
    struct reply a, b, c;
    int32_t ids[MAX_TOKENS];
    rig_open(&r, base_config(fixtures));
    int n = encode(&r, "Once upon a time", ids);
    struct gen_request q = greedy(ids, n, 40);
    q.sampling.sample = true;
    q.sampling.seed = 7;
    submit(&r, q, &a);
    run_out(&r);
    submit(&r, q, &b);
    q.sampling.seed = 8;
    submit(&r, q, &c);
    run_out(&r);
    assert_same(&a, &b);
    assert_int_not_equal(memcmp(a.ids, c.ids, sizeof(int32_t) * 40), 0);
    reply_free(&a);
    reply_free(&b);
    reply_free(&c);
    rig_close(&r);
}

static void test_ends(void **state)
{
    struct rig r;
    struct reply y;
    int32_t ids[MAX_TOKENS];
    rig_open(&r, base_config(fixtures));
    int n = encode(&r, "Once upon a time", ids);

    submit(&r, greedy(ids, n, 30), &y);
    run_out(&r);
    assert_int_equal(y.finish, FINISH_LENGTH);
    assert_int_equal(y.n, 30);
    assert_string_equal(y.text.data, y.token_text.data);
    int32_t tenth = y.ids[9];
    char text[512], stop[8];
    snprintf(text, sizeof text, "%s", y.text.data);
    snprintf(stop, sizeof stop, "%.5s", text + 20); /* five characters that surely come */
    reply_free(&y);

    const char *stops[] = {"zebra!", stop};
    struct gen_request q = greedy(ids, n, 30);
    q.stop = stops;
    q.n_stop = 2;
    submit(&r, q, &y);
    run_out(&r);
    assert_int_equal(y.finish, FINISH_STOP);
    assert_int_equal(y.stop_index, 1);
    size_t end = (size_t)(strstr(text, stop) - text) + strlen(stop);
    assert_int_equal(y.text.len, end); /* the stop text is kept, nothing after it */
    assert_memory_equal(y.text.data, text, end);
    reply_free(&y);

    q = greedy(ids, n, 30);
    q.stop_ids = &tenth;
    q.n_stop_ids = 1;
    submit(&r, q, &y);
    run_out(&r);
    assert_int_equal(y.finish, FINISH_STOP);
    assert_true(y.n <= 10 && y.ids[y.n - 1] == tenth);
    reply_free(&y);

    q.min_new_tokens = 20; /* the stop id is banned until then */
    submit(&r, q, &y);
    run_out(&r);
    for (int i = 0; i < 19 && i < y.n; i++) assert_int_not_equal(y.ids[i], tenth);
    assert_true(y.n >= 20);
    reply_free(&y);
    rig_close(&r);
}

static void test_eos_ends_the_story(void **state)
{
    struct rig r;
    struct reply y;
    int32_t ids[MAX_TOKENS];
    rig_open(&r, base_config(fixtures));
    int n = encode(&r, "Once upon a time", ids);
    struct logit_bias eos = {engine_info(r.g)->eos[0], 1000};
    struct gen_request q = greedy(ids, n, 30);
    q.ignore_eos = false;
    q.min_new_tokens = 3;
    q.sampling.bias = &eos;
    q.sampling.n_bias = 1;
    submit(&r, q, &y);
    run_out(&r);
    assert_int_equal(y.finish, FINISH_EOS);
    assert_int_equal(y.n, 4);                   /* banned three times, then wanted above all */
    assert_true(y.token_text.len > y.text.len); /* its own text is shown, but is no part of the story */
    reply_free(&y);
    rig_close(&r);
}

static void test_logprobs(void **state)
{
    struct rig r;
    struct reply y, again;
    int32_t ids[MAX_TOKENS];
    rig_open(&r, base_config(fixtures));
    int n = encode(&r, stories[0], ids);
    struct gen_request q = greedy(ids, n, 5);
    q.prompt_logprobs = true;
    q.top_n = 3;
    submit(&r, q, &y);
    run_out(&r);
    assert_int_equal(y.n_prompt_events, n);
    assert_true(isnan(y.prompt_logprobs[0]));
    for (int i = 1; i < n; i++) assert_true(y.prompt_logprobs[i] <= 0 && y.prompt_logprobs[i] > -30);
    assert_int_equal(y.n_top, 3);
    assert_int_equal(y.top[0].id, y.ids[4]);
    assert_true(y.top[0].logprob == y.logprobs[4] && y.top[0].logprob >= y.top[1].logprob);
    /* the log-probability of a generated token is that of the same token as a prompt */
    memcpy(ids + n, y.ids, 5 * sizeof *ids);
    q.prompt = ids;
    q.n_prompt = n + 5;
    submit(&r, q, &again);
    run_out(&r);
    assert_memory_equal(again.prompt_logprobs + n, y.logprobs, 5 * sizeof(float));
    /* those of the last tokens alone have the same bits, and what is before them comes from the cache */
    for (int from = n; from < n + 5; from += 2) {
        struct reply tail;
        q.logprobs_from = from;
        submit(&r, q, &tail);
        run_out(&r);
        assert_int_equal(tail.n_prompt_events, n + 5 - from);
        assert_memory_equal(tail.prompt_logprobs, again.prompt_logprobs + from, (size_t)(n + 5 - from) * sizeof(float));
        assert_int_equal(tail.n_cached, (from - 1) / KV_PAGE * KV_PAGE);
        assert_memory_equal(tail.ids, again.ids, 5 * sizeof *tail.ids);
        reply_free(&tail);
    }
    struct err e = {0};
    q.logprobs_from = q.n_prompt;
    assert_int_equal(engine_submit(r.g, &q, &e), 0);
    assert_non_null(strstr(e.msg, "logprobs_from"));
    reply_free(&y);
    reply_free(&again);
    rig_close(&r);
}

static void test_penalty_forbids_repetition(void **state)
{
    struct rig r;
    struct reply y;
    int32_t ids[MAX_TOKENS];
    rig_open(&r, base_config(fixtures));
    int n = encode(&r, "Once upon a time", ids);
    struct gen_request q = greedy(ids, n, 60);
    q.sampling.presence = 100;
    submit(&r, q, &y);
    run_out(&r);
    for (int i = 0; i < y.n; i++)
        for (int k = 0; k < i; k++) assert_int_not_equal(y.ids[i], y.ids[k]);
    reply_free(&y);
    rig_close(&r);
}

static void test_prefix_is_reused(void **state)
{
    struct rig r;
    struct reply a, b;
    int32_t ids[MAX_TOKENS];
    rig_open(&r, base_config(fixtures));
    int n =
        encode(&r,
               "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, "
               "she saw a big dog and she was very happy. The dog wanted to play, too.",
               ids);
    submit(&r, greedy(ids, n, 10), &a);
    run_out(&r);
    submit(&r, greedy(ids, n, 10), &b);
    run_out(&r);
    assert_int_equal(a.n_cached, 0);
    assert_int_equal(b.n_cached, (n - 1) / 16 * 16);
    assert_same(&a, &b);
    reply_free(&b);
    /* with another salt or tenant nothing is found, then the request's own; the text is the same */
    static const struct {
        const char *salt;
        uint64_t tenant;
    } spaces[] = {{"a", 0}, {"b", 0}, {NULL, 1}, {"a", 1}, {"a", 2}};
    for (size_t i = 0; i < 2 * sizeof spaces / sizeof *spaces; i++) {
        struct gen_request q = greedy(ids, n, 10);
        q.cache_salt = spaces[i / 2].salt;
        q.cache_tenant = spaces[i / 2].tenant;
        submit(&r, q, &b);
        run_out(&r);
        assert_int_equal(b.n_cached, i % 2 ? (n - 1) / 16 * 16 : 0);
        assert_same(&a, &b);
        reply_free(&b);
    }
    reply_free(&a);
    rig_close(&r);
}

/* ---- limits, cancelling, pausing ---- */

static void refuse(struct rig *r, struct gen_request q, const char *says)
{
    struct err e = {0};
    if (engine_submit(r->g, &q, &e) || !strstr(e.msg, says)) fail_msg("expected \"%s\", got \"%s\"", says, e.msg);
}

static void test_bad_requests(void **state)
{
    struct rig r;
    int32_t ids[] = {1, 5, 9}, bad[] = {1, 4000}, negative[] = {-1};
    rig_open(&r, base_config(fixtures));
    struct gen_request q = greedy(ids, 3, 10);
    struct logit_bias bias = {1, NAN};
    const char *empty = "";
    q.n_prompt = 0, refuse(&r, q, "cannot be empty"), q.n_prompt = 3;
    q.prompt = bad, q.n_prompt = 2, refuse(&r, q, "token 1 of the prompt is 4000");
    q.prompt = negative, q.n_prompt = 1, refuse(&r, q, "token 0 of the prompt is -1"), q = greedy(ids, 3, 10);
    q.max_new_tokens = 0, refuse(&r, q, "max_new_tokens");
    q.max_new_tokens = 510, refuse(&r, q, "must be <= 512");
    q.max_new_tokens = INT32_MAX, refuse(&r, q, "must be <= 512"), q = greedy(ids, 3, 10);
    q.sampling.sample = true;
    q.sampling.temperature = 0, refuse(&r, q, "temperature");
    q.sampling.temperature = NAN, refuse(&r, q, "temperature"), q.sampling.temperature = 1;
    q.sampling.top_p = 0, refuse(&r, q, "top_p"), q.sampling.top_p = 1;
    q.sampling.typical_p = 2, refuse(&r, q, "typical_p"), q.sampling.typical_p = 1;
    q.sampling.min_p = -1, refuse(&r, q, "min_p"), q.sampling.min_p = 0;
    q.sampling.top_k = -1, refuse(&r, q, "top_k"), q.sampling.top_k = 0;
    q.sampling.repetition = 0, refuse(&r, q, "repetition_penalty"), q.sampling.repetition = 1;
    q.sampling.bias = &bias, q.sampling.n_bias = 1, refuse(&r, q, "logit_bias");
    bias.id = 5000, refuse(&r, q, "no token 5000"), q.sampling.n_bias = 0;
    q.stop = &empty, q.n_stop = 1, refuse(&r, q, "stop[0]"), q.n_stop = 17, refuse(&r, q, "stop"), q.n_stop = 0;
    q.top_n = 100, refuse(&r, q, "top_n_tokens");
    rig_close(&r);
}

static void test_full_queue_says_so(void **state)
{
    struct engine_config c = base_config(fixtures);
    struct rig r;
    struct err e = {0};
    struct reply y[4];
    int32_t ids[] = {1, 5, 9};
    c.max_queue = 4;
    c.max_seqs = 1;
    rig_open(&r, c);
    engine_close(r.g); /* an engine that was never started takes nothing from its queue */
    r.g = engine_open(&c, &e);
    for (int i = 0; i < 4; i++) submit(&r, greedy(ids, 3, 5), &y[i]);
    struct gen_request q = greedy(ids, 3, 5);
    assert_false(engine_has_room(r.g));
    assert_int_equal(engine_submit(r.g, &q, &e), 0);
    assert_int_equal(e.code, ERR_FULL);
    assert_int_equal(engine_start(r.g, wake, &r, &e), 0);
    run_out(&r);
    assert_true(engine_has_room(r.g));
    for (int i = 0; i < 4; i++) reply_free(&y[i]);
    rig_close(&r);
}

static void test_pause_keeps_a_slow_reader_from_running(void **state)
{
    struct rig r;
    struct reply slow, quick;
    struct engine_stats s;
    int32_t ids[] = {1, 5, 9};
    rig_open(&r, base_config(fixtures));
    uint64_t id = submit(&r, greedy(ids, 3, 200), &slow);
    engine_pause(r.g, id);
    submit(&r, greedy(ids, 3, 20), &quick);
    while (!quick.done) {
        sem_wait(&r.wake);
        pump(&r);
    }
    assert_false(slow.done);
    int n = slow.n;
    engine_stats_read(r.g, &s);
    assert_int_equal(s.running + s.waiting, 1);
    pump(&r);
    assert_int_equal(slow.n, n);
    engine_resume(r.g, id);
    run_out(&r);
    assert_int_equal(slow.n, 200);
    reply_free(&slow);
    reply_free(&quick);
    rig_close(&r);
}

static void test_random_cancels_leak_nothing(void **state)
{
    enum { REQUESTS = 1000 / SCALE, AT_ONCE = 50 };
    struct engine_config c = base_config(fixtures);
    struct rig r;
    struct engine_stats s;
    c.kv_cache_bytes = 1 << 20;
    c.max_seqs = 16;
    rig_open(&r, c);
    struct reply *y = calloc(AT_ONCE, sizeof *y);
    uint64_t id[AT_ONCE] = {0};
    int cancelled = 0, finished = 0;
    for (int i = 0; i < REQUESTS; i++) {
        int k = i % AT_ONCE;
        while (id[k] && !y[k].done) {
            if (rng_at(3, (uint64_t)i) % 2) engine_cancel(r.g, id[k]);
            sem_wait(&r.wake);
            pump(&r);
        }
        if (id[k]) {
            cancelled += y[k].finish == FINISH_CANCELLED;
            finished += y[k].finish == FINISH_LENGTH;
            reply_free(&y[k]);
        }
        int32_t ids[] = {1, 5 + i % 7, 9, 30};
        id[k] = submit(&r, greedy(ids, 4, 1 + i * 37 % 100), &y[k]);
    }
    run_out(&r);
    for (int k = 0; k < AT_ONCE; k++) reply_free(&y[k]);
    engine_stats_read(r.g, &s);
    assert_int_equal(s.pages_used, 0);
    assert_int_equal(s.running + s.waiting, 0);
    assert_true(cancelled > 50 / SCALE && finished > 50 / SCALE);
    engine_cancel(r.g, 123456789); /* nobody: ignored */
    free(y);
    rig_close(&r);
}

/* While it decodes: it ends with a token that says so.  Waiting, or paused: at once. */
static void test_a_request_whose_time_is_over(void **state)
{
    struct engine_config c = base_config(fixtures);
    struct err e = {0};
    struct engine_stats s;
    struct reply runs = {0}, waits = {0}, held = {0};
    int32_t ids[] = {1, 5, 9, 30};
    c.max_seqs = 1;
    struct rig r = {.g = engine_open(&c, &e)}; /* without its thread: turned by hand */
    assert_non_null(r.g);
    uint64_t first = submit(&r, greedy(ids, 4, 200), &runs), second = submit(&r, greedy(ids, 4, 200), &waits);
    for (int i = 0; i < 3; i++) engine_step_once(r.g, false);
    pump(&r);
    assert_int_equal(runs.n, 3);
    engine_expire(r.g, second);
    engine_step_once(r.g, false);
    pump(&r);
    assert_true(waits.done && waits.finish == FINISH_TIMEOUT && waits.n == 0);
    assert_true(!runs.done && runs.n == 4);
    engine_expire(r.g, first);
    engine_step_once(r.g, false);
    pump(&r);
    assert_true(runs.done && runs.n == 5);
    assert_int_equal(runs.finish, FINISH_TIMEOUT);
    assert_int_equal(runs.token_finish, FINISH_TIMEOUT);

    uint64_t third = submit(&r, greedy(ids, 4, 200), &held);
    for (int i = 0; i < 2; i++) engine_step_once(r.g, false);
    engine_pause(r.g, third);
    engine_expire(r.g, third);
    assert_int_equal(engine_step_once(r.g, false), 0);
    pump(&r);
    assert_true(held.done && held.finish == FINISH_TIMEOUT && held.n == 2);
    assert_int_equal(held.token_finish, FINISH_NONE);
    engine_expire(r.g, third); /* nobody: ignored */
    engine_step_once(r.g, false);
    engine_stats_read(r.g, &s);
    assert_int_equal(s.pages_used, 0);
    assert_int_equal(s.running + s.waiting, 0);
    assert_int_equal(s.prefill_tokens, 8); /* two prompts of 4, too short to be cached */
    assert_true(s.prefill_ns > 0);
    reply_free(&runs);
    reply_free(&waits);
    reply_free(&held);
    engine_close(r.g);
}

static void test_bad_models_are_refused(void **state)
{
    struct err e = {0};
    struct engine_config c = base_config(fixtures);
    c.model = "/nonexistent";
    assert_null(engine_open(&c, &e));
    assert_non_null(strstr(e.msg, "config.json"));
    c = base_config(fixtures);
    c.quantize = "int3";
    assert_null(engine_open(&c, &e));
    assert_non_null(strstr(e.msg, "int3"));
    c = base_config(fixtures);
    c.kv_cache_bytes = 100;
    assert_null(engine_open(&c, &e));
    assert_non_null(strstr(e.msg, "pages"));
    c = base_config(fixtures);
    c.device = "abacus";
    assert_null(engine_open(&c, &e));
    assert_non_null(strstr(e.msg, "abacus"));
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: engine_test FIXTURES_DIR\n");
        return 2;
    }
    fixtures = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batching_f32),
        cmocka_unit_test(test_batching_int8),
        cmocka_unit_test(test_batching_int4),
        cmocka_unit_test(test_batching_nf4),
        cmocka_unit_test(test_bf16_cache),
        cmocka_unit_test(test_batching_families),
        cmocka_unit_test(test_golden_texts_token_by_token),
        cmocka_unit_test(test_same_seed_same_text),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_eos_ends_the_story),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_penalty_forbids_repetition),
        cmocka_unit_test(test_prefix_is_reused),
        cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_full_queue_says_so),
        cmocka_unit_test(test_pause_keeps_a_slow_reader_from_running),
        cmocka_unit_test(test_random_cancels_leak_nothing),
        cmocka_unit_test(test_a_request_whose_time_is_over),
        cmocka_unit_test(test_bad_models_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
