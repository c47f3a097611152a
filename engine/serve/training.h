/* The one training job that runs beside serving: its thread, from opening to the last event. */
#ifndef TANDEM_ENGINE_SERVE_TRAINING_H
#define TANDEM_ENGINE_SERVE_TRAINING_H

#include "engine/serve/setup.h"
#include "engine/train/gate.h"
#include "engine/train/train.h"

#include <pthread.h>

struct training {
    struct setup *setup;
    struct train_gate *gate;
    pthread_mutex_t lock;                                        /* of what follows */
    enum { TRAINING_NONE, TRAINING_RUNS, TRAINING_ENDED } state; /* ENDED: the thread is to be joined */
    pthread_t thread;
    struct train *train;        /* NULL before it is open and after it ended */
    enum train_command command; /* given while it was not open */
    struct train_job job;
    train_event_fn *fn;
    void *arg;
};

void training_init(struct training *, struct setup *, struct train_gate *);
/* See engine_train_start, engine_train_command: any thread. */
int training_start(struct training *, const struct train_job *, train_event_fn *, void *arg, struct err *e);
void training_command(struct training *, enum train_command);
/* Whether a job has not had its last event yet. */
bool training_runs(struct training *);
/* Nobody else uses the device any more: pauses the job, so that it can go on after a restart, and waits for its end. */
void training_close(struct training *);

#endif
