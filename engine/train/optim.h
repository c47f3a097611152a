/* The optimizer's state and arithmetic around op adamw and muon.h: parameters with their gradients and moments in flat
 * arrays, the learning rate of a step, clipping by the global norm, the weights' average.
 *
 * Memory is the device's.  Used by the trainer's thread. */
#ifndef TANDEM_ENGINE_TRAIN_OPTIM_H
#define TANDEM_ENGINE_TRAIN_OPTIM_H

#include "engine/base/err.h"
#include "engine/train/muon.h"
#include "engine/train/scheduler_gate.h"
#include "engine/train/train.h"
#include "kernels/ops.h"

/* Parameters are added first, then the arrays are made; each begins at a multiple of 64 bytes.  What is between two of
 * them is and stays zero. */
enum { OPTIM_SEGMENTS_MAX = 1 << 16 };
struct optim {
    size_t n, trained;    /* floats of each array; of them parameters */
    float *p, *g, *m, *v; /* (n) parameters, gradients, first and second moments; v of muon's matrices stays 0 */
    float *avg;           /* (n) the parameters' average; NULL: none is kept */
    double *sum;          /* (1) scratch of the norm */
    struct {
        size_t from, n;
        bool decay;
    } * segment;
    size_t n_segments, cap_segments;
    struct muon muon; /* what is in no segment */
    struct dev *d;
    struct scheduler_gate *gate;
};

void optim_init(struct optim *, struct dev *, struct scheduler_gate *);
/* Where n more parameters begin in each array. */
size_t optim_add(struct optim *, size_t n, bool decay);
/* The same for matrices that muon steps; the caller says by muon_add where in these n they are. */
size_t optim_add_muon(struct optim *, size_t n);
int optim_alloc(struct optim *, bool average, struct err *);
/* The first values are in p: the average begins with them. */
void optim_start(struct optim *);
void optim_free(struct optim *);

void optim_zero_grad(struct optim *);
/* The norm of all gradients.  Waits for the device. */
double optim_grad_norm(struct optim *);
/* One step with the gradients times `scale`; step counts from 1.  The gradients are overwritten.  The average becomes
 * d avg + (1 - d) p with d = min(ema_decay, (1 + step) / (10 + step)), as tf.train.ExponentialMovingAverage has it: the
 * first steps, which go far, are soon forgotten. */
void optim_step(struct optim *, const struct train_params *, double rate, double scale, int64_t step);

/* The learning rate of step 0 .. steps - 1: warm-up w rises as (step + 1) / w, then the schedule falls over the steps
 * that are left, from the whole rate to min_lr_ratio of it. */
double optim_rate(const struct train_params *, int64_t step, int64_t steps);

/* Sets n floats of device memory to zero. */
void dev_zero(struct dev *, float *, size_t n);

#endif
