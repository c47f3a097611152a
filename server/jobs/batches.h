/* The queue of batches: validates new ones, runs them in the order of arrival, and stores how they end.  One of each
 * API key runs at a time, and they share the engine, so that a large batch of one key does not hold up another key's.
 *
 *     validating --> in_progress --> completed | expired
 *         |   |           +--cancel--> cancelling --> cancelled
 *         |   +-cancel----^
 *         +--> failed
 *
 * The database row is the state of a batch; only those that run are in memory.  A daemon that stops, or is killed,
 * leaves the row in_progress, and the next start goes on.  Loop thread. */
#ifndef TANDEM_SERVER_JOBS_BATCHES_H
#define TANDEM_SERVER_JOBS_BATCHES_H

#include <stdbool.h>
#include <stdint.h>

struct app;
struct batches;

struct batches *batches_open(struct app *);
/* The model is loaded: goes on with what an earlier process left.  After jobs_ready, which removes files without an
 * owner. */
void batches_ready(struct batches *);
/* A batch was created, or another may be run. */
void batches_kick(struct batches *);
/* The row became cancelling. */
void batches_cancelled(struct batches *, int64_t seq);
/* Whether any batch runs now. */
bool batches_running(const struct batches *);
/* Drops the lines in flight and starts no more. */
void batches_drain(struct batches *);
/* As batches_drain; calls done(arg) when the answers so far are stored. */
void batches_stop(struct batches *, void (*done)(void *), void *arg);
void batches_free(struct batches *);

#endif
