/* Admission control of the routes that use the model: admits or refuses a request before its body is parsed, enforces
 * deadlines, and counts what each API key uses.  Loop thread only.
 *
 * Each request counts for its client (client.h), and clients share the queue; admission_policy.h decides.  Refusals are
 * cheap: a large body is refused on its head (admission_gate), a small one that came with its head is dropped unparsed.
 *
 * A request's capacity, in sequences and prompt tokens, is held by its handle:
 *   admission_enter          reserves one sequence and an estimate of the prompt tokens, from the size of the body
 *   admission_handle_reserve     reserves for the sequences that run at once, when the fields are parsed
 *   admission_handle_tokens  replaces the estimate by the real number of prompt tokens
 *   admission_handle_close   when the answer is complete (http_req.on_answer) or the request was refused
 * bridge_submit holds the handle once for each sequence.  So capacity is released when the engine has ended the
 * sequence, even if the client left long before. */
#ifndef TANDEM_SERVER_ACCESS_ADMISSION_H
#define TANDEM_SERVER_ACCESS_ADMISSION_H

#include "engine/base/buf.h"

#include <stdbool.h>
#include <stdint.h>

struct admission; /* one per server: http_req.admission */
struct admission_handle;
struct engine;
struct event;
struct http_req;
struct metrics;
struct settings;
struct uv_loop_s;

enum serving_state { SERVING_LOADING, SERVING_READY, SERVING_DRAINING };

/* Borrowed: all of it must outlive the admission. */
struct admission_needs {
    const struct settings *set; /* read for each request, since a reload may change it */
    struct metrics *metrics;    /* counts refusals */
    struct uv_loop_s *loop;
    bool (*pool_has_room)(void *pool, uint64_t client); /* whether the thread pool takes one more job of the client */
    void *pool;
    /* Of requests that nobody waits for: they have no deadline of the server's and no longest wait, and run with the
     * least urgent priority, so that the engine gives way to all others. */
    bool background;
};

/* The state is SERVING_LOADING at first. */
struct admission *admission_open(const struct admission_needs *);
void admission_state(struct admission *, enum serving_state);
/* Takes the limits from an engine, and the load from all that are open; before an engine is closed. */
void admission_engine_opened(struct admission *, const struct engine *);
void admission_engine_closes(struct admission *, const struct engine *);
/* After the last handle was closed.  Frees itself when the loop has closed its timer. */
void admission_close(struct admission *);

/* A request that needs no handle because it runs no sequences. */
struct admission_light_request {
    bool works; /* it adds a job to the thread pool: counts as a request of its key, refused when the pool is full */
};

/* Answers 503 while loading or draining, or 429 with Retry-After where `request` is given and refused.  @return true
 * when it has answered.  request NULL: only the 503. */
bool admission_refuses(struct http_req *, const struct admission_light_request *);

/* http_route.gate of the routes that generate. */
bool admission_gate(struct http_req *, uint64_t length);

/* @return a handle to be closed by admission_handle_close; NULL when the request was answered: refused as above, a bad
 * header, or its deadline has passed.  The header X-Request-Timeout (milliseconds from the request's head on) sets a
 * deadline. */
struct admission_handle *admission_enter(struct http_req *);
/* Once, after admission_handle_reserve: calls late(arg) when the deadline passes before the handle is closed; never
 * inside a call of this file. */
void admission_handle_watch(struct admission_handle *, void (*late)(void *), void *arg);
struct admission_handle_need {
    int sequences;      /* prompts x copies */
    int at_once;        /* how many of them are submitted to the engine at a time */
    int copies;         /* generated texts per prompt */
    int64_t timeout_ms; /* from the request's head on; 0: keeps the deadline it has, if any */
};
/* Reserves for need->at_once sequences and all prompt tokens.  @return false when it was refused and answered. */
bool admission_handle_reserve(struct admission_handle *, struct http_req *, const struct admission_handle_need *);
/* Sets the real number of prompt tokens.  prompt: each prompt counted once; all: once for each of its sequences. */
void admission_handle_tokens(struct admission_handle *, int64_t prompt, int64_t all);
/* @return the priority it may have: `wanted`, but no more urgent than its key allows. */
int admission_handle_priority(const struct admission_handle *, int wanted);
/* The exchange is over.  NULL is allowed. */
void admission_handle_close(struct admission_handle *);

/* ---- called by the bridge for each sequence that it submits ------------------------------------------------------ */
void admission_handle_submitted(struct admission_handle *, int prompt_tokens);
/* After its first token: its prompt tokens are no longer queued. */
void admission_handle_begun(struct admission_handle *, int prompt_tokens);
/* At its EV_DONE; begun: whether admission_handle_begun was called.  Releases the hold. */
void admission_handle_done(struct admission_handle *, const struct event *done, bool begun);
void admission_handle_drop(struct admission_handle *); /* releases the hold without an EV_DONE: the engine is closed */

/* ---- answers ----------------------------------------------------------------------------------------------------- */

/* 504: the deadline passed before the first token. */
void admission_reply_late(struct http_req *);
#define ADMISSION_LATE "the deadline passed before the first token"
enum { ANSWER_GROWTH = 4 }; /* memory to reserve per byte of an answer, whose buffer doubles and is then copied */
/* 503: "no memory for ..."; counted. */
void admission_reply_memory(struct http_req *, const char *what);
/* Refuses a request that was admitted but found the engine's own queue full. */
void admission_reply_full(struct http_req *);

/* Gauges, as Prometheus text. */
void admission_put_metrics(struct admission *, struct buf *out);
/* A JSON list of the clients with active sequences, those with the most first, 100 at most. */
void admission_put_clients(const struct admission *, struct buf *out);

#endif
