/* A running grammar: an automaton over bytes whose states are created when first reached.
 *
 * A state is the set of positions (program.h) that a text can lead to; equal sets are one state, and transitions are
 * cached.  An automaton has a bounded size and is shared by all requests with the grammar; when it has grown large, its
 * users keep it and the next user gets a new one.
 *
 * An automaton is reference counted; everything else is done under its lock. */
#ifndef TANDEM_ENGINE_GRAMMAR_RUN_H
#define TANDEM_ENGINE_GRAMMAR_RUN_H

#include "engine/grammar/program.h"

enum { GRAM_DEAD = -1, GRAM_FULL = -2, GRAM_LATER = -4 /* gram_hurry */, GRAM_START = 0 };

/* Bytes of the longest token that can be queried. */
enum { GRAM_LOOK = 255 };

struct gram_mask; /* mask.h */

/* The grammar's automaton for masks of a vocabulary (a number, only compared; 0: without masks).  The grammar must
 * outlive it.  Any thread. */
struct gram_automaton *gram_automaton_of(struct grammar *, uint64_t vocabulary);
void gram_automaton_unref(struct gram_automaton *); /* NULL is allowed */
/* Instead, by a user of the grammar's current automaton: also frees it when there is no other user and memory is short.
 */
void gram_automaton_leave(struct grammar *, struct gram_automaton *);
size_t gram_memory(void); /* bytes of all automata of this process with their masks */
pthread_mutex_t *gram_lock(struct gram_automaton *);

/* The state before the first byte, or GRAM_FULL. */
int32_t gram_begin(struct gram_automaton *);
/* Where the byte leads: a state, GRAM_DEAD, or GRAM_FULL when a limit was met (gram_why): this transition's, or the
 * whole automaton's. */
int32_t gram_next(struct gram_automaton *, int32_t state, uint8_t byte);
/* The same if it is cached; else GRAM_FULL. */
int32_t gram_known(const struct gram_automaton *, int32_t state, uint8_t byte);
/* While on, a transition that is not cached and takes more than some ten microseconds returns GRAM_LATER. */
void gram_hurry(struct gram_automaton *, bool on);
bool gram_hurries(const struct gram_automaton *);
bool gram_accepts(const struct gram_automaton *, int32_t state);
bool gram_ends(const struct gram_automaton *, int32_t state); /* no byte may follow */
const char *gram_why(const struct gram_automaton *);          /* static */

/* The byte that must follow, when it is evident: every position reads this byte of a literal, and no text ends here.
 * -1: otherwise. */
int gram_only_byte(const struct gram_automaton *, int32_t state);

/* The number of bytes that can be read before any count in the state reaches a bound (UINT32_MAX: no counts). */
uint32_t gram_slack(const struct gram_automaton *, int32_t state);
/* The state without its counts, or GRAM_FULL: the same texts of up to gram_slack bytes may follow.  Many states share
 * one, and it does not change while they only count. */
int32_t gram_loose(struct gram_automaton *, int32_t state);

/* Results of mask.c cached with a state; zero: none yet. */
struct gram_kinds {
    uint16_t asked, yes; /* kinds of bytes (KIND_...): examined ones; those whose bytes all lead to one state */
};
struct gram_run {
    struct gram_kinds loops; /* kinds on which the state does not change */
    struct gram_kinds kinds; /* kinds that lead to `to` */
    int32_t to;              /* a state or GRAM_DEAD; valid once kinds.asked is not 0 */
};
struct gram_run *gram_run(struct gram_automaton *, int32_t state);

/* Results of force.c: tokens that must follow, and the state after them. */
struct gram_forced {
    int32_t to;
    int n; /* 0: none, and `to` is unused */
    int32_t ids[];
};
const struct gram_forced *gram_forced_of(const struct gram_automaton *, int32_t state); /* NULL: not computed yet */
/* Stores the result with the state, which has none yet, and takes ownership (malloc); NULL: nothing is forced.  @return
 * the stored result. */
const struct gram_forced *gram_forced_store(struct gram_automaton *, int32_t state, struct gram_forced *);

/* Bytes that the grammar does not distinguish have the same kind. */
uint8_t gram_kind(const struct gram_automaton *, uint8_t byte);

/* The mask cached with a state, or NULL; borrowed.  Counts as a use in the order of eviction. */
struct gram_mask *gram_mask_of(struct gram_automaton *, int32_t state);
/* Stores a mask; evicts the least recently used one when there are too many. */
void gram_mask_store(struct gram_automaton *, int32_t state, struct gram_mask *);

uint64_t gram_work(const struct gram_automaton *); /* positions visited so far: the cost of the calls above */
size_t gram_states(const struct gram_automaton *); /* number of states created, for tests */

#endif
