/* The rows of a job: which are trained and which are held out, how they come in steps, and a micro-batch of them as the
 * model takes it. */
#ifndef TANDEM_ENGINE_TRAIN_ROWS_H
#define TANDEM_ENGINE_TRAIN_ROWS_H

#include "engine/data/dataset.h"
#include "engine/train/microbatches.h"
#include "engine/train/model.h"
#include "engine/train/train.h"

struct train_rows {
    const struct dataset *set;
    uint32_t n;
    uint32_t *index;            /* (n) rows of the set */
    uint32_t *length, *trained; /* (n) tokens computed: up to the last target, itself not counted; targets */
    uint64_t tokens, targets;   /* sums */
    struct microbatches *batches;
    int epochs;
    int64_t *before; /* (epochs + 1) steps before each epoch; the last: of all */
    int64_t *whole;  /* (epochs) steps of each epoch if it is not cut short */
    int epoch;       /* that batches has made; -1 */
};

/* train, and eval (n 0: none) from the job's sets.  Rows without a target within max_length are counted in *left_out.
 * p checked; vocab: of the model, ERR_INVALID where an id is not below it.  Free both, also after an error (they are
 * zero before). */
int train_rows_open(struct train_rows *train, struct train_rows *eval, const struct train_job *,
                    const struct train_params *, int vocab, uint64_t *left_out, struct err *);
void train_rows_close(struct train_rows *);

/* Step of the whole job, 0 .. before[epochs] - 1. */
struct microbatches_step train_rows_step(struct train_rows *, int64_t step);
int train_rows_epoch(const struct train_rows *, int64_t step); /* in which epoch it is */
int64_t train_rows_targets(const struct train_rows *, const struct microbatches_step *);

/* Arrays for max_tokens; then filled with micro-batch i of a step.  first: tokens of the step before it. */
void micro_open(struct micro *, int max_tokens);
void micro_fill(struct micro *, const struct train_rows *, const struct microbatches_step *, uint32_t i,
                uint64_t before);
void micro_close(struct micro *);

#endif
