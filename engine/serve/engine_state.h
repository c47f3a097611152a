/* The engine's own state, for the files that are the engine: engine.c (opening, the calls of other threads), inbox.c,
 * request_table.c, loop.c, hold.c, step.c, stats.c, engine_adapters.c, failure.c. */
#ifndef TANDEM_ENGINE_SERVE_ENGINE_STATE_H
#define TANDEM_ENGINE_SERVE_ENGINE_STATE_H

#include "engine/base/mailbox.h"
#include "engine/model/step_batch.h"
#include "engine/serve/adapters.h"
#include "engine/serve/debug_state.h"
#include "engine/serve/device_owner.h"
#include "engine/serve/engine.h"
#include "engine/serve/events.h"
#include "engine/serve/masker.h"
#include "engine/serve/request.h"
#include "engine/serve/sched.h"
#include "engine/serve/setup.h"
#include "engine/serve/speculate.h"
#include "engine/serve/step_times.h"
#include "engine/serve/train_quantum.h"
#include "engine/serve/trainer_thread.h"

#include <pthread.h>
#include <stdatomic.h>

enum { HIDDEN_ROWS = 16 }; /* rows of hidden states downloaded from the device at a time */

enum msg_kind {
    MSG_SUBMIT,
    MSG_CANCEL,
    MSG_EXPIRE,
    MSG_PAUSE,
    MSG_RESUME,
    MSG_ADAPTER,
    MSG_SWEEP,
    MSG_MASK,
    MSG_HOLD, /* id: enum engine_hold */
    MSG_ABORT,
    MSG_FORGET,
    MSG_WAKE,
    MSG_STOP
};

/* A request to upload an adapter; on the stack of the thread that waits for it. */
struct adapter_load {
    const char *name;
    struct adapter *adapter;
    uint64_t version;
    struct err e;
    bool done; /* under load_lock */
};

struct msg {
    struct mail mail; /* first */
    enum msg_kind kind;
    uint64_t id;
    struct request *request;   /* MSG_SUBMIT */
    struct adapter_load *load; /* MSG_ADAPTER */
};

struct engine {
    struct setup s; /* model, tokenizer, info; constant after engine_open */

    /* between the threads */
    struct mailbox inbox;
    struct events events;
    _Atomic int queued;          /* submitted and never yet scheduled */
    _Atomic uint64_t busy_since; /* engine_busy_since */
    pthread_mutex_t stats_lock;
    struct engine_stats stats;
    struct debug_state look;
    struct adapters adapters;
    pthread_mutex_t load_lock;
    pthread_cond_t load_done;
    bool closing;     /* under load_lock, as n_loading */
    int n_loading;    /* under load_lock */
    uint64_t last_id; /* the submitting thread's, as n_holds */
    uint64_t n_holds;        /* sent; */
    _Atomic uint64_t n_held; /* taken */
    pthread_t thread;
    bool started;
    struct scheduler_gate *gate;
    struct device_turn *turn;   /* or NULL */
    struct device_owner *watch; /* or NULL */
    struct trainer_thread training;
    struct masker *masker;

    /* the engine thread's */
    struct kv_pool *pool;
    struct kv_tier *tier;           /* NULL: no --kv-disk */
    struct kv_published *published; /* NULL: no sink of KV events */
    struct sched sched;
    struct step_batch batch;
    struct step_batch_seq *seqs; /* (max_seqs) the plan as the batch is made of it */
    struct sample_row *rows;     /* (max_rows) */
    struct sample_out *outs;     /* (max_rows) */
    struct top_token *scores;    /* (max_rows, ENGINE_TOP_MAX) ids that are scored and drawn in prompts */
    int score_from;              /* the position of the first of these rows */
    float *hidden;               /* (HIDDEN_ROWS, C) downloaded, for pooling */
    struct request **by_id;      /* hash table with chains */
    uint32_t id_mask;
    enum engine_hold hold;
    struct train_quantum share;
    struct step_times times;
    enum speculate speculate;
    struct speculate_pace pace;
    struct history *history; /* NULL: none */
    bool no_draft;           /* there is none, or it failed */
    uint64_t draft_step_ns;  /* that the draft took before this step, for its candidates */
    bool decodes;            /* in this step every sequence has one known token to compute, and generates */
    int n_drafts;            /* candidates of this step, */
    int n_proposed[2];       /* by texts and draft */
    uint64_t mask_until;     /* clock: how long masks may be made on this thread */
    struct engine_stats now; /* what stats becomes at the end of the step */

    /* the device's failures */
    _Atomic bool lost; /* every op fails from now on: nothing is asked of the device any more */
    int n_failures;
    char failure[32][256]; /* their different texts, which events point to: never changed once they are there */
};

/* inbox.c, any thread */
void engine_post(struct engine *, struct msg);
void engine_send(struct engine *, enum msg_kind, uint64_t id, struct request *);
/* By the engine thread: handles all pending messages.  wait: blocks until there is one.  @return false after
 * MSG_STOP. */
bool engine_take_inbox(struct engine *, bool wait);

/* request_table.c, by the engine thread */
void engine_add_request(struct engine *, struct request *);        /* takes ownership and schedules it */
void engine_schedule(struct engine *, struct request *);           /* one that waited outside the schedule */
struct request *engine_find_request(struct engine *, uint64_t id); /* NULL: no request of that id is alive */
void engine_drop_request(struct engine *, struct request *);       /* frees one outside the table; NULL is allowed */
void engine_drop_all(struct engine *);                             /* frees those in the table, without events */
void engine_end_request(struct engine *, struct request *, enum finish_reason why, int stop_index, const char *error);
/* Ends the expired requests among the preempted ones, which would have ended with their next token. */
void engine_end_preempted(struct engine *);

/* inbox.c, by the engine thread: ends a request that is to end (request.ending) and gets no token in the next step. */
void engine_end_if_idle(struct engine *, struct request *);

/* hold.c, by the engine thread */
void engine_take_hold(struct engine *, enum engine_hold);

/* candidates.c, by the engine thread */
/* Adds candidates to the plan. */
void engine_speculate(struct engine *, const struct plan *);
/* `right` of a request's n candidates were.  NULL: it has ended. */
void engine_verified(struct engine *, struct request *, enum speculate_source, int n, int right);
/* After a step of n_seqs: what its candidates cost and gained.  before: the accepted tokens before it. */
struct accepted {
    uint64_t by[SPECULATE_SOURCES];
};
void engine_note_speculation(struct engine *, int n_seqs, uint64_t start, const struct accepted *before);
/* A text ends: it is kept for later requests of its prompt. */
void engine_remember(struct engine *, const struct request *, enum finish_reason);

/* step.c, stats.c, by the engine thread */
void engine_run_step(struct engine *, const struct plan *);
void engine_publish(struct engine *, const struct plan *); /* stats and debug state; plan NULL: no step was planned */

/* engine_adapters.c, by the engine thread: uploads the adapter; wakes the thread that waits for it. */
void engine_adapter_publish(struct engine *, struct adapter_load *);
void engine_adapter_answer(struct engine *, struct adapter_load *);
/* Frees the versions that no request uses.  Of a lost device only engine_close frees them, since the trainer may still
 * be ending. */
void engine_adapters_sweep(struct engine *);

/* failure.c, by the engine thread */
/* Takes the device's error.  @return the text for the requests' events, valid as long as the engine. */
const char *engine_take_failure(struct engine *);
/* The device failed: the requests of the plan end with an error; the others go on, unless the device is lost. */
void engine_fail_step(struct engine *, const struct plan *);
/* After a time slice of training or an upload.  @return true when the device was found lost: every request was ended,
 * and later ones will be. */
bool engine_check_device(struct engine *);
/* Ends every request: the device is lost. */
void engine_end_all(struct engine *);

#endif
