/* Each bottleneck, planted as figures, is named; a job without one is left alone.  Those that do not depend on the
 * clock are planted in real jobs, too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/model/model.h"
#include "engine/train/bottleneck.h"
#include "engine/train/model.h"
#include "engine/train/rows.h"
#include "engine/train/speed.h"
#include "tests/train/rows.h"

#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *fixtures = "tests/fixtures/models";

/* Ten steps of a second each, of one micro-batch of 2048 tokens. */
static struct train_facts healthy(void)
{
    struct train_facts f = {0};
    f.usage = (struct train_usage){.steps = 10, .micro_batches = 10, .rows = 80, .tokens = 20480, .seconds = 10};
    f.usage.part[TRAIN_DATA] = 0.1, f.usage.part[TRAIN_FORWARD] = 3, f.usage.part[TRAIN_BACKWARD] = 6.4;
    f.usage.part[TRAIN_OPTIMIZER] = 0.5;
    f.plan = (struct train_plan){.tokens_per_epoch = 100000,
                                 .state_bytes = 100,
                                 .activation_bytes = 500,
                                 .kept_bytes = 500,
                                 .room_bytes = 10000,
                                 .micro_tokens = 2048,
                                 .most_tokens = 2048,
                                 .threads = 8,
                                 .cores = 8};
    return f;
}

/* `seconds` of the steps go to a part, taken from the backward pass. */
static struct train_facts busy_with(enum train_part part, double seconds)
{
    struct train_facts f = healthy();
    f.usage.part[TRAIN_BACKWARD] -= seconds - f.usage.part[part];
    f.usage.part[part] = seconds;
    return f;
}

/* gain 0: any */
static void expect(struct train_facts f, const char *rule, const char *change, double gain)
{
    struct train_advice a[TRAIN_ADVICE_MAX];
    int n = train_advise(&f, a);
    if (!rule) {
        if (n) fail_msg("%s: %s", a[0].rule, a[0].cause);
        return;
    }
    assert_int_equal(n, 1);
    assert_string_equal(a[0].rule, rule);
    if (!strstr(a[0].change, change)) fail_msg("%s: %s", rule, a[0].change);
    if (gain > 0) assert_float_equal(a[0].gain, gain, 0.01);
    assert_true(a[0].gain > 1);
}

static void test_healthy(void **state)
{
    (void)state;
    expect(healthy(), NULL, NULL, 0);
    struct train_facts f = busy_with(TRAIN_DATA, 5);
    f.usage.steps = TRAIN_STEPS_LEAST - 1; /* too few to say anything */
    expect(f, NULL, NULL, 0);
    expect((struct train_facts){0}, NULL, NULL, 0);
}

static void test_parts(void **state)
{
    (void)state;
    expect(busy_with(TRAIN_DATA, 0.9), NULL, NULL, 0);
    expect(busy_with(TRAIN_DATA, 2), "slow data", "local disk", 1.25);
    expect(busy_with(TRAIN_OPTIMIZER, 1.9), NULL, NULL, 0);
    expect(busy_with(TRAIN_OPTIMIZER, 4), "optimizer", "batch_tokens", 1.25);
    expect(busy_with(TRAIN_WAIT, 2), NULL, NULL, 0);
    expect(busy_with(TRAIN_WAIT, 5), "waiting for serving", "--train-slowdown", 2);
    expect(busy_with(TRAIN_RANKS, 1.9), NULL, NULL, 0);
    expect(busy_with(TRAIN_RANKS, 4), "ranks", "as many cores", 1.66);
    struct train_facts f = busy_with(TRAIN_RANKS, 4);
    f.usage.link_seconds = 3.5; /* the other rank exchanged data for as long */
    expect(f, "link between ranks", "batch_tokens", 1.21);
    f.usage.link_seconds = 1.9;
    expect(f, "ranks", "as many cores", 1.27);
    expect(busy_with(TRAIN_OTHER, 0.9), NULL, NULL, 0);
    expect(busy_with(TRAIN_OTHER, 2), "device idle", "batch_tokens", 1.25);
}

static void test_small_batches(void **state)
{
    (void)state;
    struct train_facts f = healthy();
    f.usage.tokens = 160;
    expect(f, "small batches", "batch_tokens", 0);
    f.best_ratio = 3; /* measured: that counts */
    expect(f, "small batches", "batch_tokens", 3);
    f.best_ratio = 1;
    expect(f, NULL, NULL, 0);
    f.best_ratio = 0;
    f.plan.tokens_per_epoch = 20; /* a step has all rows */
    expect(f, NULL, NULL, 0);
    f.plan.tokens_per_epoch = 1000;
    f.plan.room_bytes = 1100; /* twice the activations would not fit */
    expect(f, NULL, NULL, 0);
    f.plan.room_bytes = 10000;
    f.ceiling_ratio = 0.7; /* fast all the same */
    expect(f, NULL, NULL, 0);
    f = healthy();
    f.usage.micro_batches = 1000;
    expect(f, "small micro-batches", "micro_tokens", 0);
    f = healthy();
    f.plan.own_memory = true; /* which wants larger ones */
    expect(f, "small batches", "batch_tokens", 0);
    f.usage.tokens = 200000;
    expect(f, NULL, NULL, 0);
}

static void test_recompute(void **state)
{
    (void)state;
    struct train_facts f = healthy();
    f.plan.recompute = true;
    f.plan.activation_bytes = 50;
    expect(f, "recomputation", "recompute", 1 / 0.7);
    f.plan.room_bytes = 620; /* 600 would leave too little */
    expect(f, "activations over budget", "memory_mib", 1 / 0.7);
    f.plan.room_bytes = 0; /* unknown */
    expect(f, NULL, NULL, 0);
}

static void test_threads(void **state)
{
    (void)state;
    struct train_facts f = healthy();
    f.plan.threads = 2;
    expect(f, "few threads", "--threads", 1 / (1 - 0.75 * 0.94));
    f.plan.threads = 16;
    expect(f, NULL, NULL, 0);
    f.plan.cores = 0;
    expect(f, NULL, NULL, 0);
}

static void test_machine(void **state)
{
    (void)state;
    struct train_facts f = healthy();
    f.clock_ratio = 0.95;
    expect(f, NULL, NULL, 0);
    f.clock_ratio = 0.8;
    expect(f, "throttled clocks", "tandem doctor", 1.25);
    f = healthy();
    f.plan.micro_tokens = 512; /* halved twice */
    expect(f, "micro-batches over budget", "memory_mib", 0);
    f.plan.micro_tokens = 2000; /* of 2048: not worth a word */
    expect(f, NULL, NULL, 0);
}

/* The median of the first sixteen steps after two, against that of the last. */
static void test_speed(void **state)
{
    (void)state;
    struct speed s = {0};
    for (int i = 0; i < SPEED_LEAST; i++) {
        assert_true(speed_ratio(&s) == 0);
        speed_add(&s, i < SPEED_WARM_UP ? 1 : i % 5 == 0 ? 1 : 200 - i);
    }
    assert_float_equal(speed_ratio(&s), 160.5 / 190.5, 0.02);
    for (int i = 0; i < SPEED_STEPS; i++) speed_add(&s, 95);
    assert_float_equal(speed_ratio(&s), 0.5, 0.01);
}

static void test_beside_the_steps(void **state)
{
    (void)state;
    struct train_facts f = healthy();
    f.usage.eval_seconds = 10;
    expect(f, "evaluations", "eval_steps", 1 / 0.75);
    f.usage.eval_seconds = 0;
    f.usage.checkpoint_seconds = 5;
    expect(f, "checkpoints", "save_steps", 0);
    f.usage.seconds = 0.1, f.usage.checkpoint_seconds = 0.1; /* of a job as short as that they say nothing */
    for (int i = 0; i < TRAIN_PARTS; i++) f.usage.part[i] /= 100;
    expect(f, NULL, NULL, 0);
}

static void test_order(void **state)
{
    (void)state;
    struct train_facts f = busy_with(TRAIN_DATA, 2);
    struct train_advice a[TRAIN_ADVICE_MAX];
    char text[512];
    f.plan.threads = 2;
    assert_int_equal(train_advise(&f, a), 2);
    assert_string_equal(a[0].rule, "few threads");
    train_advice_text(&a[1], text, sizeof text);
    assert_non_null(strstr(text, "slow data: getting the rows takes 20 % of a step: keep"));
    assert_non_null(strstr(text, "; up to 1.25 times the tokens per second"));
}

/* ---- real jobs --------------------------------------------------------------------------------------------------- */

/* A source of data that takes four times as long as computing its rows, on a machine with four cores. */
static atomic_bool slow;
static _Atomic uint64_t computed;            /* ns that the last micro-batch took */
static atomic_int throttled_after = INT_MAX; /* micro-batches: then each takes ten times as long */

struct train_loss __real_train_model_run(struct train_model *, const struct micro *, bool, float);
struct train_loss __wrap_train_model_run(struct train_model *, const struct micro *, bool, float);
void __real_micro_fill(struct micro *, const struct train_rows *, const struct microbatches_step *, uint32_t, uint32_t,
                       uint64_t);
void __wrap_micro_fill(struct micro *, const struct train_rows *, const struct microbatches_step *, uint32_t, uint32_t,
                       uint64_t);
int __wrap_cpus_available(void);

static void wait_ns(uint64_t ns)
{
    nanosleep(&(struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)}, NULL);
}

struct train_loss __wrap_train_model_run(struct train_model *m, const struct micro *b, bool back, float scale)
{
    uint64_t start = clock_now();
    struct train_loss l = __real_train_model_run(m, b, back, scale);
    uint64_t took = clock_now() - start;
    atomic_store(&computed, took);
    if (back && atomic_fetch_sub(&throttled_after, 1) <= 0) wait_ns(9 * took);
    return l;
}

void __wrap_micro_fill(struct micro *b, const struct train_rows *r, const struct microbatches_step *s, uint32_t from,
                       uint32_t to, uint64_t first)
{
    if (atomic_load(&slow)) wait_ns(4 * atomic_load(&computed));
    __real_micro_fill(b, r, s, from, to, first);
}

int __wrap_cpus_available(void)
{
    return 4;
}

struct planted {
    struct train_facts facts; /* at the end */
    struct train_advice advice[TRAIN_ADVICE_MAX];
    int n;
};

static void on_planted(void *arg, const struct train_event *e)
{
    struct planted *p = arg;
    if (e->kind == TRAIN_FAILED) fail_msg("%s", e->text);
    if (e->kind != TRAIN_SUCCEEDED) return;
    p->facts = train_facts_of(e);
    p->n = train_advise(&p->facts, p->advice);
}

static struct model open_model(int threads)
{
    struct model m;
    struct err e = {0};
    char *dir = file_join(fixtures, "llama-gqa");
    if (model_load(&m, dir, "cpu", threads, NULL, false, &e)) fail_msg("%s", e.msg);
    free(dir);
    return m;
}

static struct planted run_planted(const struct train_params *p, int threads)
{
    struct planted out = {.n = -1};
    struct model m = open_model(threads);
    struct dataset *data = rows_make(40, m.c.vocab, 3);
    struct train_job job = {.p = *p, .data = data};
    struct err e = {0};
    struct train *t = train_open(&job, &m, NULL, &e);
    if (!t) fail_msg("%s", e.msg);
    train_run(t, on_planted, &out);
    train_free(t);
    free(data);
    model_close(&m);
    assert_true(out.n >= 0);
    return out;
}

static bool named(const struct planted *p, const char *rule)
{
    for (int i = 0; i < p->n; i++)
        if (strcmp(p->advice[i].rule, rule) == 0) return true;
    return false;
}

static double part(const struct planted *p, enum train_part what)
{
    return p->facts.usage.part[what] / p->facts.usage.seconds;
}

static struct train_params short_job(void)
{
    struct train_params p;
    train_params_default(&p, TRAIN_LORA);
    p.max_length = 48;
    p.batch_tokens = 256;
    p.lora_r = 4;
    p.f32 = true;
    p.max_steps = 8;
    p.epochs = 100;
    p.recompute = RECOMPUTE_OFF;
    return p;
}

static void test_slow_data(void **state)
{
    (void)state;
    struct train_params p = short_job();
    atomic_store(&slow, true);
    struct planted r = run_planted(&p, 4);
    atomic_store(&slow, false);
    if (!named(&r, "slow data")) fail_msg("%.3f of a step", part(&r, TRAIN_DATA));
    assert_false(named(&r, "few threads"));
    assert_false(named(&r, "recomputation"));
}

static void test_throttled_machine(void **state)
{
    (void)state;
    struct train_params p = short_job();
    p.batch_tokens = 64;
    p.max_steps = SPEED_LEAST;
    atomic_store(&throttled_after, SPEED_LEAST / 2);
    struct planted r = run_planted(&p, 1);
    atomic_store(&throttled_after, INT_MAX);
    assert_int_equal(r.facts.usage.micro_batches, SPEED_LEAST);
    if (!named(&r, "throttled clocks")) fail_msg("%.3f of the speed", r.facts.clock_ratio);
}

static void test_few_threads(void **state)
{
    (void)state;
    struct train_params p = short_job();
    struct planted r = run_planted(&p, 1);
    assert_int_equal(r.facts.plan.threads, 1);
    assert_int_equal(r.facts.plan.cores, 4);
    double computing = part(&r, TRAIN_FORWARD) + part(&r, TRAIN_BACKWARD);
    assert_true(named(&r, "few threads") == (1 / (1 - 0.75 * computing) >= 1.01));
    assert_true(computing > 0);
}

static void test_tiny_batches(void **state)
{
    (void)state;
    struct train_params p = short_job();
    p.batch_tokens = 16;
    struct planted r = run_planted(&p, 1);
    double computing = part(&r, TRAIN_FORWARD) + part(&r, TRAIN_BACKWARD);
    double tokens = (double)r.facts.usage.tokens / (double)r.facts.usage.micro_batches;
    assert_true(tokens < 48 && r.facts.usage.micro_batches == r.facts.usage.steps);
    assert_true(named(&r, "small batches") == (computing * 16 / (16 + tokens) > 0.25));
    p.batch_tokens = 256; /* in micro-batches of one short row each */
    p.micro_tokens = p.max_length;
    r = run_planted(&p, 1);
    tokens = (double)r.facts.usage.tokens / (double)r.facts.usage.micro_batches;
    computing = part(&r, TRAIN_FORWARD) + part(&r, TRAIN_BACKWARD);
    assert_true(named(&r, "small micro-batches") == (computing * 16 / (16 + tokens) > 0.25));
}

static void test_needless_recomputation(void **state)
{
    (void)state;
    struct train_params p = short_job();
    p.recompute = RECOMPUTE_ON;
    struct planted r = run_planted(&p, 1);
    assert_true(r.facts.plan.recompute && r.facts.plan.kept_bytes > r.facts.plan.activation_bytes);
    assert_true(r.facts.plan.room_bytes > r.facts.plan.kept_bytes);
    assert_true(named(&r, "recomputation") == (part(&r, TRAIN_FORWARD) > 0.1));
    assert_false(named(&r, "activations over budget"));
}

/* The smallest budget that the job can do with. */
static void test_over_budget(void **state)
{
    (void)state;
    struct train_params p = short_job();
    p.recompute = RECOMPUTE_AUTO;
    p.micro_tokens = MICRO_TOKENS_AUTO;
    p.batch_tokens = 1024;
    struct model m = open_model(1);
    struct dataset *data = rows_make(40, m.c.vocab, 3);
    struct train_job job = {.p = p, .data = data};
    struct train_plan plan;
    struct err e;
    do {
        e = (struct err){0};
        job.p.memory_mib++;
    } while (train_plan_job(&job, &m, NULL, &plan, &e) && job.p.memory_mib < 1000);
    p.memory_mib = job.p.memory_mib;
    free(data);
    model_close(&m);
    struct planted r = run_planted(&p, 1);
    const struct train_plan *q = &r.facts.plan;
    assert_true(q->micro_tokens < q->most_tokens || q->recompute);
    double missing = 1 - (double)q->micro_tokens / q->most_tokens;
    double computing = part(&r, TRAIN_FORWARD) + part(&r, TRAIN_BACKWARD);
    double faster = (1 + 16.0 / q->micro_tokens) / (1 + 16.0 / q->most_tokens);
    double gain = 1 / (1 - computing * (1 - 1 / faster));
    if (fabs(gain - 1.01) > 1e-6) assert_true(named(&r, "micro-batches over budget") == (missing > 0 && gain > 1.01));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_healthy),           cmocka_unit_test(test_parts),
        cmocka_unit_test(test_small_batches),     cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_threads),           cmocka_unit_test(test_beside_the_steps),
        cmocka_unit_test(test_machine),           cmocka_unit_test(test_order),
        cmocka_unit_test(test_slow_data),         cmocka_unit_test(test_few_threads),
        cmocka_unit_test(test_tiny_batches),      cmocka_unit_test(test_needless_recomputation),
        cmocka_unit_test(test_over_budget),       cmocka_unit_test(test_speed),
        cmocka_unit_test(test_throttled_machine),
    };
    if (argc > 1) fixtures = argv[1];
    return cmocka_run_group_tests_name("bottleneck", tests, NULL, NULL);
}
