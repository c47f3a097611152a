/* Log-probabilities of the reference, of all answers that preference training compares with it: the model as the job
 * finds it, without a new adapter.  They are computed before the first step, and kept in the job's directory
 * (reference/, ckpt.h), so that a job that resumes has the same.
 *
 * kto also needs those of prompts with the answers of other rows: within a step, each prompt with the answer of the row
 * before it in the epoch's order, the first with the last one's (TRL's rotation), whatever the micro-batches. */
#ifndef TANDEM_ENGINE_TRAIN_REFERENCE_H
#define TANDEM_ENGINE_TRAIN_REFERENCE_H

#include <stddef.h>

struct reference {
    double *v; /* (n) of pairs (rows, 2); of answers (rows), then (epochs, rows) crossed, by their place in the epoch */
    size_t n;
};

#endif
