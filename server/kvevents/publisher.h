/* Publishes KV events (engine/serve/kv_events.h) to routers, from a thread of its own.
 *
 * Engines post batches into a queue of bounded size; the thread packs them, numbers them from 0 on, sends them, and
 * keeps the last ones for subscribers that missed some.  Nobody who is slow delays an engine: a subscriber that is too
 * far behind misses batches, which it sees by their numbers; an engine that finds the queue full posts all that it has
 * when there is room again.  It does so too for a new subscriber, and for one that asks for batches that are no longer
 * kept. */
#ifndef TANDEM_SERVER_KVEVENTS_PUBLISHER_H
#define TANDEM_SERVER_KVEVENTS_PUBLISHER_H

#include "engine/base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct kv_event_sink;
struct kv_publisher;

struct kv_publisher_config {
    const char *endpoint, *replay; /* as struct kv_wire_config */
    const char *topic;             /* "{host}": this machine's name, "{model}": the model's */
    bool maps;                     /* events are maps, not arrays */
    bool several_models;           /* batches that are sent again have their topic with them */
};

struct kv_publisher_counts {
    uint64_t batches; /* published */
    uint64_t refused; /* because the queue was full */
    uint64_t replays; /* requests for earlier ones */
    uint64_t resyncs; /* times that the engines were asked for everything */
};

/* Loads the module and opens its sockets.  NULL and *e. */
struct kv_publisher *kv_publisher_open(const struct kv_publisher_config *, struct err *e);
/* Publishes what is queued, and ends the thread.  After all engines were closed.  NULL is allowed. */
void kv_publisher_close(struct kv_publisher *);
/* For engine_config.kv_events; NULL for NULL. */
struct kv_event_sink *kv_publisher_sink(struct kv_publisher *);
/* Zeros for NULL.  Any thread. */
struct kv_publisher_counts kv_publisher_counts(struct kv_publisher *);

#endif
