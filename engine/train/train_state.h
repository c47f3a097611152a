/* Private state of a trainer, shared by train.c (opening), plan.c, loop.c, save.c, result.c and events.c.  Trainer
 * thread only, except `command`. */
#ifndef TANDEM_ENGINE_TRAIN_TRAIN_STATE_H
#define TANDEM_ENGINE_TRAIN_TRAIN_STATE_H

#include "engine/base/buf.h"
#include "engine/model/model.h"
#include "engine/train/full.h"
#include "engine/train/lora.h"
#include "engine/train/model.h"
#include "engine/train/op_chunks.h"
#include "engine/train/optim.h"
#include "engine/train/params.h"
#include "engine/train/rows.h"
#include "engine/train/scheduler_gate.h"
#include "engine/train/train.h"

#include <stdatomic.h>

enum { ARRAYS = 4 }; /* of the optimizer in a checkpoint */

/* What a checkpoint holds beside the arrays; eight bytes each, no padding. */
struct train_state {
    int64_t step;    /* done */
    int64_t updates; /* of them not skipped */
    int64_t tokens, trained, skipped;
    int64_t bad;       /* skipped in a row, until now */
    int64_t fallbacks; /* times it went back to a checkpoint for that */
    int64_t good; /* step of the checkpoint it would go back to: the newest that depends on no clock and no pause */
    int64_t evaluated; /* step of the last evaluation; -1 */
    int64_t worse;     /* evaluations without improvement, until now */
    int64_t best_step; /* -1: none */
    int64_t stopped;   /* early */
    double best_loss, best_accuracy;
    double rate_scale;
    double seconds;
};

struct train {
    struct train_job job; /* its texts are ours */
    struct train_params p;
    struct model *model;
    struct dev *d;
    struct scheduler_gate *gate;
    bool lora_method, bf16_x; /* as the device had it */
    bool took;                /* memory of the device */

    struct optim o;
    struct train_lora lora;
    struct train_full full;
    struct train_model tm;
    struct train_rows rows, eval;
    struct micro micro;
    struct train_plan plan;
    struct train_state st;

    float *host[ARRAYS]; /* p, m, v, avg as the host sees them: the device's own, or copies for checkpoints */
    float *best;         /* the best evaluated p, or avg; NULL without evaluation */
    char *ckpt_dir;
    uint64_t hash;
    int64_t saved;     /* step of the newest checkpoint; -1 */
    uint64_t saved_at; /* clock */
    bool resumed;
    struct buf warnings; /* of open */

    train_event_fn *fn;
    void *arg;
    double run_seconds; /* of the steps of this run */
    int64_t run_steps;
    int norm_warnings;
    atomic_int command;
};

/* events.c */
struct train_event train_event_of(const struct train *, enum train_event_kind);
void train_tell(struct train *, enum train_event_kind, const char *text);
__attribute__((format(printf, 2, 3))) void train_warn(struct train *, const char *fmt, ...);
void train_tell_warnings(struct train *); /* collected while opening and loading checkpoints */
/* An op of this job failed.  Beside serving the gate has the error: the device's is of who has the device. */
bool train_device_failed(struct train *, struct err *);

/* save.c */
struct op_chunks train_chunks(const struct train *);
/* An array of the optimizer on the device, as host[i] is on the host; NULL: there is none of it. */
float *train_device_array(const struct train *, int i);
int train_save(struct train *, struct err *);
/* The newest checkpoint of step `most` or before, if there is one: t->saved >= 0. */
int train_load(struct train *, int64_t most, struct err *);

/* result.c */
int train_result_array(const struct train *); /* which array is evaluated and written */
int train_write_result(struct train *, struct err *);

/* plan.c: all that can be said without the device: nothing is computed or taken. */
int train_make_plan(struct train *, struct err *);

#endif
