/* Private state of a trainer, shared by train.c (opening), plan.c, loop.c, save.c, result.c and events.c.  Trainer
 * thread only, except `command`. */
#ifndef TANDEM_ENGINE_TRAIN_TRAIN_STATE_H
#define TANDEM_ENGINE_TRAIN_TRAIN_STATE_H

#include "engine/base/buf.h"
#include "engine/model/model.h"
#include "engine/train/full.h"
#include "engine/train/grad_slots.h"
#include "engine/train/lora.h"
#include "engine/train/model.h"
#include "engine/train/objective.h"
#include "engine/train/op_chunks.h"
#include "engine/train/optim.h"
#include "engine/train/params.h"
#include "engine/train/prefetch.h"
#include "engine/train/ranks.h"
#include "engine/train/reference.h"
#include "engine/train/rollout.h"
#include "engine/train/rows.h"
#include "engine/train/scheduler_gate.h"
#include "engine/train/speed.h"
#include "engine/train/step_clock.h"
#include "engine/train/teacher.h"
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

enum outcome { GO_ON, DONE, PAUSED, CANCELLED, FAILED };

/* Of the rows of a slot, of one step or of the steps of an evaluation; or of all slots. */
struct step_sums {
    double loss;           /* over all targets */
    int64_t targets, rows; /* of the whole steps, in slot 0 */
    int64_t hits, tokens, micro_batches;
    struct objective_sums preferences;
    struct rollout_sums policy; /* of sampled texts; slot 0's */
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
    struct grad_slots slots;
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
    bool samples;                               /* method grpo: steps are of texts that are sampled */
    struct rollout rollout;
    bool distills; /* method distill */
    struct teacher teacher;
    struct train_plan plan;
    struct train_state st;

    float *host[ARRAYS]; /* p, m, v, avg on the host, of this rank: the device's arrays when they are in the host's
                            memory, else copies for checkpoints */
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
    size_t before;                                 /* bytes of the process, or the device, before the job took any */
    struct train_rank_memory memory, *rank_memory; /* of this rank; of all at the end, owned */
    int cores;                                     /* that the process may use */
    uint64_t peaks_at;                             /* clock, when the peaks were last read */
    int norm_warnings;
    struct buf where;   /* of the last step that was replayed, what train_locate found; owned */
    int64_t where_step; /* that step; -1: none */
    int located;        /* steps replayed in this run */
    atomic_int command;
    int seen;         /* that for which a part of the job ended early, whatever it is by now; TRAIN_GO_ON: none */
    bool torn;        /* the step has changed the weights and was left: no checkpoint can be made */
    int agreed;       /* with several ranks, the command that they follow */
    bool agreed_late; /* and rank 0's train_save_late */
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
/* Bytes of a device with its own memory, else of the process. */
size_t train_memory_used(const struct train *);

/* save.c */
struct op_chunks train_chunks(const struct train *);
/* The optimizer's device array that corresponds to host[i]; NULL: not present. */
float *train_device_array(const struct train *, int i);
size_t train_array_floats(const struct train *, int i); /* of this rank */
bool train_array_on_host(const struct train *, int i);  /* although the device has its own memory */
/* Whether the newest checkpoint is old.  Each rank has a clock of its own: they follow rank 0's. */
bool train_save_late(const struct train *);
/* Where arrays are divided, all ranks call it at the same step. */
int train_save(struct train *, struct err *);
/* Loads the newest checkpoint of step `most` or earlier; if there was one, t->saved >= 0. */
int train_load(struct train *, int64_t most, struct err *);

/* together.c: the ranks of a job.  Each of them calls these at the same point, even when it has failed before; with one
 * rank they do nothing else than return `o` or `rc`. */
/* After the steps' slots of this rank were computed: *sum of all slots. */
enum outcome train_gather_sums(struct train *, enum outcome o, struct step_sums slot[GRAD_SLOTS_MAX],
                               struct step_sums *sum, struct err *);
/* At stage 3 the layers' weights are gathered when this model uses them, from now on (layer_gather.h). */
void train_gather_layers(struct train *, struct train_model *);
/* The ranks do that together in each pass.  Where they have different numbers of passes, each asks before its own, and
 * without one until the answer is false; below stage 3 that is what the answer is. */
bool train_any_runs(struct train *, bool own);
void train_skim(struct train *, bool back); /* a pass of others: this rank gathers, and sums, but computes nothing */
/* The gradients become those of all slots. */
enum outcome train_reduce_gradients(struct train *, struct err *);
/* Before a step: whether all go on, with which command, and whether a checkpoint is due by the clock; exchanged: the
 * seconds in which this rank exchanged data since the last call. */
enum outcome train_agree(struct train *, enum outcome o, double exchanged, struct err *);
double train_gather_seconds(const struct train *); /* that this rank has spent in gathering so far */
void train_gather_memory(struct train *);          /* at the end: t->rank_memory */
/* Whether all ranks have the same job, and compute it with the same instructions. */
int train_same_job(struct train *, struct err *);
/* After rank 0 has read what is done of the reference's log-probabilities: the others get them. */
int train_share_reference(struct train *, int64_t *done, int rc, struct err *);
void train_note_ranks(struct train *); /* in t->usage */
/* The model computes with these values from now on: o.p or o.avg.  Overwrites gradients where arrays are divided. */
void train_use(struct train *, float *values);
/* After rank 0 has read a checkpoint, with the result rc: the others get its state.  Where the arrays are divided, the
 * others are here while it reads. */
int train_share_state(struct train *, int rc, struct err *);

/* scatter.c: arrays of a checkpoint that are divided over the ranks, by number, or SCATTER_BEST.  Rank 0 calls get and
 * put for n bytes (values: floats) from `at` on, with arg a struct scattered, then end; the others only end, which
 * returns after rank 0's.  Of no divided arrays end does nothing. */
enum { SCATTER_BEST = ARRAYS };
struct scattered {
    struct train *t;
    int array;
};
int train_scatter_get(void *arg, size_t at, size_t n, void *out, struct err *);
int train_scatter_put(void *arg, size_t at, size_t n, const void *, struct err *);
int train_scatter_values(void *arg, size_t at, size_t n, float *out, struct err *);
void train_scatter_end(struct train *);

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
