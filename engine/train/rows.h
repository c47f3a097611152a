/* The rows of a job: which are trained and which are held out, their assignment to steps, and micro-batches in the form
 * the model takes. */
#ifndef TANDEM_ENGINE_TRAIN_ROWS_H
#define TANDEM_ENGINE_TRAIN_ROWS_H

#include "engine/data/dataset.h"
#include "engine/train/microbatches.h"
#include "engine/train/model.h"
#include "engine/train/train.h"

struct train_rows {
    const struct dataset *set;
    uint32_t n;
    int max_length;             /* longer rows are truncated to it */
    uint32_t *index;            /* (n) indices of rows in the set */
    uint32_t *length, *trained; /* (n) tokens to compute: those before the last target; number of targets */
    uint64_t tokens, targets;   /* sums */
    struct microbatches *batches;
    int epochs;
    int64_t *before; /* (epochs + 1) steps before each epoch; the last entry: total */
    int64_t *whole;  /* (epochs) steps of each epoch, unless max_steps ends it early */
    int epoch;       /* epoch that `batches` is set to; -1: none */
};

/* Fills train, and eval (n 0: none), from the job's sets.  Rows without a target within max_length are counted in
 * *left_out.  p must have been checked.  vocab: the model's; ERR_INVALID when an id is not below it.  Both are zero
 * before the call; free both, also after an error. */
int train_rows_open(struct train_rows *train, struct train_rows *eval, const struct train_job *,
                    const struct train_params *, int vocab, uint64_t *left_out, struct err *);
void train_rows_close(struct train_rows *);

/* step: of the whole job, 0 .. before[epochs] - 1. */
struct microbatches_step train_rows_step(struct train_rows *, int64_t step);
int train_rows_epoch(const struct train_rows *, int64_t step); /* @return the epoch of the step */
int64_t train_rows_targets(const struct train_rows *, const struct microbatches_step *);

/* Tokens of micro-batch i of a step: a unit (params.h). */
int train_rows_tokens(const struct train_rows *, const struct microbatches_step *, uint32_t i);

/* Arrays for max_tokens tokens of a model with this near_len, filled with the units from .. to - 1 of a step.  before:
 * number of tokens of the step before them. */
void micro_open(struct micro *, int max_tokens, int near_len);
void micro_fill(struct micro *, const struct train_rows *, const struct microbatches_step *, uint32_t from, uint32_t to,
                uint64_t before);
/* Sequences of len tokens, of which each is a target, n_tokens in all; the ids are left as they are: for dry runs. */
void micro_uniform(struct micro *, int n_tokens, int len);
void micro_close(struct micro *);

#endif
