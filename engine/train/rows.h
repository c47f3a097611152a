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
    uint32_t *length, *trained; /* (n) tokens to compute: those before the last target; number of targets.  Of a pair,
                                   of both sequences together */
    uint32_t *chosen;           /* (n) of pairs: those of the chosen one */
    bool scores; /* of pairs: a sequence's only target is its last token that is no pad, where its score is read */
    int32_t pad;
    bool texts;               /* the prompts of chosen sequences are targets, too (objective.h) */
    uint64_t tokens, targets; /* sums */
    struct microbatches *batches;
    int epochs;
    int64_t *before; /* (epochs + 1) steps before each epoch; the last entry: total */
    int64_t *whole;  /* (epochs) steps of each epoch, unless max_steps ends it early */
    int epoch;       /* epoch that `batches` is set to; -1: none */
};

/* Row i's ids are untrusted: they come from a file. */
int train_row_check_ids(const struct dataset_row *, uint64_t i, int vocab, struct err *);

/* Fills train, and eval (n 0: none), from the job's sets.  Rows without a target within max_length are counted in
 * *left_out.  p must have been checked.  vocab, pad: the model's; ERR_INVALID when an id is not below vocab.  Both are
 * zero before the call; free both, also after an error. */
int train_rows_open(struct train_rows *train, struct train_rows *eval, const struct train_job *,
                    const struct train_params *, int vocab, int32_t pad, uint64_t *left_out, struct err *);
void train_rows_close(struct train_rows *);

/* step: of the whole job, 0 .. before[epochs] - 1. */
struct microbatches_step train_rows_step(struct train_rows *, int64_t step);
int train_rows_epoch(const struct train_rows *, int64_t step); /* @return the epoch of the step */
int64_t train_rows_targets(const struct train_rows *, const struct microbatches_step *);
int64_t train_rows_chosen(const struct train_rows *, const struct microbatches_step *); /* tokens of chosen sequences */
/* Tokens of the prompt of one row with the answer of another, as computed; at most max_length. */
int train_rows_crossed(const struct train_rows *, uint32_t prompt, uint32_t answer);
/* No such pair of rows has more. */
int train_rows_crossed_max(const struct train_rows *);

/* Tokens of micro-batch i of a step: a unit (params.h). */
int train_rows_tokens(const struct train_rows *, const struct microbatches_step *, uint32_t i);

/* Arrays for max_tokens tokens of a model with this near_len, filled with the units from .. to - 1 of a step.  before:
 * number of tokens of the step before them. */
void micro_open(struct micro *, int max_tokens, int near_len);
void micro_fill(struct micro *, const struct train_rows *, const struct microbatches_step *, uint32_t from, uint32_t to,
                uint64_t before);
/* The same, row by row: cleared, filled with rows, and with the answers of others (sequence `number`), ended as one
 * unit. The caller sees to it that they fit. */
void micro_clear(struct micro *);
void micro_add(struct micro *, const struct train_rows *, uint32_t row);
void micro_add_crossed(struct micro *, const struct train_rows *, uint32_t prompt, uint32_t answer, uint32_t number);
/* A text that was sampled: n ids, of which those from n_prompt >= 1 on are targets; logprob (n - n_prompt): what
 * sampling gave these; NULL: it is not compared.  number: the sequence's `row`. */
void micro_add_text(struct micro *, const int32_t *id, const float *logprob, int n_prompt, int n, uint32_t number);
void micro_end(struct micro *);
/* Sequences of len tokens, of which each is a target, n_tokens in all; the ids are left as they are: for dry runs. */
void micro_uniform(struct micro *, int n_tokens, int len);
void micro_close(struct micro *);

#endif
