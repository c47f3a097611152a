/* Token masks for constrained requests.  Each such request has a state in its grammar's automaton, advanced by every
 * token; before its next token is sampled, the mask of that state is needed.
 *
 * Transitions and masks that are cached are taken at once, on the engine thread.  Others are computed on the masker
 * thread while the engine computes the next step, in time slices of a millisecond per request, so that a slow grammar
 * delays only the requests that use it.  A request whose mask is missing when its row is to be sampled is held: its
 * last token will be computed again in a later step (sched_defer), and it is not scheduled until `ready` is called.
 *
 * The masker thread is started with the first constrained request and builds the vocabulary's trie, once. */
#ifndef TANDEM_ENGINE_SERVE_MASKER_H
#define TANDEM_ENGINE_SERVE_MASKER_H

#include "engine/grammar/mask.h"

struct masker; /* one per engine */
struct masked; /* one per request */

/* Borrows the tokenizer and eos.  ready(arg, id) is called on the masker thread, after masked_notify. */
struct masker *masker_new(const struct tokenizer *, int vocab, const int32_t *eos, int n_eos,
                          void (*ready)(void *arg, uint64_t id), void *arg);
/* Ends the thread: `ready` is not called any more, and missing masks stay missing. */
void masker_stop(struct masker *);
void masker_free(struct masker *); /* after the last masked_free; NULL is allowed */

/* By the submitting thread.  Takes a reference to the grammar; no mask is computed before masked_begin.  NULL and *e:
 * the masker thread could not be started. */
struct masked *masked_new(struct masker *, struct grammar *, uint64_t id, struct err *e);
void masked_free(struct masked *); /* NULL is allowed */

enum mask_status { MASK_NEW, MASK_WAIT, MASK_READY, MASK_FAILED };

/* ---- engine thread ---- */

/* When the request is first scheduled: starts computing its first mask.  may_force: where only one text can follow, its
 * tokens are returned by masked_forced, and the mask is that of the state behind them. */
void masked_begin(struct masked *, bool may_force);
/* Waits for the mask until the clock shows `until` at the latest; 0: does not wait. */
enum mask_status masked_poll(struct masked *, uint64_t until);
/* Requests a call of ready().  @return false when the mask is ready already; ready() is not called then. */
bool masked_notify(struct masked *);
/* MASK_READY: the n forced tokens before the one that the mask is for; they are returned once, and valid until the next
 * masked_token. */
const int32_t *masked_forced(struct masked *, int *n);
/* MASK_READY: the bits for sample_row.allowed, valid until the next masked_token.  NULL: the text is complete and the
 * model has no eos token to end it with. */
const uint32_t *masked_bits(const struct masked *);
bool masked_ends(const struct masked *);    /* MASK_READY: the text is complete: only eos may follow */
bool masked_accepts(const struct masked *); /* MASK_READY: the text may end here */
/* MASK_FAILED: the reason, a static sentence. */
const char *masked_error(const struct masked *);
/* Advances the state by a token.  Computes on this thread until the clock shows `until`; the masker thread does the
 * rest. */
void masked_token(struct masked *, int32_t token, uint64_t until);

#endif
