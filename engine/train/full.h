/* Training of all weights: f32 master weights in the optimizer's arrays, and packed weights that the GEMMs use, which
 * are packed from the masters after every step.  The base's weights are not changed, since they may be served
 * meanwhile. */
#ifndef TANDEM_ENGINE_TRAIN_FULL_H
#define TANDEM_ENGINE_TRAIN_FULL_H

#include "engine/model/model.h"
#include "engine/train/model.h"
#include "engine/train/optim.h"
#include "engine/train/train.h"

struct train_full {
    const struct model *base;
    struct weights w; /* vectors and tables point into the optimizer's arrays; matrices are packed copies */
    struct model_grads g;
    struct master *master; /* one per trained tensor of the file */
    int n_masters;
    struct tensors tensors; /* of the base's source */
    struct tensors written; /* the same under the family's names, for the result */
    size_t *stack_at;       /* offsets in those arrays of each stack (tensors_stack) and vector (tensors_vectors) */
    int n_stacks;
    struct vector_slot *vector;
    size_t *vector_at;
    int n_vectors;
    float *ones, *applied; /* device: (C or D), and 1 + w of each vector that is stored as w; NULL: none */
    size_t n_ones, n_applied;
    struct dev *d; /* the device that packed the weights */
};

/* Adds the parameters to the optimizer, with the parameters' rule for matrices.  ERR_UNSUPPORTED: a quantised base.  A
 * family with sinks, which have no gradient, is refused before (train.c). */
int train_full_open(struct train_full *, const struct model *, const struct train_params *, struct optim *,
                    struct err *);
size_t train_full_bytes(const struct train_full *); /* bytes of the packed weights and of the norms stored as 1 + w */
/* After the optimizer's arrays were allocated: writes the initial values, from the file, or random ones as in
 * transformers. */
int train_full_bind(struct train_full *, const struct train_params *, struct optim *, struct err *);
/* Makes the model compute with `values`, an array laid out as the optimizer's: vectors and tables point into it,
 * matrices are packed from it, so it must be called again after the values change. */
void train_full_use(struct train_full *, struct optim *, float *values);
/* Writes the values in p, a host array laid out as the optimizer's, as a model directory with the tensor names and
 * types of the base's file, and copies the other files of model_dir (NULL: none).  Experts that the file has fused, or
 * under transformers' names in memory, are written one by one under the family's names. */
int train_full_write(struct train_full *, const float *p, const char *model_dir, const char *dir, struct err *);
void train_full_close(struct train_full *);

#endif
