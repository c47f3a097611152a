/* Fine-tuning: a trainer runs one job on the weights that are being served, or on its own.
 *
 * Threads.  A trainer has a thread of its own.  It passes its scheduler gate before every op (scheduler_gate.h), so
 * that serving and training share the device without ever using it at the same time.  Events come by a callback on the
 * trainer thread; commands are one atomic word.
 *
 * A trainer's whole state is in its checkpoints, which are written under another name and renamed.  A trainer opened on
 * a directory with a checkpoint resumes from it and ends with the bytes of an unbroken run. */
#ifndef TANDEM_ENGINE_TRAIN_TRAIN_H
#define TANDEM_ENGINE_TRAIN_TRAIN_H

#include "engine/base/err.h"
#include "engine/data/dataset.h"
#include "engine/model/lora_targets.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct comm;
struct engine;
struct dataset_report;

/* ---- what to do ------------------------------------------------------------------------------------------------ */

/* qlora: lora that requires a quantised base.  The last ones train an adapter on preferences (preference.h): on pairs,
 * kto on answers with a label, reward a head of scores with it; grpo on texts that the model samples between two steps
 * (grpo.h); distill on how a teacher continues the rows (teacher.h). */
enum train_method {
    TRAIN_LORA,
    TRAIN_QLORA,
    TRAIN_FULL,
    TRAIN_DPO,
    TRAIN_ORPO,
    TRAIN_SIMPO,
    TRAIN_KTO,
    TRAIN_GRPO,
    TRAIN_REWARD,
    TRAIN_DISTILL
};
enum { TRAIN_METHODS = TRAIN_DISTILL + 1 };
enum train_schedule { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE };
enum train_optimizer { OPTIMIZER_ADAMW, OPTIMIZER_MUON, OPTIMIZER_ADAMW_8BIT };
enum train_recompute { RECOMPUTE_AUTO, RECOMPUTE_ON, RECOMPUTE_OFF }; /* gradient checkpointing */

enum { MICRO_TOKENS_AUTO = -1, GRAD_SLOTS_MAX = 64, GRAD_SLOTS_OF_RANKS = 8 };

/* Of grpo: over what the loss of a text is a mean, and by what advantages are divided (grpo.h). */
enum train_loss_type { LOSS_GRPO, LOSS_DR_GRPO, LOSS_DAPO };
enum train_scale { SCALE_AUTO, SCALE_GROUP, SCALE_BATCH, SCALE_NONE }; /* auto: group; dr_grpo none */

struct train_params {
    enum train_method method;
    double epochs;                /* (0, 1000]; 3 */
    int64_t max_steps;            /* > 0: ends there at the latest; 0 */
    int batch_tokens;             /* approximate tokens of an optimizer step; 16..1048576; 2048 */
    int micro_tokens;             /* tokens per micro-batch; 0: batch_tokens, at most 2048, at least max_length;
                                     MICRO_TOKENS_AUTO: as many as fit into memory, with the same result for any number */
    int grad_slots;               /* a step's rows are divided into so many slots, a power of two, whose gradients are
                                     summed in a binary tree: the result is the same on any number of ranks that divides
                                     it; 0: 1, of a job on ranks GRAD_SLOTS_OF_RANKS, or as many as there are ranks */
    int zero;                     /* on ranks: what is divided over them.  0: nothing; 1: the optimizer's state, of
                                     method full the f32 values, too; 2: gradients, too; 3: the weights of the layers, too.  The
                                     result is the same; 0 */
    int memory_mib;               /* memory that the job may take at most, in MiB; 0: what is free */
    int max_length;               /* longer rows are truncated to this many tokens; 8..the model's; 512 */
    double learning_rate;         /* (0, 1]; 2e-4, full 5e-5 */
    enum train_schedule schedule; /* cosine */
    double min_lr_ratio;          /* of learning_rate at the end of linear and cosine; [0, 1]; 0 */
    double warmup_ratio;          /* of all steps; [0, 1]; 0.03 */
    int64_t warmup_steps;         /* >= 0 instead of the ratio; -1 */
    double weight_decay, beta1, beta2, epsilon; /* 0 (full 0.01), 0.9, 0.999, 1e-8.  Biases and norms are not decayed */
    double max_grad_norm;                       /* 0: off; 1 */
    enum train_optimizer optimizer; /* adamw; adamw_8bit: with moments in 8 bits (optim.h); full: muon for the layers'
                                       matrices, adamw for the rest (muon.h) */
    bool offload_optimizer;         /* its moments in the host's memory, where the device has its own; false */
    double dropout;                 /* full: on the outputs of attention and feed-forward and on embeddings; 0 */
    double ema_decay;               /* full: > 0: the average of the weights is evaluated and written; 0 */
    int lora_r;                     /* 1..256; 16 */
    double lora_alpha;              /* (0, 4096]; 32 */
    double lora_dropout;            /* 0 */
    bool use_rslora;
    double beta; /* of preferences: (0, 1000]; 0: 0.1, simpo 2; of grpo: of the distance to the base, 0: it is
                    not computed; of distill: which divergence (divergence.h), [0, 1]; 0.5; 0 with other methods, as the
                    next five */
    double label_smoothing;                      /* dpo, simpo: [0, 0.5); 0 */
    double gamma;                                /* simpo: >= 0; 1; reward: 0 */
    double center;                               /* reward: center_rewards_coefficient, [0, 1000]; 0 */
    double desirable_weight, undesirable_weight; /* kto: >= 0; 1 */
    int teacher_top_k;          /* distill: how many of the teacher's tokens are told apart, 1..1024; 64; else 0 */
    int samples;                /* grpo: texts of a prompt, 2..1024; 8; these are all 0 with other methods */
    int prompts_per_step;       /* 1..1024, and together at most TRAIN_TEXTS_MAX texts; 4 */
    int max_new_tokens;         /* of a text, below max_length; 128 */
    double temperature;         /* (0, 10]; 1 */
    int iterations;             /* optimizer steps with the texts of a step; 1..64; 1 */
    double clip_low, clip_high; /* how far below and above 1 the ratio of the policies counts: (0, 1], (0, 100]; 0.2 */
    enum train_loss_type loss_type;
    enum train_scale scale_rewards;
    bool mask_truncated;    /* texts that max_new_tokens ended are not trained on */
    unsigned targets;       /* of enum lora_target; TARGET_ALL */
    bool packing;           /* pack a step's rows into as few micro-batches as possible; true */
    bool group_by_length;   /* without packing: a step has rows of similar length; true */
    double eval_fraction;   /* [0, 0.5] fraction of the rows held out, unless eval data is given; 0 */
    int64_t eval_steps;     /* 0: at the end of each epoch */
    bool eval_on_start;     /* also before the first step; the result is the start when no step is better */
    int64_t save_steps;     /* 0: every 2 minutes and every twentieth of all steps (50 to 500).  Evaluations and a pause
                               also make a checkpoint */
    int patience;           /* early_stopping_patience: stop after so many evaluations without improvement; 0: never */
    double min_improvement; /* early_stopping_threshold: smallest decrease of the loss that counts as one; 0 */
    enum train_recompute recompute;
    bool f32;         /* GEMMs in f32 even where bf16 is faster; while serving only those of adapters */
    bool exact;       /* the forward pass has the ops and types of serving (exact.h); without dropout */
    bool random_init; /* full: start from random weights of this shape, not the model's */
    uint64_t seed;    /* 42 */
};

void train_params_default(struct train_params *, enum train_method);
/* The grad_slots of a job on so many ranks that says nothing of them. */
int train_ranks_slots(int ranks);
static inline bool train_on_preferences(enum train_method m)
{
    return (m >= TRAIN_DPO && m <= TRAIN_KTO) || m == TRAIN_REWARD;
}
enum { TRAIN_TEXTS_MAX = 4096 }; /* of a step of grpo */

/* @return the name of a parameter that is set and for other methods, which *methods names; NULL: there is none. */
const char *train_preferences_wrong(const struct train_params *, const char **methods);
/* The same of grpo's parameters, also of grpo itself: *why says what is wrong with the one whose name is returned. */
const char *train_policy_wrong(const struct train_params *, const char **why);
/* The format that the method's data have, where `given` is DATASET_AUTO. */
enum dataset_format train_data_format(enum train_method, enum dataset_format given);
/* @return batch_tokens of steps of about so many rows, by their average length. */
int train_batch_tokens(int rows, const struct dataset_report *);

/* The range of a numeric parameter; every check uses these.  Limits are chosen for f32 arithmetic, in which a decay of
 * 0.99999999 would be 1. */
struct train_range {
    const char *name; /* as in requests and messages */
    double min, max;
    bool above_min; /* min itself is excluded */
};
/* @return NULL: the parameter has no range (switches, choices, the seed). */
const struct train_range *train_range(const char *name);
bool train_range_has(const struct train_range *, double v); /* false for NaN */

/* ---- the texts of grpo ----------------------------------------------------------------------------------------- */

struct train;

struct train_text {
    uint32_t row;   /* of the data set: its prompt */
    uint64_t seed;  /* of sampling: a function of the job's seed, the step and the text's number in it */
    int n_prompt;   /* tokens */
    int room;       /* that may follow */
    int n;          /* that were sampled, the end of text included */
    int32_t *id;    /* (n_prompt + room) the prompt's, then those */
    float *logprob; /* (room) that sampling gave those, before temperature */
    bool truncated; /* it is as long as it may be, and not at its end */
    double reward;
};

/* What a step is made of: `samples` texts of each of some prompts, one group after the other. */
struct train_rollout {
    struct train *train;
    int64_t step; /* done before it */
    double temperature;
    int n, samples;
    struct train_text *text; /* (n) */
};

/* Samples the texts with the adapter as it is (train_adapter), and sets n, id, logprob, truncated and reward of each.
 * On the trainer's thread, which does not have the device meanwhile; ends early when train_stopped.  @return 0, or *e.
 */
typedef int train_rollout_fn(void *arg, struct train_rollout *, struct err *e);

/* Within that: whether a command came; once it did, that stays true, and what ends early for it is no failure. */
bool train_stopped(struct train *);
/* Within that: the adapter as it is now; valid until the call returns.  NULL and *e. */
struct adapter;
struct adapter *train_adapter(struct train *, struct err *e);

struct train_job {
    struct train_params p;
    /* Data: an opened set (dataset.h), borrowed until train_free. */
    const struct dataset *data, *eval; /* eval NULL: eval_fraction of data */
    const char *from;                  /* an adapter directory to continue training; NULL */
    const char *teacher;               /* of distill: an adapter directory; NULL: the model without adapter */
    const char *answers;   /* of distill: a directory with what another model, the teacher, says of all rows:
                              teacher_file.h, rows and of `eval` held-out; only planning needs no files in it; NULL */
    const char *base_name; /* base_model_name_or_path in the adapter's configuration */
    const char *model_dir; /* full: the base's directory, whose configuration and tokenizer are copied; NULL: none */
    const char *start; /* full: the directory of another model to train on the device of the served one, which has its
                          type of weights from its files; model_dir is its own; NULL: the served one */
    const char *dir;   /* the job's directory, with checkpoints/; created when missing; NULL: none are written */
    struct comm *comm; /* the ranks that train the job together (ranks.h), borrowed until train_free; NULL: only this
                          process.  Each is given the same job, and plans and computes the same; rank 0 writes */
    struct base_layers *base; /* adapters at stage 3: what the model's layers are gathered from (base_layers.h),
                                 borrowed until train_free; NULL: the model has them */
    const char *out; /* directory of the result: an adapter (full: a model), renamed into place at the end; NULL: none.
                        With evaluation the result is the best evaluated state, else the last. */
    train_rollout_fn *rollout; /* of grpo; a job that is only planned needs none */
    void *rollout_arg;
    uint64_t rewards_hash;   /* of grpo: of how texts are judged, which is part of what the job is */
    bool (*stop)(void *arg); /* polled while the job is planned, which takes seconds for many rows and epochs; true:
                                planning ends with ERR_FULL; NULL: never */
    void *stop_arg;
    void (*between)(void *arg); /* before each step, when what was due is done, and between the batches of an
                                   evaluation and of the reference; others may use the device meanwhile, by the same
                                   gate; NULL: nothing */
    void *between_arg;
};

/* ---- events ---------------------------------------------------------------------------------------------------- */

enum train_event_kind {
    TRAIN_PLAN,       /* before the first step: plan */
    TRAIN_STEP,       /* an optimizer step is done: metrics */
    TRAIN_EVAL,       /* eval_loss, eval_accuracy, best */
    TRAIN_SAVING,     /* before a checkpoint is written: events of earlier steps will not be repeated after a crash, so
                         a callback that stores events should make them durable now; the device is free meanwhile */
    TRAIN_CHECKPOINT, /* text: its directory */
    TRAIN_WARNING,    /* text: a skipped step, a suspicious gradient norm, omitted rows */
    TRAIN_RESUMED,    /* step: the checkpoint's */
    TRAIN_PAUSED,     /* a checkpoint is on the disk and the thread has ended */
    TRAIN_CANCELLED,
    TRAIN_LOST, /* the device was lost, the thread ends: a new process can resume from the last checkpoint */
    TRAIN_FAILED,
    TRAIN_SUCCEEDED /* the last event; the thread ends.  FAILED and LOST: text says why */
};

/* The parts of a step.  Docs: docs/training.md, "Where the time goes". */
enum train_part {
    TRAIN_DATA,      /* choosing the rows and filling the arrays of micro-batches */
    TRAIN_FORWARD,   /* to the loss */
    TRAIN_BACKWARD,  /* recomputed activations included */
    TRAIN_OPTIMIZER, /* clearing the gradients, their norm, the update */
    TRAIN_WAIT,      /* standing at the gate, while serving has the device */
    TRAIN_RANKS,     /* summing over the ranks, and waiting for the others */
    TRAIN_OTHER,
    TRAIN_PARTS
};
const char *train_part_name(enum train_part); /* "data", "forward", "backward", "optimizer", "wait", "ranks", "other" */

/* What a rank sent and received by one kind of operation.  seconds: from its call to its return, waiting included; from
 * stage 2 of zero on partly beside computing. */
enum { TRAIN_COLLECTIVES = 7 };
struct train_collective {
    int64_t calls, sent_bytes;
    double seconds;
};
const char *train_collective_name(int); /* "all-reduce", ... */

/* Of a rank: planned for states and activations; what the process, or the device with its own memory, grew by at most.
 */
struct train_rank_memory {
    size_t planned, taken;
};

/* What a job used since this run of it began: a job that resumes starts at zero. */
struct train_usage {
    int64_t steps, micro_batches, rows, tokens;
    int ranks;          /* 1: this process alone */
    int64_t sent_bytes; /* from this rank to others, evaluations and checkpoints included */
    struct train_collective collective[TRAIN_COLLECTIVES]; /* the same by operation */
    double link_seconds;                     /* of the steps, in which the rank that waited least exchanged data */
    double seconds;                          /* of the steps */
    double part[TRAIN_PARTS];                /* the same, by part */
    double eval_seconds, checkpoint_seconds; /* beside the steps */
    double cpu_seconds;                      /* processor time of the process during the steps, serving's included */
    double speed_ratio; /* of the last steps relative to the first, in computing; 0: unknown, also when they waited */
    size_t host_peak;   /* resident bytes of the process at their highest */
    size_t device_peak; /* bytes allocated on a device with its own memory at their highest, serving's included; 0: the
                           device uses the host's */
};

struct train_plan {
    int64_t steps, rows, eval_rows, tokens_per_epoch, trained_tokens_per_epoch;
    size_t weight_bytes, trainable, state_bytes, activation_bytes; /* trainable: parameters */
    size_t moment_bytes;    /* of the optimizer's moments; part of state_bytes, unless `offload` */
    size_t reference_bytes; /* of preferences, on the host; part of state_bytes, unless `own_memory` */
    bool offload;           /* the moments are in the host's memory, the rest in the device's own */
    int micro_tokens;       /* of a micro-batch at most */
    bool recompute;
    int most_tokens;       /* what micro_tokens would be with more memory */
    size_t kept_bytes;     /* activation_bytes if nothing were recomputed */
    size_t room_bytes;     /* memory that was free for states and activations; TRAIN_ROOM_MOST of it may be used */
    int threads, cores;    /* of the device; that the process may use, 0: the device has its own */
    bool own_memory;       /* the device does not use the host's */
    int texts;             /* of grpo: that a step has at most; 0 with other methods */
    double macs_per_token; /* multiply-adds of a token in a step, without attention */
};
#define TRAIN_ROOM_MOST 0.95

/* A part of the parameters and the norm of its gradients, before clipping: "layer.0", "layer.1" ..., "embeddings" (also
 * those of positions; a tied head's), "head" (with the norm before it). */
enum { TRAIN_GROUP_NAME_MAX = 24 };
struct train_group_norm {
    char name[TRAIN_GROUP_NAME_MAX];
    double norm;
};

/* Means over the rows of a step or an evaluation, as TRL names them; NAN: the method has none. */
struct train_rewards {
    double chosen, rejected; /* kto: of the desirable and the undesirable answers; NAN: there is none */
    double accuracies;       /* share of the pairs whose chosen answer has the larger reward */
    double margins;          /* chosen - rejected */
    double kl;               /* kto; grpo with beta: mean over the tokens */
    /* grpo */
    double reward, reward_std; /* mean over the texts; over the groups of the deviation within one */
    double zero_std;           /* share of the groups whose texts all have the same reward */
    double length, truncated;  /* mean tokens of a text; share of the texts that ended for their length */
    double clipped;            /* share of the tokens whose ratio was clipped */
};

enum { TRAIN_REWARDS = 11 };
extern const struct train_rewards train_no_rewards; /* all NAN */
struct train_reward {
    const char *name; /* "rewards/chosen" ..., "kl", "reward" ... */
    double v;
};
/* Those that there are.  @return their number. */
int train_rewards_list(const struct train_rewards *, struct train_reward out[TRAIN_REWARDS]);

/* After it nothing of the job may be accessed: its owner may start the next one. */
bool train_event_is_last(enum train_event_kind);

struct train_event {
    enum train_event_kind kind;
    int64_t step, steps; /* done, of all */
    double epoch;
    double loss;                  /* mean over the trained tokens of the step; of preferences over its rows */
    struct train_rewards rewards; /* STEP and EVAL */
    double accuracy;              /* of next-token prediction, teacher-forced; of method reward, of pairs */
    double grad_norm;             /* before clipping */
    double learning_rate;
    double tokens_per_s; /* all tokens of the step, over its wall time */
    double rows_per_s, macs_per_s;
    double part[TRAIN_PARTS];       /* seconds of the step by part; STEP only */
    double host_use, device_use;    /* of the step: shares of the cores' time that the process took, and of the device's
                                       in which it computed for the job; STEP only */
    int64_t tokens, trained_tokens; /* so far */
    double seconds, eta_s; /* training time so far, including earlier runs; estimated remaining time, NAN: unknown */
    int64_t skipped;       /* steps skipped so far for a non-finite loss or gradient */
    double eval_loss, eval_accuracy;
    bool best;                /* the best evaluation so far */
    double best_eval_loss;    /* so far, earlier runs included; NAN: none */
    int64_t best_step;        /* its step; -1: none */
    int64_t evals_since_best; /* evaluations since the best one, that one not counted */
    struct train_usage usage;
    const struct train_group_norm *group_norm; /* (n_group_norms) of the step, until the callback returns; STEP only */
    size_t n_group_norms;
    const struct train_rank_memory *rank_memory; /* (usage.ranks); SUCCEEDED and PAUSED of several ranks; else NULL */
    const struct train_plan *plan;
    const char *text;
};

typedef void train_event_fn(void *arg, const struct train_event *); /* on the trainer's thread; must not block long */

/* Of the process, since its start: trained tokens whose data say which log-probability sampling gave them, and those of
 * them whose log-probability in training has other bits.  Any thread. */
struct train_sampled {
    uint64_t tokens, differing;
};
struct train_sampled train_sampled(void);

/* ---- the trainer ----------------------------------------------------------------------------------------------- */

struct train;
struct scheduler_gate;

/* Plans and allocates; NULL and *e: a parameter out of range (the message names it), too little memory (the message
 * says how much is needed and what to change), a checkpoint that does not belong to this job.  gate NULL: only the
 * trainer uses the device.  The model's weights are borrowed until train_free. */
struct model;
struct train *train_open(const struct train_job *, struct model *, struct scheduler_gate *, struct err *e);
/* Only plans, with the same errors.  Any thread, even while the model is served or trained.  dir and out may be NULL.
 */
int train_plan_job(const struct train_job *, struct model *, struct scheduler_gate *, struct train_plan *,
                   struct err *e);
/* Runs in the caller's thread until the last event. */
void train_run(struct train *, train_event_fn *, void *arg);
/* At the next micro-batch the trainer writes a checkpoint and ends with PAUSED or CANCELLED. */
enum train_command { TRAIN_GO_ON, TRAIN_PAUSE, TRAIN_CANCEL };
void train_command(struct train *, enum train_command); /* any thread */
const struct train_plan *train_plan(const struct train *);
void train_free(struct train *);

#endif
