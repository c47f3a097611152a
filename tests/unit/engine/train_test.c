/* The trainer: that it learns, that how a step is cut, recomputed or interrupted changes nothing, and what it refuses.
 * The models are the golden fixtures; the data are made here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/model.h"
#include "engine/train.h"
#include "tests/train/rows.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *fixtures;
static char scratch[64];

/* ---- running a job ----------------------------------------------------------------------------------------------- */

struct run {
    struct train *t;
    int steps, warnings, evals;
    double loss[256], norm[256], rate[256], eval_loss[64];
    enum train_event_kind last;
    char text[512], warning[512];
    int64_t pause_at; /* -1: never */
    int64_t resumed;  /* -1: not */
    bool recompute;
};

static void on_event(void *arg, const struct train_event *e)
{
    struct run *r = arg;
    r->last = e->kind;
    if (e->text) snprintf(r->text, sizeof r->text, "%s", e->text);
    if (e->kind == TRAIN_STEP && r->steps < 256) {
        r->loss[r->steps] = e->loss;
        r->norm[r->steps] = e->grad_norm;
        r->rate[r->steps++] = e->learning_rate;
        if (e->step == r->pause_at) train_command(r->t, TRAIN_PAUSE);
    }
    if (e->kind == TRAIN_EVAL) r->eval_loss[r->evals++] = e->eval_loss;
    if (e->kind == TRAIN_PLAN) r->recompute = e->plan->recompute;
    if (e->kind == TRAIN_RESUMED) r->resumed = e->step;
    if (e->kind == TRAIN_WARNING) {
        r->warnings++;
        snprintf(r->warning, sizeof r->warning, "%s", e->text);
    }
}

static char *path_to(const char *name)
{
    return file_join(scratch, name);
}

static void remove_tree(const char *path)
{
    char cmd[512];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", path);
    assert_int_equal(system(cmd), 0);
}

static struct model open_model(const char *name, const char *device, int threads)
{
    struct model m;
    struct err e = {0};
    char *dir = file_join(fixtures, name);
    if (model_load(&m, dir, device, threads, NULL, false, &e)) fail_msg("%s: %s", name, e.msg);
    free(dir);
    return m;
}

static struct train_params params(enum train_method method)
{
    struct train_params p;
    train_params_default(&p, method);
    p.max_length = 48;
    p.batch_tokens = 256;
    p.epochs = 2;
    p.learning_rate = method == TRAIN_FULL ? 3e-3 : 1e-2;
    p.lora_r = 4;
    p.lora_alpha = 8;
    p.f32 = true;
    p.warmup_ratio = 0;
    return p;
}

/* Runs a job whose directory is scratch/name and whose result goes to scratch/name/out. */
static struct run run_job(struct model *m, const struct dataset *data, const struct train_params *p, const char *name,
                          int64_t pause_at)
{
    struct err e = {0};
    struct run r = {.pause_at = pause_at, .resumed = -1};
    char *dir = path_to(name), *out = file_join(dir, "out");
    struct train_job job = {.p = *p, .data = data, .base_name = "base", .dir = dir, .out = out};
    if (!(r.t = train_open(&job, m, NULL, &e))) fail_msg("%s: %s", name, e.msg);
    train_run(r.t, on_event, &r);
    train_free(r.t);
    r.t = NULL;
    free(dir);
    free(out);
    return r;
}

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
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lora_learns),
        cmocka_unit_test(test_full_learns),
    };
    fixtures = argc > 1 ? argv[1] : "tests/fixtures/models";
    snprintf(scratch, sizeof scratch, "/tmp/tandem-train-%d", (int)getpid());
    int failed = cmocka_run_group_tests_name("train", tests, NULL, NULL);
    remove_tree(scratch);
    return failed;
}
