/* Training of all weights: f32 masters in the optimizer's arrays, and the weights the model multiplies by, which are
 * packed from them after every step.  The base's own weights stay as they are: they may be served meanwhile. */
#ifndef TANDEM_ENGINE_TRAIN_FULL_H
#define TANDEM_ENGINE_TRAIN_FULL_H

#include "engine/model/model.h"
#include "engine/train/model.h"
#include "engine/train/optim.h"
#include "engine/train/train.h"

struct train_full {
    const struct model *base;
    struct weights w; /* vectors and tables lie in the optimizer's arrays; matrices packed by us */
    struct model_grads g;
    struct master *master; /* one for each tensor of the file that is trained */
    int n_masters;
    struct tensors tensors; /* of the base's source */
    size_t *stack_at;       /* where each stack of tensors_stack, and each of tensors_vectors, is in those arrays */
    int n_stacks;
    struct vector_slot *vector;
    size_t *vector_at;
    int n_vectors;
    float *ones, *applied; /* device: (C or D), and 1 + w of each vector that is stored as w; NULL: no such */
    size_t n_ones, n_applied;
    struct dev *d; /* that packed the weights */
};

/* Adds the parameters to the optimizer, with the parameters' rule for matrices.  ERR_UNSUPPORTED: a quantised base. */
int train_full_open(struct train_full *, const struct model *, const struct train_params *, struct optim *,
                    struct err *);
size_t train_full_bytes(const struct train_full *); /* of the packed weights and of norms as they are applied */
/* The optimizer's arrays exist now: writes the first values, from the file, or random as transformers draws them. */
int train_full_bind(struct train_full *, const struct train_params *, struct optim *, struct err *);
/* The model computes with `values` from now on, an array like the optimizer's: vectors and tables lie there, matrices
 * are packed from it, so it is called again when they have changed. */
void train_full_use(struct train_full *, struct optim *, float *values);
/* Writes the values in p, an array like the optimizer's on the host, as a model directory with the tensors' types and
 * names of the base's file, and copies of what else is in model_dir (NULL: none). */
int train_full_write(struct train_full *, const float *p, const char *model_dir, const char *dir, struct err *);
void train_full_close(struct train_full *);

#endif
