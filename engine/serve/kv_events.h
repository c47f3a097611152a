/* What the prefix cache gains and loses, told to whoever sends requests to the replica that has their prefix.
 *
 * A page has a hash: 64 bits of SHA-256 over the model's and the adapter's names and all tokens up to its end, the same
 * in every process.  A page is told of while a request of the base model or of that adapter would find it.  Not told
 * of: pages of requests with a salt, which others would not find; those of texts longer than near_len (sched.h), which
 * have other keys for the same tokens; pages on disk. */
#ifndef TANDEM_ENGINE_SERVE_KV_EVENTS_H
#define TANDEM_ENGINE_SERVE_KV_EVENTS_H

#include "engine/serve/engine.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kv_event_kind {
    KV_STORED,
    KV_REMOVED,
    KV_CLEARED /* nothing is cached any more */
};

struct kv_event {
    enum kv_event_kind kind;
    size_t hash, pages; /* of KV_STORED and KV_REMOVED: entries [hash, hash + pages) of the batch's hashes */
    /* of KV_STORED: pages that follow each other */
    uint64_t parent;                    /* hash of the page before the first; 0: none */
    size_t token;                       /* where their tokens begin in those of the batch */
    uint64_t version;                   /* of the adapter; 0: the base model */
    char adapter[ADAPTER_NAME_MAX + 1]; /* "": the base model */
};

/* In the order in which it happened. */
struct kv_event_batch {
    const char *model; /* engine_config.kv_events_model */
    int page_tokens;
    const struct kv_event *v;
    size_t n, n_hashes, n_tokens;
    const uint64_t *hashes;
    const int32_t *tokens; /* page_tokens of each page that was stored */
};

struct kv_event_sink {
    /* Copies the batch; must not block.  The engine thread, once for each step that changed something, before the
     * events of its requests are posted; also the thread that opens or closes the engine.  @return false: there is no
     * room.  Then the engine posts KV_CLEARED and all that is cached with the next step, until that is taken. */
    bool (*post)(void *arg, const struct kv_event_batch *);
    void *arg;
    /* Each engine does so too with its next step after this has changed.  Any thread. */
    atomic_uint resync;
};

#endif
