/* Declarations shared by the files of the schedule: sched.c (the plan), sched_queue.c (lists of waiting and running
 * sequences), sched_room.c (KV pages: admission and preemption), sched_pace.c (step time of clients with few
 * sequences), sched_check.c (invariants).  Pure, as sched.h says. */
#ifndef TANDEM_ENGINE_SERVE_SCHED_PARTS_H
#define TANDEM_ENGINE_SERVE_SCHED_PARTS_H

#include "engine/serve/sched.h"

/* sched_step plans in passes, in this order.  What a running sequence has left to compute says which pass plans it. */
enum plan_pass {
    PASS_ONE,     /* one token: decoding */
    PASS_SEVERAL, /* several generated tokens: forced by a grammar, or recomputed after preemption */
    PASS_PROMPT,  /* the rest of a prompt */
    PASS_NONE     /* nothing, or the sequence is paused or blocked */
};

/* sched_queue.c */
enum plan_pass seq_pass(const struct seq *);
bool seq_before(const struct seq *a, const struct seq *b);    /* true when a should be served before b */
int64_t seq_served(const struct sched *, const struct seq *); /* client_served of its client */
void seq_insert(struct seq *before, struct seq *);
void seq_remove(struct seq *);  /* from the list of waiting or running sequences */
void seq_unqueue(struct seq *); /* from its client's waiting list */
void seq_add_page(struct seq *, int32_t page);
void sched_release_pages(struct sched *, struct seq *);
/* Sets SEQ_FAR when the text has become longer than near_len.  @return whether it was set now. */
bool sched_lengthen(const struct sched *, struct seq *);
void sched_wait(struct sched *, struct seq *);   /* into both waiting lists, SEQ_WAITING */
void sched_unlink(struct sched *, struct seq *); /* out of its lists, pages released, SEQ_IDLE */

/* sched_room.c */
/* Gives q pages for its first `tokens` tokens, preempting worse sequences when none are free.  @return false when q was
 * the worst itself and was preempted. */
bool sched_grow(struct sched *, struct seq *q, int tokens);
/* Tries to start the waiting sequence q, preempting sequences that yield to it.  @return false: no room for it now. */
bool sched_admit(struct sched *, struct seq *q);
/* When all slots are taken, lets q preempt a sequence that is paused, has lower priority, or belongs to a client that
 * runs more of them. */
void sched_preempt_for(struct sched *, struct seq *q);

/* sched_pace.c */
void sched_pace_begin(struct sched *);
/* Whether this step leaves the client out in favour of one with fewer sequences. */
bool sched_held_back(const struct sched *, const struct sched_client *);

#endif
