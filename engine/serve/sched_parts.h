/* Declarations shared by the files of the schedule: sched.c (the plan), sched_queue.c (lists of waiting and running
 * sequences), sched_room.c (KV pages: admission and preemption), sched_pace.c (step time of clients with few
 * sequences), sched_check.c (invariants).  Pure, as sched.h says. */
#ifndef TANDEM_ENGINE_SERVE_SCHED_PARTS_H
#define TANDEM_ENGINE_SERVE_SCHED_PARTS_H

#include "engine/serve/sched.h"

/* In which pass a running sequence gets its tokens: those that generate come before the rest of the prompts. */
enum turn { TURN_ONE, TURN_SOME, TURN_PROMPT, TURN_NONE };

/* sched_queue.c */
enum turn seq_turn(const struct seq *);
bool seq_before(const struct seq *a, const struct seq *b);    /* true when a should be served before b */
int64_t seq_served(const struct sched *, const struct seq *); /* tokens that its client was served */
void seq_insert(struct seq *before, struct seq *);
void seq_remove(struct seq *);  /* from the list of waiting or running sequences */
void seq_unqueue(struct seq *); /* from its client's waiting list */
void seq_add_page(struct seq *, int32_t page);
void sched_release_pages(struct sched *, struct seq *);
void sched_wait(struct sched *, struct seq *);  /* into both waiting lists, SEQ_WAITING */
void sched_leave(struct sched *, struct seq *); /* out of its lists, pages released, SEQ_IDLE */

/* sched_room.c */
/* Gives q pages for its first `tokens` tokens, taking them from worse sequences if it must.  False: q was the worst
 * itself and was preempted. */
bool sched_grow(struct sched *, struct seq *q, int tokens);
/* Tries to start the waiting sequence q; may preempt those that yield to it.  False: no room now. */
bool sched_admit(struct sched *, struct seq *q);
/* All slots taken: q may take the place of one that is paused or matters less, or of a client that has more. */
void sched_displace(struct sched *, struct seq *q);

/* sched_pace.c */
void sched_pace_begin(struct sched *);
/* The client sits this step out, so that one with fewer sequences goes on. */
bool sched_held_back(const struct sched *, const struct sched_client *);

#endif
