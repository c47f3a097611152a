/* What the files of the reference device share. */
#ifndef TANDEM_KERNELS_REF_H
#define TANDEM_KERNELS_REF_H

#include "kernels/ops.h"

struct weight {
    enum dtype t;
    int rows, cols, group, n_groups; /* n_groups: of scale, per row (1 for int8) */
    float *f;                        /* (rows, cols) float types, nf4 */
    int8_t *q;                       /* (rows, cols) int8, int4 */
    float *scale;                    /* (rows, n_groups) */
};

static inline float ref_weight_at(const struct weight *w, int row, int col)
{
    size_t i = (size_t)row * w->cols + col;
    if (w->f) return w->f[i];
    int group = w->t == DT_I4 ? w->group : w->cols;
    return (float)w->q[i] * w->scale[(size_t)row * w->n_groups + col / group];
}

/* ref_sample.c */
void ref_sample(struct dev *, const struct sample_args *);

/* ref_train_products.c */
void ref_gemm(struct dev *, const struct gemm_args *);
void ref_linear_back(struct dev *, const struct linear_back_args *);
void ref_lora(struct dev *, const struct lora_args *);
void ref_embed_back(struct dev *, const struct embed_back_args *);
void ref_col_sum(struct dev *, const struct col_sum_args *);
void ref_weight_update(struct dev *, struct weight *, const struct weight_src *parts, int n_parts);

#endif
