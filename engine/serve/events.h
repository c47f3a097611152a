/* The way up: batches of events from the engine thread to the thread that drains them.
 *
 * The engine opens a batch, adds events and their text, and posts it; the other side detaches all posted batches at
 * once and hands them back when read.  Batches are reused, so after warm-up nothing is allocated per token. */
#ifndef TANDEM_ENGINE_SERVE_EVENTS_H
#define TANDEM_ENGINE_SERVE_EVENTS_H

#include "engine/base/buf.h"
#include "engine/serve/engine.h"

#include <pthread.h>

struct events {
    pthread_mutex_t lock;
    struct event_batch *posted, **posted_end, *spare; /* under lock */
    struct event_batch *open;                         /* engine thread */
    void (*notify)(void *);
    void *arg;
};

void events_init(struct events *);
void events_free(struct events *);

/* Engine thread.  The text buffer of the open batch: append a token's text, then events_add with its place. */
struct buf *events_text(struct events *);
uint32_t events_top(struct events *, const struct top_token *, int n); /* returns the index of the first */
/* n values to be filled by the caller before the next call of any of these; *at: the index of the first. */
float *events_values(struct events *, int n, uint32_t *at);
void events_add(struct events *, const struct event *);
struct event *events_last(struct events *); /* the one added last, good until the next is */
void events_post(struct events *); /* posts what was added, if anything, and calls notify when the list was empty */

/* The other thread. */
struct event_batch *events_take(struct events *);
void events_give(struct events *, struct event_batch *);

#endif
