/* A grammar at work: an automaton over bytes whose states are made as they are first reached.
 *
 * A state is the set of positions (program.h) that a text may have led to; equal sets are one state, and where
 * a byte leads is remembered.  Everything is kept in one automaton of bounded size, shared by all that run the grammar;
 * one that has grown large is left to those who use it, and the next user begins a new one.
 *
 * An automaton is reference counted; everything but the counting is done under its lock. */
#ifndef TANDEM_ENGINE_GRAMMAR_RUN_H
#define TANDEM_ENGINE_GRAMMAR_RUN_H

#include "engine/grammar/program.h"

enum { GRAM_DEAD = -1, GRAM_FULL = -2, GRAM_LATER = -4 /* gram_hurry */, GRAM_START = 0 };

/* Of the longest token that may be asked about. */
enum { GRAM_LOOK = 255 };

struct gram_mask; /* mask.h */

/* The grammar's automaton for masks of a vocabulary (a number, only compared; 0: without masks).  The grammar must
 * outlive it.  Any thread. */
struct gram_automaton *gram_automaton_of(struct grammar *, uint64_t vocabulary);
void gram_automaton_unref(struct gram_automaton *); /* NULL is allowed */
/* By a user of the grammar's automaton, instead: nobody else uses it, and memory is short: then it is given up. */
void gram_automaton_leave(struct grammar *, struct gram_automaton *);
size_t gram_memory(void); /* bytes of all automata of this process with their masks */
pthread_mutex_t *gram_lock(struct gram_automaton *);

/* The state before the first byte, or GRAM_FULL. */
int32_t gram_begin(struct gram_automaton *);
/* Where the byte leads: a state, GRAM_DEAD, or GRAM_FULL when a limit was met (gram_why): this transition's, or the
 * whole automaton's. */
int32_t gram_next(struct gram_automaton *, int32_t state, uint8_t byte);
/* The same if it is known already; else GRAM_FULL. */
int32_t gram_known(const struct gram_automaton *, int32_t state, uint8_t byte);
/* While it is on, what is not known and would take long (more than some ten microseconds) is GRAM_LATER. */
void gram_hurry(struct gram_automaton *, bool on);
bool gram_hurries(const struct gram_automaton *);
bool gram_accepts(const struct gram_automaton *, int32_t state);
bool gram_ends(const struct gram_automaton *, int32_t state); /* no byte may follow */
const char *gram_why(const struct gram_automaton *);          /* static */

/* The byte that must follow, when that is plain: every position reads this byte of a literal, and no text ends here.
 * -1: not so. */
int gram_only_byte(const struct gram_automaton *, int32_t state);

/* How many bytes may be read before any count in the state meets a bound (UINT32_MAX: it has none). */
uint32_t gram_slack(const struct gram_automaton *, int32_t state);
/* The state without its counts, or GRAM_FULL: the same texts of up to gram_slack bytes may follow.  Many states have
 * the same one, and it stays where it is where they go on counting. */
int32_t gram_loose(struct gram_automaton *, int32_t state);

/* What mask.c finds out about a state and keeps with it; zero: nothing yet. */
struct gram_kinds {
    uint16_t asked, yes; /* kinds of bytes (KIND_...): which were looked at, and which all lead to one place */
};
struct gram_run {
    struct gram_kinds loops; /* that keep the state where it is */
    struct gram_kinds kinds; /* that lead to `to` */
    int32_t to;              /* a state or GRAM_DEAD; good once kinds.asked is not 0 */
};
struct gram_run *gram_run(struct gram_automaton *, int32_t state);

/* What force.c finds out: tokens that must follow, and where they lead. */
struct gram_forced {
    int32_t to;
    int n; /* 0: none, and `to` means nothing */
    int32_t ids[];
};
const struct gram_forced *gram_forced_of(const struct gram_automaton *, int32_t state); /* NULL: not known yet */
/* Keeps it with the state, which has none, and owns it (malloc); NULL: there are none.  Returns what is kept. */
const struct gram_forced *gram_forced_keep(struct gram_automaton *, int32_t state, struct gram_forced *);

/* Bytes that the grammar does not tell apart have the same kind. */
uint8_t gram_kind(const struct gram_automaton *, uint8_t byte);

/* The mask kept with a state, or NULL (borrowed; used now, for the order in which they are dropped). */
struct gram_mask *gram_mask_of(struct gram_automaton *, int32_t state);
/* Keeps a mask; drops the one not used for longest when there are too many. */
void gram_mask_keep(struct gram_automaton *, int32_t state, struct gram_mask *);

uint64_t gram_work(const struct gram_automaton *); /* positions visited so far: what the calls above cost */
size_t gram_states(const struct gram_automaton *); /* how many were made: for tests */

#endif
