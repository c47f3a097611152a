/* The optimizer's state and arithmetic around ops adamw and adamw_8bit and muon.h: flat arrays of parameters, gradients
 * and moments, the learning rate of a step, clipping by the global norm, the average of the weights.
 *
 * Memory is on the device.  Used by the trainer's thread. */
#ifndef TANDEM_ENGINE_TRAIN_OPTIM_H
#define TANDEM_ENGINE_TRAIN_OPTIM_H

#include "engine/base/err.h"
#include "engine/train/muon.h"
#include "engine/train/scheduler_gate.h"
#include "engine/train/train.h"
#include "kernels/ops.h"

/* Parameters are added first, then the arrays are allocated.  Each group of parameters starts at a multiple of 64
 * bytes; the padding between groups is and stays zero.
 *
 * An array of moments has the floats of all groups, in their order: those of group i are at the same place as its
 * parameters.  With `states_8bit` it has the floats of the small groups (below OPTIM_8BIT_LEAST parameters), then a
 * byte for each parameter of the others, then their scales, a float for each 256 (op adamw_8bit).  Blocks of 256 begin
 * with each group. */
enum { OPTIM_SEGMENTS_MAX = 1 << 16, OPTIM_8BIT_LEAST = 4096 /* as in bitsandbytes */ };
struct optim {
    bool states_8bit;     /* set before the first group is added; not with muon */
    bool offload;         /* m and v in the host's memory, where the device has its own; set before optim_alloc */
    size_t n, trained;    /* floats of p, g and avg; parameters among them */
    size_t n_f32, n_8bit; /* moments of either kind, padding included */
    float *p, *g;         /* (n) parameters, gradients */
    float *m, *v;         /* (optim_moment_floats) first and second moments; v stays 0 for muon's matrices */
    float *avg;           /* (n) average of the parameters; NULL: none is kept */
    double *sum;          /* scratch for the norms of the groups */
    struct train_group_norm *group; /* n_groups; norm: what optim_grad_norm found last */
    struct {
        size_t from, n, group;
    } * range; /* all of the arrays, in their order */
    size_t n_groups, cap_groups, n_ranges, cap_ranges;
    char adding[TRAIN_GROUP_NAME_MAX]; /* group of the parameters that are added next */
    struct {
        size_t from, n, moments; /* moments: the number of its first one among those of its kind */
        bool decay, is_8bit;
    } * segment;
    size_t n_segments, cap_segments;
    struct muon muon; /* the matrices that are in no segment */
    struct dev *d;
    struct scheduler_gate *gate;
};

void optim_init(struct optim *, struct dev *, struct scheduler_gate *);
/* The parameters that are added next belong to the group of this name, of less than TRAIN_GROUP_NAME_MAX bytes; at
 * first to "other".  Only groups with parameters are kept. */
void optim_group(struct optim *, const char *name);
void optim_group_layer(struct optim *, int layer); /* "layer.N" */
/* Adds n parameters; @return their offset in each array. */
size_t optim_add(struct optim *, size_t n, bool decay);
/* The same for matrices updated by muon; the caller then registers each with muon_add. */
size_t optim_add_muon(struct optim *, size_t n);
/* Whether m and v are in the host's memory although the device has its own: page-locked, so that ops read and write
 * them over the bus, and the host may when the device has finished. */
bool optim_moments_on_host(const struct optim *);
size_t optim_moment_floats(const struct optim *); /* the size of m and of v, in floats */
int optim_alloc(struct optim *, bool average, struct err *);
/* After the initial values were written to p: initialises the average with them. */
void optim_start(struct optim *);
void optim_free(struct optim *);

void optim_zero_grad(struct optim *);
/* The norm of all gradients, and group[].norm those of the groups.  Waits for the device. */
double optim_grad_norm(struct optim *);
/* One step with the gradients times `scale`; step counts from 1.  The gradients are overwritten.  The average becomes d
 * avg + (1 - d) p with d = min(ema_decay, (1 + step) / (10 + step)), as in tf.train.ExponentialMovingAverage, so that
 * the large changes of the first steps are soon forgotten. */
void optim_step(struct optim *, const struct train_params *, double rate, double scale, int64_t step);

/* The learning rate of step 0 .. steps - 1: warm-up w rises as (step + 1) / w, then the schedule falls over the
 * remaining steps, from the full rate to min_lr_ratio of it. */
double optim_rate(const struct train_params *, int64_t step, int64_t steps);

/* Sets n floats of device memory to zero. */
void dev_zero(struct dev *, float *, size_t n);

#endif
