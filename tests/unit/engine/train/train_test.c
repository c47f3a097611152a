/* The trainer: that it learns, that how a step is cut, recomputed or interrupted changes nothing, and what it refuses.
 * The models are the golden fixtures; the data are made here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/model/adapter.h"
#include "engine/model/model.h"
#include "engine/train/scheduler_gate.h"
#include "engine/train/train.h"
#include "tests/train/rows.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
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
    struct model *broken; /* after nan_at steps, for the three that follow; nan_at 0: never */
    int64_t nan_at;
    float was;
};

/* A weight is no number for three steps, once. */
static void break_weight(struct run *r, int64_t step)
{
    float *w = &r->broken->w.norm_w[3];
    if (step == r->nan_at) {
        r->was = *w;
        *w = NAN;
    } else if (step == r->nan_at + 3) {
        *w = r->was;
        r->nan_at = 0;
    }
}

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
        if (r->nan_at) break_weight(r, e->step);
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

/* What method full has beside its steps, all of it. */
static void regularise(struct train_params *p)
{
    p->optimizer = OPTIMIZER_MUON;
    p->dropout = 0.1;
    p->ema_decay = 0.6;
}

/* Runs a job whose directory is scratch/name and whose result goes to scratch/name/out. */
static struct run run_with(struct model *m, const struct dataset *data, const struct train_params *p, const char *name,
                           struct run r)
{
    struct err e = {0};
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

static struct run run_job(struct model *m, const struct dataset *data, const struct train_params *p, const char *name,
                          int64_t pause_at)
{
    return run_with(m, data, p, name, (struct run){.pause_at = pause_at, .resumed = -1});
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
    static const char *const names[] = {"llama-gqa", "gpt2"};
    for (int i = 0; i < 2; i++) {
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

/* All bytes of the files in a directory, by name; free() it. */
static char *bytes_of(const char *dir, size_t *n)
{
    struct buf b = {0};
    struct dirent **list;
    int k = scandir(dir, &list, NULL, alphasort);
    if (k < 0) fail_msg("%s is not there", dir);
    for (int i = 0; i < k; i++) {
        struct err e = {0};
        char *path = file_join(dir, list[i]->d_name), *data = NULL;
        size_t size = 0;
        if (list[i]->d_name[0] != '.') {
            if (file_read(path, 1 << 28, &data, &size, &e)) fail_msg("%s", e.msg);
            buf_printf(&b, "%s %zu ", list[i]->d_name, size);
            buf_append(&b, data, size);
        }
        free(data);
        free(path);
        free(list[i]);
    }
    free(list);
    *n = b.len;
    return b.data;
}

static char *result_of(const char *name, size_t *n)
{
    char *dir = path_to(name), *out = file_join(dir, "out"), *bytes = bytes_of(out, n);
    free(dir);
    free(out);
    return bytes;
}

static void same_result(const char *a, const char *b, const char *what)
{
    size_t na, nb;
    char *x = result_of(a, &na), *y = result_of(b, &nb);
    if (na != nb || memcmp(x, y, na)) fail_msg("%s: the results differ", what);
    free(x);
    free(y);
}

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

/* ---- interrupted ------------------------------------------------------------------------------------------------- */

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
    for (int full = 0; full < 2; full++) {
        struct model m = open_model(full ? "gpt2" : "qwen2", "cpu", 1);
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

/* ---- guards ------------------------------------------------------------------------------------------------------ */

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

static void refused(const struct train_job *job, struct model *m, const char *says)
{
    struct err e = {0};
    struct train *t = train_open(job, m, NULL, &e);
    if (t) fail_msg("not refused: %s", says);
    if (!strstr(e.msg, says)) fail_msg("\"%s\" does not say \"%s\"", e.msg, says);
}

static void test_refused(void **state)
{
    (void)state;
    struct model m = open_model("llama-gqa", "cpu", 1), quantised = open_model("llama-nf4", "cpu", 1);
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
    REFUSED(p.dropout = 1, "dropout must be at least 0");
    REFUSED(p.dropout = NAN, "dropout");
    REFUSED(p.ema_decay = 1, "ema_decay must be at least 0");
    REFUSED(p.ema_decay = -0.1, "ema_decay");
    REFUSED(p.optimizer = (enum train_optimizer)2, "optimizer must be adamw or muon");
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

/* ---- evaluation -------------------------------------------------------------------------------------------------- */

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
        cmocka_unit_test(test_lora_learns),
        cmocka_unit_test(test_full_learns),
        cmocka_unit_test(test_qlora_learns),
        cmocka_unit_test(test_random_init_learns),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_threads_and_recompute),
        cmocka_unit_test(test_from_patterns),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_torn),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_way_back),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_suspicious_norms),
        cmocka_unit_test(test_other_job),
        cmocka_unit_test(test_disk),
        cmocka_unit_test(test_early_stopping),
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_plan_beside),
        cmocka_unit_test(test_average),
    };
    fixtures = argc > 1 ? argv[1] : "tests/fixtures/models";
    snprintf(scratch, sizeof scratch, "/tmp/tandem-train-%d", (int)getpid());
    int failed = cmocka_run_group_tests_name("train", tests, NULL, NULL);
    remove_tree(scratch);
    return failed;
}
