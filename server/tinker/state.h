/* What the files of this room share: `struct tinker`, of which a daemon has one.  Loop thread. */
#ifndef TANDEM_SERVER_TINKER_STATE_H
#define TANDEM_SERVER_TINKER_STATE_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "server/json/json.h"
#include "server/memory/reservation.h"
#include "server/tinker/handles.h"
#include "server/tinker/tinker.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct http_req;
struct sampling;
struct served_model;

enum {
    SESSIONS_MAX = 1024,
    SAMPLERS_MAX = 16384,
    RUNS_MAX = 64,
    SNAPSHOTS_MAX = 8, /* of a run, that can be sampled from */
    FUTURES_MAX = 8192,
    TTL_MOST = 10 * 366 * 24 * 3600, /* seconds that saved weights may be kept, if not for ever */
    HELD_SECONDS = 40,               /* that a call for a future is held open; the client gives up at 45 */
    SILENT_SECONDS = 300,            /* without a heartbeat: the client is gone */
    SWEEP_SECONDS = 600,             /* between two looks for saved weights that have expired */
    FETCHED_SECONDS = 120,           /* that a result stays after it was sent, for a client that lost the answer */
};

struct session {
    struct handle handle; /* first */
    uint64_t seen;        /* clock_now() of the last call of its client */
};

/* A model to sample from; it belongs to a session. */
struct sampler {
    struct handle handle; /* first */
    struct session *session;
    struct served_model *model; /* the table's, for ever */
    char *adapter;              /* of a run's snapshot; owned; NULL: the base model */
    char *path;                 /* of saved weights; owned; NULL: they are not */
    struct run *run;            /* whose snapshot it is; NULL: of none, or it has ended */
    bool shared;                /* the adapter is the run's, which later saves replace */
    bool gone;                  /* the adapter was unloaded */
};

struct run;
struct run_call;

/* A call for a future that is held open; of its exchange's memory. */
struct held_call {
    struct held_call *next, **link; /* link NULL: it was answered */
    struct http_req *req;
    uint64_t until;
};

struct future {
    struct handle handle; /* first */
    const void *owner;    /* a sampler, a run or a session: it is freed with it */
    int64_t seq;          /* the number that its client gave the request, among those of the owner */
    bool done;
    void (*cancel)(void *work); /* of what computes it, when it is freed before it is done */
    void *work;
    struct held_call *held;
    uint64_t fetched;  /* clock_now() of the last answer with the result; 0: none */
    bool json;         /* the answer is JSON, else protobuf */
    struct buf answer; /* the result; also an error, as JSON */
    struct reservation memory;
};

struct tinker {
    struct app *app;
    uv_timer_t tick; /* every second while there is a session */
    bool stopping, sweeping;
    uint64_t swept; /* clock_now() of the last look for saved weights that have expired */
    struct handles sessions, samplers, futures;
    struct sampling *first, **last; /* those that have sequences to submit, in order of arrival */
    int flying;                     /* sequences that the engines have */
    struct run *runs;
    int n_works; /* of tinker_work */
    int n_runs, n_calls;       /* n_calls: that trainers' threads have */
    uv_mutex_t lock;           /* of `finished` */
    struct run_call *finished; /* by trainers' threads, for the loop */
    uv_async_t wake;           /* when there is one */
    int handles;               /* that are still to be closed */
    bool closing;
    void (*closed)(void *);
    void *closed_arg;
};

/* tinker.c */
struct sampler *sampler_new(struct tinker *, struct session *, struct served_model *); /* NULL: there are too many */

struct tinker *tinker_of(const struct http_req *);
/* @return the text's object, to be freed with json_free; NULL and *e.  Any thread. */
cJSON *tinker_parse(const char *text, size_t n, struct err *e);
/* The same of a body; NULL with an answer. */
cJSON *tinker_body(struct http_req *);
/* Answers 422 with e's message, or what memory asks for. */
void tinker_refuse(struct http_req *, const struct err *e);
/* The session of that id, which counts as alive; NULL with a 404. */
struct session *tinker_session(struct http_req *, const char *id);

/* bridge_work, whose end the closing of t waits for: work may use what t may. */
void tinker_work(struct tinker *, uint64_t client, void (*work)(void *), void (*done)(void *), void *arg);
/* Frees it, when it is being closed and nothing runs any more. */
void tinker_check_closed(struct tinker *);

/* futures.c */
/* NULL: there are too many. */
struct future *future_new(struct tinker *, const void *owner, uint64_t client, int64_t seq);
/* The request of this number that came before; NULL. */
struct future *future_of(const struct tinker *, const void *owner, int64_t seq);
/* answer is filled: answers the calls that are held. */
void future_done(struct future *);
/* category: "user", "server". */
void future_failed(struct future *, const char *category, const char *msg);
void future_free(struct tinker *, struct future *);    /* calls that are held are answered 410 */
void futures_free(struct tinker *, const void *owner); /* all of it */
void futures_tick(struct tinker *, uint64_t now);

/* saved_samplers.c */
/* Answers with a sampling session of the session of that id, on saved weights. */
void saved_sampler_create(struct http_req *, const char *session, const char *path);
void saved_sampler_forget(struct tinker *, struct sampler *); /* it is freed, or its adapter is to be */

/* asample.c */
void sampling_pump(struct tinker *);

/* runs.c */
void runs_open(struct tinker *);
void runs_end(struct tinker *, const struct session *); /* those of a session */
void runs_close(struct tinker *);                       /* when no run is left: closes their handles */
void run_forget_sampler(struct sampler *);              /* it is freed */

#endif
