/* The disk tier of the KV cache, as the engine thread sees it (docs/decisions/022-kv-pages-on-disk.md).
 *
 * Writing: when a request ends, its registered pages that the store lacks are queued.  Each iteration of the loop
 * copies some of them out of the device for the pager to write; one that is evicted from the pool meanwhile is copied
 * at that moment.  Reading: a request whose prefix goes on in the store is blocked while its pages are read, if that is
 * faster than computing them; one request at a time.  The pages are registered in the pool, and the schedule finds them
 * there.  What cannot be read in time is computed.
 *
 * All but opening, closing, kv_tier_content and kv_tier_read is the engine thread's; without --kv-disk nothing
 * happens. */
#ifndef TANDEM_ENGINE_SERVE_KV_TIER_H
#define TANDEM_ENGINE_SERVE_KV_TIER_H

#include "engine/base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct adapter;
struct engine;
struct engine_config;
struct kv_disk_stats;
struct kv_tier;
struct request;

/* Before the model is read: notes its files.  *t: NULL without --kv-disk. */
int kv_tier_prepare(struct kv_tier **t, const struct engine_config *, struct err *);
/* When the rest of the engine is open; the tier becomes the engine's. */
int kv_tier_open(struct engine *, struct kv_tier *, const struct engine_config *, struct err *);
void kv_tier_free(struct kv_tier *); /* one that was prepared, or closed; NULL is allowed */
/* After the thread has ended: writes no more.  An adapter may still be loading, so the tier is freed later. */
void kv_tier_close(struct engine *);
/* Any thread: notes what the adapter is, before it is published. */
void kv_tier_content(const struct engine *, struct adapter *);

void kv_tier_arrive(struct engine *, struct request *); /* after sched_add */
void kv_tier_leave(struct engine *, struct request *);  /* before sched_remove, when it ends */
/* In each iteration, before the schedule. */
void kv_tier_run(struct engine *);
/* In each iteration, after the step and before anything else that can fail: hands the pages that were evicted to the
 * pager. */
void kv_tier_submit(struct engine *);
/* Whoever clears an error of the device calls it: what was copied out since the last kv_tier_submit may be wrong. */
void kv_tier_failed(struct engine *);
/* Whether kv_tier_run has more to do now, so that the loop must not sleep. */
bool kv_tier_ready(const struct engine *);
/* The clock until which the loop may sleep; 0: any time. */
uint64_t kv_tier_deadline(const struct engine *);
/* At the end of the thread: writes what is queued, for some seconds at most. */
void kv_tier_flush(struct engine *);
/* Puts what it counts into the engine's statistics. */
void kv_tier_publish(struct engine *);
/* Any thread: adds what the store counts, whose pages are written while the engine thread sleeps. */
void kv_tier_read(const struct engine *, struct kv_disk_stats *);

#endif
