/* Method full at stage 3 (shards.h): the layers' packed matrices take turns in the same memory.  Each rank keeps its
 * slices of their values, which it has as the optimizer's, and those of a layer are gathered and packed when the model
 * uses it (layer_gather.h).  Below stage 3 each matrix has memory of its own.  For full.c; trainer's thread. */
#ifndef TANDEM_ENGINE_TRAIN_FULL_LAYERS_H
#define TANDEM_ENGINE_TRAIN_FULL_LAYERS_H

#include "engine/train/full.h"

/* The layer that stack i is of; -1: none. */
int full_layers_of(const struct train_full *, int i);
/* After the stacks are known: which of them may have the same memory, those with the same place in their layers and the
 * same shape. */
void full_layers_share(struct train_full *);
/* Whether stack i has memory of its own, not that of stack f->root[i]. */
bool full_layers_root(const struct train_full *, const struct optim *, int i);
/* Beside the packed matrices. */
size_t full_layers_bytes(const struct train_full *, const struct optim *);
int full_layers_reserve(struct train_full *, struct err *);
void full_layers_close(struct train_full *);

#endif
