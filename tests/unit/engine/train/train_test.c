/* The trainer: that it learns, and that how a step is cut or recomputed changes nothing. */
#include "engine/base/mem.h"
#include "engine/model/adapter.h"
#include "tests/unit/engine/train/train_rig.h"

/* ---- it learns --------------------------------------------------------------------------------------------------- */

static void learns(const char *model, const char *device, enum train_method method)
{
    struct model m = open_model(model, device, 1);
    struct dataset *data = rows_make(24, m.c.vocab, 3);
    struct train_params p = params(method);
    p.epochs = 8;
    struct run r = run_job(&m, data, &p, "learns", -1);
    if (r.last != TRAIN_SUCCEEDED) fail_msg("%s on %s: %s", model, device, r.text);
    assert_true(r.steps >= 12);
    if (!(r.loss[r.steps - 1] < 0.85 * r.loss[0]))
        fail_msg("%s on %s: the loss goes from %g to %g in %d steps", model, device, r.loss[0], r.loss[r.steps - 1],
                 r.steps);
    remove_tree(scratch);
    free(data);
    model_close(&m);
}

static void test_lora_learns(void **state)
{
    (void)state;
    learns("llama-gqa", "ref", TRAIN_LORA);
    learns("llama-gqa", "cpu", TRAIN_LORA);
    learns("gpt2", "cpu", TRAIN_LORA);
    learns("phi", "cpu", TRAIN_LORA);
    learns("qwen3", "cpu", TRAIN_LORA);
}

static void test_full_learns(void **state)
{
    (void)state;
    learns("llama-gqa", "ref", TRAIN_FULL);
    learns("qwen2-bf16", "cpu", TRAIN_FULL);
    learns("gpt2", "cpu", TRAIN_FULL);
    learns("phi", "cpu", TRAIN_FULL);
    learns("qwen3", "cpu", TRAIN_FULL);
    learns("olmoe", "cpu", TRAIN_FULL);
}

static void learns_quantised(const char *model, enum dtype type)
{
    struct model m;
    struct err e = {0};
    struct quantize_how how = {.type = type};
    char *dir = file_join(fixtures, model);
    if (model_load(&m, dir, "cpu", 1, &how, false, &e)) fail_msg("%s: %s", model, e.msg);
    free(dir);
    struct dataset *data = rows_make(24, m.c.vocab, 3);
    struct train_params p = params(TRAIN_QLORA);
    p.epochs = 8;
    p.f32 = false;
    struct run r = run_job(&m, data, &p, "quantised", -1);
    if (r.last != TRAIN_SUCCEEDED || !(r.loss[r.steps - 1] < 0.9 * r.loss[0]))
        fail_msg("%s %s: %s; the loss goes from %g to %g", model, dtype_name(type), r.text, r.loss[0],
                 r.loss[r.steps - 1]);
    remove_tree(scratch);
    free(data);
    model_close(&m);
}

static void test_qlora_learns(void **state)
{
    (void)state;
    learns_quantised("llama-f16", DT_I8);
    learns_quantised("llama-f16", DT_I4);
    learns_quantised("llama-nf4", DT_NONE);
}

static void test_random_init_learns(void **state)
{
    (void)state;
    static const char *const names[] = {"llama-gqa", "gpt2", "mixtral"};
    for (int i = 0; i < 3; i++) {
        struct model m = open_model(names[i], "cpu", 1);
        struct dataset *data = rows_make(24, m.c.vocab, 3);
        struct train_params p = params(TRAIN_FULL);
        p.random_init = true;
        p.epochs = 20;
        struct run r = run_job(&m, data, &p, "random", -1);
        assert_int_equal(r.last, TRAIN_SUCCEEDED);
        /* weights near zero say every token is as likely */
        assert_true(fabs(r.loss[0] - log(m.c.vocab)) < 0.3);
        assert_true(r.loss[r.steps - 1] < 0.8 * r.loss[0]);
        remove_tree(scratch);
        free(data);
        model_close(&m);
    }
}

/* ---- how it is cut changes nothing ------------------------------------------------------------------------------- */

/* Steps of many micro-batches or of one, packed or not, have the same losses. */
static void test_cuts(void **state)
{
    (void)state;
    struct model m = open_model("qwen2", "cpu", 1);
    struct dataset *data = rows_make(30, m.c.vocab, 5);
    struct train_params p = params(TRAIN_LORA);
    p.group_by_length = false;
    struct run whole = run_job(&m, data, &p, "whole", -1);
    assert_int_equal(whole.last, TRAIN_SUCCEEDED);
    p.max_length = 40;
    p.micro_tokens = 40;
    struct run cut = run_job(&m, data, &p, "cut", -1);
    p.packing = false;
    struct run apart = run_job(&m, data, &p, "apart", -1);
    assert_true(whole.steps > 4);
    assert_int_equal(whole.steps, cut.steps);
    assert_int_equal(whole.steps, apart.steps);
    for (int i = 0; i < whole.steps; i++) {
        assert_true(fabs(whole.loss[i] - cut.loss[i]) < 1e-4 * whole.loss[i]);
        assert_true(fabs(whole.loss[i] - apart.loss[i]) < 1e-4 * whole.loss[i]);
    }
    remove_tree(scratch);
    free(data);
    model_close(&m);
}

static void test_threads_and_recompute(void **state)
{
    (void)state;
    for (int full = 0; full < 2; full++) {
        struct dataset *data = rows_make(20, 288, 5);
        struct train_params p = params(full ? TRAIN_FULL : TRAIN_LORA);
        p.lora_dropout = full ? 0 : 0.1;
        if (full) regularise(&p);
        struct model one = open_model("llama-gqa", "cpu", 1), two = open_model("llama-gqa", "cpu", 2);
        p.recompute = RECOMPUTE_OFF;
        assert_false(run_job(&one, data, &p, "one", -1).recompute);
        run_job(&two, data, &p, "two", -1);
        p.recompute = RECOMPUTE_ON;
        assert_true(run_job(&one, data, &p, "again", -1).recompute);
        same_result("one", "two", "two threads");
        same_result("one", "again", "recomputed");
        remove_tree(scratch);
        free(data);
        model_close(&one);
        model_close(&two);
    }
}

/* The average is evaluated, and training does not notice. */
static void test_average(void **state)
{
    (void)state;
    struct model m = open_model("llama-gqa", "cpu", 2);
    struct dataset *data = rows_make(30, m.c.vocab, 5);
    struct train_params p = params(TRAIN_FULL);
    p.eval_fraction = 0.2;
    p.eval_steps = 2;
    p.epochs = 4;
    struct run plain = run_job(&m, data, &p, "plain", -1);
    p.ema_decay = 0.9;
    struct run average = run_job(&m, data, &p, "average", -1);
    assert_int_equal(average.last, TRAIN_SUCCEEDED);
    assert_int_equal(plain.steps, average.steps);
    assert_true(plain.evals >= 3 && plain.evals == average.evals);
    for (int i = 0; i < plain.steps; i++) assert_true(plain.loss[i] == average.loss[i]);
    for (int i = 0; i < plain.evals; i++) assert_true(plain.eval_loss[i] != average.eval_loss[i]);
    /* behind, while the loss falls fast */
    assert_true(average.eval_loss[1] > plain.eval_loss[1]);
    assert_true(average.eval_loss[plain.evals - 1] < average.eval_loss[0]);
    remove_tree(scratch);
    free(data);
    model_close(&m);
}

/* An adapter whose ranks differ from layer to layer goes on, recomputed or not. */
static void test_from_patterns(void **state)
{
    (void)state;
    struct model m = open_model("qwen2", "cpu", 1);
    struct dataset *data = rows_make(20, m.c.vocab, 5);
    struct err e = {0};
    char *from = file_join(fixtures, "../adapters/qwen2--ours-patterns");
    for (int recompute = 0; recompute < 2; recompute++) {
        char *dir = path_to(recompute ? "again" : "kept"), *out = file_join(dir, "out");
        struct train_job job = {
            .p = params(TRAIN_LORA), .data = data, .from = from, .base_name = "b", .dir = dir, .out = out};
        job.p.recompute = recompute ? RECOMPUTE_ON : RECOMPUTE_OFF;
        struct run r = {.pause_at = -1};
        if (!(r.t = train_open(&job, &m, NULL, &e))) fail_msg("%s", e.msg);
        train_run(r.t, on_event, &r);
        train_free(r.t);
        if (r.last != TRAIN_SUCCEEDED) fail_msg("%s", r.text);
        assert_true(r.loss[r.steps - 1] < r.loss[0]);
        free(dir);
        free(out);
    }
    same_result("kept", "again", "ranks that differ");
    free(from);
    remove_tree(scratch);
    free(data);
    model_close(&m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lora_learns),  cmocka_unit_test(test_full_learns),
        cmocka_unit_test(test_qlora_learns), cmocka_unit_test(test_random_init_learns),
        cmocka_unit_test(test_cuts),         cmocka_unit_test(test_threads_and_recompute),
        cmocka_unit_test(test_average),      cmocka_unit_test(test_from_patterns),
    };
    rig_begin(argc, argv);
    int failed = cmocka_run_group_tests_name("train", tests, NULL, NULL);
    remove_tree(scratch);
    return failed;
}
