/* Prepares the next micro-batch of a job on a thread of its own, while one is computed.
 *
 * The trainer thread takes micro-batches in order.  The rows belong to the prefetcher between prefetch_open and
 * prefetch_close, except after prefetch_wait until the next prefetch_take.  All functions: trainer thread. */
#ifndef TANDEM_ENGINE_TRAIN_PREFETCH_H
#define TANDEM_ENGINE_TRAIN_PREFETCH_H

#include "engine/train/rows.h"

/* Units from .. to - 1 of a slot of a step. */
struct prefetched {
    struct micro micro; /* of a slot without rows: not set */
    int64_t step;
    uint32_t slot, from, to;
    int64_t targets;       /* of the whole step */
    int64_t chosen_tokens; /* of the whole step: train_rows_chosen */
    uint32_t n_units;      /* of the slot; 0: it has no rows */
    uint32_t n_rows;       /* of the whole step */
};

struct prefetch;

/* rows: borrowed.  A micro-batch is one unit, or with `several` as many as fit into max_tokens.  thread false, or when
 * there is none to be had: prepares in prefetch_take. */
struct prefetch *prefetch_open(struct train_rows *rows, int max_tokens, int near_len, bool several, bool thread);
/* Slots first, first + stride ... below end of each step will be taken, and no others: the thread prepares those.  At
 * first: slot 0. */
void prefetch_slots(struct prefetch *, uint32_t first, uint32_t end, uint32_t stride);
/* The micro-batch that begins with unit `from` of a slot of a step; valid until the next call.  Starts to prepare the
 * one after it. */
const struct prefetched *prefetch_take(struct prefetch *, int64_t step, uint32_t slot, uint32_t from);
/* Waits for the thread to stop, and forgets what it has prepared: the caller may use the rows. */
void prefetch_wait(struct prefetch *);
/* Smaller micro-batches from now on. */
void prefetch_limit(struct prefetch *, int max_tokens);
void prefetch_close(struct prefetch *); /* NULL is allowed */

#endif
