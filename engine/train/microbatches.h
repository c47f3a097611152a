/* Which rows are trained together: an epoch is partitioned into optimizer steps, a step into micro-batches.
 *
 * Pure: a function of the rows' lengths, the seed and the number of the epoch, so a job can resume at any (epoch,
 * step). micro_tokens, packing and slots choose only how a step is partitioned, not which rows are in it.  Rows are
 * neither padded nor truncated: in a micro-batch they are concatenated, each a sequence of its own. */
#ifndef TANDEM_ENGINE_TRAIN_MICROBATCHES_H
#define TANDEM_ENGINE_TRAIN_MICROBATCHES_H

#include <stdbool.h>
#include <stdint.h>

struct microbatches_options {
    uint64_t seed;
    int batch_tokens; /* of a step at most; a longer row forms a step of its own */
    int micro_tokens; /* of a micro-batch at most; a longer row forms one of its own */
    bool packing;     /* a step's rows fill as few micro-batches as best fit decreasing finds; else in order */
    bool by_length;   /* without packing: a step has rows of similar length */
    bool in_order;    /* rows in their given order, for evaluation; by_length is ignored */
    int slots;        /* a step's rows are first divided into so many slots of about as many tokens; 0: one */
};

struct microbatches;

/* length (n): tokens of each row, >= 1, copied; n >= 1.  microbatches_epoch must be called before a step is requested.
 */
struct microbatches *microbatches_new(const uint32_t *length, uint32_t n, const struct microbatches_options *);
void microbatches_free(struct microbatches *);

/* Computes the order of that epoch; @return its number of steps, >= 1. */
uint32_t microbatches_epoch(struct microbatches *, uint32_t epoch);

/* Micro-batch i is rows row[start[i]] .. row[start[i + 1] - 1]; slot s has micro-batches slot[s] .. slot[s + 1] - 1,
 * none when the step has few rows. */
struct microbatches_step {
    const uint32_t *row; /* rows, as numbered in length */
    const uint32_t *start;
    uint32_t n_micro, n_rows;
    const uint32_t *slot;
    const uint32_t *order; /* (n_rows) the same rows in the epoch's order, which does not depend on the micro-batches */
    uint32_t first;        /* rows of the epoch before this step */
};

/* A step of the epoch computed last; valid until the next call. */
struct microbatches_step microbatches_step(struct microbatches *, uint32_t step);

/* No micro-batch is longer. */
int microbatches_micro_max(const struct microbatches *);

#endif
