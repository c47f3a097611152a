/* Running training jobs for tests.  The models are the golden fixtures; the data are made here. */
#ifndef TANDEM_TESTS_TRAIN_RIG_H
#define TANDEM_TESTS_TRAIN_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/model/model.h"
#include "engine/train/train.h"
#include "tests/train/rows.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *fixtures;
static char scratch[64];

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
static inline void break_weight(struct run *r, int64_t step)
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

static inline void on_event(void *arg, const struct train_event *e)
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

static inline char *path_to(const char *name)
{
    return file_join(scratch, name);
}

static inline void remove_tree(const char *path)
{
    char cmd[512];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", path);
    assert_int_equal(system(cmd), 0);
}

static inline struct model open_model(const char *name, const char *device, int threads)
{
    struct model m;
    struct err e = {0};
    char *dir = file_join(fixtures, name);
    if (model_load(&m, dir, device, threads, NULL, false, &e)) fail_msg("%s: %s", name, e.msg);
    free(dir);
    return m;
}

static inline struct train_params params(enum train_method method)
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
static inline void regularise(struct train_params *p)
{
    p->optimizer = OPTIMIZER_MUON;
    p->dropout = 0.1;
    p->ema_decay = 0.6;
}

/* Runs a job whose directory is scratch/name and whose result goes to scratch/name/out. */
static inline struct run run_with(struct model *m, const struct dataset *data, const struct train_params *p,
                                  const char *name, struct run r)
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

static inline struct run run_job(struct model *m, const struct dataset *data, const struct train_params *p,
                                 const char *name, int64_t pause_at)
{
    return run_with(m, data, p, name, (struct run){.pause_at = pause_at, .resumed = -1});
}

/* All bytes of the files in a directory, by name; free() it. */
static inline char *bytes_of(const char *dir, size_t *n)
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

static inline char *result_of(const char *name, size_t *n)
{
    char *dir = path_to(name), *out = file_join(dir, "out"), *bytes = bytes_of(out, n);
    free(dir);
    free(out);
    return bytes;
}

static inline void same_result(const char *a, const char *b, const char *what)
{
    size_t na, nb;
    char *x = result_of(a, &na), *y = result_of(b, &nb);
    if (na != nb || memcmp(x, y, na)) fail_msg("%s: the results differ", what);
    free(x);
    free(y);
}

/* Opening it fails, and the error says so. */
static inline void refused(const struct train_job *job, struct model *m, const char *says)
{
    struct err e = {0};
    struct train *t = train_open(job, m, NULL, &e);
    if (t) fail_msg("not refused: %s", says);
    if (!strstr(e.msg, says)) fail_msg("\"%s\" does not say \"%s\"", e.msg, says);
}

static inline void rig_begin(int argc, char **argv)
{
    fixtures = argc > 1 ? argv[1] : "tests/fixtures/models";
    snprintf(scratch, sizeof scratch, "/tmp/tandem-train-%d", (int)getpid());
}

#endif
