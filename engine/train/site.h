/* Adapters in training, as the passes of the model see them. */
#ifndef TANDEM_ENGINE_TRAIN_SITE_H
#define TANDEM_ENGINE_TRAIN_SITE_H

enum { SITE_PARTS = 3 };

/* The adapters of one GEMM of one layer: y[:, col .. col + n) += scale (x a_i^T) b_i^T.  Their a's are stacked, so that
 * one GEMM computes x a^T for all of them.  r 0: none.  Pointers into the optimizer's arrays.  Of experts: one part,
 * and the matrices of expert e are e r k, or e n r, floats on. */
struct site {
    int r, k;      /* sum of the parts' ranks; inputs */
    float *a, *da; /* (r, k) */
    int n_parts;
    struct site_part {
        int at, r, col, n; /* rows [at, at + r) of a */
        float scale;
        float *b, *db; /* (n, r) */
    } part[SITE_PARTS];
};

#endif
