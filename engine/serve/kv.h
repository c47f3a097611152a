/* The page pool: which KV pages are free, shared, or free but still hold a known prefix.  Host-side integers only; pure
 * (no clock, no device); owned by the schedule.
 *
 * A page holds KV_PAGE tokens.  Every holder counts as one reference.  A full page may be registered under the key
 * (parent serial, its tokens): the serial, unique for ever, names the whole prefix up to and including the page, so two
 * prefixes that differ anywhere never meet, whatever their hashes.  A page without references goes to the free list's
 * tail if registered (least recently used is at the head, and taken first), to the head if not. */
#ifndef TANDEM_ENGINE_SERVE_KV_H
#define TANDEM_ENGINE_SERVE_KV_H

#include "kernels/ops.h"

#include <stdbool.h>
#include <stdint.h>

struct kv_pool;

struct kv_pool *kv_pool_new(int pages, uint64_t hash_seed);
void kv_pool_free(struct kv_pool *);

int kv_pages(const struct kv_pool *);
int kv_available(const struct kv_pool *); /* pages kv_alloc can still give, the cached ones included */
int kv_cached(const struct kv_pool *);    /* of those, how many hold a known prefix */

/* A page with one reference, or -1 when none is left. */
int32_t kv_alloc(struct kv_pool *);
void kv_unref(struct kv_pool *, int32_t page);

/* The page registered for `tokens` (KV_PAGE of them) after the prefix `parent`, with a reference taken and its serial
 * in *serial; -1: unknown.  parent of a first page: 0, or any number from 2^63 on, so that what different adapters make
 * of the same tokens never meets. */
int32_t kv_lookup(struct kv_pool *, uint64_t parent, const int32_t *tokens, uint64_t *serial);

/* Whether that page is known, with its serial; takes no reference, so what is used least recently stays so. */
bool kv_known(struct kv_pool *, uint64_t parent, const int32_t *tokens, uint64_t *serial);
/* How often the table was searched by these two. */
uint64_t kv_lookups(const struct kv_pool *);

/* Makes a full page, held by the caller, known.  Returns the serial of this prefix; when another page is already
 * known for it, that page stays the known one. */
uint64_t kv_register(struct kv_pool *, int32_t page, uint64_t parent, const int32_t *tokens);

/* Aborts when an invariant does not hold: O(pages), for tests. */
void kv_check(const struct kv_pool *);

#endif
