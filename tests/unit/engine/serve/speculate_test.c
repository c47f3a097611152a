/* Speculation: texts, log-probabilities and reasons to end are the same bits with it and without, whatever a request
 * asks for; how many candidates are proposed, and when.
 *
 *   speculate_test MODELS_DIR [REQUESTS] */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/model/adapter.h"
#include "engine/serve/engine.h"
#include "engine/serve/speculate.h"
#include "tests/grammar/json_grammar.h"
#include "kernels/rng.h"
#include "tests/unit/engine/serve/engine_rig.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static const char *models;
static int n_jobs = 64;
static char adapter_dir[] = "/tmp/tandem-test-XXXXXX";
static char *draft_dir; /* the model without its second layer */

enum { MAX_TOKENS = 300, TOPS = 3 };

struct reply {
    int n, n_prompt, stop_index;
    int32_t ids[MAX_TOKENS];
    float logprobs[MAX_TOKENS], prompt_logprobs[MAX_TOKENS];
    struct top_token top[MAX_TOKENS * TOPS];
    int n_top;
    struct buf text;
    enum finish_reason finish;
};

static void take_event(const struct event_batch *b, const struct event *v)
{
    struct reply *y = v->user;
    if (v->kind == EV_PROMPT) {
        y->prompt_logprobs[y->n_prompt++] = v->logprob;
    } else if (v->kind == EV_TOKEN) {
        y->ids[y->n] = v->token;
        y->logprobs[y->n++] = v->logprob;
        for (int i = 0; i < v->n_top; i++) y->top[y->n_top++] = b->top[v->top + (uint32_t)i];
        buf_append(&y->text, b->text + v->text, v->gen_len);
    } else {
        y->finish = v->finish;
        y->stop_index = v->stop_index;
    }
}

static void assert_same(const char *what, int i, const struct reply *a, const struct reply *b)
{
    bool same = a->n == b->n && a->n_prompt == b->n_prompt && a->n_top == b->n_top && a->finish == b->finish &&
                a->stop_index == b->stop_index && a->text.len == b->text.len;
    same = same && !memcmp(a->ids, b->ids, (size_t)a->n * sizeof *a->ids) &&
           !memcmp(a->logprobs, b->logprobs, (size_t)a->n * sizeof *a->logprobs) &&
           !memcmp(a->prompt_logprobs, b->prompt_logprobs, (size_t)a->n_prompt * sizeof *a->prompt_logprobs) &&
           !memcmp(a->top, b->top, (size_t)a->n_top * sizeof *a->top) &&
           (!a->text.len || !memcmp(a->text.data, b->text.data, a->text.len));
    if (!same)
        fail_msg("%s: request %d has another result:\n%.*s\n%.*s", what, i, (int)a->text.len, a->text.data,
                 (int)b->text.len, b->text.data);
}

/* ---- requests of every kind ---- */

enum kind { GREEDY, SAMPLED, PENALISED, ADAPTED, CONSTRAINED, REPORTED, STOPPED, ALL, KINDS };

static const char *const stories[] = {
    "Tom saw a red ball. Tom said, \"I like the red ball.\" Tom saw a red ball. Tom said, \"I like the red ball.\" Tom",
    "Once upon a time, there was a little girl named Lily. She loved to play. Once upon a time, there was",
    "Sam had a cat. The cat was big. Sam had a dog. The dog was big. Sam had a cow. The cow was",
    "One day, a bird sat in a tree. One day, a bird sat in a tree. One day, a bird",
};

static const char *const patterns[] = {"(The (cat|dog) (sat|ran)\\. ){3,12}", "(\"[^\"]{0,40}\",? ?){1,4}", NULL,
                                       "([A-Z][a-z]{1,6} and )+the end\\."};

static struct grammar *grammars[4];

static struct gen_request request_of_job(struct rig *r, int i, int32_t *prompt)
{
    static const char *const stops[] = {"Lily", "."};
    enum kind k = (enum kind)(i % KINDS);
    int n = encode(r, stories[i / KINDS % 4], prompt) - i / (4 * KINDS) % 7;
    struct gen_request q = {.prompt = prompt,
                            .n_prompt = n,
                            .max_new_tokens = 12 + i * 7 % 60,
                            .ignore_eos = i % 3 != 0,
                            .client = (uint64_t)i % 3,
                            .sampling = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition = 1}};
    q.sampling.sample = k == SAMPLED || k == REPORTED || k == ALL || (i / KINDS % 2 && k != GREEDY);
    q.sampling.temperature = i % 4 == 1 ? 0.8f : 0.4f;
    q.sampling.top_p = i % 5 == 0 ? 0.9f : 1;
    q.sampling.seed = (uint64_t)i + 1;
    if (k == PENALISED || k == ALL) {
        q.sampling.repetition = i / KINDS % 3 ? 1 : 1.05f;
        q.sampling.frequency = i / KINDS % 2 ? 0.35f : -0.6f;
        q.sampling.presence = i / KINDS % 2 ? -2 : 0;
    }
    if (k == ADAPTED || k == ALL) q.adapter = i / KINDS % 2 ? "other" : "some";
    if (k == CONSTRAINED || k == ALL) q.grammar = grammars[i / KINDS % 4];
    if (k == REPORTED || k == ALL) q.top_n = TOPS;
    q.prompt_logprobs = k == REPORTED;
    if (k == STOPPED) {
        q.stop = stops;
        q.n_stop = 1 + i / KINDS % 2;
        q.min_new_tokens = i / KINDS % 3 * 8;
    }
    return q;
}

static void submit(struct rig *r, int i, struct reply *y)
{
    struct err e = {0};
    int32_t prompt[MAX_TOKENS];
    struct gen_request q = request_of_job(r, i, prompt);
    buf_free(&y->text);
    *y = (struct reply){0};
    q.user = y;
    if (!engine_submit(r->g, &q, &e)) fail_msg("%s", e.msg);
    r->left++;
}

static void open_with_adapters(struct rig *r, struct engine_config c)
{
    struct err e = {0};
    rig_open(r, c);
    static const char *const names[] = {"some", "other"};
    for (int i = 0; i < 2; i++) {
        char *dir = file_join(adapter_dir, names[i]);
        if (engine_adapter_load(r->g, names[i], dir, NULL, &e)) fail_msg("%s", e.msg);
        free(dir);
    }
}

/* Candidates accepted by requests of each kind, when each runs alone; NULL: all run together, `rounds` times. */
static struct engine_stats run_jobs(struct engine_config c, struct reply *y, uint64_t *accepted, int rounds)
{
    struct rig r;
    struct engine_stats s = {0};
    open_with_adapters(&r, c);
    for (int k = 0; k < n_jobs * rounds; k++) {
        int i = k % n_jobs;
        uint64_t before = s.accepted_tokens;
        if (i == 0) run_out(&r);
        submit(&r, i, &y[i]);
        if (accepted) {
            run_out(&r);
            engine_stats_read(r.g, &s);
            accepted[i % KINDS] += s.accepted_tokens - before;
        } else if (i % 5 == 4) {
            pump(&r);
        }
    }
    run_out(&r);
    engine_stats_read(r.g, &s);
    assert_int_equal(s.pages_used, 0);
    rig_close(&r);
    return s;
}

static void free_all(struct reply *y)
{
    for (int i = 0; i < n_jobs; i++) buf_free(&y[i].text);
}

static void compare(const char *what, struct engine_config c, const struct reply *want, uint64_t *accepted,
                    struct engine_stats *s)
{
    struct reply *got = calloc((size_t)n_jobs, sizeof *got);
    *s = run_jobs(c, got, accepted, c.history_bytes ? 2 : 1);
    for (int i = 0; i < n_jobs; i++) assert_same(what, i, &got[i], &want[i]);
    free_all(got);
    free(got);
}

static void test_no_text_changes(void **state)
{
    struct engine_config c = base_config(models);
    struct reply *want = calloc((size_t)n_jobs, sizeof *want);
    uint64_t accepted[KINDS] = {0};
    c.max_queue = n_jobs;
    struct engine_stats s = run_jobs(c, want, NULL, 1);
    assert_int_equal(s.proposed_tokens, 0);
    c.speculate = "on";
    compare("one at a time", c, want, accepted, &s);
    for (int k = 0; k < KINDS; k++)
        if (!accepted[k]) fail_msg("no candidate of kind %d was accepted", k);
    assert_true(s.accepted_tokens < s.proposed_tokens && s.saved_steps == (double)s.accepted_tokens);
    c.max_seqs = 6;
    compare("six at a time", c, want, NULL, &s);
    assert_true(s.accepted_tokens > 0 && s.saved_steps < (double)s.accepted_tokens);
    c.kv_pages = 20; /* too few for six */
    c.threads = 1;
    compare("few pages", c, want, NULL, &s);
    assert_true(s.accepted_tokens > 0 && s.preemptions > 0);
    c.kv_pages = 0;
    c.max_seqs = 40;
    c.speculate = "auto";
    c.no_prefix_cache = true;
    compare("where it saves time", c, want, NULL, &s);
    assert_int_equal(s.history_entries, 0);
    c.history_bytes = 1 << 20;
    c.max_seqs = 6;
    c.speculate = "on";
    compare("again, with what was generated before", c, want, NULL, &s);
    assert_true(s.accepted_by[SPECULATE_HISTORY] > s.accepted_by[SPECULATE_NGRAM]);
    assert_true(s.history_entries > 0 && s.history_bytes <= c.history_bytes);
    c.history_bytes = 0;
    c.draft_model = draft_dir;
    compare("with a draft", c, want, NULL, &s);
    assert_true(s.accepted_by[SPECULATE_DRAFT] > 0 && s.draft_steps > 0);
    assert_true(s.accepted_by[SPECULATE_DRAFT] < s.proposed_by[SPECULATE_DRAFT]);
    c.draft_kv_bytes = 1 << 16; /* too few pages for six */
    c.kv_pages = 20;
    c.history_bytes = 1 << 16;
    compare("with all of them and little room", c, want, NULL, &s);
    assert_true(s.accepted_by[SPECULATE_DRAFT] > 0 && s.accepted_by[SPECULATE_HISTORY] > 0 && s.preemptions > 0);
    assert_true(s.history_bytes <= c.history_bytes);
    free_all(want);
    free(want);
}

/* Two texts that are continued while a third one, which is read, wants their pages of the draft. */
static void test_long_texts_of_a_draft(void **state)
{
    enum { TEXTS = 3, PAGES = 36 };
    static const int lengths[TEXTS] = {258, 259, 430};
    static int32_t prompts[TEXTS][512];
    struct reply got[2][TEXTS] = {0};
    struct engine_config c = base_config(models);
    struct engine_stats s = {0};
    (void)state;
    c.no_prefix_cache = true;
    c.max_batch_tokens = 1024;
    c.draft_model = draft_dir;
    for (int i = 0; i < TEXTS; i++)
        for (int k = 0; k < lengths[i]; k++) prompts[i][k] = 5 + (int32_t)(rng_at((uint64_t)i, (uint64_t)k) % 300);
    for (int on = 0; on < 2; on++) {
        struct rig r;
        struct err e = {0};
        c.speculate = on ? "on" : "off";
        rig_open(&r, c);
        for (int i = 0; i < TEXTS; i++) {
            struct gen_request q = {.prompt = prompts[i],
                                    .n_prompt = lengths[i],
                                    .max_new_tokens = i == TEXTS - 1 ? 40 : 120,
                                    .ignore_eos = true,
                                    .user = &got[on][i],
                                    .sampling = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition = 1}};
            if (!engine_submit(r.g, &q, &e)) fail_msg("%s", e.msg);
            r.left++;
            while (i < TEXTS - 1 && got[on][i].n < 4) { /* they are continued before the next one comes */
                sem_wait(&r.wake);
                pump(&r);
            }
        }
        run_out(&r);
        engine_stats_read(r.g, &s);
        if (on) assert_int_equal(engine_info(r.g)->draft_pages, PAGES);
        rig_close(&r);
        if (on) break;
        c.speculate = "on";
        rig_open(&r, c);
        c.draft_kv_bytes = engine_info(r.g)->draft_kv_bytes / (size_t)engine_info(r.g)->draft_pages * PAGES;
        rig_close(&r);
    }
    for (int i = 0; i < TEXTS; i++) {
        assert_same("long texts", i, &got[1][i], &got[0][i]);
        buf_free(&got[0][i].text);
        buf_free(&got[1][i].text);
    }
    assert_true(s.accepted_by[SPECULATE_DRAFT] > 0 && s.draft_prompt_tokens > 430);
}

/* A greedy text of a prompt that repeats itself, or with a draft of one that does not, with speculation and without;
 * *e, and false: no such device. */
static bool same_on(const char *model, const char *draft, struct engine_config c, int most, struct err *e)
{
    struct reply want = {0}, got = {0};
    char *dir = file_join(models, model), *other = draft ? file_join(models, draft) : NULL;
    struct engine_stats s = {0};
    bool long_enough = false;
    c.model = dir;
    c.draft_model = other;
    for (int on = 0; on < 2; on++) {
        struct rig r;
        c.speculate = on ? "on" : "off";
        struct engine *g = engine_open(&c, e);
        if (!g) break;
        rig_start(&r, g);
        int n = draft && strcmp(model, "phi3") ? 64 : 24; /* its draft, of short rotary tables, reads no more */
        int32_t prompt[64];
        for (int i = 0; i < n; i++) prompt[i] = draft ? 5 + i * i * 7 % 53 : 5 + i * 3 % 12;
        int room = engine_info(r.g)->max_total_tokens - n;
        struct gen_request q = {.prompt = prompt,
                                .n_prompt = n,
                                .max_new_tokens = most < room ? most : room,
                                .ignore_eos = true,
                                .top_n = 1,
                                .user = on ? &got : &want,
                                .sampling = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition = 1}};
        if (!engine_submit(r.g, &q, e)) fail_msg("%s", e->msg);
        r.left = 1;
        run_out(&r);
        engine_stats_read(r.g, &s);
        long_enough = n > 24;
        rig_close(&r);
    }
    free(dir);
    free(other);
    if (e->code) return false;
    assert_same(model, 0, &got, &want);
    if (draft && long_enough && s.draft_prompt_tokens < 63) fail_msg("%s: the draft did not read the prompt", model);
    if (!(draft ? s.accepted_by[SPECULATE_DRAFT] : s.accepted_tokens)) fail_msg("%s: no candidate was accepted", model);
    buf_free(&want.text);
    buf_free(&got.text);
    return true;
}

/* windows, rotary tables that change with the length of the text, quantised weights and caches, experts */
static void test_families(void **state)
{
    static const struct {
        const char *model, *quantize, *kv;
    } v[] = {{"phi3", NULL, "f32"},    {"llama-dynamic", "int8", "f16"}, {"qwen3-sliding", "int4", "int8"},
             {"gemma3", NULL, "bf16"}, {"qwen2-moe", NULL, "f32"},       {"gpt2", "nf4", "f16"}};
    for (size_t m = 0; m < sizeof v / sizeof *v; m++) {
        struct err e = {0};
        struct engine_config c = base_config(models);
        c.quantize = v[m].quantize;
        c.kv_type = v[m].kv;
        if (!same_on(v[m].model, NULL, c, 200, &e)) fail_msg("%s", e.msg);
        if (!same_on(v[m].model, v[m].model, c, 200, &e)) fail_msg("%s", e.msg); /* a draft that is always right */
    }
}

/* the CUDA kernels, at most 8 rows */
static void test_simt(void **state)
{
    struct err e = {0};
    struct engine_config c = {.device = "simt", .threads = 1, .kv_pages = 16, .max_seqs = 4, .max_batch_tokens = 32};
    if (!same_on("qwen2", NULL, c, 40, &e)) skip();
    if (!same_on("qwen2", "qwen2", c, 40, &e)) fail_msg("%s", e.msg);
}

/* ---- how many, and when ---- */

static void test_a_request_adapts(void **state)
{
    struct guess_pace s = {0};
    int first = guess_wants(&s, 100), steps = 0;
    assert_true(first > 0 && first < SPECULATE_MAX);
    assert_int_equal(guess_wants(&s, 1), 1);
    for (int i = 0; i < 5; i++) guess_learn(&s, guess_wants(&s, 100), guess_wants(&s, 100));
    assert_int_equal(guess_wants(&s, 100), SPECULATE_MAX);
    guess_learn(&s, 15, 2);
    assert_int_equal(guess_wants(&s, 100), 3);
    for (int i = 0; i < 20; i++) guess_learn(&s, 2, 0);
    while (!guess_wants(&s, 100)) steps++;
    assert_true(steps >= 16 && steps < 64); /* one that never succeeds is tried now and then */
}

/* Steps of two sequences whose candidates make a step half as long again and are right by `right` of 8; a draft takes
 * draft_ns more.  @return what they took, of what plain steps would have. */
static double spend(struct speculate_pace *p, int steps, bool draft, int right, double draft_ns)
{
    double spent = 0, plain = 0;
    for (int i = 0; i < steps; i++) {
        bool tries = speculate_pays(p, SPECULATE_AUTO, true, 2, draft);
        struct speculate_spent s = {.step_ns = 1.5e6, .draft_ns = draft ? draft_ns : 0};
        s.rows[draft] = 8;
        s.right[draft] = right;
        spent += tries ? s.step_ns + s.draft_ns : 1e6;
        plain += 1e6 * (tries ? 1 + right / 2.0 : 1);
        if (tries)
            speculate_took(p, 2, &s);
        else
            speculate_plain(p, 2, 1e6);
    }
    return spent / plain;
}

static void test_losses_are_bounded(void **state)
{
    struct speculate_pace p = {0};
    assert_int_equal(speculate_rows(SPECULATE_OFF, true, 2), 2);
    assert_int_equal(speculate_rows(SPECULATE_ON, false, 2), SPECULATE_ROWS_EXACT);
    assert_int_equal(speculate_rows(SPECULATE_ON, true, 2), SPECULATE_ROWS);
    assert_int_equal(speculate_rows(SPECULATE_ON, true, SPECULATE_SEQS + 1), SPECULATE_SEQS + 1);
    assert_int_equal(speculate_rows(SPECULATE_ON, true, 0), 0);
    for (int draft = 0; draft < 2; draft++) {
        p = (struct speculate_pace){0};
        assert_false(speculate_pays(&p, SPECULATE_AUTO, true, 2, draft)); /* nothing is known yet */
        assert_true(speculate_pays(&p, SPECULATE_ON, true, 2, draft));
        assert_false(speculate_pays(&p, SPECULATE_OFF, true, 2, draft));
        double ratio = spend(&p, 100000, draft, 0, 2e6); /* never right */
        assert_true(ratio < 1.01 && ratio > 1);
        assert_true(spend(&p, 2000, draft, 8, 2e6) < 0.95); /* then always */
        assert_false(speculate_pays(&p, SPECULATE_AUTO, false, 2, draft));
        assert_true(speculate_pays(&p, SPECULATE_ON, false, 2, draft));
    }
}

/* What one kind of candidates costs does not count against the other, though they share steps. */
static void test_each_source_pays_for_itself(void **state)
{
    struct speculate_pace p = {0};
    for (int i = 0; i < 100; i++) speculate_plain(&p, 2, 1e6);
    for (int i = 0; i < 10; i++)
        speculate_took(&p, 2, &(struct speculate_spent){{8, 8}, {8, 0}, .step_ns = 1.4e6, .draft_ns = 1e6});
    assert_true(speculate_pays(&p, SPECULATE_AUTO, true, 2, false));
    assert_false(speculate_pays(&p, SPECULATE_AUTO, true, 2, true));
}

static void test_prompts_of_a_draft_are_repaid(void **state)
{
    struct speculate_pace p = {0};
    double spent = 0, plain = 0;
    speculate_plain(&p, 1, 1e6);
    assert_true(speculate_invests(&p, SPECULATE_AUTO, 1, 1000, 1)); /* its time is unknown */
    speculate_invested(&p, 1000, 100e6);
    assert_false(speculate_invests(&p, SPECULATE_AUTO, 1, 1000, 1000));
    assert_true(speculate_invests(&p, SPECULATE_ON, 1, 1000, 1000));
    for (int i = 0; i < 100000; i++) {
        spent += 1e6, plain += 1e6;
        speculate_plain(&p, 1, 1e6);
        if (!speculate_invests(&p, SPECULATE_AUTO, 1, 1000, 1000)) continue;
        speculate_invested(&p, 1000, 100e6);
        spent += 100e6;
    }
    assert_true(spent > plain && spent < 1.005 * plain);
    p.debt_ns = 0;
    assert_false(speculate_invests(&p, SPECULATE_AUTO, 1, 1000, 100)); /* 0.1 s for a text of 0.1 s */
    p.debt_ns = 1e9;                                                   /* gains repay too */
    for (int i = 0; i < 2000 && p.debt_ns > 0; i++)
        speculate_took(&p, 1, &(struct speculate_spent){{0, 8}, {0, 8}, .step_ns = 1.2e6, .draft_ns = 0.8e6});
    assert_true(p.debt_ns == 0);
}

/* Delays by other work on the machine, a hundred times the length of a step, are not taken for what a step costs. */
static void test_delays_are_no_gains(void **state)
{
    struct speculate_pace p = {0};
    double spent = 0, plain = 0;
    for (int i = 0; i < 100000; i++) {
        double delay = i % 50 == 7 ? 100e6 : 0;
        if (!speculate_pays(&p, SPECULATE_AUTO, true, 1, true)) {
            speculate_plain(&p, 1, 1e6 + delay);
            spent += 1e6, plain += 1e6;
            continue;
        }
        int right = i % 2;
        speculate_took(&p, 1, &(struct speculate_spent){{0, 1}, {0, right}, .step_ns = 1.2e6, .draft_ns = 0.6e6});
        spent += 1.8e6, plain += 1e6 * (1 + right);
    }
    assert_true(spent < 1.02 * plain);
}

/* The number of a draft's candidates follows what they cost and how often they are right. */
static void test_worth_of_a_draft(void **state)
{
    struct speculate_pace p = {0};
    struct speculation s = {0};
    assert_true(speculate_worth(&p, SPECULATE_AUTO, &s, 1, 15) > 0); /* to be measured */
    speculate_plain(&p, 1, 10e6);
    speculate_drafted(&p, 1, 4, 4 * 1e6);
    p.row_ns = 0.5e6;
    for (int i = 0; i < 200; i++) speculate_accepted(&p, &s, 8, 8);
    assert_int_equal(speculate_worth(&p, SPECULATE_AUTO, &s, 1, 15), 15);
    assert_int_equal(speculate_worth(&p, SPECULATE_AUTO, &s, 1, 3), 3);
    for (int i = 0; i < 200; i++) speculate_accepted(&p, &s, 8, i % 2);
    int few = speculate_worth(&p, SPECULATE_AUTO, &s, 1, 15);
    assert_true(few > 0 && few < 4);
    for (int i = 0; i < 200; i++) speculate_accepted(&p, &s, 8, 0);
    assert_int_equal(speculate_worth(&p, SPECULATE_AUTO, &s, 1, 15), 0);
    assert_int_equal(speculate_worth(&p, SPECULATE_ON, &s, 1, 15), 1);
}

/* The trained model with fewer layers; change: of its vocabulary, for sed. */
static char *write_draft(const char *name, const char *change)
{
    static const char layers[] = "\"num_hidden_layers\": 2";
    struct err e = {0};
    char *dir = file_join(adapter_dir, name), command[4096], *config, *at;
    size_t n;
    snprintf(command, sizeof command,
             "mkdir %s && ln -s $(realpath %s)/model.safetensors %s && sed '%s' %s/tokenizer.json > "
             "%s/tokenizer.json",
             dir, base_config(models).model, dir, change, base_config(models).model, dir);
    assert_int_equal(system(command), 0);
    char *from = file_join(base_config(models).model, "config.json"), *to = file_join(dir, "config.json");
    assert_int_equal(file_read(from, 1 << 20, &config, &n, &e), 0);
    assert_non_null(at = memmem(config, n, layers, sizeof layers - 1));
    at[sizeof layers - 2] = '1';
    assert_int_equal(file_write_sync(to, config, n, &e), 0);
    free(from);
    free(to);
    free(config);
    return dir;
}

/* A draft of another vocabulary, and what is there to see of one that fits. */
static void test_which_drafts_fit(void **state)
{
    struct err e = {0};
    struct engine_config c = base_config(models);
    char *odd = write_draft("odd", "s/\"Lily\": 629/\"Lily\": 630/; s/\"end.*: 630/\"end▁\": 629/"),
         *gpt2 = file_join(models, "gpt2");
    c.speculate = "on";
    c.draft_model = odd;
    assert_null(engine_open(&c, &e));
    if (!strstr(e.msg, "token 629 is \"end▁\", and \"Lily\" in the model")) fail_msg("%s", e.msg);
    c.draft_model = gpt2;
    assert_null(engine_open(&c, &e));
    if (!strstr(e.msg, "vocabulary")) fail_msg("%s", e.msg);
    c.draft_model = "/nowhere";
    assert_null(engine_open(&c, &e));
    if (!strstr(e.msg, "draft-model: ")) fail_msg("%s", e.msg);
    c.draft_model = draft_dir;
    c.draft_kv_bytes = 1;
    assert_null(engine_open(&c, &e));
    if (!strstr(e.msg, "draft-kv-cache-bytes")) fail_msg("%s", e.msg);
    c.draft_kv_bytes = 0;
    struct engine *g = engine_open(&c, &e);
    if (!g) fail_msg("%s", e.msg);
    const struct engine_info *m = engine_info(g);
    assert_string_equal(m->draft_model, draft_dir);
    assert_true(m->draft_parameters > 0 && m->draft_parameters < m->parameters && m->draft_weight_bytes > 0);
    assert_true(m->draft_max_tokens == 512 && m->draft_kv_bytes > 0 && m->draft_workspace_bytes > 0);
    assert_true(m->draft_pages == 16 * 512 / 16);
    engine_close(g);
    c.speculate = "off";
    assert_non_null(g = engine_open(&c, &e));
    assert_null(engine_info(g)->draft_model);
    engine_close(g);
    free(odd);
    free(gpt2);
}

static void test_names(void **state)
{
    struct err e = {0};
    enum speculate how;
    assert_true(speculate_parse(NULL, &how, &e) == 0 && how == SPECULATE_OFF);
    assert_true(speculate_parse("on", &how, &e) == 0 && how == SPECULATE_ON);
    assert_int_equal(speculate_parse("maybe", &how, &e), ERR_INVALID);
    struct engine_config c = base_config(models);
    c.speculate = "maybe";
    assert_null(engine_open(&c, &e));
    assert_non_null(strstr(e.msg, "maybe"));
}

/* ---- set-up ---- */

static void write_adapter(const struct model_config *c, const char *name, uint32_t seed)
{
    struct err e = {0};
    char *dir = file_join(adapter_dir, name);
    struct adapter *a = adapter_new(c, TARGET_ALL, 4, 8, false);
    for (int i = 0; i < a->layers * a->n_modules; i++) {
        const struct lora_module *m = &a->module[i % a->n_modules];
        for (int half = 0; half < 2; half++)
            for (int n = 0; n < a->pair[i].r * (half ? m->n : m->k); n++) {
                seed = seed * 1664525 + 1013904223;
                (half ? a->pair[i].b : a->pair[i].a)[n] = (float)(int32_t)seed * 0x1p-35f;
            }
    }
    if (adapter_write(a, c, "tinystories-656k", dir, &e)) fail_msg("%s", e.msg);
    adapter_free(a);
    free(dir);
}

static int begin(void **state)
{
    struct model_config c;
    struct err e = {0};
    assert_non_null(mkdtemp(adapter_dir));
    assert_int_equal(model_config_read(base_config(models).model, &c, &e), 0);
    write_adapter(&c, "some", 1);
    write_adapter(&c, "other", 2);
    draft_dir = write_draft("draft", "");
    for (int i = 0; i < 4; i++) {
        struct grammar_builder *b = grammar_builder_new();
        grammars[i] = grammar_build(b, patterns[i] ? json_regex(b, patterns[i]) : json_value(b, 30), &e);
        if (!grammars[i]) fail_msg("%s", e.msg);
        grammar_builder_free(b);
    }
    return 0;
}

static int end(void **state)
{
    char command[128];
    for (int i = 0; i < 4; i++) grammar_unref(grammars[i]);
    free(draft_dir);
    snprintf(command, sizeof command, "rm -r %s", adapter_dir);
    return system(command);
}

int main(int argc, char **argv)
{
    models = argc > 1 ? argv[1] : "tests/fixtures/models";
    if (argc > 2) n_jobs = atoi(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_text_changes),
        cmocka_unit_test(test_long_texts_of_a_draft),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_simt),
        cmocka_unit_test(test_a_request_adapts),
        cmocka_unit_test(test_losses_are_bounded),
        cmocka_unit_test(test_each_source_pays_for_itself),
        cmocka_unit_test(test_prompts_of_a_draft_are_repaid),
        cmocka_unit_test(test_delays_are_no_gains),
        cmocka_unit_test(test_worth_of_a_draft),
        cmocka_unit_test(test_which_drafts_fit),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
