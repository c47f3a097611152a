/* Stands in for the trainer and the data sets until they are merged: counts steps with a checkpoint file, so that the
 * job life cycle can be tested. */
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/dataset.h"
#include "engine/engine.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
    pthread_t thread;
    volatile enum train_command command;
    volatile bool runs;
    const struct train_job *job;
    train_event_fn *fn;
    void *arg;
} t;

static int64_t read_step(const char *path)
{
    long long v = 0;
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%lld", &v) != 1) v = 0;
    if (f) fclose(f);
    return v;
}

static bool write_step(const char *dir, int64_t step)
{
    char path[4096], tmp[4200];
    snprintf(path, sizeof path, "%s/step", dir);
    snprintf(tmp, sizeof tmp, "%s/step.tmp", dir);
    FILE *f = fopen(tmp, "w");
    if (!f) return false;
    bool good = fprintf(f, "%lld", (long long)step) > 0 && fflush(f) == 0;
    fclose(f);
    return good && rename(tmp, path) == 0;
}

static void *fake_main(void *x)
{
    char path[4096];
    int64_t steps = t.job->p.max_steps ? t.job->p.max_steps : 20;
    struct train_plan plan = {.steps = steps, .rows = 3};
    struct train_event ev = {.kind = TRAIN_PLAN, .steps = steps, .plan = &plan};
    t.fn(t.arg, &ev);
    ev.plan = NULL;
    mkdir(t.job->dir, 0755);
    snprintf(path, sizeof path, "%s/step", t.job->dir);
    ev.step = read_step(path);
    if (ev.step) ev.kind = TRAIN_RESUMED, t.fn(t.arg, &ev);
    while (ev.step < steps) {
        if (t.command != TRAIN_GO_ON) {
            ev.kind = t.command == TRAIN_PAUSE ? TRAIN_PAUSED : TRAIN_CANCELLED;
            write_step(t.job->dir, ev.step);
            goto out;
        }
        usleep(10000);
        ev.step++;
        ev.kind = TRAIN_STEP;
        ev.loss = 3.0 / (double)ev.step, ev.tokens = ev.step * 100, ev.trained_tokens = ev.step * 50,
        ev.tokens_per_s = 1000;
        ev.eta_s = (double)(steps - ev.step) * 0.01, ev.grad_norm = 1, ev.learning_rate = 1e-4;
        t.fn(t.arg, &ev);
        if (ev.step % 5 == 0) {
            if (!write_step(t.job->dir, ev.step)) {
                ev.kind = TRAIN_FAILED, ev.text = "the checkpoint could not be written";
                goto out;
            }
            ev.kind = TRAIN_CHECKPOINT, ev.text = t.job->dir;
            t.fn(t.arg, &ev);
        }
    }
    mkdir(t.job->out, 0755);
    snprintf(path, sizeof path, "%s/adapter_config.json", t.job->out);
    FILE *f = fopen(path, "w");
    if (f) fprintf(f, "{}"), fclose(f);
    ev.kind = TRAIN_SUCCEEDED;
out:
    t.runs = false;
    t.fn(t.arg, &ev);
    return NULL;
}

int engine_train_start(struct engine *g, const struct train_job *job, train_event_fn *fn, void *arg, struct err *e)
{
    if (t.runs) return err_set(e, ERR_FULL, "a job runs");
    t.runs = true;
    t.job = job, t.fn = fn, t.arg = arg, t.command = TRAIN_GO_ON;
    pthread_create(&t.thread, NULL, fake_main, NULL);
    pthread_detach(t.thread);
    return 0;
}

void engine_train_command(struct engine *g, enum train_command c)
{
    if (t.runs) t.command = c;
}

int engine_train_plan(struct engine *g, const struct train_job *job, struct train_plan *p, struct err *e)
{
    *p = (struct train_plan){.steps = 20, .rows = (int64_t)dataset_rows(job->data), .tokens_per_epoch = 100};
    return 0;
}
