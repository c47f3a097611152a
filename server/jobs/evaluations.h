/* The queue of evaluations: runs one at a time in the order of arrival, and stores how they end.
 *
 *     queued --> running --> succeeded | failed
 *        +--cancel--+--> cancelled
 *
 * The database row is the state of an evaluation; only the one that runs is in memory.  A daemon that stops, or is
 * killed, leaves the row running, and the next start runs it from the beginning: the results are the same.  Loop
 * thread. */
#ifndef TANDEM_SERVER_JOBS_EVALUATIONS_H
#define TANDEM_SERVER_JOBS_EVALUATIONS_H

#include "engine/base/buf.h"

#include <stdbool.h>
#include <stdint.h>

struct app;
struct evaluations;

struct evaluations *evaluations_open(struct app *);
/* The model is loaded: goes on with what an earlier process left.  After jobs_ready, which removes files without an
 * owner. */
void evaluations_ready(struct evaluations *);
/* One was created. */
void evaluations_kick(struct evaluations *);
/* The row of the one that runs says that it is cancelled. */
void evaluations_cancelled(struct evaluations *, int64_t seq);
/* @return the seq of the one that runs, with the members of a JSON object that say how far it is appended; 0: none. */
int64_t evaluations_progress(const struct evaluations *, struct buf *);
/* Drops the requests in flight and starts no more. */
void evaluations_drain(struct evaluations *);
/* As evaluations_drain; calls done(arg) when nothing is in hand. */
void evaluations_stop(struct evaluations *, void (*done)(void *), void *arg);
void evaluations_free(struct evaluations *);

#endif
