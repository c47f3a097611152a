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

struct measured {
    int steps;
    int64_t rows, tokens;
    double part[TRAIN_PARTS];
    struct train_usage usage; /* of the last event */
};

static void on_measured(void *arg, const struct train_event *e)
{
    struct measured *m = arg;
    double sum = 0;
    m->usage = e->usage;
    if (e->kind != TRAIN_STEP) return;
    for (int i = 0; i < TRAIN_PARTS; i++) {
        assert_true(e->part[i] >= 0);
        m->part[i] += e->part[i];
        sum += e->part[i];
    }
    assert_true(e->host_use > 0 && e->device_use > 0 && e->device_use <= 1 + 1e-9);
    double rows = e->rows_per_s * sum; /* the parts are the whole step */
    assert_float_equal(rows, round(rows), 1e-6);
    m->steps++;
    m->rows += (int64_t)round(rows);
    m->tokens = e->tokens;
}

/* A job without a directory writes no checkpoint; what it used is the sum of its steps. */
static void test_usage(void **state)
{
    (void)state;
    static const char *const devices[] = {"cpu", "simt"};
    for (size_t i = 0; i < 2; i++) {
        char why[160];
        struct dev *d = dev_open(&(struct dev_config){.name = devices[i], .threads = 1}, why);
        if (!d) continue; /* not in this build */
        dev_close(d);
        struct model m = open_model("llama-gqa", devices[i], 1);
        struct dataset *data = rows_make(12, m.c.vocab, 3);
        struct train_job job = {.p = params(TRAIN_LORA), .data = data};
        struct measured u = {0};
        struct err e = {0};
        job.p.epochs = 1;
        struct train *t = train_open(&job, &m, NULL, &e);
        if (!t) fail_msg("%s", e.msg);
        train_run(t, on_measured, &u);
        assert_int_equal(u.steps, train_plan(t)->steps);
        train_free(t);
        assert_int_equal(u.usage.steps, u.steps);
        assert_int_equal(u.usage.rows, 12);
        assert_int_equal(u.rows, 12);
        assert_int_equal(u.usage.tokens, u.tokens);
        assert_true(u.usage.micro_batches >= u.steps);
        double sum = 0;
        for (int k = 0; k < TRAIN_PARTS; k++) {
            assert_float_equal(u.usage.part[k], u.part[k], 1e-9);
            sum += u.part[k];
        }
        assert_float_equal(sum, u.usage.seconds, 1e-6);
        assert_true(u.part[TRAIN_DATA] > 0 && u.part[TRAIN_FORWARD] > 0 && u.part[TRAIN_BACKWARD] > 0);
        assert_true(u.part[TRAIN_OPTIMIZER] > 0);
        assert_true(u.part[TRAIN_WAIT] == 0); /* no gate */
        assert_true(u.usage.host_peak > 0 && u.usage.cpu_seconds > 0);
        assert_int_equal(u.usage.device_peak > 0, i == 1);
        free(data);
        model_close(&m);
    }
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
        cmocka_unit_test(test_usage),          cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_way_back),       cmocka_unit_test(test_suspicious_norms),
        cmocka_unit_test(test_early_stopping), cmocka_unit_test(test_schedules),
    };
    rig_begin(argc, argv);
    int failed = cmocka_run_group_tests_name("loop", tests, NULL, NULL);
    remove_tree(scratch);
    return failed;
}
