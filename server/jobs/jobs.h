/* The job runner: takes the oldest queued job, prepares its data, has the engine train it, publishes what came out.
 *
 *     queued --> running (preparing -> training -> publishing) --> succeeded | failed | cancelled
 *        ^          |
 *        +- paused <+   by request; a daemon that stops leaves the job `running`, and it goes on at the next start
 *
 * One job runs at a time, in the order of arrival.  What a job is lives in the store; the runner holds the one that
 * runs.  Loop thread, but for what says otherwise. */
#ifndef TANDEM_SERVER_JOBS_JOBS_H
#define TANDEM_SERVER_JOBS_JOBS_H

#include "engine/train/train.h"
#include "server/jobs/train_spec.h"

#include <stdbool.h>
#include <stdint.h>

struct app;
struct jobs;

struct jobs *jobs_open(struct app *);
/* Looks at what an earlier process left among the uploads.  Any thread, once, before the first upload may begin. */
void jobs_look(struct jobs *);
/* The model is there: what belongs to nobody is removed, jobs that an earlier process left go on, then queued ones. */
void jobs_ready(struct jobs *);
/* There may be a job to start. */
void jobs_kick(struct jobs *);
/* For the job if it is the one that runs; what is to happen otherwise is in its row. */
void jobs_command(struct jobs *, int64_t seq, enum train_command);
/* Something about the job was committed: those who watch it are told. */
void jobs_notify(struct jobs *, int64_t seq);
/* No job begins any more, and the one that runs writes a checkpoint and ends: what jobs_stop then waits for. */
void jobs_drain(struct jobs *);
/* The running job writes a checkpoint and ends, and no other begins; then done(arg).  Within seconds, or as long as one
 * micro-batch takes. */
void jobs_stop(struct jobs *, void (*done)(void *), void *arg);
void jobs_free(struct jobs *);

/* Lives in its owner's memory until jobs_unwatch. */
struct job_watch {
    struct job_watch *next, *prev;
    int64_t seq;
    void (*fn)(void *arg);
    void (*end)(void *arg); /* the daemon is about to end; may unwatch itself */
    void *arg;
};
void jobs_watch(struct jobs *, struct job_watch *);
void jobs_unwatch(struct job_watch *);
/* Calls end of all. */
void jobs_end_streams(struct jobs *);

/* What the newest step said, for those who look. */
struct jobs_view {
    int counts[6]; /* enum job_state */
    struct train_event last;
    uint64_t tokens, trained_tokens, steps, skipped; /* since the start of the process */
    const char *running, *phase;                     /* the job that runs, and what it is at; NULL: none */
};
void jobs_view(const struct jobs *, struct jobs_view *);

#endif
