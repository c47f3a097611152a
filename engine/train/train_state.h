/* Private state of a trainer, shared by train.c (opening), plan.c, loop.c, save.c, result.c and events.c.  Trainer
 * thread only, except `command`. */
#ifndef TANDEM_ENGINE_TRAIN_TRAIN_STATE_H
#define TANDEM_ENGINE_TRAIN_TRAIN_STATE_H

#include "engine/base/buf.h"
#include "engine/model/model.h"
#include "engine/train/full.h"
#include "engine/train/lora.h"
#include "engine/train/model.h"
#include "engine/train/objective.h"
#include "engine/train/op_chunks.h"
#include "engine/train/optim.h"
#include "engine/train/params.h"
#include "engine/train/prefetch.h"
#include "engine/train/reference.h"
#include "engine/train/rows.h"
#include "engine/train/scheduler_gate.h"
#include "engine/train/speed.h"
#include "engine/train/step_clock.h"
#include "engine/train/train.h"

#include <stdatomic.h>

enum { ARRAYS = 4 }; /* arrays of the optimizer in a checkpoint */

/* The part of a checkpoint besides the arrays; fields of eight bytes, no padding. */
struct train_state {
    int64_t step;    /* steps done */
    int64_t updates; /* steps not skipped */
    int64_t tokens, trained, skipped;
    int64_t bad;       /* consecutive steps skipped so far */
    int64_t fallbacks; /* number of fallbacks to a checkpoint because of them */
    int64_t good; /* step of the checkpoint to fall back to: the newest one whose step does not depend on the clock or a
                     pause */
    int64_t evaluated; /* step of the last evaluation; -1 */
    int64_t worse;     /* consecutive evaluations without improvement */
    int64_t best_step; /* -1: none */
    int64_t stopped;   /* early */
    double best_loss, best_accuracy;
    double rate_scale;
    double seconds;
};

struct train {
    struct train_job job; /* its strings are owned copies */
    struct train_params p;
    struct model *model;
    struct dev *d;
    struct scheduler_gate *gate;
    bool lora_method, bf16_x; /* the device's setting before the job */
    bool took;                /* device memory was allocated */

    struct optim o;
    struct train_lora lora;
    struct train_full full;
    struct train_model tm;
    int unit; /* most tokens of a unit; a micro-batch has one, or more (fit.c) */
    struct train_rows rows, eval;
    struct prefetch *next, *next_eval; /* of rows, eval, while the job runs; next_eval NULL: none */
    struct micro micro; /* for the dry run, to replay a step, and for log-probabilities beside the steps */
    bool preferences;
    struct objective objective;                 /* with preferences */
    struct reference reference, eval_reference; /* of rows, eval */
    struct train_plan plan;
    struct train_state st;

    float *host[ARRAYS]; /* p, m, v, avg on the host: the device's arrays when they are in the host's memory, else
                            copies for checkpoints */
    float *best;         /* the best evaluated p, or avg; NULL without evaluation */
    char *ckpt_dir;
    uint64_t hash;
    int64_t saved;     /* step of the newest checkpoint; -1 */
    uint64_t saved_at; /* clock */
    bool resumed;
    struct buf warnings; /* collected by open */

    train_event_fn *fn;
    void *arg;
    struct step_clock clock;
    struct train_usage usage;
    struct speed speed;
    int cores;         /* that the process may use */
    uint64_t peaks_at; /* clock, when the peaks were last read */
    int norm_warnings;
    struct buf where;   /* of the last step that was replayed, what train_locate found; owned */
    int64_t where_step; /* that step; -1: none */
    int located;        /* steps replayed in this run */
    atomic_int command;
};

/* events.c */
struct train_event train_event_of(const struct train *, enum train_event_kind);
void train_emit(struct train *, enum train_event_kind, const char *text);
__attribute__((format(printf, 2, 3))) void train_warn(struct train *, const char *fmt, ...);
void train_emit_warnings(struct train *); /* collected while opening and loading checkpoints */
/* Whether an op of this job failed.  While serving, the error is in the gate; the device's own error belongs to the
 * thread that uses the device. */
bool train_device_failed(struct train *, struct err *);

/* locate.c: replays a step that had a loss or a gradient that is not finite, with the same weights and dropout, and
 * appends where the first such value is: layer, pass, op, tensor, and the line of the row in the data.  The gradients
 * are overwritten.  @return whether it was found. */
bool train_locate(struct train *, int64_t step, struct buf *out);
/* Reads the peaks of memory into t->usage, at most once a second unless `now`. */
void train_note_peaks(struct train *, bool now);

/* save.c */
struct op_chunks train_chunks(const struct train *);
/* The optimizer's device array that corresponds to host[i]; NULL: not present. */
float *train_device_array(const struct train *, int i);
size_t train_array_floats(const struct train *, int i);
bool train_array_on_host(const struct train *, int i); /* although the device has its own memory */
int train_save(struct train *, struct err *);
/* Loads the newest checkpoint of step `most` or earlier; if there was one, t->saved >= 0. */
int train_load(struct train *, int64_t most, struct err *);

/* result.c */
int train_result_array(const struct train *); /* which array is evaluated and written */
int train_write_result(struct train *, struct err *);

/* reference.c: log-probabilities of preferences beside the steps.  The rows must be nobody else's. */
/* Those of the reference, computed or read from the job's directory.  @return 0; ERR_FULL: a command came. */
int train_reference_open(struct train *, struct err *e);
/* The bytes that they take on the host; 0: the method has no reference.  After the rows and the objective are set. */
int train_reference_bytes(const struct train *, size_t *bytes, struct err *);
/* kto: sets the objective's kl for a step of rows, or of eval.  @return 0, or *e. */
int train_reference_kl(struct train *, bool eval, int64_t step, struct err *e);

/* fit.c: how many units a micro-batch has: one, unless micro_tokens is MICRO_TOKENS_AUTO. */
bool train_fits_units(const struct train *);          /* whether several, with the same result */
int train_fit_most(const struct train *);             /* tokens worth having in a micro-batch, memory aside */
int train_fit_half(const struct train *, int tokens); /* half as many, at least those of a unit */
/* After memory was short (e): allocates smaller micro-batches, and leaves a warning.  @return false: e is something
 * else, or they cannot be smaller. */
bool train_fit_less(struct train *, struct err *e);

/* plan.c: the plan, without using the device: nothing is computed or allocated. */
int train_make_plan(struct train *, struct err *);

#endif
