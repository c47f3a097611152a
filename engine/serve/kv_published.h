/* The pages that the sink of KV events (kv_events.h) was told of: a tree of prefixes beside the page pool.
 *
 * A page whose parent leaves the cache is not found any more, even if it is still registered: the parent's serial is
 * never given again.  So with a page its descendants count as removed.  Engine thread. */
#ifndef TANDEM_ENGINE_SERVE_KV_PUBLISHED_H
#define TANDEM_ENGINE_SERVE_KV_PUBLISHED_H

#include "engine/serve/adapters.h"
#include "engine/serve/kv.h"
#include "engine/serve/kv_events.h"

struct kv_published;

/* Watches the pool, and posts that nothing is cached.  All are borrowed until kv_published_free; the model's name is
 * copied.  NULL: without a sink. */
struct kv_published *kv_published_new(struct kv_pool *, struct adapters *, struct kv_event_sink *, const char *model);
/* Posts that nothing is cached.  NULL is allowed, as in the functions below. */
void kv_published_free(struct kv_published *);

/* After adapters may have been replaced or removed: those versions' pages are not found any more. */
void kv_published_sweep(struct kv_published *);
/* After a step: posts what it changed. */
void kv_published_flush(struct kv_published *);

/* Aborts when an invariant does not hold: O(pages), for tests.  @return the number of pages. */
int kv_published_check(const struct kv_published *);

#endif
