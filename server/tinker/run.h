/* A training run and its calls, as runs.c and the files of its requests share them.  Loop thread. */
#ifndef TANDEM_SERVER_TINKER_RUN_H
#define TANDEM_SERVER_TINKER_RUN_H

#include "engine/serve/engine.h"
#include "engine/train/tuner.h"
#include "server/tinker/checkpoints.h"
#include "server/tinker/gradient_request.h"
#include "server/tinker/state.h"

enum call_kind { CALL_OPEN, CALL_GRADIENT, CALL_STEP, CALL_PUBLISH, CALL_SAVE, CALL_LOAD, CALL_CLOSE };

struct run_call {
    struct run_call *next;
    struct run *run;
    enum call_kind kind;
    int64_t seq;
    struct future *future; /* NULL: nobody waits for it any more */
    struct err e;
    struct gradient_request gradient;
    struct tuner_step step;
    double norm;
    char adapter[ADAPTER_NAME_MAX + 1];
    bool shared;             /* the adapter's name is the run's own */
    struct checkpoint saved; /* of CALL_SAVE; of CALL_LOAD and CALL_OPEN run, name, sampler: run "": none */
    bool overwrite, optimizer;
};

struct run {
    struct run *next;
    struct tinker *t;
    struct session *session; /* NULL: it has ended */
    char id[RUN_ID], owner[CLIENT_NAME];
    uint64_t client, number;
    int64_t used;               /* ms since 1970, of the last request */
    struct served_model *model; /* held */
    struct tuner_params params;
    struct tuner *tuner; /* the running call's, while there is one */
    struct run_call *waiting, *running;
    int64_t next_seq;
    int snapshots;
};

/* runs.c */
/* The run of that id, which counts as used; NULL with a 404. */
struct run *run_find(struct http_req *, const char *id);
/* Creates a run of the session on the model, which its client uses already, and begins to open it: from saved weights,
 * whose run, name and sampler are set, or, where `from` is NULL, new.  Answers with its future. */
void run_create(struct http_req *, struct session *, int64_t seq, struct served_model *, const struct tuner_params *,
                const struct checkpoint *from, bool optimizer);
/* @return the call, with its future; NULL with an answer, which may be that of the same call before. */
struct run_call *run_call_new(struct http_req *, struct run *, enum call_kind, int64_t seq);
/* In its order; owned then. */
void run_call_add(struct run *, struct run_call *);
unsigned run_targets(bool attn, bool mlp, bool unembed);

#endif
