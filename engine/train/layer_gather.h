/* The weights of the layers where they are divided over the ranks (stage 3, shards.h): those of a layer are gathered
 * while the layer before it is computed, and given up for those of the next one.
 *
 * All ranks use the same layers in the same order, also a rank that has nothing to compute (train_model_skim).
 * Trainer's thread, but for `fetch`. */
#ifndef TANDEM_ENGINE_TRAIN_LAYER_GATHER_H
#define TANDEM_ENGINE_TRAIN_LAYER_GATHER_H

#include "engine/train/exchanger.h"

#include <stdbool.h>

struct layer_gather {
    struct exchanger *exchanger; /* NULL: layers are gathered when they are used */
    /* What is to be set, in the order of calls for a layer.  begin: before it is fetched; NULL: nothing.  fetch:
     * exchanges, on the exchanger's thread if there is one, while the layer that is there is computed with.  install:
     * that layer is not used any more, and what was fetched takes its place. */
    void (*begin)(void *arg, int layer);
    exchange_fn *fetch;
    void (*install)(void *arg, int layer);
    void *arg;
    int there, coming; /* layers; -1: none */
    uint64_t which;    /* the exchange of `coming` */
};

void layer_gather_open(struct layer_gather *, struct exchanger *);
/* Until the next call the layer's weights are there.  next: the layer that is used after it, -1: unknown. */
void layer_gather_use(struct layer_gather *, int layer, int next);
/* The weights have changed since they were gathered. */
void layer_gather_forget(struct layer_gather *);

#endif
