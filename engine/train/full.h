/* Training of all weights: f32 master weights in the optimizer's arrays, and packed weights that the GEMMs use, which
 * are packed from the masters after every step.  The base's weights are not changed, since they may be served
 * meanwhile. */
#ifndef TANDEM_ENGINE_TRAIN_FULL_H
#define TANDEM_ENGINE_TRAIN_FULL_H

#include "engine/model/model.h"
#include "engine/train/layer_gather.h"
#include "engine/train/model.h"
#include "engine/train/optim.h"
#include "engine/train/train.h"

struct train_full {
    const struct model *base;
    enum dtype type;  /* of the packed matrices */
    struct weights w; /* vectors and tables point into the optimizer's arrays; matrices are packed copies */
    struct model_grads g;
    struct master *master; /* one per trained tensor of the file */
    int n_masters;
    struct tensors tensors; /* of the base's source */
    struct tensors written; /* the same under the family's names, for the result */
    size_t *stack_at;       /* offsets in those arrays of each stack (tensors_stack) and vector (tensors_vectors) */
    int n_stacks;
    int *root; /* stage 3: the stack whose packed memory stack i uses, in another layer; i: its own */
    struct vector_slot *vector;
    size_t *vector_at;
    int n_vectors;
    float *ones, *applied; /* device: (C or D), and 1 + w of each vector that is stored as w; NULL: none */
    size_t n_ones, n_applied;
    /* stage 3, where the packed matrices of layers take turns in the same memory */
    struct layer_gather gather;
    struct optim *o;
    const float *values; /* (s.own) what the layers are gathered of: the optimizer's p or avg */
    char *gathered;      /* (s.layer) host: values of a layer, of `type` */
    float *unpacked;     /* device: a stack of them as floats; NULL: they are used in place */
    uint32_t crc;        /* CRC-32C of the initial values, in the flat order with padding */
    struct dev *d;       /* the device that packed the weights */
};

/* Adds the parameters to the optimizer, with the parameters' rule for matrices.  ERR_UNSUPPORTED: a quantised base.  A
 * family with sinks, which have no gradient, is refused before (train.c). */
int train_full_open(struct train_full *, const struct model *, const struct train_params *, struct optim *,
                    struct err *);
/* Bytes of the packed weights, of the norms stored as 1 + w, and at stage 3 of what layers are gathered in. */
size_t train_full_bytes(const struct train_full *, const struct optim *);
/* After the optimizer's arrays were allocated: writes the initial values, from the file, or random ones as in
 * transformers. */
int train_full_bind(struct train_full *, const struct train_params *, struct optim *, struct err *);
/* Makes the model compute with `values`, the optimizer's p or avg: vectors and tables point into it, matrices are
 * packed from it, so it must be called again after the values change.  Where it is divided over ranks, each of which
 * calls this, they are gathered first, and the gradients are overwritten; at stage 3 those of the layers are gathered
 * when `gather` is used. */
void train_full_use(struct train_full *, struct optim *, float *values);
/* Packs a stack's values, which are floats on the device. */
void train_full_pack(struct optim *, const struct stack *, struct weight *, const float *values);
/* Writes the values that `read` gives, n floats from `at` on of the flat array, as a model directory with the tensor
 * names and types of the base's file, and copies the other files of model_dir (NULL: none).  Experts that the file has
 * fused, or under transformers' names in memory, are written one by one under the family's names. */
typedef int train_values_fn(void *arg, size_t at, size_t n, float *out, struct err *);
int train_full_write(struct train_full *, train_values_fn *read, void *arg, const char *model_dir, const char *dir,
                     struct err *);
/* The same of a host array that has all values. */
int train_full_host_values(void *p, size_t at, size_t n, float *out, struct err *);
void train_full_close(struct train_full *);

#endif
