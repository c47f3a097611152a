/* Jobs that are refused, and planning beside training. */
#include "engine/train/scheduler_gate.h"
#include "tests/unit/engine/train/train_rig.h"

#include <pthread.h>

static void test_refused(void **state)
{
    (void)state;
    struct model m = open_model("llama-gqa", "cpu", 1), quantised = open_model("llama-nf4", "cpu", 1);
    struct model sinks = open_model("gpt-oss-mxfp4", "cpu", 1);
    struct dataset *data = rows_make(8, m.c.vocab, 3);
    struct train_job job = {.p = params(TRAIN_LORA), .data = data, .dir = scratch};
#define REFUSED(change, says)                                                                                          \
    do {                                                                                                               \
        struct train_job j = job;                                                                                      \
        j.change;                                                                                                      \
        refused(&j, &m, says);                                                                                         \
    } while (0)
    REFUSED(p.epochs = 0, "epochs");
    REFUSED(p.epochs = NAN, "epochs");
    REFUSED(p.epochs = 1e9, "epochs");
    REFUSED(p.learning_rate = 1e6, "learning_rate must be above 0 and at most 1, not 1000000");
    REFUSED(p.learning_rate = 0, "learning_rate");
    REFUSED(p.learning_rate = NAN, "learning_rate");
    REFUSED(p.batch_tokens = 3, "batch_tokens");
    REFUSED(p.max_length = 100000, "max_length");
    REFUSED(p.lora_r = 0, "lora_r");
    REFUSED(p.lora_r = 1000, "lora_r");
    REFUSED(p.lora_alpha = -1, "lora_alpha");
    REFUSED(p.lora_dropout = 1, "lora_dropout");
    REFUSED(p.dropout = 0.1, "dropout is for method full");
    REFUSED(p.ema_decay = 0.9, "ema_decay is for method full");
    REFUSED(p.optimizer = OPTIMIZER_MUON, "optimizer muon is for method full");
    REFUSED(p.beta1 = 1, "beta1");
    REFUSED(p.beta2 = 1, "beta2");
    REFUSED(p.epsilon = 0, "epsilon");
    REFUSED(p.eval_fraction = 0.6, "eval_fraction");
    REFUSED(p.warmup_ratio = -1, "warmup_ratio");
    REFUSED(p.targets = 0, "targets");
    REFUSED(p.targets = TARGET_C_ATTN, "none of these modules");
    REFUSED(p.random_init = true, "random_init");
    REFUSED(p.method = TRAIN_QLORA, "quantised");
    REFUSED(from = "/does/not/exist", "/does/not/exist");
    job.p.method = TRAIN_FULL;
    refused(&job, &quantised, "floats");
    refused(&job, &sinks, "full fine-tuning of gpt_oss models is not supported, since the sinks of their attention");
    REFUSED(p.dropout = 1, "dropout must be at least 0");
    REFUSED(p.dropout = NAN, "dropout");
    REFUSED(p.ema_decay = 1, "ema_decay must be at least 0");
    REFUSED(p.ema_decay = -0.1, "ema_decay");
    REFUSED(p.optimizer = (enum train_optimizer)3, "optimizer must be adamw, muon or adamw_8bit");
    job.p.method = TRAIN_LORA;
    job.p.max_length = 8;
    memset(data->trained, 0, sizeof data->trained);
    refused(&job, &m, "no row has a token to train on");
    data->trained[0][2] = 1;
    data->id[0][1] = 288;
    refused(&job, &m, "row 1 has the token id 288");
    free(data);
    model_close(&m);
    model_close(&quantised);
    model_close(&sinks);
}

/* kto keeps log-probabilities of the reference for each epoch; held-out rows have one epoch. */
static void test_reference_is_counted(void **state)
{
    (void)state;
    enum { ROWS = 4096, EPOCHS = 1000 };
    struct model m = open_model("llama-gqa", "cpu", 1);
    struct dataset *from = rows_make(ROWS_MAX, m.c.vocab, 3), *data = calloc(1, sizeof *data);
    assert_non_null(data);
    for (int i = 0; i < ROWS_MAX; i++)
        rows_add_preference(data, from->id[i], from->trained[i], from->row[i].n, 0, DATASET_DESIRABLE);
    data->n = ROWS;
    struct train_job job = {.p = params(TRAIN_KTO), .data = data, .dir = scratch};
    struct train_plan one, many;
    struct err e = {0};
    job.p.epochs = 1;
    job.p.eval_fraction = 0.25;
    job.p.memory_mib = 24; /* less than the 1000 epochs' */
    if (train_plan_job(&job, &m, NULL, &one, &e)) fail_msg("%s", e.msg);
    assert_int_equal(one.rows + one.eval_rows, ROWS);
    assert_int_equal(one.reference_bytes, ROWS * 2 * sizeof(double));
    job.p.epochs = EPOCHS;
    refused(&job, &m, "for the reference's log-probabilities of 4096 rows and 1000 epochs)");
    refused(&job, &m, "lower epochs");
    job.p.memory_mib = 0;
    if (train_plan_job(&job, &m, NULL, &many, &e)) fail_msg("%s", e.msg);
    size_t bytes = ((size_t)many.rows * (1 + EPOCHS) + (size_t)many.eval_rows * 2) * sizeof(double);
    assert_int_equal(many.reference_bytes, bytes);
    assert_int_equal(many.state_bytes - one.state_bytes, bytes - one.reference_bytes);
    job.p.max_steps = 1; /* ends in the first epoch */
    if (train_plan_job(&job, &m, NULL, &many, &e)) fail_msg("%s", e.msg);
    assert_int_equal(many.reference_bytes, one.reference_bytes);
    free(from);
    free(data);
    model_close(&m);
}

static void *wait_for_device(void *gate)
{
    scheduler_gate_pass(gate);
    return NULL;
}

/* A job is planned while another one trains: whose turn it is on the device is none of the plan's business. */
static void test_plan_beside(void **state)
{
    (void)state;
    struct model m = open_model("llama-gqa", "cpu", 1);
    struct dataset *data = rows_make(8, m.c.vocab, 3);
    struct train_job job = {.p = params(TRAIN_LORA), .data = data, .dir = scratch};
    struct scheduler_gate *gate = scheduler_gate_new(m.d, NULL, NULL);
    struct train_plan plan;
    struct err e = {0};
    pthread_t trainer;
    pthread_create(&trainer, NULL, wait_for_device, gate);
    while (!scheduler_gate_wanted(gate)) {
    }
    assert_int_equal(train_plan_job(&job, &m, gate, &plan, &e), 0);
    assert_true(plan.steps > 0);
    assert_true(scheduler_gate_wanted(gate));
    scheduler_gate_open(gate);
    pthread_join(trainer, NULL);
    scheduler_gate_free(gate);
    free(data);
    model_close(&m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_reference_is_counted),
        cmocka_unit_test(test_plan_beside),
    };
    rig_begin(argc, argv);
    int failed = cmocka_run_group_tests_name("plan", tests, NULL, NULL);
    remove_tree(scratch);
    return failed;
}
