/* The schedule: which tokens of which requests the next step computes.  Pure: (queues, free pages, budgets) -> plan;
 * no clock, no device, no allocation after a sequence was added.  Owned by the engine thread.
 *
 * Clients share.  Within a priority, a free slot goes to the client with the fewest running sequences, and room for
 * prompts to the client that was served least: a virtual time as in fair queueing (VTC, Sheng et al., OSDI 2024), in
 * tokens, rows of logits counted again.  It stays within a window of the schedule's own, so nobody saves up much, nor
 * pays for long.  Beside a prompt that ends in a step, clients with more sequences get no more of it than beside those
 * that decode.  All slots taken: a client that has more than one beyond a waiting one's gives its youngest up.  With
 * one client, all of this is first come, first served.
 *
 * There is no prefill phase and no decode phase.  A sequence has tokens known (prompt and generated so far) and tokens
 * computed (in the KV cache), and each step gives it min(known - computed, what is left of the budget).  Chunked
 * prefill, decoding, prefix hits and recomputing after preemption are all that one rule.  Order: sequences with one
 * token left to compute (decoding) first, then those that generate several known ones, then prompts: client by client,
 * of one client started ones first, then waiting ones by priority and arrival.
 *
 * Out of pages: the worst running sequence (paused before running, then lower priority, then of a client that holds
 * more pages and was served no less, then younger) gives its pages up and waits again; its known tokens are recomputed
 * later, mostly from the prefix cache. */
#ifndef TANDEM_ENGINE_SERVE_SCHED_H
#define TANDEM_ENGINE_SERVE_SCHED_H

#include "engine/serve/kv.h"

#include <stdbool.h>
#include <stdint.h>

struct lora_weights;
struct sched_client; /* sched_clients.h */

enum seq_state { SEQ_IDLE, SEQ_WAITING, SEQ_RUNNING };

/* A request as the schedule sees it; embedded in the engine's request.  The caller sets the first group before
 * sched_add, appends to tokens, moves first_row up and sets generates; the rest belongs to the schedule. */
struct seq {
    const int32_t *tokens; /* n_known of them */
    int32_t *pages;        /* room for every page the request may ever need */
    int n_known;
    int priority;                    /* lower runs first */
    uint64_t root;                   /* what its prefixes begin with in the page pool (kv.h); 0: the base model's */
    const struct lora_weights *lora; /* the adapter that its tokens go through, borrowed; NULL: none */
    int first_row;                   /* wants the logits of its tokens from this one on: n_known - 1, or less */
    bool generates;                  /* what it lacks from first_row on is no prompt */
    bool no_rows;                    /* wants no logits at all: it ends with its last known token */
    bool no_prefix;                  /* every token is to be computed, so no prefix hits */
    bool paused;
    bool blocked;     /* waits for something that is on its way (its mask): not scheduled, but no worse than others */
    uint64_t arrival; /* unique, increasing */
    uint64_t client;  /* who shares with others; 0 is one like any other */

    enum seq_state state;
    int n_computed, n_pages;
    int n_registered; /* pages known to the prefix cache; the last one's serial is `serial` */
    uint64_t serial;
    int n_cached;     /* tokens found in the prefix cache when it was first admitted */
    bool admitted;    /* was running at least once */
    uint64_t planned; /* the step whose plan it is in */
    uint64_t tried;   /* the step that had no room for it */
    /* The last time that it waited and did not fit: the prefix it found, and the pages there were. */
    int n_found;
    uint64_t found;                  /* serial of that prefix */
    int64_t missed;                  /* pages; below 0: not yet */
    struct sched_client *owner;      /* not IDLE */
    struct seq *next, *prev;         /* of all that wait, or run */
    struct seq *own_next, *own_prev; /* of its client's that wait */
};

struct plan_item {
    struct seq *seq;
    int start, n; /* tokens [start, start + n) of the sequence */
    int rows;     /* logits wanted for the last `rows` of them */
};

struct plan {
    struct plan_item *v; /* max_seqs of room; by root, so that an adapter's rows lie together */
    int n, n_tokens, n_rows, n_preempted;
};

struct sched_config {
    int max_seqs;         /* running at once */
    int max_batch_tokens; /* tokens of one step */
    int max_rows;         /* rows of logits of one step, >= max_seqs */
    bool prefix_cache;
    int max_prefill_tokens; /* beside sequences that decode, a step takes at most so many tokens of others, which bounds
                               how long these wait for their next token; 0: max_batch_tokens is the only limit */
};

/* How much longer clients with more sequences make the steps of one that decodes. */
struct sched_pace {
    int fewest;        /* sequences of the client with the fewest among those that decode; INT_MAX: nobody has more */
    bool alone;        /* this step is without clients that have more */
    uint64_t alone_ns; /* moving mean of such steps; 0: none was measured */
    uint64_t debt_ns;  /* to be made up for */
};

struct sched {
    struct sched_config c;
    struct kv_pool *kv;
    struct seq waiting, running; /* list heads; waiting by (priority, arrival), running by admission */
    int n_waiting, n_running;
    struct sched_clients *clients; /* owned */
    int budget;                    /* tokens of the step that is planned */
    struct sched_pace pace;
    uint64_t step;
    struct plan plan;
};

void sched_init(struct sched *, const struct sched_config *, struct kv_pool *); /* borrows the pool */
void sched_free(struct sched *);

void sched_add(struct sched *, struct seq *);    /* SEQ_IDLE -> SEQ_WAITING */
void sched_remove(struct sched *, struct seq *); /* any -> SEQ_IDLE; its pages go back */

/* The next step; valid until the next call.  n == 0: nothing can run now. */
const struct plan *sched_step(struct sched *);

/* The plan was computed: counts its tokens as computed and makes full pages known to the prefix cache.  Not called
 * after a step that failed: then the plan's sequences are removed, and nothing half-written becomes known. */
void sched_commit(struct sched *);

/* The step took so long.  Not called after one that failed. */
void sched_took(struct sched *, uint64_t ns);

/* Before sched_commit: the last token of the plan's item i is to be computed again, with its row. */
void sched_hold(struct sched *, int i);

/* Aborts when an invariant does not hold: for tests. */
void sched_check(const struct sched *);

#endif
