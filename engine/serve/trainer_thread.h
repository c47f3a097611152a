/* The training job that runs while the engine serves, at most one, and its thread, from opening to the last event. */
#ifndef TANDEM_ENGINE_SERVE_TRAINER_THREAD_H
#define TANDEM_ENGINE_SERVE_TRAINER_THREAD_H

#include "engine/serve/engine.h"
#include "engine/serve/setup.h"
#include "engine/train/scheduler_gate.h"
#include "engine/train/train.h"

#include <pthread.h>

struct trainer_thread {
    struct setup *setup;
    struct scheduler_gate *gate;
    pthread_mutex_t lock;                                     /* protects the fields below */
    enum { TRAINER_NONE, TRAINER_RUNS, TRAINER_ENDED } state; /* ENDED: the thread is to be joined */
    pthread_t thread;
    struct model start; /* the model of job.start, while it is trained */
    bool started;
    struct train *train;        /* NULL before the job is open and after it ended */
    enum train_command command; /* received before it was open */
    struct train_job job;
    train_event_fn *fn;
    void *arg;

    /* calls (trainer_call) and their thread, which is started by the first */
    pthread_mutex_t turn; /* held by the job while there is one, or by a call while it runs */
    pthread_cond_t wake;
    pthread_t caller;
    bool job_waits;     /* for its turn: no further call begins before it had it */
    bool calls, ending; /* the thread was started; it is to end when it has run all */
    struct trainer_call *first, **last;
};

void trainer_init(struct trainer_thread *, struct setup *, struct scheduler_gate *);
/* See engine_train_start, engine_train_command: any thread. */
int trainer_start(struct trainer_thread *, const struct train_job *, train_event_fn *, void *arg, struct err *e);
void trainer_command(struct trainer_thread *, enum train_command);
/* @return whether a job has not emitted its last event yet. */
bool trainer_runs(struct trainer_thread *);
/* See engine_trainer_call: any thread. */
int trainer_call(struct trainer_thread *, engine_trainer_fn *, void *arg, struct err *e);
/* When serving has ended: pauses the job, so that it can resume after a restart, and waits for its thread. */
void trainer_close(struct trainer_thread *);

#endif
