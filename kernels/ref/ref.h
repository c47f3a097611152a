/* Shared by the files of the reference device. */
#ifndef TANDEM_KERNELS_REF_H
#define TANDEM_KERNELS_REF_H

#include "kernels/ops.h"

struct weight {
    enum dtype t;
    int rows, cols, group, n_groups; /* n_groups: of scale, per row; group: cols for int8, 16 for all block forms */
    float *f;                        /* (rows, cols) float types, nf4 */
    int8_t *q;                       /* (rows, cols) int8, int4, block */
    float *scale;                    /* (rows, n_groups) */
    float *minimum;                  /* (rows, n_groups); block, else NULL */
    uint32_t *order, *place;         /* block with an order of columns: that, and the column of each input; else NULL */
};

/* The weight of input `col`. */
static inline float ref_weight_at(const struct weight *w, int row, int col)
{
    if (w->place) col = (int)w->place[col];
    size_t i = (size_t)row * w->cols + col;
    if (w->f) return w->f[i];
    size_t g = (size_t)row * w->n_groups + col / w->group;
    float product = (float)w->q[i] * w->scale[g];
    return w->minimum ? product - w->minimum[g] : product;
}

enum { REF_HEAD_MAX = 1024 }; /* of head_dim */

double ref_act_value(double x, enum act_kind); /* in gated ops: x is the gate */
double ref_act_up(double up, enum act_kind);   /* what multiplies it */
double ref_softcap(double x, double cap);      /* cap * tanh(x / cap); cap 0: x */

void ref_sample(struct dev *, const struct sample_args *);
void ref_route(struct dev *, const struct route_args *);
void ref_experts_linear(struct dev *, const struct experts_linear_args *);
void ref_combine(struct dev *, const struct combine_args *);

#define X(op) void ref_##op(struct dev *, const struct op##_args *);
TRAIN_OPS(X)
#undef X

void ref_weight_update(struct dev *, struct weight *, const struct weight_src *parts, int n_parts, int chunk,
                       int chunks);

#endif
