/* The page pool: which KV pages are in use, free, or cached (free, but still holding a registered prefix).  Host-side
 * integers only; pure (no clock, no device); owned by the scheduler.
 *
 * A page holds KV_PAGE tokens and counts its references.  A full page may be registered under the key (parent's serial,
 * salt, its tokens).  Its serial, never reused, identifies the whole prefix up to and including the page, so different
 * prefixes are never confused, even when their hashes collide.  Pages are allocated from the head of the free list; a
 * page that loses its last reference goes to the tail if registered (so the least recently used is evicted first), to
 * the head if not. */
#ifndef TANDEM_ENGINE_SERVE_KV_H
#define TANDEM_ENGINE_SERVE_KV_H

#include "kernels/ops.h"

#include <stdbool.h>
#include <stdint.h>

struct kv_pool;

struct kv_pool *kv_pool_new(int pages, uint64_t hash_seed);
void kv_pool_free(struct kv_pool *);

int kv_pages(const struct kv_pool *);
int kv_available(const struct kv_pool *); /* pages that kv_alloc can still return, including cached ones */
int kv_cached(const struct kv_pool *);    /* how many of those are cached */

/* @return a page with one reference, or -1 when none is available. */
int32_t kv_alloc(struct kv_pool *);
void kv_unref(struct kv_pool *, int32_t page);

/* Looks up the page registered for `tokens` (KV_PAGE) after the prefix `parent`, takes a reference and sets *serial.
 * @return the page; -1: not registered.  The parent of a first page is 0 for the base model, or a number >= 2^63 for an
 * adapter version, which keeps the KV of different adapters apart; SEQ_FAR (sched.h) is added to either.  salt: pages
 * of different salts are kept apart too, so that a client cannot find out, by the time to its first token, what others
 * have sent; it is not needed for right results, so it may be a hash. */
int32_t kv_lookup(struct kv_pool *, uint64_t parent, uint64_t salt, const int32_t *tokens, uint64_t *serial);

/* The same without taking a reference, so the order of eviction stays.  @return whether it is registered. */
bool kv_contains(struct kv_pool *, uint64_t parent, uint64_t salt, const int32_t *tokens, uint64_t *serial);
/* @return the number of searches by these two. */
uint64_t kv_lookups(const struct kv_pool *);

/* The same, not counted.  @return the page, -1: not registered. */
int32_t kv_peek(const struct kv_pool *, uint64_t parent, uint64_t salt, const int32_t *tokens, uint64_t *serial);
/* @return the serial under which the page is registered, 0: it is not. */
uint64_t kv_serial(const struct kv_pool *, int32_t page);
/* fn(arg, page, serial) is called before a registered page is given to kv_alloc's caller; NULL: none. */
void kv_pool_on_evict(struct kv_pool *, void (*fn)(void *arg, int32_t page, uint64_t serial), void *arg);

/* Of what is registered; each call comes when kv_tokens(page) are there. */
struct kv_watch {
    void *arg;
    void (*stored)(void *arg, int32_t page, uint64_t serial, uint64_t parent, uint64_t salt);
    void (*removed)(void *arg, int32_t page); /* it is given to kv_alloc's caller */
    void (*forgotten)(void *arg);             /* by kv_forget: all of them */
};
void kv_pool_watch(struct kv_pool *, const struct kv_watch *); /* borrowed; NULL: none */
/* @return the tokens (KV_PAGE) of a registered page. */
const int32_t *kv_tokens(const struct kv_pool *, int32_t page);

/* Registers a full page to which the caller has a reference.  @return the serial of its prefix.  When another page is
 * registered for the same prefix, that one stays. */
uint64_t kv_register(struct kv_pool *, int32_t page, uint64_t parent, uint64_t salt, const int32_t *tokens);

/* Unregisters every page: those in use stay with their owners, whose later pages are found by no other sequence. */
void kv_forget(struct kv_pool *);

/* Aborts when an invariant does not hold: O(pages), for tests. */
void kv_check(const struct kv_pool *);

#endif
