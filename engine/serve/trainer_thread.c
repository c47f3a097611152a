#include "engine/serve/trainer_thread.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/model/open.h"
#include "engine/model/ranks_agree.h"
#include "engine/serve/job_ranks.h"
#include "engine/train/job_order.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void close_train(struct trainer_thread *t)
{
    pthread_mutex_lock(&t->lock);
    struct train *train = t->train;
    t->train = NULL;
    pthread_mutex_unlock(&t->lock);
    if (train || t->started) scheduler_gate_pass(t->gate); /* they free device memory */
    if (train) train_free(train);
    if (t->started) model_close(&t->start);
    t->started = false;
    scheduler_gate_leave(t->gate);
}

static void on_event(void *arg, const struct train_event *ev)
{
    struct trainer_thread *t = arg;
    if (!train_event_is_last(ev->kind)) {
        t->fn(t->arg, ev);
        return;
    }
    struct train_event last = *ev;
    struct train_plan plan; /* a copy: the trainer's is freed with it */
    char text[512] = "";
    if (ev->text) {
        snprintf(text, sizeof text, "%s", ev->text);
        last.text = text;
    }
    if (ev->plan) {
        plan = *ev->plan;
        last.plan = &plan;
    }
    train_event_fn *fn = t->fn;
    void *fn_arg = t->arg;
    const char *broken = t->job.comm ? comm_error(t->job.comm) : NULL;
    bool lost = broken || (t->job.comm && ev->kind == TRAIN_LOST);  /* maybe the device of another rank */
    if (broken && ev->kind == TRAIN_FAILED) last.kind = TRAIN_LOST; /* a new process goes on from the checkpoint */
    if (lost) log_error("the ranks cannot train together any more: %s", broken ? broken : text);
    atomic_store(&t->ranks_lost, lost);
    close_train(t);
    pthread_mutex_lock(&t->lock);
    t->turn = TURN_FREE;
    pthread_cond_signal(&t->to_calls);
    t->state = TRAINER_ENDED;
    pthread_mutex_unlock(&t->lock);
    fn(fn_arg, &last);
    if (lost) t->wake(t->wake_arg);
}

static bool stop_wanted(void *arg)
{
    struct trainer_thread *t = arg;
    pthread_mutex_lock(&t->lock);
    bool wanted = t->command != TRAIN_GO_ON;
    pthread_mutex_unlock(&t->lock);
    return wanted;
}

/* The job could not be opened, or was stopped meanwhile; there is nothing to write. */
static void never_opened(struct trainer_thread *t, const struct err *why)
{
    pthread_mutex_lock(&t->lock);
    enum train_command c = t->command;
    pthread_mutex_unlock(&t->lock);
    struct train_event ev = {.kind = c == TRAIN_CANCEL       ? TRAIN_CANCELLED
                                     : c == TRAIN_PAUSE      ? TRAIN_PAUSED
                                     : why->code == ERR_LOST ? TRAIN_LOST
                                                             : TRAIN_FAILED};
    if (ev.kind == TRAIN_FAILED || ev.kind == TRAIN_LOST) ev.text = why->msg;
    on_event(t, &ev);
}

/* The model to train; of another than the served one the weights are read while the device waits. */
static struct model *model_of(struct trainer_thread *t, struct err *e)
{
    if (!t->job.start) return &t->setup->model;
    if (model_open_beside(&t->start, t->job.start, NULL, t->setup->model.d, e)) return NULL;
    t->started = true;
    t->start.kv_type = t->setup->model.kv_type; /* it will be served so */
    return &t->start;
}

/* The job's, behind the call that runs, if any. */
static void take_turn(struct trainer_thread *t)
{
    pthread_mutex_lock(&t->lock);
    t->job_waits = true;
    while (t->turn != TURN_FREE) pthread_cond_wait(&t->to_job, &t->lock);
    t->turn = TURN_JOB;
    t->job_waits = false;
    t->step_began = clock_now();
    pthread_mutex_unlock(&t->lock);
}

/* The job is between two steps or batches: calls that wait have their turn. */
static void let_calls(void *arg)
{
    struct trainer_thread *t = arg;
    pthread_mutex_lock(&t->lock);
    uint64_t now = clock_now();
    if (t->first) {
        scheduler_gate_leave(t->gate);
        t->turn_ends = now + (now - t->step_began);
        t->turn = TURN_FREE;
        pthread_cond_signal(&t->to_calls);
        while (t->turn != TURN_FREE || (t->first && !t->job_waits)) pthread_cond_wait(&t->to_job, &t->lock);
        t->turn = TURN_JOB;
        t->job_waits = false;
        t->turn_ends = 0;
    }
    t->step_began = clock_now();
    pthread_mutex_unlock(&t->lock);
}

/* Tells the other ranks of the job. */
static int begin_on_ranks(struct trainer_thread *t, const struct model *m, struct err *e)
{
    if (!t->job.comm) return 0;
    scheduler_gate_leave(t->gate);
    job_order_send(t->job.comm, &t->job, (int32_t)m->kv_type);
    int rc = ranks_agree(t->job.comm, 0, e);
    scheduler_gate_pass(t->gate);
    return rc;
}

static void *training_main(void *arg)
{
    struct trainer_thread *t = arg;
    struct err e = {0};
    take_turn(t); /* until the last event */
    scheduler_gate_pass(t->gate);
    if (setup_pin(t->setup, &e)) log_write(LOG_WARN, "%s", e.msg);
    struct model *m = model_of(t, &e);
    struct train *train = m && !begin_on_ranks(t, m, &e) ? train_open(&t->job, m, t->gate, &e) : NULL;
    pthread_mutex_lock(&t->lock);
    t->train = train;
    if (train) train_command(train, t->command);
    pthread_mutex_unlock(&t->lock);
    if (train)
        train_run(train, on_event, t);
    else
        never_opened(t, &e);
    return NULL;
}

/* ---- calls ---------------------------------------------------------------------------------------------------------
 */

struct trainer_call {
    struct trainer_call *next;
    engine_trainer_fn *fn;
    void *arg;
};

/* Waits until it is the oldest call's turn.  @return it, to be freed; NULL: the thread is to end. */
static struct trainer_call *take_call(struct trainer_thread *t)
{
    pthread_mutex_lock(&t->lock);
    while (t->first ? t->turn != TURN_FREE || t->job_waits : !t->ending) pthread_cond_wait(&t->to_calls, &t->lock);
    struct trainer_call *c = t->first;
    if (c && !(t->first = c->next)) t->last = &t->first;
    if (c) t->turn = TURN_CALL;
    pthread_mutex_unlock(&t->lock);
    return c;
}

static void end_turn(struct trainer_thread *t)
{
    pthread_mutex_lock(&t->lock);
    t->turn = TURN_FREE;
    if (t->turn_ends && clock_now() >= t->turn_ends) t->job_waits = true;
    pthread_cond_signal(&t->to_job);
    pthread_mutex_unlock(&t->lock);
}

static void *calls_main(void *arg)
{
    struct trainer_thread *t = arg;
    struct err e = {0};
    if (setup_pin(t->setup, &e)) log_write(LOG_WARN, "%s", e.msg);
    for (struct trainer_call *c; (c = take_call(t));) {
        c->fn(c->arg, &t->setup->model, t->gate);
        scheduler_gate_leave(t->gate);
        end_turn(t);
        free(c);
    }
    return NULL;
}

int trainer_call(struct trainer_thread *t, engine_trainer_fn *fn, void *arg, struct err *e)
{
    struct trainer_call *c = mem_zalloc(sizeof *c);
    *c = (struct trainer_call){.fn = fn, .arg = arg};
    pthread_mutex_lock(&t->lock);
    int rc = t->calls ? 0 : pthread_create(&t->caller, NULL, calls_main, t);
    t->calls |= !rc;
    if (!rc) {
        *t->last = c;
        t->last = &c->next;
        pthread_cond_signal(&t->to_calls);
    }
    pthread_mutex_unlock(&t->lock);
    if (!rc) return 0;
    free(c);
    return err_set(e, ERR_IO, "cannot start the training thread: %s", strerror(rc));
}

static void end_calls(struct trainer_thread *t)
{
    pthread_mutex_lock(&t->lock);
    t->ending = true;
    pthread_cond_signal(&t->to_calls);
    pthread_mutex_unlock(&t->lock);
    if (t->calls) pthread_join(t->caller, NULL);
    pthread_cond_destroy(&t->to_calls);
    pthread_cond_destroy(&t->to_job);
}

/* ---- the job -------------------------------------------------------------------------------------------------------
 */

void trainer_init(struct trainer_thread *t, struct setup *s, struct scheduler_gate *gate, struct comm *ranks,
                  void (*wake)(void *), void *arg)
{
    *t = (struct trainer_thread){.setup = s, .gate = gate, .ranks = ranks, .wake = wake, .wake_arg = arg};
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->to_calls, NULL);
    pthread_cond_init(&t->to_job, NULL);
    t->last = &t->first;
}

struct comm *trainer_ranks(const struct trainer_thread *t, const struct train_job *job)
{
    return t->ranks && job_ranks_take(job, comm_ranks(t->ranks)) ? t->ranks : NULL;
}

int trainer_start(struct trainer_thread *t, const struct train_job *job, train_event_fn *fn, void *arg, struct err *e)
{
    pthread_mutex_lock(&t->lock);
    if (t->state == TRAINER_RUNS) {
        pthread_mutex_unlock(&t->lock);
        return err_set(e, ERR_FULL, "a training job runs already");
    }
    if (t->state == TRAINER_ENDED) pthread_join(t->thread, NULL);
    t->state = TRAINER_NONE;
    t->job = *job;
    t->job.comm = trainer_ranks(t, job);
    t->job.stop = stop_wanted;
    t->job.stop_arg = t;
    t->job.between = let_calls;
    t->job.between_arg = t;
    t->fn = fn;
    t->arg = arg;
    t->command = TRAIN_GO_ON;
    int rc = pthread_create(&t->thread, NULL, training_main, t);
    if (rc)
        err_set(e, ERR_IO, "cannot start the training thread: %s", strerror(rc));
    else
        t->state = TRAINER_RUNS;
    pthread_mutex_unlock(&t->lock);
    return rc ? e->code : 0;
}

void trainer_command(struct trainer_thread *t, enum train_command c)
{
    pthread_mutex_lock(&t->lock);
    t->command = c;
    if (t->train) train_command(t->train, c);
    pthread_mutex_unlock(&t->lock);
}

bool trainer_runs(struct trainer_thread *t)
{
    pthread_mutex_lock(&t->lock);
    bool runs = t->state == TRAINER_RUNS;
    pthread_mutex_unlock(&t->lock);
    return runs;
}

void trainer_close(struct trainer_thread *t)
{
    scheduler_gate_open(t->gate);
    trainer_command(t, TRAIN_PAUSE);
    pthread_mutex_lock(&t->lock);
    bool joinable = t->state != TRAINER_NONE;
    t->state = TRAINER_NONE;
    pthread_mutex_unlock(&t->lock);
    if (joinable) pthread_join(t->thread, NULL);
    end_calls(t);
    pthread_mutex_destroy(&t->lock);
}
