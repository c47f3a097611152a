/* Masks for the requests of one engine: each constrained request has a place in its grammar's automaton, moves it on
 * with every token, and wants the mask of where it then is before its next token is sampled.
 *
 * What is known already (the transition and the mask were made before) is had at once, on the engine thread.  The rest
 * is done by a thread of its own, for all requests in turns of a millisecond, while the engine computes the next step:
 * so a grammar that takes long delays the requests that use it, and no other.  A request whose mask is still missing
 * when its row would be sampled is held back: its last token is computed again in a later step (sched_hold), and it is
 * not scheduled until `ready` says so.  The thread exists from the first constrained request on.
 *
 * The vocabulary's trie is made by that thread, once. */
#ifndef TANDEM_ENGINE_SERVE_MASKER_H
#define TANDEM_ENGINE_SERVE_MASKER_H

#include "engine/grammar/mask.h"

struct masker; /* one per engine */
struct masked; /* one per request */

/* Borrows the tokenizer and eos.  ready(arg, id) is called on the masker's thread, for masked_hold. */
struct masker *masker_new(const struct tokenizer *, int vocab, const int32_t *eos, int n_eos,
                          void (*ready)(void *arg, uint64_t id), void *arg);
/* Ends the thread: no `ready` comes any more, and what is not done stays so. */
void masker_stop(struct masker *);
void masker_free(struct masker *); /* after the last masked_free; NULL is allowed */

/* By the submitting thread; takes a reference to the grammar; nothing is done for it before masked_begin.  NULL and *e:
 * no thread could be started. */
struct masked *masked_new(struct masker *, struct grammar *, uint64_t id, struct err *e);
void masked_free(struct masked *); /* NULL is allowed */

enum mask_status { MASK_NEW, MASK_WAIT, MASK_READY, MASK_FAILED };

/* ---- by the engine thread ---- */

/* The request is scheduled: its first mask is wanted soon.  Before anything below.  may_force: where only one text can
 * follow, its tokens are masked_forced's, and the mask is of what comes behind them. */
void masked_begin(struct masked *, bool may_force);
/* Waits for the mask, but not past `until` (clock_now); 0: does not wait. */
enum mask_status masked_poll(struct masked *, uint64_t until);
/* Asks for ready(); false when the mask is there already. */
bool masked_hold(struct masked *);
/* MASK_READY: the n tokens that come before the one that the mask is for, once; good until the next masked_token. */
const int32_t *masked_forced(struct masked *, int *n);
/* MASK_READY: the bits as sample_row.allowed wants them; good until the next masked_token.  NULL: no token may follow;
 * the text is whole (which is otherwise said by an eos token, but the model has none). */
const uint32_t *masked_bits(const struct masked *);
bool masked_ends(const struct masked *);    /* MASK_READY: the text is whole, and nothing may follow but eos */
bool masked_accepts(const struct masked *); /* MASK_READY: the text may end here */
/* MASK_FAILED: why, a static sentence. */
const char *masked_why(const struct masked *);
/* A token was chosen.  Works until the clock shows `until` if it can, and leaves the rest to the thread. */
void masked_token(struct masked *, int32_t token, uint64_t until);

#endif
