/* The objective of preference training (preference.h) over the micro-batches of a step. */
#ifndef TANDEM_ENGINE_TRAIN_OBJECTIVE_H
#define TANDEM_ENGINE_TRAIN_OBJECTIVE_H

#include "engine/train/model.h"
#include "engine/train/preference.h"
#include "engine/train/train.h"

struct objective {
    struct preference p;
    bool singles;   /* kto: answers with a label, not pairs */
    bool reference; /* its loss needs the reference's log-probabilities */
    bool texts; /* orpo: plus the mean -log p of the chosen texts' tokens, those of the prompt included, as in TRL */
    /* of the present step */
    int64_t rows, chosen_tokens; /* of the whole step; chosen_tokens: train_rows_chosen */
    double kl;
    const double *known; /* the reference's: of row i (2 i: chosen, 2 i + 1: rejected), singles: (i) */
};

/* Sums over rows; zero before the first. */
struct objective_sums {
    double loss, text_loss, chosen, rejected, kl;
    int64_t rows, tokens, n_chosen, n_rejected, accurate;
};

struct objective objective_of(const struct train_params *);

/* Adds the rows of a micro-batch.  loss: -log p of each target; of method reward minus the score there. */
void objective_add(const struct objective *, const struct micro *, const float *loss, struct objective_sums *);
/* For train_model's weigh; arg: the struct objective. */
void objective_weigh(void *arg, const struct micro *, const float *loss, float *factor);
double objective_loss(const struct objective_sums *);
struct train_rewards objective_rewards(const struct objective *, const struct objective_sums *);

/* The answer of sequence i; its reference is not set. */
struct preference_answer objective_answer(const struct micro *, int i, const float *loss);

#endif
