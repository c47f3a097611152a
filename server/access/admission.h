/* The one door of the routes that use the model: decides before anything is read, let alone tokenised, whether a
 * request comes in; keeps the time of those that have a deadline; counts what each key uses.  Loop thread only.
 *
 * Every request counts for its client (client.h), and clients share the queue.  The decision itself is
 * admission_policy.h's.  What a refusal costs is kept small: a large body is refused on its head (admission_gate), a
 * small one, which has come with its head, is dropped unread.
 *
 * Life of a request: admission_enter gives it a place for one sequence and as many prompt tokens as its body may have;
 * admission_handle_ask, once the fields are known, one for all its sequences; admission_handle_tokens says how many
 * tokens there really are; the answer, or a refusal, closes it (http_req.on_answer).  bridge_submit holds the handle
 * for each sequence, so a place is given back when the engine has ended what it was for, also where the client left
 * long before. */
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

/* All of it outlives the admission. */
struct admission_needs {
    const struct settings *set; /* read again with every request: some of it may change */
    struct metrics *metrics;    /* refusals are counted there */
    struct uv_loop_s *loop;
    bool (*pool_has_room)(void *pool, uint64_t client); /* for one job more of that client on the thread pool */
    void *pool;
};

/* In SERVING_LOADING. */
struct admission *admission_open(const struct admission_needs *);
void admission_state(struct admission *, enum serving_state);
/* The model is there: its limits count.  NULL: it is gone. */
void admission_engine(struct admission *, struct engine *);
/* After the last handle was closed; frees itself when the loop has closed its timer. */
void admission_close(struct admission *);

/* What a request without a handle asks for. */
struct admission_ask {
    bool works; /* it gives the thread pool something to do: it is one request of its key, and refused when there is
                   too much of that */
};

/* Answers 503 (loading, draining) or, where the ask says what for, 429, with Retry-After; or returns false.  ask NULL:
 * only 503. */
bool admission_refuses(struct http_req *, const struct admission_ask *);

/* http_route.gate of the routes that generate. */
bool admission_gate(struct http_req *, uint64_t length);

/* A place, for the time until admission_handle_close; or NULL: answered (as above; also a bad header, a deadline that
 * is over). The header X-Request-Timeout (milliseconds from the request's head on) sets a deadline. */
struct admission_handle *admission_enter(struct http_req *);
/* Once, after admission_handle_ask: late(arg) when its deadline is over and it is not closed; never inside a call of
 * this file.
 */
void admission_handle_watch(struct admission_handle *, void (*late)(void *), void *arg);
struct admission_handle_need {
    int sequences;      /* prompts x copies */
    int at_once;        /* of which so many are at the engine at a time */
    int copies;         /* texts for each prompt */
    int64_t timeout_ms; /* from the request's head on; 0: no other deadline than it has */
};
/* What it is for.  False: answered. */
bool admission_handle_ask(struct admission_handle *, struct http_req *, const struct admission_handle_need *);
/* How many prompt tokens its prompts have, each counted once, and in all its sequences. */
void admission_handle_tokens(struct admission_handle *, int64_t prompt, int64_t all);
/* The priority it may have: what was asked for, but no more urgent than its key allows. */
int admission_handle_priority(const struct admission_handle *, int wanted);
/* The exchange is over.  NULL is allowed. */
void admission_handle_close(struct admission_handle *);

/* ---- the bridge's, for every sequence that the engine has -------------------------------------------------------- */
void admission_handle_hold(struct admission_handle *, int prompt_tokens);
/* Its first token is out: its prompt waits no more. */
void admission_handle_begun(struct admission_handle *, int prompt_tokens);
/* Its EV_DONE; begun: whether admission_handle_begun was called.  Releases the hold. */
void admission_handle_done(struct admission_handle *, const struct event *done, bool begun);
void admission_handle_drop(struct admission_handle *); /* releases the hold: there is no EV_DONE, the engine is gone */

/* ---- answers ----------------------------------------------------------------------------------------------------- */

/* 504: the deadline passed before there was a token. */
void admission_reply_late(struct http_req *);
#define ADMISSION_LATE "the deadline passed before the first token"
enum { ANSWER_GROWTH = 4 }; /* a buffer that doubles and is copied: memory it takes for each of its bytes */
/* 503: "no memory for ..."; counted. */
void admission_reply_memory(struct http_req *, const char *what);
/* The engine's own queue was full after all. */
void admission_reply_full(struct http_req *);

/* Gauges, as Prometheus text. */
void admission_put_metrics(struct admission *, struct buf *out);
/* A JSON list of the clients that have sequences here, those with the most first, 100 at most. */
void admission_put_clients(const struct admission *, struct buf *out);

#endif
