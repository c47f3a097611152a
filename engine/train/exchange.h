/* What ranks exchange of arrays that are divided over them (shards.h).  All ranks call these alike, in the same order;
 * after an error of theirs (comm_error) they do nothing.  Where nothing is divided, or o->comm is NULL, nothing is
 * exchanged.  Trainer's thread. */
#ifndef TANDEM_ENGINE_TRAIN_EXCHANGE_H
#define TANDEM_ENGINE_TRAIN_EXCHANGE_H

#include "engine/train/optim.h"

/* g (u->n): the rank's slices become the sum over the ranks. */
void exchange_reduce(struct optim *, const struct shard_unit *, float *g);
/* The same in the host's memory, on any thread: no op of the device is run. */
void exchange_sum(struct optim *, const struct shard_unit *, float *g);
/* The values of a unit, an array of own slices, go to all: to the whole units, or where the pass writes the unit's
 * gradient, which are free between steps. */
void exchange_gather(struct optim *, const struct shard_unit *, const float *values);
/* All whole units, of a divided optimizer. */
void exchange_gather_whole(struct optim *, const float *values);

/* n floats of the flat array become values of p: this rank takes its own of them.  host: (n), of one unit. */
void exchange_set(struct optim *, size_t at, const float *host, size_t n);
/* p gets the rank's slices of the whole units. */
void exchange_take_whole(struct optim *);

#endif
