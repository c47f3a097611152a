/* The scheduler: which tokens of which requests the next step computes.  Pure: (queues, free pages, budgets) -> plan;
 * no clock, no device, no allocation after a sequence was added.  Owned by the engine thread.
 *
 * Tokens.  There is no prefill phase and no decode phase.  A sequence has n_known tokens (prompt, plus those accepted
 * so far) and n_computed tokens in the KV cache, and each step computes min(known - computed, rest of the budget) of
 * them. Chunked prefill, decoding, prefix hits and recomputation after preemption all follow from this rule.
 *
 * Order.  Sequences with one token left to compute (decoding) come first, then those that generate several known tokens
 * (forced by a grammar, or recomputed), then prompts: by priority, of one priority client by client, of one client
 * started prompts first, then waiting ones by arrival.
 *
 * Fairness between clients.  Within a priority, a free slot goes to the client with the fewest running sequences, and
 * the token budget of prompts to the client served least.  Service is a virtual time as in fair queueing (VTC, Sheng et
 * al., OSDI 2024): tokens computed plus rows of logits.  A client's stays within a window of the scheduler's own, which
 * bounds both the credit and the debt that a client can accumulate.  In a step that completes a prompt, clients with
 * more sequences get at most max_prefill_tokens for theirs, as beside decoding sequences.  When all slots are taken, a
 * client preempts the youngest sequence of one that runs at least two more than itself.  With a single client, all of
 * this is first come, first served.
 *
 * Out of pages, the worst running sequence is preempted: a paused one first, then lower priority, then one of a client
 * that holds more pages and was served no less, then the youngest.  It releases its pages and waits again; its known
 * tokens are recomputed later, mostly from the prefix cache. */
#ifndef TANDEM_ENGINE_SERVE_SCHED_H
#define TANDEM_ENGINE_SERVE_SCHED_H

#include "engine/serve/kv.h"

#include <stdbool.h>
#include <stdint.h>

struct lora_weights;
struct sched_client; /* sched_clients.h */

enum seq_state { SEQ_IDLE, SEQ_WAITING, SEQ_RUNNING };

/* A request as the scheduler sees it; embedded in the engine's request.  The caller sets the first group before
 * sched_add, appends to tokens, advances first_row and sets generates; the second group belongs to the scheduler. */
struct seq {
    const int32_t *tokens; /* (n_known) */
    int32_t *pages;        /* capacity for every page the request may ever need */
    int n_known;
    int priority;                    /* lower runs first */
    uint64_t root;                   /* parent of its first page in the prefix cache (kv.h); 0: the base model.  The
                                        scheduler adds SEQ_FAR when the text is longer than near_len */
    uint64_t salt;                   /* of its pages in the prefix cache (kv.h) */
    const struct lora_weights *lora; /* borrowed; NULL: no adapter */
    int first_row;                   /* logits are needed from this token on, at most n_known - 1 */
    bool generates;                  /* its tokens from first_row on are generated, not prompt */
    bool no_rows;                    /* needs no logits: it ends with its last known token */
    bool no_prefix;                  /* takes no prefix hits: every token must be computed */
    bool paused;
    bool blocked;     /* its mask is not ready: not scheduled, but not preempted sooner for it either */
    uint64_t arrival; /* unique, increasing */
    uint64_t client;  /* id for fairness; 0 is a client like any other */

    enum seq_state state;
    int n_computed, n_pages;
    int n_registered; /* pages registered in the prefix cache; `serial` is that of the last */
    uint64_t serial;
    int n_cached;     /* tokens found in the prefix cache when it was first admitted */
    bool admitted;    /* has run at least once */
    uint64_t planned; /* number of the last step that planned it */
    uint64_t tried;   /* number of the last step that tried to start or continue its prompt */
    /* From the last time it did not fit while waiting: the prefix found, and the pages available. */
    int n_found;
    uint64_t found;                  /* serial of that prefix */
    int64_t missed;                  /* pages; < 0: never tried */
    struct sched_client *owner;      /* unless IDLE */
    struct seq *next, *prev;         /* in the list of all waiting or all running sequences */
    struct seq *own_next, *own_prev; /* in its client's list of waiting ones */
};

#define SEQ_FAR (1ull << 61) /* in seq.root; the two bits above are of adapter_root (adapters.h) */

struct plan_item {
    struct seq *seq;
    int start, n; /* tokens [start, start + n) of the sequence */
    int rows;     /* logits are computed for the last `rows` of them */
    int drafts;   /* candidates computed behind them, each with its row of logits (sched_speculate) */
};

struct plan {
    struct plan_item *v; /* capacity max_seqs; sorted by root, so that the rows of an adapter are contiguous */
    int n, n_tokens, n_rows, n_preempted;
};

struct sched_config {
    int max_seqs;         /* sequences running at once */
    int max_batch_tokens; /* tokens in one step */
    int max_rows;         /* rows of logits in one step, >= max_seqs */
    bool prefix_cache;
    bool whole;             /* a sequence's tokens are computed in one step, or wait: for attention to both sides */
    int max_prefill_tokens; /* prompt tokens in a step that also decodes, which bounds the inter-token latency of the
                               decoding sequences; 0: max_batch_tokens is the only limit */
    int near_len;           /* texts with more known tokens have other keys and values, and are computed anew when they
                               pass it; 0: none */
};

/* How much clients with more sequences lengthen the steps of the decoding client with the fewest (sched_pace.c). */
struct sched_pace {
    int fewest;        /* sequences of that client; INT_MAX: no client has more */
    bool alone;        /* this step leaves out the clients that have more */
    uint64_t alone_ns; /* moving mean of such steps' durations; 0: none was measured */
    uint64_t debt_ns;  /* extra time that steps without them have yet to make up for */
};

struct sched {
    struct sched_config c;
    struct kv_pool *kv;
    struct seq waiting, running; /* list heads; waiting by (priority, arrival), running by admission */
    int n_waiting, n_running;
    struct sched_clients *clients; /* owned */
    int budget;                    /* tokens of the step being planned */
    struct sched_pace pace;
    uint64_t step;
    struct plan plan;
};

void sched_init(struct sched *, const struct sched_config *, struct kv_pool *); /* borrows the pool */
void sched_free(struct sched *);

void sched_add(struct sched *, struct seq *);    /* SEQ_IDLE -> SEQ_WAITING */
void sched_remove(struct sched *, struct seq *); /* any -> SEQ_IDLE; releases its pages */

/* @return the plan of the next step, valid until the next call; n == 0: no sequence can run now. */
const struct plan *sched_step(struct sched *);

/* Adds up to n candidates to the plan's item i, whose last known token is computed: tokens [n_known, n_known + n) of
 * the sequence, which the caller writes.  Takes free pages for them but preempts nobody.  @return how many there is
 * room for. */
int sched_speculate(struct sched *, int i, int n);
/* After sched_commit: the token behind the computed ones was a candidate and has become a known one, so it counts as
 * computed too.  The next steps write over the keys and values of the other candidates. */
void sched_accept(struct sched *, struct seq *);

/* After the plan was computed: counts its tokens as computed and registers full pages in the prefix cache.  Not called
 * after a step that failed: its sequences are removed, so that no half-written page is registered. */
void sched_commit(struct sched *);

/* Reports the duration of the step.  Not called after one that failed. */
void sched_took(struct sched *, uint64_t ns);

/* Before sched_commit: the last token of the plan's item i and its row of logits must be computed again. */
void sched_defer(struct sched *, int i);

/* The number of q's tokens that may be taken from the cache: not those whose logits are needed.  The last token is
 * always computed, since its logits or its hidden state are needed. */
int sched_prefix_end(const struct sched *, const struct seq *q);

/* Whether the text is longer than near_len. */
static inline bool sched_is_far(const struct seq *q)
{
    return q->root & SEQ_FAR;
}

/* Aborts when an invariant does not hold: for tests. */
void sched_check(const struct sched *);

#endif
