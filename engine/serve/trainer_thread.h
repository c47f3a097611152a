/* The training job that runs while the engine serves, at most one, and its thread, from opening to the last event. */
#ifndef TANDEM_ENGINE_SERVE_TRAINER_THREAD_H
#define TANDEM_ENGINE_SERVE_TRAINER_THREAD_H

#include "engine/serve/engine.h"
#include "engine/serve/setup.h"
#include "engine/train/scheduler_gate.h"
#include "engine/train/train.h"

#include <pthread.h>
#include <stdatomic.h>

struct trainer_thread {
    struct setup *setup;
    struct scheduler_gate *gate;
    struct comm *ranks;     /* that train jobs together (job_ranks.h), this one first; NULL: it is the only one */
    atomic_bool ranks_lost; /* one of them has failed: no further job can be trained */
    void (*wake)(void *);   /* called after that, on the trainer's thread */
    void *wake_arg;
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

    /* Calls (trainer_call) and their thread, which is started by the first.  The job and the calls take turns: between
     * two of its steps the job lets those that wait have as long as the step took, and at least one of them. */
    enum { TURN_FREE, TURN_JOB, TURN_CALL } turn;
    pthread_cond_t to_calls, to_job;
    pthread_t caller;
    bool job_waits;     /* for its turn: no further call begins before it had it */
    uint64_t turn_ends; /* clock_now() of the calls' turn between two steps; 0: no job is between two */
    uint64_t step_began;
    bool calls, ending; /* the thread was started; it is to end when it has run all */
    struct trainer_call *first, **last;
};

/* ranks: see the struct. */
void trainer_init(struct trainer_thread *, struct setup *, struct scheduler_gate *, struct comm *ranks,
                  void (*wake)(void *), void *arg);
/* The ranks that would train the job; NULL: this process alone. */
struct comm *trainer_ranks(const struct trainer_thread *, const struct train_job *);
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
