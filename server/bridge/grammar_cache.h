/* An LRU cache of the grammars of requests, which compiles new ones on the thread pool.  Loop thread. */
#ifndef TANDEM_SERVER_BRIDGE_GRAMMAR_CACHE_H
#define TANDEM_SERVER_BRIDGE_GRAMMAR_CACHE_H

#include "engine/base/err.h"
#include "server/schema/constraint.h"

#include <stdint.h>

struct bridge;
struct grammar;
struct tokenizer;

struct grammar_cache; /* one per model: the grammars used last */
struct grammar_cache_job;

/* Any thread: it looks at the whole vocabulary. */
struct grammar_cache *grammar_cache_new(const struct tokenizer *);
/* Before it is used. */
void grammar_cache_bridge(struct grammar_cache *, struct bridge *);
/* After bridge_close's done: no job is left then.  NULL is allowed. */
void grammar_cache_free(struct grammar_cache *);

/* g: the grammar, valid during the call (grammar_ref keeps it; engine_submit takes its own reference).  NULL with *e
 * when the request is invalid (the client's error, 4xx) or ERR_UNSUPPORTED when the model's vocabulary cannot spell it
 * (422). */
typedef void grammar_cache_fn(void *arg, struct grammar *g, const struct err *e);

/* Calls done on the loop with the grammar: at once (before this returns NULL) if it is cached, or if there is no
 * constraint (g NULL, e->code 0); otherwise after compiling a copy of the request on the pool, for `client`
 * (bridge_work). The handle is valid until done runs. */
struct grammar_cache_job *grammar_cache_compile(struct grammar_cache *, uint64_t client,
                                                const struct constraint_request *, grammar_cache_fn *done, void *arg);
void grammar_cache_cancel(struct grammar_cache_job *); /* done is not called; NULL is allowed */

#endif
