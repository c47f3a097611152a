/* The job runner: takes the oldest queued job, prepares its data, has the engine train it, and publishes the result.
 *
 *     queued --> running (preparing -> training -> publishing) --> succeeded | failed | cancelled
 *        ^          |
 *        +- paused <+   by request; a daemon that stops leaves the job `running`, and it goes on at the next start
 *
 * One job runs at a time, in the order of arrival.  Jobs are stored in the database; the runner keeps only the running
 * one in memory.  Loop thread, unless stated otherwise. */
#ifndef TANDEM_SERVER_JOBS_JOBS_H
#define TANDEM_SERVER_JOBS_JOBS_H

#include "engine/train/train.h"
#include "server/jobs/train_spec.h"

#include <stdbool.h>
#include <stdint.h>

struct app;
struct jobs;

struct jobs *jobs_open(struct app *);
/* Lists the upload files that an earlier process left.  Any thread, once, before the first upload may begin. */
void jobs_list_uploads(struct jobs *);
/* The model is loaded: removes orphaned files, then continues jobs of an earlier process, then starts queued ones. */
void jobs_ready(struct jobs *);
/* Starts the next queued job, if none is running. */
void jobs_kick(struct jobs *);
/* Passes a command to the job if it is running; otherwise the command in its row is applied later. */
void jobs_command(struct jobs *, int64_t seq, enum train_command);
/* Notifies the watchers of a job after a commit. */
void jobs_notify(struct jobs *, int64_t seq);
/* Starts no more jobs, and makes the running one write a checkpoint and end; does not wait (jobs_stop does). */
void jobs_drain(struct jobs *);
/* As jobs_drain; calls done(arg) when the running job has ended, within seconds or the duration of one micro-batch. */
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
/* Calls `end` of all watches. */
void jobs_end_streams(struct jobs *);

/* The runner's state and the latest step's metrics. */
struct jobs_view {
    int counts[6];           /* enum job_state */
    struct train_event last; /* step of the running job; kind is TRAIN_STEP once there was one */
    /* Of the running job; of the last one until the next is planned.  Zero before the first. */
    double eval_loss, best_eval_loss; /* NAN: not evaluated yet; eval_loss: by this process */
    int64_t evals_since_best;
    size_t peak_host, peak_device;                   /* bytes, as in struct train_usage */
    uint64_t tokens, trained_tokens, steps, skipped; /* since the start of the process */
    const char *running, *phase;                     /* the running job and its phase; NULL: none */
};
void jobs_view(const struct jobs *, struct jobs_view *);

#endif
