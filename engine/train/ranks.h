/* Training on several ranks: processes that mpirun or srun started, each with a part of every step's rows.
 *
 * Each rank reads the same data, makes the same plan and computes the same parameters; the gradients are summed over
 * them (grad_slots.h).  Rank 0 alone writes files.  Whatever a rank decides for itself (a failure, a command) the ranks
 * agree on before the next step, so that none waits for one that has left.  Main thread, then the trainer's. */
#ifndef TANDEM_ENGINE_TRAIN_RANKS_H
#define TANDEM_ENGINE_TRAIN_RANKS_H

#include "engine/base/err.h"
#include "engine/model/ranks_agree.h"

#include <stdbool.h>

struct comm;

/* how: "auto": if a launcher started this process, "mpi", or "none".  *out NULL: there is only this process.  The
 * functions below take it, too. */
int train_ranks_open(const char *how, double timeout_s, struct comm **out, struct err *e);
int train_ranks_count(const struct comm *);
bool train_ranks_first(const struct comm *);
/* Why the ranks cannot go on together, in a sentence that names this rank; NULL: they can. */
const char *train_ranks_error(const struct comm *);
/* This rank cannot go on; for the others it is gone. */
void train_ranks_fail(struct comm *, const char *why);
/* Waits for the other ranks; after an error of theirs the processes end here, this one, too. */
void train_ranks_close(struct comm *);

#endif
