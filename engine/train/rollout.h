/* The steps of method grpo: which prompts a step has, what is sampled for them (train_rollout in train.h), and the
 * gradient of their texts.  The part of a trainer's private state for it; trainer thread. */
#ifndef TANDEM_ENGINE_TRAIN_ROLLOUT_H
#define TANDEM_ENGINE_TRAIN_ROLLOUT_H

#include "engine/train/grpo.h"
#include "engine/train/model.h"
#include "engine/train/rows.h"

struct rollout {
    struct train_rollout task; /* of the present step; its texts are owned */
    double *advantage;         /* (task.n) */
    float **reference; /* (task.n) log-probabilities of the base for the text's tokens; NULL: not computed yet */
    int64_t tokens;    /* of the step's texts */
    struct train_rewards rewards;
    uint32_t *order; /* (rows.n) of the epoch `epoch`; NULL before the first step */
    int epoch;
};

struct rollout_sums {
    double loss, kl;
    int64_t hits, tokens, clipped, computed, micro_batches; /* tokens: targets; computed: all that went through */
};

/* Fills rows with the set's prompts and their steps: an epoch has each prompt once, in steps of prompts_per_step.  As
 * train_rows_open. */
int rollout_rows_open(struct train_rows *, const struct train_job *, const struct train_params *, int vocab,
                      uint64_t *left_out, struct err *e);

struct train;
/* Samples the texts of the step, and judges them.  @return 0, or *e. */
int rollout_sample(struct train *, struct err *e);
/* Adds the gradients of all texts, and to *sum.  first: their weights are those that the texts were sampled from. */
int rollout_gradients(struct train *, bool first, struct rollout_sums *sum, struct err *e);
/* The metrics of the step; sum: of its last pass. */
struct train_rewards rollout_rewards(const struct train *, const struct rollout_sums *sum);
/* For train_model's weigh; arg: the trainer. */
void rollout_weigh(void *arg, const struct micro *, const float *loss, float *factor);
void rollout_free(struct rollout *);

#endif
