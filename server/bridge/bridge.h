/* The one place where libuv and the engine meet.  Loop thread only.
 *
 * A `struct gen` is one engine request as the loop sees it.  The bridge owns it until the engine's EV_DONE arrives,
 * whatever happens to the client: bridge_cancel forgets the client at once, the gen itself stays until the engine is
 * done with it, so an event can never reach freed memory. */
#ifndef TANDEM_SERVER_BRIDGE_BRIDGE_H
#define TANDEM_SERVER_BRIDGE_BRIDGE_H

#include "engine/base/buf.h"
#include "engine/serve/engine.h"
#include "server/memory/reservation.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct uv_loop_s;
struct http_req;
struct metrics;
struct bridge;
struct gen;
struct admission_handle;

/* Every event of a generation; EV_DONE is the last, and after it the gen is gone.  May cancel, pause, submit. */
typedef void gen_fn(void *arg, const struct event *ev, const struct event_batch *batch);

struct bridge *bridge_open(struct uv_loop_s *, struct metrics *);
/* Takes the engine over (bridge_close closes it) and starts its thread.  max_jobs: the limit that clients' jobs for the
 * thread pool share. */
int bridge_start(struct bridge *, struct engine *, int max_jobs, struct err *);
/* Once, fn(arg) runs when the engine has lost its device for good, after the events that say so. */
void bridge_on_lost(struct bridge *, void (*fn)(void *), void *arg);
/* Ends everything.  No fn is called any more; done(arg) runs from the loop when the handles are closed and the bridge
 * is freed. */
void bridge_close(struct bridge *, void (*done)(void *), void *arg);

/* NULL and *e (ERR_FULL, ERR_INVALID).  `req`: who asks, which the figures and bridge_list look at until bridge_cancel
 * or the end; so does the adapter's name in the request.  The handle is held until the generation is over. */
struct gen *bridge_submit(struct bridge *, const struct gen_request *, struct admission_handle *, struct http_req *req,
                          gen_fn *fn, void *arg, struct err *e);
void bridge_cancel(struct gen *); /* fn is not called again; NULL is allowed */
void bridge_expire(struct gen *); /* engine_expire; NULL is allowed */
/* Ends every generation early; their fns get the EV_DONE with FINISH_CANCELLED. */
void bridge_stop_all(struct bridge *);
void bridge_pause(struct gen *); /* pausing twice counts once */
void bridge_resume(struct gen *);

/* False when a new request of the client would only be refused: asked before any work is spent on it. */
bool bridge_has_room(const struct bridge *, uint64_t client);
/* clock_now() when the oldest generation was submitted that has no token yet; 0: there is none. */
uint64_t bridge_oldest_waiting(const struct bridge *);

/* A generation as the loop knows it, for people who look. */
struct gen_view {
    uint64_t id;                                           /* as engine_running has it */
    const struct http_req *req;                            /* NULL: its client is gone */
    const char *adapter;                                   /* NULL: none */
    uint64_t received, submitted, first_token, last_token; /* clock_now(); 0: not yet */
    int n_prompt, max_new, n_generated, priority;
    bool paused, constrained, pooled;
};
/* The oldest `max` of them; returns how many. */
int bridge_list(const struct bridge *, struct gen_view *out, int max);

/* Generations and tokenisations that are not over. */
int bridge_active(const struct bridge *);
/* fn(arg) once, when nothing is active (at once if so already). */
void bridge_on_idle(struct bridge *, void (*fn)(void *), void *arg);

/* Runs work(arg) on the thread pool, then done(arg) on the loop, also when the client that asked is gone: before that
 * the bridge does not close and is not idle.
 *
 * `client`: client_id(req) for everything that is done for a request: parsing, rendering, tokenising, compiling.  Jobs
 * wait in the fair order of work_queue.h, so one client's large bodies do not hold up another's small ones.  A request
 * may use it several times; each job waits its turn.  When the client has left, work must return at once (keep an
 * atomic flag that it looks at): its jobs are not taken out.  0: for the daemon itself, started at once. */
void bridge_work(struct bridge *, uint64_t client, void (*work)(void *), void (*done)(void *), void *arg);
/* The same for writing an answer that takes so many bytes of memory: a small one, less than a millisecond's work, is
 * written at once, with done called before this returns. */
void bridge_render(struct bridge *, uint64_t client, size_t bytes, void (*work)(void *), void (*done)(void *),
                   void *arg);

/* ---- tokenising ------------------------------------------------------------------------------------------------ */

struct tokenization {
    struct tokens tokens;
    struct reservation held; /* for the tokens */
    struct err err;          /* code 0: fine */
};

typedef void tokenize_done_fn(void *arg, const struct tokenization *t);

enum { TOKENIZE_INLINE_BYTES = 4096 };

struct token_job;

/* Tokenises a copy of the text: at once up to TOKENIZE_INLINE_BYTES (done runs before this returns NULL), else on the
 * thread pool.  The handle is good until done runs. */
struct token_job *bridge_tokenize(struct bridge *, uint64_t client, const char *text, size_t n, unsigned flags,
                                  tokenize_done_fn *done, void *arg);
void bridge_tokenize_cancel(struct token_job *); /* done is not called; NULL is allowed */

#endif
