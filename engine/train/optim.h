/* The optimizer's state and arithmetic around ops adamw and adamw_8bit and muon.h: flat arrays of parameters, gradients
 * and moments, the learning rate of a step, clipping by the global norm, the average of the weights.
 *
 * Memory is on the device.  Used by the trainer's thread. */
#ifndef TANDEM_ENGINE_TRAIN_OPTIM_H
#define TANDEM_ENGINE_TRAIN_OPTIM_H

#include "engine/base/err.h"
#include "engine/train/muon.h"
#include "engine/train/scheduler_gate.h"
#include "engine/train/shards.h"
#include "engine/train/train.h"
#include "kernels/ops.h"

struct comm;
struct exchanger;

/* Parameters are added first, then the arrays are allocated.  Each group of parameters starts at a multiple of 64
 * bytes; the padding between groups is and stays zero.
 *
 * An array of moments has the floats of all groups, in their order: those of group i are at the same place as its
 * parameters.  With `states_8bit` it has the floats of the small groups (below OPTIM_8BIT_LEAST parameters), then a
 * byte for each parameter of the others, then their scales, a float for each 256 (op adamw_8bit).  Blocks of 256 begin
 * with each group.
 *
 * Over ranks the arrays may be divided (shards.h): p, m, v and avg, and g at stage 2, then have the rank's slices
 * alone; `whole` and `pass` have what the model reads and writes. */
enum { OPTIM_SEGMENTS_MAX = 1 << 16, OPTIM_8BIT_LEAST = 4096 /* as in bitsandbytes */ };
struct optim {
    bool states_8bit;     /* set before the first group is added; not with muon */
    bool offload;         /* m and v in the host's memory, where the device has its own; set before optim_alloc */
    size_t n, trained;    /* floats of p, g and avg; parameters among them */
    size_t n_f32, n_8bit; /* moments of either kind, padding included */
    struct shards s;
    float *p;                    /* (s.own) parameters */
    float *g;                    /* (n) gradients; at stage 2 (s.own) */
    float *m, *v;                /* (optim_moment_floats) first and second moments; v stays 0 for muon's matrices */
    float *avg;                  /* (s.own) average of the parameters; NULL: none is kept */
    float *whole;                /* (s.whole) values of the whole units; undivided: p */
    float *pass;                 /* (s.pass) gradients of a pass, at stage 2; else NULL */
    float *staged;               /* (a unit) on the host, of a device with its own memory that is divided; else NULL */
    double *sum;                 /* scratch for the norms of the groups */
    struct comm *comm;           /* the ranks, where the arrays are divided; NULL: nothing is exchanged */
    struct exchanger *exchanger; /* stage 2, in the host's memory: exchanges beside computing; NULL: nothing does */
    struct train_group_norm *group; /* n_groups; norm: what optim_grad_norm found last */
    struct {
        size_t from, n, group;
    } * range; /* all of the arrays, in their order */
    size_t n_groups, cap_groups, n_ranges, cap_ranges;
    char adding[TRAIN_GROUP_NAME_MAX]; /* group of the parameters that are added next */
    int adding_layer;
    bool adding_whole;
    struct {
        size_t p, g, n, moments; /* offsets; moments: the number of its first one among those of its kind */
        bool decay, is_8bit;
    } * segment; /* what this rank updates */
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
/* Whether the model reads the parameters that are added next in place; at first it does.  Else it has copies of them,
 * which are packed. */
void optim_read_in_place(struct optim *, bool);
/* Adds n parameters; @return their offset in the flat array. */
size_t optim_add(struct optim *, size_t n, bool decay);
/* The same for matrices updated by muon; the caller then names each, in their order. */
size_t optim_add_muon(struct optim *, size_t n);
void optim_add_matrix(struct optim *, size_t at, int rows, int cols);
/* After all parameters were added, before optim_alloc: divides the arrays over the ranks of comm.  stage: 0 (or comm
 * NULL) to 3; slices: those of a unit, also the parts in which its norm is summed.  Without it nothing is divided. */
void optim_divide(struct optim *, struct comm *, int stage, int slices);
/* The same for rank `part` of `parts`, of which nothing will be exchanged: to count bytes. */
void optim_divide_for(struct optim *, int stage, int slices, int parts, int part);
/* Where the pass writes the gradient of the parameter at this offset, and where the model reads its value, of those
 * that are read in place; values: o->p or o->avg. */
float *optim_grad(const struct optim *, size_t at);
float *optim_value(const struct optim *, float *values, size_t at);
/* Bytes that optim_alloc takes beside the moments and muon's. */
size_t optim_bytes(const struct optim *, bool average);
/* Whether m and v are in the host's memory although the device has its own: page-locked, so that ops read and write
 * them over the bus, and the host may when the device has finished. */
bool optim_moments_on_host(const struct optim *);
size_t optim_moment_floats(const struct optim *);     /* the size of m and of v, in floats */
size_t optim_moment_floats_all(const struct optim *); /* of all ranks: as in checkpoints */
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
