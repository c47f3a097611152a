/* The order in which clients' jobs run on the thread pool.  Pure: no thread, no clock, no libuv; bridge.c starts what
 * work_queue_next returns and says when it has ended.  Loop thread only.
 *
 * Jobs of one client run in the order they came.  Between clients the next job is of the client with the fewest jobs
 * running, and of those the one that has used the least time.  So a client's n-th job waits behind the first jobs of
 * all others.  A client runs at most slots - 1 jobs at once (at least 1), so a newcomer finds a slot.
 *
 * A client is known while it has a job here: it begins with the least time that any client with a job has used. */
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
    int slots;                   /* jobs that run at once */
    struct work_client *clients; /* those that have jobs, a list */
    int n_clients, n_waiting, n_running;
    uint64_t order;
};

void work_queue_init(struct work_queue *, int slots);
/* With no job in it. */
void work_queue_free(struct work_queue *);

void work_queue_add(struct work_queue *, uint64_t client, struct work_job *);
/* The job to start now, which runs until work_queue_end; NULL: none. */
struct work_job *work_queue_next(struct work_queue *);
/* The job has ended after so many nanoseconds on its thread. */
void work_queue_end(struct work_queue *, struct work_job *, uint64_t ns);

/* Does one more job of the client fit?  `limit` jobs may wait and run in all; a client with less than its share of
 * that (fair_share.h) comes in although others have taken all of it. */
bool work_queue_has_room(const struct work_queue *, uint64_t client, int limit);

#endif
