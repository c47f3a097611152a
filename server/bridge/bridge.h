/* The bridge between the libuv loop and the engine thread, and between the loop and the thread pool.  Loop thread only.
 *
 * A `struct gen` is one engine request as the loop sees it.  The bridge owns it until the engine's EV_DONE arrives:
 * bridge_cancel detaches the client at once, but the gen stays until the engine has ended the request, so an event
 * never reaches freed memory. */
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

/* Called for every event of a generation; EV_DONE is the last, and the gen is freed after it.  May cancel, pause,
 * submit. */
typedef void gen_fn(void *arg, const struct event *ev, const struct event_batch *batch);

struct bridge *bridge_open(struct uv_loop_s *, struct metrics *);
/* For a further engine: work on the pool is queued with that of `first`, which must outlive it. */
struct bridge *bridge_open_beside(const struct bridge *first);
/* Takes the engine out of a bridge where nothing is in progress, for a thread that closes it.  The bridge is closed
 * after that: until then the engine may still call it. */
struct engine *bridge_release_engine(struct bridge *);
/* Of a bridge without an engine: as bridge_start's. */
void bridge_max_jobs(struct bridge *, int max_jobs);
/* Takes ownership of the engine (bridge_close closes it) and starts its thread.  max_jobs: limit of clients' jobs on
 * the thread pool, shared as in work_queue.h. */
int bridge_start(struct bridge *, struct engine *, int max_jobs, struct err *);
/* Whether clients share no prefixes in the cache (gen_request.cache_tenant); false at first. */
void bridge_separate_caches(struct bridge *, bool);
/* Calls fn(arg) once if the engine loses its device, after the events that report it. */
void bridge_on_lost(struct bridge *, void (*fn)(void *), void *arg);
/* Closes the engine, if it has one; no fn is called from then on.  done(arg), which may be NULL, runs on the loop when
 * the handles are closed and the bridge is freed. */
void bridge_close(struct bridge *, void (*done)(void *), void *arg);

/* NULL and *e (ERR_FULL, ERR_INVALID).  req, and the adapter's name in the gen_request, are used for statistics and
 * bridge_list and must stay valid until bridge_cancel or EV_DONE.  The admission handle is held until EV_DONE. */
struct gen *bridge_submit(struct bridge *, const struct gen_request *, struct admission_handle *, struct http_req *req,
                          gen_fn *fn, void *arg, struct err *e);
/* One of the daemon's own, behind those of all clients, whose share among its like is `client`'s (client_id_of): it is
 * not admitted, counts as no client's, and its waits not as latency.  Otherwise as bridge_submit. */
struct gen *bridge_submit_own(struct bridge *, const struct gen_request *, uint64_t client, gen_fn *fn, void *arg,
                              struct err *e);
void bridge_cancel(struct gen *); /* fn is not called again; NULL is allowed */
void bridge_expire(struct gen *); /* engine_expire; NULL is allowed */
/* Cancels every generation; their fns get an EV_DONE with FINISH_CANCELLED. */
void bridge_stop_all(struct bridge *);
void bridge_pause(struct gen *); /* pausing twice counts once */
void bridge_resume(struct gen *);

/* ---- holding ---------------------------------------------------------------------------------------------------- */

/* Somebody who waits until what is held is; theirs until fn was called. */
struct bridge_wait {
    struct bridge_wait *next;
    uint64_t last;                       /* the newest of the generations that are to be over */
    uint64_t hold;                       /* engine_hold's */
    void (*fn)(void *arg, bool resumed); /* resumed: before that, all may run again */
    void *arg;
};

/* As engine_hold: which generations wait from now on. */
void bridge_hold(struct bridge *, enum engine_hold);
enum engine_hold bridge_held(const struct bridge *);
/* Ends the generations of clients, not those in the background: their fns get an EV_DONE with FINISH_ABORTED. */
void bridge_abort_all(struct bridge *);
/* Calls w->fn once: with HOLD_NEW when the generations that are not held are over, with HOLD_ALL when no step is in
 * progress. */
void bridge_when_held(struct bridge *, struct bridge_wait *w);
void bridge_wait_cancel(struct bridge *,
                        struct bridge_wait *); /* fn is not called; one that does not wait is ignored */

/* @return false when the engine or the pool would refuse a new request of the client.  Meant to be called before any
 * work is spent on the request. */
bool bridge_has_room(const struct bridge *, uint64_t client);
/* @return the clock_now() at which the oldest generation without a token was submitted; 0: there is none.  Those in the
 * background are not looked at. */
uint64_t bridge_oldest_waiting(const struct bridge *);

/* A generation as the loop knows it, for debugging. */
struct gen_view {
    uint64_t id;                                           /* as engine_running has it */
    const struct http_req *req;                            /* NULL: its client has left */
    const char *adapter;                                   /* NULL: none */
    uint64_t received, submitted, first_token, last_token; /* clock_now(); 0: not yet */
    int n_prompt, max_new, n_generated, priority;
    bool paused, constrained, pooled;
};
/* The oldest `max` generations.  @return how many. */
int bridge_list(const struct bridge *, struct gen_view *out, int max);

/* @return the number of generations and pool jobs in progress. */
int bridge_active(const struct bridge *);
/* Calls fn(arg) once, when nothing is in progress (at once if so already).  Releases what is held. */
void bridge_on_idle(struct bridge *, void (*fn)(void *), void *arg);

/* Runs work(arg) on the thread pool, then done(arg) on the loop, even if the client has left meanwhile.  Until then the
 * bridge is neither idle nor closed.
 *
 * client: client_id(req) for all work on behalf of a request (parsing, rendering, tokenising, compiling).  Jobs are
 * queued in the fair order of work_queue.h, so one client's large bodies do not delay another's small ones.  A request
 * may queue several.  A queued job is never removed: when its client has left, work must return at once, so give it an
 * atomic flag to check.  0: the daemon's own work, started at once. */
void bridge_work(struct bridge *, uint64_t client, void (*work)(void *), void (*done)(void *), void *arg);
/* The same for rendering an answer of `bytes` bytes.  A small one, which takes less than a millisecond, is rendered on
 * the loop, and done is called before this returns. */
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
 * thread pool.  The job returned is valid until done runs. */
struct token_job *bridge_tokenize(struct bridge *, uint64_t client, const char *text, size_t n, unsigned flags,
                                  tokenize_done_fn *done, void *arg);
void bridge_tokenize_cancel(struct token_job *); /* done is not called; NULL is allowed */

#endif
