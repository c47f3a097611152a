/* The training loop: guards, early stopping, schedules. */
#include "engine/model/adapter.h"
#include "tests/unit/engine/train/train_rig.h"

static void test_not_finite(void **state)
{
    (void)state;
    struct model m = open_model("llama-gqa", "cpu", 1);
    struct dataset *data = rows_make(24, m.c.vocab, 3);
    struct train_params p = params(TRAIN_LORA);
    p.epochs = 5;
    m.w.norm_w[3] = NAN;
    struct run r = run_job(&m, data, &p, "nan", -1);
    assert_int_equal(r.last, TRAIN_FAILED);
    assert_non_null(strstr(r.text, "without a finite loss"));
    assert_int_equal(r.steps, 6); /* three, back, three */
    assert_true(r.rate[3] == r.rate[0] / 2);
    remove_tree(scratch);
    free(data);
    model_close(&m);
}

/* Where three bad steps lead back to does not depend on when checkpoints happened to be written: here one that a pause
 * makes. */
static void test_way_back(void **state)
{
    (void)state;
    struct model m = open_model("llama-gqa", "cpu", 1);
    struct dataset *data = rows_make(30, m.c.vocab, 6);
    struct train_params p = params(TRAIN_LORA);
    p.epochs = 3;
    p.batch_tokens = 128;
    struct run whole = run_with(&m, data, &p, "whole", (struct run){.pause_at = -1, .broken = &m, .nan_at = 7});
    if (whole.last != TRAIN_SUCCEEDED) fail_msg("%s", whole.text);
    assert_true(whole.rate[10] == whole.rate[0] / 2); /* from the beginning again */
    struct run r = run_job(&m, data, &p, "broken", 5);
    assert_int_equal(r.last, TRAIN_PAUSED);
    r = run_with(&m, data, &p, "broken", (struct run){.pause_at = 15, .resumed = -1, .broken = &m, .nan_at = 7});
    assert_int_equal(r.resumed, 5);
    if (r.last == TRAIN_PAUSED) r = run_job(&m, data, &p, "broken", -1);
    assert_int_equal(r.last, TRAIN_SUCCEEDED);
    same_result("whole", "broken", "three bad steps after a pause");
    remove_tree(scratch);
    free(data);
    model_close(&m);
}

/* Gradients that nothing can be learnt from, or that are far too large, are worth a word. */
static void test_suspicious_norms(void **state)
{
    (void)state;
    struct model m = open_model("llama-gqa", "cpu", 1);
    struct dataset *data = rows_make(24, m.c.vocab, 3);
    struct err e = {0};
    char *from = path_to("zero"), *dir = path_to("norms");
    struct adapter *zero = adapter_new(&m.c, TARGET_ALL, 2, 4, false); /* a and b are zero: so is the gradient */
    if (adapter_write(zero, &m.c, "base", from, &e)) fail_msg("%s", e.msg);
    adapter_free(zero);
    struct train_job job = {.p = params(TRAIN_LORA), .data = data, .from = from, .dir = dir};
    job.p.max_steps = 4;
    struct run r = {.pause_at = -1};
    if (!(r.t = train_open(&job, &m, NULL, &e))) fail_msg("%s", e.msg);
    train_run(r.t, on_event, &r);
    train_free(r.t);
    assert_int_equal(r.last, TRAIN_SUCCEEDED);
    assert_int_equal(r.warnings, 3); /* not for the first step */
    assert_non_null(strstr(r.warning, "exactly zero"));

    struct train_params p = params(TRAIN_LORA);
    p.lora_alpha = 4096;
    p.lora_r = 1;
    p.max_steps = 2;
    r = run_job(&m, data, &p, "large", -1);
    assert_true(r.norm[0] > 100);
    assert_true(r.warnings >= 1);
    assert_non_null(strstr(r.warning, "above 100"));
    free(from);
    free(dir);
    remove_tree(scratch);
    free(data);
    model_close(&m);
}

/* A rate that is too high: evaluations get worse, it stops early, and the best one is the result. */
static void test_early_stopping(void **state)
{
    (void)state;
    struct model m = open_model("llama-gqa", "cpu", 1);
    struct dataset *data = rows_make(30, m.c.vocab, 3), *eval = rows_make(6, m.c.vocab, 99);
    struct err e = {0};
    char *dir = path_to("early");
    struct train_job job = {.p = params(TRAIN_LORA), .data = data, .eval = eval, .dir = dir};
    job.p.epochs = 50;
    job.p.eval_steps = 1;
    job.p.patience = 4;
    job.p.learning_rate = 0.3;
    job.p.schedule = SCHEDULE_CONSTANT;
    struct run r = {.pause_at = -1};
    if (!(r.t = train_open(&job, &m, NULL, &e))) fail_msg("%s", e.msg);
    assert_int_equal(train_plan(r.t)->eval_rows, 6);
    train_run(r.t, on_event, &r);
    train_free(r.t);
    assert_int_equal(r.last, TRAIN_SUCCEEDED);
    assert_int_equal(r.evals, r.steps);
    assert_true(r.steps >= 5 && r.steps < 100);
    double best = INFINITY;
    int at = 0;
    for (int i = 0; i < r.evals; i++)
        if (r.eval_loss[i] < best) best = r.eval_loss[i], at = i;
    assert_int_equal(r.evals - 1 - at, 4);
    free(dir);
    remove_tree(scratch);
    free(data);
    free(eval);
    model_close(&m);
}

static void test_schedules(void **state)
{
    (void)state;
    struct model m = open_model("llama-gqa", "cpu", 1);
    struct dataset *data = rows_make(4, m.c.vocab, 3);
    struct train_params p = params(TRAIN_LORA);
    p.epochs = 1000;
    p.max_steps = 10;
    p.warmup_steps = 2;
    p.learning_rate = 0.01;
    static const double want[3][4] = {
        {0.005, 0.01, 0.01, 0.01}, {0.005, 0.01, 0.01, 0.00125}, {0.005, 0.01, 0.01, 0.01 * 0.0380602337443566}};
    for (int s = 0; s < 3; s++) {
        p.schedule = (enum train_schedule)s;
        struct run r = run_job(&m, data, &p, "rates", -1);
        assert_int_equal(r.steps, 10);
        const int at[] = {0, 1, 2, 9};
        for (int i = 0; i < 4; i++)
            if (fabs(r.rate[at[i]] - want[s][i]) > 1e-9)
                fail_msg("schedule %d, step %d: %g, not %g", s, at[i], r.rate[at[i]], want[s][i]);
        remove_tree(scratch);
    }
    free(data);
    model_close(&m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_not_finite),       cmocka_unit_test(test_way_back),
        cmocka_unit_test(test_suspicious_norms), cmocka_unit_test(test_early_stopping),
        cmocka_unit_test(test_schedules),
    };
    rig_begin(argc, argv);
    int failed = cmocka_run_group_tests_name("loop", tests, NULL, NULL);
    remove_tree(scratch);
    return failed;
}
