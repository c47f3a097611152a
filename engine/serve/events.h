/* Batches of events from the engine thread to the owner's thread.
 *
 * The engine thread adds events and their text to the open batch and posts it; the owner's thread takes all posted
 * batches at once and gives them back when read.  Batches are reused, so nothing is allocated per token in the long
 * run. */
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

/* ---- engine thread ---- */

/* The text buffer of the open batch: append a token's text, then call events_add with its offset. */
struct buf *events_text(struct events *);
uint32_t events_top(struct events *, const struct top_token *, int n); /* returns the index of the first */
/* @return n values, to be filled before the next call of any of these; *at: the index of the first. */
float *events_values(struct events *, int n, uint32_t *at);
void events_add(struct events *, const struct event *);
struct event *events_last(struct events *); /* the event added last; valid until the next is added */
void events_post(struct events *); /* posts the batch unless it is empty; calls notify when no other was pending */

/* ---- owner's thread ---- */
struct event_batch *events_take(struct events *);
void events_return(struct events *, struct event_batch *);

#endif
