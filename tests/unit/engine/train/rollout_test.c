/* Method grpo with texts that the test makes in place of an engine: which prompts a step has, that its gradient is that
 * of the texts weighted by their advantages, and that an interrupted job makes the same steps. */
#include "tests/unit/engine/train/train_rig.h"

#include "engine/base/mem.h"
#include "engine/model/adapter.h"
#include "engine/train/grpo.h"
#include "engine/train/tuner.h"
#include "kernels/rng.h"

enum { PROMPTS = 10, TEXTS_KEPT = 64, NEW = 9 };

static void near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) fail_msg("%.12g, not %.12g", got, want);
}

static struct dataset *prompts(int n, int vocab)
{
    struct dataset *s = mem_zalloc(sizeof *s);
    s->hash = 9;
    for (int i = 0; i < n; i++) {
        int32_t id[8];
        int len = 2 + i % 5;
        for (int k = 0; k < len; k++) id[k] = (int32_t)(rng_at((uint64_t)i, (uint64_t)k) % (uint64_t)vocab);
        rows_add_prompt(s, id, len);
    }
    return s;
}

/* What the test samples, and what it saw. */
struct sampler {
    int vocab;
    double (*reward)(uint64_t seed); /* of a text */
    struct tuner *tuner;             /* for the log-probabilities of the first step; NULL: made up ones */
    int calls, rows[TEXTS_KEPT], n_rows;
    uint64_t seeds[TEXTS_KEPT];
    double advantage[TEXTS_KEPT];
    struct tuner_row text[TEXTS_KEPT]; /* of the first step; arrays owned */
    int n_texts;
    struct tuner_step step;
    double norm;                 /* of its gradient */
    struct train_sampled before; /* the first step */
    int ends_at; /* the call that ends with `code`, after a command that is withdrawn unless it stays; 0: none */
    int code;
    enum train_command command;
    bool stays;
    struct err e;
};

static double by_seed(uint64_t seed)
{
    return rng_uniform(seed, 1) < 0.5;
}

static double always(uint64_t seed)
{
    (void)seed;
    return 0.1;
}

static void make_text(const struct sampler *s, struct train_text *x)
{
    x->n = 1 + (int)(rng_at(x->seed, 2) % (uint64_t)x->room);
    x->truncated = x->n == x->room;
    for (int k = 0; k < x->n; k++) {
        x->id[x->n_prompt + k] = (int32_t)(rng_at(x->seed, 3 + (uint64_t)k) % (uint64_t)s->vocab);
        x->logprob[k] = (float)(-8 + 4 * rng_uniform(x->seed, 100 + (uint64_t)k));
    }
    x->reward = s->reward(x->seed);
}

/* The texts as rows of a tuner, whose weights are their advantages' shares of the loss. */
static void keep(struct sampler *s, struct train_rollout *r)
{
    double reward[TEXTS_KEPT];
    int64_t tokens = 0;
    struct train_rewards out = train_no_rewards;
    s->n_texts = r->n;
    s->before = train_sampled();
    for (int i = 0; i < r->n; i++) reward[i] = r->text[i].reward, tokens += r->text[i].n;
    grpo_advantages(reward, r->n / r->samples, r->samples, SCALE_GROUP, s->advantage, &out);
    for (int i = 0; i < r->n; i++) {
        struct train_text *x = &r->text[i];
        int n = x->n_prompt + x->n - 1;
        int32_t *id = mem_array((size_t)n + 1, sizeof *id);
        float *weight = mem_array((size_t)n, sizeof *weight), *logprob = mem_array((size_t)n, sizeof *logprob);
        memcpy(id, x->id, ((size_t)n + 1) * sizeof *id);
        for (int k = 0; k < n; k++)
            weight[k] = k + 1 < x->n_prompt ? 0 : (float)(s->advantage[i] / ((double)r->n * x->n));
        s->text[i] = (struct tuner_row){.n = n, .id = id, .target = id + 1, .weight = weight, .logprob = logprob};
    }
    if (tuner_run(s->tuner, s->text, r->n, false, &s->e)) fail_msg("%s", s->e.msg);
    for (int i = 0; i < r->n; i++)
        memcpy(r->text[i].logprob, s->text[i].logprob + r->text[i].n_prompt - 1, (size_t)r->text[i].n * sizeof(float));
}

/* What the trainer has learnt is what the tuner learns from them. */
static void compare(struct sampler *s, struct train *t)
{
    if (tuner_run(s->tuner, s->text, s->n_texts, true, &s->e) || tuner_step(s->tuner, &s->step, &s->norm, &s->e))
        fail_msg("%s", s->e.msg);
    struct train_sampled counted = train_sampled();
    assert_true(counted.tokens > s->before.tokens && counted.differing == s->before.differing);
    struct adapter *a = train_adapter(t, &s->e), *b = tuner_adapter(s->tuner, &s->e);
    double off = 0, all = 0;
    assert_non_null(a);
    assert_non_null(b);
    for (int i = 0; i < a->layers * a->n_modules; i++) {
        const struct lora_module *m = &a->module[i % a->n_modules];
        size_t n = (size_t)a->pair[i].r * (size_t)m->n;
        assert_int_equal(a->pair[i].r, b->pair[i].r);
        for (size_t k = 0; k < n; k++) {
            double x = (double)a->pair[i].b[k], y = (double)b->pair[i].b[k];
            off += (x - y) * (x - y);
            all += y * y;
        }
    }
    assert_true(all > 0);
    near(sqrt(off / all), 0, 1e-3); /* AdamW's first step is the gradient's sign, which is rounding where it is tiny */
}

static int end_early(const struct sampler *s, struct train *t, struct err *e)
{
    train_command(t, s->command);
    assert_true(train_stopped(t) == (s->command != TRAIN_GO_ON));
    if (!s->stays) train_command(t, TRAIN_GO_ON);
    return err_set(e, s->code, "no texts");
}

static int sample(void *arg, struct train_rollout *r, struct err *e)
{
    struct sampler *s = arg;
    if (s->ends_at && s->calls == s->ends_at) return end_early(s, r->train, e);
    assert_true(r->n % r->samples == 0);
    for (int i = 0; i < r->n; i++) {
        struct train_text *x = &r->text[i];
        if (i % r->samples == 0 && s->n_rows < TEXTS_KEPT) s->rows[s->n_rows++] = (int)x->row;
        assert_int_equal(x->row, r->text[i - i % r->samples].row);
        if (s->calls == 0) s->seeds[i] = x->seed;
        make_text(s, x);
    }
    if (s->tuner && s->calls == 0) keep(s, r);
    if (s->tuner && s->calls == 1) compare(s, r->train);
    s->calls++;
    return 0;
}

static struct train_params grpo_params(void)
{
    struct train_params p = params(TRAIN_GRPO);
    p.samples = 4;
    p.prompts_per_step = 3;
    p.max_new_tokens = NEW;
    p.learning_rate = 1e-3;
    p.max_grad_norm = 0;
    return p;
}

static struct run sampled_run(struct model *m, const struct dataset *data, const struct train_params *p,
                              const char *name, struct sampler *s, int64_t pause_at)
{
    struct err e = {0};
    struct run r = {.pause_at = pause_at, .resumed = -1};
    char *dir = path_to(name), *out = file_join(dir, "out");
    struct train_job job = {
        .p = *p, .data = data, .base_name = "base", .dir = dir, .out = out, .rollout = sample, .rollout_arg = s};
    s->vocab = m->c.vocab;
    if (!(r.t = train_open(&job, m, NULL, &e))) fail_msg("%s: %s", name, e.msg);
    train_run(r.t, on_event, &r);
    train_free(r.t);
    r.t = NULL;
    free(dir);
    free(out);
    return r;
}

static void test_each_prompt_once(void **state)
{
    (void)state;
    struct model m = open_model("llama-gqa", "cpu", 1);
    struct dataset *data = prompts(PROMPTS, m.c.vocab);
    struct train_params p = grpo_params();
    struct sampler s = {.reward = by_seed};
    struct run r = sampled_run(&m, data, &p, "once", &s, -1);
    assert_int_equal(r.last, TRAIN_SUCCEEDED);
    assert_int_equal(r.steps, 8); /* two epochs of 3, 3, 3 and 1 prompts */
    assert_int_equal(s.n_rows, 2 * PROMPTS);
    int same = 0, seen[PROMPTS] = {0};
    for (int i = 0; i < 2 * PROMPTS; i++) {
        assert_int_equal(seen[s.rows[i]]++, i / PROMPTS);
        same += s.rows[i] == s.rows[i % PROMPTS];
    }
    assert_true(same < 2 * PROMPTS); /* the second epoch has another order */
    for (int i = 0; i < 12; i++)
        for (int k = 0; k < i; k++) assert_true(s.seeds[i] != s.seeds[k]);
    remove_tree(scratch);
    free(data);
    model_close(&m);
}

/* Where the ratio is 1 the gradient is that of the cross-entropy, weighted. */
static void test_the_gradient(void **state)
{
    (void)state;
    static const char *const names[] = {"llama-gqa", "qwen2-moe"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct model m = open_model(names[i], "cpu", 1);
        struct dataset *data = prompts(PROMPTS, m.c.vocab);
        struct train_params p = grpo_params();
        p.f32 = false; /* as the tuner */
        p.max_steps = 2;
        struct err e = {0};
        struct tuner_params tp = {.r = p.lora_r, .alpha = p.lora_alpha, .targets = p.targets, .seed = p.seed};
        struct sampler s = {.reward = by_seed, .tuner = tuner_open(&tp, &m, NULL, &e)};
        if (!s.tuner) fail_msg("%s", e.msg);
        s.step = (struct tuner_step){p.learning_rate, p.beta1, p.beta2, p.epsilon, p.weight_decay, 0};
        struct run r = sampled_run(&m, data, &p, "first", &s, -1);
        double loss = 0;
        assert_int_equal(r.last, TRAIN_SUCCEEDED);
        assert_int_equal(s.calls, 2);
        assert_true(s.norm > 0);
        near(r.norm[0], s.norm, 1e-4 * s.norm);
        for (int k = 0; k < s.n_texts; k++) loss -= s.advantage[k] / s.n_texts;
        near(r.loss[0], loss, 1e-6);
        remove_tree(scratch);
        for (int k = 0; k < s.n_texts; k++) {
            free((void *)s.text[k].id);
            free((void *)s.text[k].weight);
            free(s.text[k].logprob);
        }
        tuner_free(s.tuner);
        free(data);
        model_close(&m);
    }
}

static void test_no_spread(void **state)
{
    (void)state;
    struct model m = open_model("llama-gqa", "cpu", 1);
    struct dataset *data = prompts(PROMPTS, m.c.vocab);
    struct train_params p = grpo_params();
    struct sampler s = {.reward = always};
    struct run r = sampled_run(&m, data, &p, "equal", &s, -1);
    assert_int_equal(r.last, TRAIN_SUCCEEDED);
    assert_int_equal(r.warnings, 0);
    for (int i = 0; i < r.steps; i++) assert_true(r.norm[i] == 0 && r.loss[i] == 0);
    remove_tree(scratch);
    free(data);
    model_close(&m);
}

static void test_interrupted(void **state)
{
    (void)state;
    struct model m = open_model("llama-gqa", "cpu", 1);
    struct dataset *data = prompts(PROMPTS, m.c.vocab);
    for (int i = 0; i < 3; i++) {
        struct train_params p = grpo_params();
        p.iterations = i == 1 ? 3 : 1;
        p.beta = i == 1 ? 0.1 : 0;
        p.loss_type = (enum train_loss_type)i;
        p.mask_truncated = i == 2;
        struct sampler s = {.reward = by_seed}, t = {.reward = by_seed};
        struct run whole = sampled_run(&m, data, &p, "whole", &s, -1);
        struct run r = sampled_run(&m, data, &p, "broken", &t, 3);
        assert_int_equal(r.last, TRAIN_PAUSED);
        r = sampled_run(&m, data, &p, "broken", &t, -1);
        assert_int_equal(r.last, TRAIN_SUCCEEDED);
        assert_int_equal(r.resumed, 3);
        assert_true(r.loss[0] == whole.loss[3] && r.norm[0] == whole.norm[3] && whole.norm[3] > 0);
        same_result("whole", "broken", "grpo");
        remove_tree(scratch);
    }
    free(data);
    model_close(&m);
}

/* A step that was left for a command is no failure, though the command was withdrawn; but a lost device is one. */
static void test_a_step_that_is_left(void **state)
{
    static const struct {
        enum train_command command;
        bool stays;
        int code;
        enum train_event_kind last;
    } cases[] = {{TRAIN_PAUSE, true, ERR_FULL, TRAIN_PAUSED},     {TRAIN_PAUSE, false, ERR_FULL, TRAIN_PAUSED},
                 {TRAIN_CANCEL, true, ERR_FULL, TRAIN_CANCELLED}, {TRAIN_CANCEL, false, ERR_FULL, TRAIN_CANCELLED},
                 {TRAIN_PAUSE, true, ERR_LOST, TRAIN_LOST},       {TRAIN_GO_ON, true, ERR_LOST, TRAIN_LOST},
                 {TRAIN_GO_ON, true, ERR_IO, TRAIN_FAILED}};
    (void)state;
    struct model m = open_model("llama-gqa", "cpu", 1);
    struct dataset *data = prompts(PROMPTS, m.c.vocab);
    struct train_params p = grpo_params();
    p.temperature = 0.5;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sampler s = {.reward = by_seed,
                            .ends_at = 3,
                            .code = cases[i].code,
                            .command = cases[i].command,
                            .stays = cases[i].stays};
        struct run r = sampled_run(&m, data, &p, "left", &s, -1);
        if (r.last != cases[i].last) fail_msg("case %zu: %d, not %d", i, (int)r.last, (int)cases[i].last);
        assert_int_equal(r.steps, 3);
        assert_int_equal(r.warnings, 1);
        assert_non_null(strstr(r.warning, "temperature 0.5 is that of sampling"));
        remove_tree(scratch);
    }
    free(data);
    model_close(&m);
}

/* How a step is divided changes the last bits only. */
static void test_micro_batches(void **state)
{
    (void)state;
    struct model m = open_model("llama-gqa", "cpu", 1);
    struct dataset *data = prompts(PROMPTS, m.c.vocab);
    struct train_params p = grpo_params(), q = p;
    p.max_steps = q.max_steps = 1;
    p.beta = q.beta = 0.2;
    p.micro_tokens = 48;
    q.micro_tokens = 1024;
    struct sampler s = {.reward = by_seed}, t = {.reward = by_seed};
    struct run a = sampled_run(&m, data, &p, "small", &s, -1), b = sampled_run(&m, data, &q, "large", &t, -1);
    near(a.loss[0], b.loss[0], 1e-6 * fabs(b.loss[0]) + 1e-9);
    near(a.norm[0], b.norm[0], 1e-4 * b.norm[0]);
    remove_tree(scratch);
    free(data);
    model_close(&m);
}

static void test_refused(void **state)
{
    (void)state;
    struct model m = open_model("llama-gqa", "cpu", 1);
    struct dataset *data = prompts(PROMPTS, m.c.vocab), *other = rows_make(4, m.c.vocab, 1);
    struct train_job job = {.p = grpo_params(), .data = other};
    refused(&job, &m, "method grpo wants prompts");
    job.data = job.eval = data;
    refused(&job, &m, "no use for held-out rows");
    job.eval = NULL;
    job.p.samples = 1;
    refused(&job, &m, "samples must be at least 2");
    job.p = grpo_params();
    job.p.max_new_tokens = 48;
    refused(&job, &m, "max_new_tokens: must be below max_length");
    job.p = params(TRAIN_LORA);
    refused(&job, &m, "a prompt, which method grpo trains on");
    job.p.samples = 4;
    refused(&job, &m, "samples: only with method grpo");
    data->id[3][1] = m.c.vocab;
    job.p = grpo_params();
    refused(&job, &m, "row 4 has the token id");
    free(data);
    free(other);
    model_close(&m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_prompt_once),
        cmocka_unit_test(test_the_gradient),
        cmocka_unit_test(test_no_spread),
        cmocka_unit_test(test_interrupted),
        cmocka_unit_test(test_a_step_that_is_left),
        cmocka_unit_test(test_micro_batches),
        cmocka_unit_test(test_refused),
    };
    rig_begin(argc, argv);
    int failed = cmocka_run_group_tests_name("rollout", tests, NULL, NULL);
    remove_tree(scratch);
    return failed;
}
