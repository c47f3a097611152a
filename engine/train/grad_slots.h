/* The gradients of a step's slots, summed in a binary tree: those of slots 2i and 2i + 1 first, then those of four, and
 * so on.  A rank has an aligned part of the tree, and comm_all_reduce makes the rest of it.  So the sum has the same
 * bits however many ranks there are.
 *
 * Slots are computed one after another into the optimizer's gradients.  Beside them there is an array for each level of
 * the tree, as in a binary counter: of 8 slots on one rank three, on 8 ranks none.
 *
 * At stage 2 (shards.h) gradients are summed over the ranks slot by slot, a layer as soon as its backward pass is done.
 * Then rank r of N has the slots r, r + N ...: those that are computed at the same time are neighbours in the tree,
 * whose lower end is over the ranks and whose upper one over the slots of a rank.  Memory is on the device.  Trainer
 * thread. */
#ifndef TANDEM_ENGINE_TRAIN_GRAD_SLOTS_H
#define TANDEM_ENGINE_TRAIN_GRAD_SLOTS_H

#include "engine/base/err.h"
#include "engine/train/optim.h"

enum { GRAD_SLOT_LEVELS = 6 }; /* log2 of GRAD_SLOTS_MAX */

struct grad_slots {
    int all;                        /* of a step; a power of two */
    int first, count, stride;       /* this rank's: first, first + stride ...; count is a power of two */
    int done;                       /* of them in this step */
    int layers, next;               /* stage 2: of the model; the next layer to be summed, -1: what is of none */
    int pending;                    /* the layer that the exchanger sums while the next one is computed; -1: none */
    uint64_t which;                 /* that exchange */
    float *level[GRAD_SLOT_LEVELS]; /* the sum of 2^i slots that waits for the next 2^i, in the layout of optim.g */
};

/* The slots of a rank.  ERR_INVALID: the slots cannot be divided over so many ranks. */
int grad_slots_init(struct grad_slots *, int slots, int rank, int ranks, int stage, struct err *);
int grad_slots_number(const struct grad_slots *, int i);                  /* of the rank's slot i, among all */
size_t grad_slots_bytes(const struct grad_slots *, const struct optim *); /* that grad_slots_alloc takes */
int grad_slots_levels(const struct grad_slots *);                         /* arrays beside the optimizer's */
int grad_slots_alloc(struct grad_slots *, struct optim *, struct err *);
void grad_slots_free(struct grad_slots *, struct dev *);

/* Before the first slot of a step: the gradients become zero. */
void grad_slots_begin(struct grad_slots *, struct optim *);
/* Stage 2: the gradients of the next slot are complete in this layer and those above it. */
void grad_slots_layer(struct grad_slots *, struct optim *, int layer);
/* The gradients of the next slot are complete.  They become zero for the one after it; after the last one they are the
 * sum of the rank's, at stage 2 of all. */
void grad_slots_end(struct grad_slots *, struct optim *);

#endif
