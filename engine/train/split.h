/* How a job could be divided over several GPUs: for each way its memory on a card, the bytes that a step sends and the
 * time that it should take.  From the model's configuration and the shapes in its files; no weight is read and no
 * device is used.  Any thread.
 *
 * States are counted by the code that allocates them (shards.h, optim.h), activations by that of the model in training
 * (model.h).  Of P trained parameters, N ranks and S slots each rank sends, in a step,
 *
 *   zero 0, 1   4 P (N - 1) / N in summing gradients, and as many in gathering sums or new values
 *   zero 2      4 P (N - 1) / N for each of the S / N slots of a rank, and as many once
 *   zero 3      4 P (N - 1) / N for each of those slots; of L layers with p weights in matrices, of b bytes each,
 *               b p (N - 1) / N for (2 L - 2) S / N layers, with method full one more; and 4 (N - 1) / N once for each
 *               trained parameter that belongs to none of these
 *
 * and 8 t h L (T - 1) / T over T cards that share each layer, of t tokens a rank, hidden size h and L layers: four
 * all-reduces of bf16 activations a layer.  A step takes 2 m / (flops of all cards), for m multiply-adds (without those
 * of attention; recomputing costs another forward pass), and the bytes over the link's rate.  From stage 2 on
 * gradients are sent while the backward pass runs, at stage 3 weights in both passes, and only what takes longer than
 * those counts. */
#ifndef TANDEM_ENGINE_TRAIN_SPLIT_H
#define TANDEM_ENGINE_TRAIN_SPLIT_H

#include "engine/base/err.h"
#include "engine/train/train.h"

#include <stdbool.h>
#include <stddef.h>

#define TRAIN_SPLIT_FILLED 0.8 /* of a card at most: the rest is for ops' scratch, the driver and other estimates */

struct train_split_question {
    const char *model;    /* a directory or a GGUF file */
    const char *quantize; /* type of a frozen base's matrices: "none", "int8", "int4", "nf4" */
    struct train_params p;
    int gpus;           /* a power of two, 1 .. TRAIN_SPLIT_GPUS */
    double memory;      /* bytes of a card */
    double link, flops; /* bytes/s that a card sends; floating-point operations/s of a card; 0: unknown */
};

struct train_split {
    int zero, data, tensor; /* ranks that have rows of their own; cards that share each layer */
    bool recompute;
    bool fits;      /* within TRAIN_SPLIT_FILLED of a card */
    bool supported; /* tandem train can do it: tensor 1; a frozen base is divided (zero 3) on the processor alone */
    double weight_bytes, state_bytes, activation_bytes; /* of a card */
    double sent_bytes;                                  /* of a card in a step */
    double compute_s, link_s, step_s;                   /* of a step; link_s: all of it; NAN: unknown */
    double tokens_per_s;                                /* of all cards; NAN: unknown */
};

enum { TRAIN_SPLIT_GPUS = 64, TRAIN_SPLITS_MAX = 32 };
struct train_split_answer {
    double parameters, trainable, macs_per_token;
    int grad_slots, micro_tokens;
    int n,
        best; /* best: of those that fit and are supported the fastest, else the one with most memory left; -1: none */
    struct train_split v[TRAIN_SPLITS_MAX];
};

/* ERR_INVALID names the field.  @return 0, or *e. */
int train_splits(const struct train_split_question *, struct train_split_answer *, struct err *e);

#endif
