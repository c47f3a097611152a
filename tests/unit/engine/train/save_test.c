/* A trainer interrupted, resumed, and without room on the disk. */
#include "kernels/ops.h"
#include "tests/unit/engine/train/train_rig.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static struct train_params interrupted_params(enum train_method method)
{
    struct train_params p = params(method);
    p.epochs = 3;
    p.batch_tokens = 128;
    p.micro_tokens = 64;
    p.eval_fraction = 0.2;
    p.eval_steps = 4;
    p.save_steps = 3;
    p.lora_dropout = method == TRAIN_FULL ? 0 : 0.1;
    if (method == TRAIN_FULL) regularise(&p);
    return p;
}

/* Stopped after a step, again after three more, and then run to the end: the bytes of an unbroken run. */
static void test_resume(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2", "gpt2", "qwen2-moe"};
    for (int full = 0; full < 3; full++) { /* the last two */
        struct model m = open_model(names[full], "cpu", 1);
        struct dataset *data = rows_make(30, m.c.vocab, 6);
        struct train_params p = interrupted_params(full ? TRAIN_FULL : TRAIN_LORA);
        struct run whole = run_job(&m, data, &p, "whole", -1);
        assert_int_equal(whole.last, TRAIN_SUCCEEDED);
        assert_true(whole.steps > 8);
        for (int64_t at = 1; at < whole.steps; at += full ? 3 : 1) {
            struct run r = run_job(&m, data, &p, "broken", at);
            assert_int_equal(r.last, TRAIN_PAUSED);
            assert_int_equal(r.steps, at);
            r = run_job(&m, data, &p, "broken", at + 3);
            assert_int_equal(r.resumed, at);
            assert_true(r.loss[0] == whole.loss[at]); /* to the bit */
            if (r.last == TRAIN_PAUSED) r = run_job(&m, data, &p, "broken", -1);
            assert_int_equal(r.last, TRAIN_SUCCEEDED);
            same_result("whole", "broken", "interrupted");
            char *dir = path_to("broken");
            remove_tree(dir);
            free(dir);
        }
        /* once more: the result is written again from the last checkpoint */
        struct run r = run_job(&m, data, &p, "whole", -1);
        assert_int_equal(r.last, TRAIN_SUCCEEDED);
        assert_int_equal(r.steps, 0);
        remove_tree(scratch);
        free(data);
        model_close(&m);
    }
}

static int64_t bytes_in(const char *name, const char *step, const char *file)
{
    struct stat s;
    char path[256];
    snprintf(path, sizeof path, "%s/%s/checkpoints/step-%s/%s", scratch, name, step, file);
    if (stat(path, &s)) fail_msg("%s is not there", path);
    return (int64_t)s.st_size;
}

/* With moments in 8 bits: the checkpoint has them as they are, other threads go on from it, and the bytes are those of
 * an unbroken run. */
static void test_resume_8bit(void **state)
{
    (void)state;
    for (int full = 0; full < 2; full++) {
        struct model m = open_model("qwen2", "cpu", 1), other = open_model("qwen2", "cpu", 2);
        struct dataset *data = rows_make(30, m.c.vocab, 6);
        struct train_params p = interrupted_params(full ? TRAIN_FULL : TRAIN_LORA);
        p.optimizer = OPTIMIZER_ADAMW_8BIT;
        if (!full) p.lora_r = 64; /* matrices that are large enough */
        struct run whole = run_job(&m, data, &p, "whole", -1);
        assert_int_equal(whole.last, TRAIN_SUCCEEDED);
        struct run r = run_job(&m, data, &p, "broken", 4);
        assert_int_equal(r.last, TRAIN_PAUSED);
        int64_t all = bytes_in("broken", "0000000004", "parameters.bin");
        int64_t moments = bytes_in("broken", "0000000004", "moment1.bin");
        if (moments > all / 2)
            fail_msg("%lld bytes of moments, %lld of parameters", (long long)moments, (long long)all);
        r = run_job(&other, data, &p, "broken", -1);
        assert_int_equal(r.last, TRAIN_SUCCEEDED);
        assert_int_equal(r.resumed, 4);
        assert_true(r.loss[0] == whole.loss[4]); /* to the bit */
        same_result("whole", "broken", "interrupted");
        p.optimizer = OPTIMIZER_ADAMW;
        struct run plain = run_job(&m, data, &p, "plain", -1);
        assert_true(whole.loss[2] != plain.loss[2]);
        assert_true(fabs(whole.loss[whole.steps - 1] - plain.loss[plain.steps - 1]) < 0.1 * plain.loss[0]);
        remove_tree(scratch);
        free(data);
        model_close(&m);
        model_close(&other);
    }
}

/* On a device with its own memory: moments in the host's memory change no byte, nor does going on without it. */
static void test_offload(void **state)
{
    (void)state;
    char why[160];
    struct dev *d = dev_open(&(struct dev_config){.name = "simt", .threads = 1}, why);
    if (!d) return; /* not in this build */
    dev_close(d);
    for (int eight = 0; eight < 2; eight++) {
        struct model m = open_model("qwen2", "simt", 1);
        struct dataset *data = rows_make(6, m.c.vocab, 6);
        struct train_params p = params(TRAIN_LORA);
        struct train_plan here, there;
        struct err e = {0};
        struct train_job job = {.p = p, .data = data};
        p.max_steps = 3;
        p.batch_tokens = 48;
        p.lora_r = 64;
        p.optimizer = eight ? OPTIMIZER_ADAMW_8BIT : OPTIMIZER_ADAMW;
        job.p = p;
        assert_int_equal(run_job(&m, data, &p, "whole", -1).last, TRAIN_SUCCEEDED);
        assert_int_equal(train_plan_job(&job, &m, NULL, &here, &e), 0);
        job.p.offload_optimizer = p.offload_optimizer = true;
        assert_int_equal(train_plan_job(&job, &m, NULL, &there, &e), 0);
        assert_true(!here.offload && there.offload && here.moment_bytes == there.moment_bytes);
        assert_int_equal(here.state_bytes - there.state_bytes, here.moment_bytes);
        assert_int_equal(run_job(&m, data, &p, "broken", 2).last, TRAIN_PAUSED);
        p.offload_optimizer = false;
        struct run r = run_job(&m, data, &p, "broken", -1);
        assert_int_equal(r.resumed, 2);
        same_result("whole", "broken", "offloaded, then not");
        p.offload_optimizer = true;
        assert_int_equal(run_job(&m, data, &p, "there", -1).last, TRAIN_SUCCEEDED);
        same_result("whole", "there", "offloaded");
        remove_tree(scratch);
        free(data);
        model_close(&m);
    }
}

static void shell(const char *fmt, const char *a, const char *b)
{
    char cmd[512];
    snprintf(cmd, sizeof cmd, fmt, a, b);
    assert_int_equal(system(cmd), 0);
}

/* A copy of the directory made in the middle, its newest checkpoint torn. */
static void test_torn(void **state)
{
    (void)state;
    struct model m = open_model("llama-gqa", "cpu", 1);
    struct dataset *data = rows_make(30, m.c.vocab, 6);
    struct train_params p = interrupted_params(TRAIN_LORA);
    run_job(&m, data, &p, "whole", -1);
    struct run r = run_job(&m, data, &p, "broken", 8);
    assert_int_equal(r.last, TRAIN_PAUSED);
    shell("cp -r '%s/broken' '%s/copy'", scratch, scratch);
    shell("truncate -s 100 '%s/copy/checkpoints/step-0000000008/moment1.bin'%s", scratch, "");
    r = run_job(&m, data, &p, "copy", -1);
    assert_int_equal(r.last, TRAIN_SUCCEEDED);
    assert_true(r.resumed > 0 && r.resumed < 8);
    assert_true(r.warnings >= 1);
    same_result("whole", "copy", "torn");
    remove_tree(scratch);
    free(data);
    model_close(&m);
}

/* A directory with another job's checkpoint. */
static void test_other_job(void **state)
{
    (void)state;
    struct model m = open_model("llama-gqa", "cpu", 1);
    struct dataset *data = rows_make(24, m.c.vocab, 3);
    struct train_params p = params(TRAIN_LORA);
    assert_int_equal(run_job(&m, data, &p, "job", 2).last, TRAIN_PAUSED);
    char *dir = path_to("job");
    struct train_job job = {.p = p, .data = data, .dir = dir};
    job.p.learning_rate *= 2;
    refused(&job, &m, "another job");
    job.p = p;
    data->hash++;
    refused(&job, &m, "another job");
    data->hash--;
    job.p.recompute = RECOMPUTE_ON; /* changes no bit */
    job.p.save_steps = 5;
    struct err e = {0};
    struct train *t = train_open(&job, &m, NULL, &e);
    if (!t) fail_msg("%s", e.msg);
    train_free(t);
    free(dir);
    remove_tree(scratch);
    free(data);
    model_close(&m);
}

/* A disk that takes nothing, and a place for the result that is none: the job fails and says why; nothing is lost. */
static void test_disk(void **state)
{
    (void)state;
    struct model m = open_model("llama-gqa", "cpu", 1);
    struct dataset *data = rows_make(24, m.c.vocab, 3);
    struct train_params p = params(TRAIN_LORA);
    struct rlimit was, low;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &was);
    low = was;
    low.rlim_cur = 2000;
    setrlimit(RLIMIT_FSIZE, &low);
    struct run r = run_job(&m, data, &p, "full", -1);
    setrlimit(RLIMIT_FSIZE, &was);
    assert_int_equal(r.last, TRAIN_FAILED);
    assert_non_null(strstr(r.text, "the checkpoint could not be written"));
    assert_non_null(strstr(r.text, "parameters.bin"));
    run_job(&m, data, &p, "whole", -1);
    r = run_job(&m, data, &p, "full", -1);
    assert_int_equal(r.last, TRAIN_SUCCEEDED);
    same_result("whole", "full", "after a full disk");

    shell("mkdir -p '%s/blocked' && touch '%s/blocked/out.tmp'", scratch, scratch);
    r = run_job(&m, data, &p, "blocked", -1);
    assert_int_equal(r.last, TRAIN_FAILED);
    assert_non_null(strstr(r.text, "the result could not be written"));
    shell("rm '%s/blocked/out.tmp'%s", scratch, "");
    r = run_job(&m, data, &p, "blocked", -1);
    assert_int_equal(r.last, TRAIN_SUCCEEDED);
    assert_int_equal(r.steps, 0); /* from the last checkpoint */
    same_result("whole", "blocked", "after a blocked place");
    remove_tree(scratch);
    free(data);
    model_close(&m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume), cmocka_unit_test(test_resume_8bit), cmocka_unit_test(test_offload),
        cmocka_unit_test(test_torn),   cmocka_unit_test(test_other_job),   cmocka_unit_test(test_disk),
    };
    rig_begin(argc, argv);
    int failed = cmocka_run_group_tests_name("save", tests, NULL, NULL);
    remove_tree(scratch);
    return failed;
}
