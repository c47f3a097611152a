/* The order in which clients' jobs run on the thread pool.  Pure: no thread, no clock, no libuv; bridge.c starts the
 * job that work_queue_next returns and reports its end.  Loop thread only.
 *
 * Jobs of one client run in order of arrival.  The next job is taken from the client with the fewest running jobs,
 * among those from the one that has used the least time.  So a client's n-th job waits behind the first jobs of all
 * others.  A client runs at most max(1, slots - 1) jobs at once, so that a new client finds a free slot.
 *
 * A client exists while it has a job here.  It starts with the least time that any other client here has used. */
#ifndef TANDEM_SERVER_BRIDGE_WORK_QUEUE_H
#define TANDEM_SERVER_BRIDGE_WORK_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

struct work_client;

/* Embedded in the owner's job. */
struct work_job {
    struct work_job *next;
    struct work_client *client; /* NULL: not in a queue */
};

struct work_queue {
    int slots;                   /* most jobs that run at once */
    struct work_client *clients; /* list of those with jobs */
    int n_clients, n_waiting, n_running;
    uint64_t order;
};

void work_queue_init(struct work_queue *, int slots);
void work_queue_free(struct work_queue *); /* it must be empty */

void work_queue_add(struct work_queue *, uint64_t client, struct work_job *);
/* @return the job to start now, which counts as running until work_queue_end; NULL: none. */
struct work_job *work_queue_next(struct work_queue *);
/* ns: time the job took on its thread. */
void work_queue_end(struct work_queue *, struct work_job *, uint64_t ns);

/* @return whether one more job of the client fits.  limit: waiting and running jobs in all; a client below its share of
 * it (fair_share.h) may add jobs even when others have used it up. */
bool work_queue_has_room(const struct work_queue *, uint64_t client, int limit);

#endif
