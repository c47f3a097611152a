/* micro_tokens "auto": what fits into memory decides how many micro-batches a step has, and changes no byte. */
#include "engine/base/err.h"
#include "kernels/ops.h"
#include "tests/unit/engine/train/train_rig.h"

enum { ROWS = 64, STEPS = 6 };

static struct train_params auto_params(enum train_method method)
{
    struct train_params p = params(method);
    p.micro_tokens = MICRO_TOKENS_AUTO;
    p.batch_tokens = 4096;
    p.max_steps = STEPS;
    p.epochs = 100;
    p.eval_fraction = 0.1;
    p.eval_steps = 3;
    p.lora_dropout = 0.1;
    if (method == TRAIN_FULL) regularise(&p);
    return p;
}

/* The plan with at most so much memory; false: refused. */
static bool plan_of(struct model *m, const struct dataset *data, const struct train_params *p, struct train_plan *plan)
{
    struct err e = {0};
    struct train_job job = {.p = *p, .data = data};
    int rc = train_plan_job(&job, m, NULL, plan, &e);
    if (rc && e.code != ERR_NOMEM) fail_msg("%s", e.msg);
    return rc == 0;
}

static void same_runs(const struct run *a, const struct run *b)
{
    assert_int_equal(a->last, TRAIN_SUCCEEDED);
    assert_int_equal(b->last, TRAIN_SUCCEEDED);
    assert_int_equal(a->steps, b->steps);
    for (int i = 0; i < a->steps; i++) {
        assert_true(a->loss[i] == b->loss[i]);
        assert_true(a->norm[i] == b->norm[i]);
    }
    assert_int_equal(a->evals, b->evals);
    for (int i = 0; i < a->evals; i++) assert_true(a->eval_loss[i] == b->eval_loss[i]);
}

/* The smallest budget that is not refused, and all of the memory. */
static void test_budgets(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++) {
        bool full = round == 1, ends = round == 2; /* ends: with adapters of the embeddings and the head */
        struct model m = open_model("mistral", "cpu", full + 1);
        struct dataset *data = rows_make(ROWS, m.c.vocab, 3);
        struct train_params p = auto_params(full ? TRAIN_FULL : TRAIN_LORA);
        if (ends) p.targets = TARGET_ALL | TARGET_ENDS, p.lora_dropout = 0;
        struct train_plan large, small;
        assert_true(plan_of(&m, data, &p, &large));
        p.memory_mib = 1;
        while (!plan_of(&m, data, &p, &small)) p.memory_mib++;
        if (small.micro_tokens > large.micro_tokens / 2)
            fail_msg("%d tokens with %d MiB, else %d", small.micro_tokens, p.memory_mib, large.micro_tokens);
        struct run less = run_job(&m, data, &p, "less", -1);
        p.memory_mib = 0;
        struct run all = run_job(&m, data, &p, "all", -1);
        same_runs(&less, &all);
        same_result("less", "all", "a small budget and a large one");
        remove_tree(scratch);
        free(data);
        model_close(&m);
    }
}

#ifndef TANDEM_SANITIZED /* which takes minutes for its arithmetic */
/* A device with memory of its own: its kernels sum unit by unit as well. */
static void test_budgets_on_simt(void **state)
{
    (void)state;
    char why[160];
    struct dev *d = dev_open(&(struct dev_config){.name = "simt", .threads = 1}, why);
    if (!d) skip(); /* not in this build */
    dev_close(d);
    struct model m = open_model("mistral", "simt", 1);
    struct dataset *data = rows_make(ROWS, m.c.vocab, 3);
    struct train_params p = auto_params(TRAIN_LORA);
    p.batch_tokens = 1024;
    p.max_steps = 2;
    p.eval_fraction = 0;
    struct train_plan large, small;
    assert_true(plan_of(&m, data, &p, &large));
    assert_true(large.own_memory);
    p.memory_mib = 1;
    while (!plan_of(&m, data, &p, &small)) p.memory_mib++;
    if (small.micro_tokens > large.micro_tokens / 2)
        fail_msg("%d tokens with %d MiB, else %d", small.micro_tokens, p.memory_mib, large.micro_tokens);
    struct run less = run_job(&m, data, &p, "less", -1);
    p.memory_mib = 0;
    struct run all = run_job(&m, data, &p, "all", -1);
    same_runs(&less, &all);
    same_result("less", "all", "a small budget and a large one");
    remove_tree(scratch);
    free(data);
    model_close(&m);
}
#endif

/* Where sums cannot be made unit by unit, micro-batches are units with any memory. */
static void test_units_alone(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        enum train_method method;
        bool several;
    } cases[] = {{"llama-gqa", TRAIN_LORA, true}, {"qwen3", TRAIN_FULL, false}, {"mixtral", TRAIN_FULL, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model m = open_model(cases[i].model, "cpu", 1);
        struct dataset *data = rows_make(ROWS, m.c.vocab, 3);
        struct train_params p = auto_params(cases[i].method);
        struct train_plan plan;
        assert_true(plan_of(&m, data, &p, &plan));
        assert_int_equal(plan.micro_tokens > 512, cases[i].several);
        free(data);
        model_close(&m);
    }
}

/* ---- an op that finds no memory ---------------------------------------------------------------------------------- */

static struct dev_ops own;
static const struct dev_ops *real;
static int linears, fail_at, failures;

static void linear(struct dev *d, const struct linear_args *a)
{
    if (++linears == fail_at && failures-- > 0) {
        dev_fail(d, "linear", "no memory, says the test");
        linears = 0;
        return;
    }
    real->linear(d, a);
}

/* The at-th GEMM finds no memory, `times` times. */
static struct run run_short(struct model *m, const struct dataset *data, const struct train_params *p, int at,
                            int times)
{
    real = m->d->ops;
    own = *real;
    own.linear = linear;
    linears = 0;
    fail_at = at;
    failures = times;
    m->d->ops = &own;
    struct run r = run_job(m, data, p, "short", -1);
    m->d->ops = real;
    return r;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    struct model m = open_model("mistral", "cpu", 1);
    struct dataset *data = rows_make(ROWS, m.c.vocab, 3);
    struct train_params p = auto_params(TRAIN_LORA);
    struct run whole = run_job(&m, data, &p, "whole", -1);
    static const int at[] = {5, 14, 37}; /* in the first step, in a later one, in an evaluation */
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        struct run r = run_short(&m, data, &p, at[i], 1);
        if (r.last != TRAIN_SUCCEEDED) fail_msg("%s", r.text);
        assert_int_equal(r.warnings, 1);
        assert_non_null(strstr(r.warning, "no memory, says the test: micro-batches have at most "));
        same_runs(&whole, &r);
        same_result("whole", "short", "half of the micro-batch");
        char *dir = path_to("short");
        remove_tree(dir);
        free(dir);
    }

    struct run r = run_short(&m, data, &p, 30, 100); /* in units, too */
    assert_int_equal(r.last, TRAIN_FAILED);
    assert_non_null(strstr(r.text, "no memory, says the test"));
    remove_tree(scratch);
    p.micro_tokens = 512; /* as it was asked for */
    r = run_short(&m, data, &p, 30, 1);
    assert_int_equal(r.last, TRAIN_FAILED);
    remove_tree(scratch);
    free(data);
    model_close(&m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budgets),
#ifndef TANDEM_SANITIZED
        cmocka_unit_test(test_budgets_on_simt),
#endif
        cmocka_unit_test(test_units_alone),
        cmocka_unit_test(test_out_of_memory),
    };
    rig_begin(argc, argv);
    int failed = cmocka_run_group_tests_name("fit", tests, NULL, NULL);
    remove_tree(scratch);
    return failed;
}
