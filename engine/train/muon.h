/* Muon (Keller Jordan and others, 2024, https://kellerjordan.github.io/posts/muon/): a matrix is updated by its
 * momentum with all singular values brought near one, by five iterations of an odd polynomial (Newton-Schulz).  The
 * arithmetic is that of torch.optim.Muon with adjust_lr_fn="match_rms_adamw":
 *
 *   m = 0.95 m + 0.05 g;  u = 0.95 m + 0.05 g (Nesterov's);  x = u / max(|u|, 1e-7)
 *   five times:  a = x x^T (x^T x where that is smaller);  x = 3.4445 x + (-4.775 a + 2.0315 a a) x
 *   p = (1 - rate decay) p - 0.2 sqrt(max(rows, cols)) rate x
 *
 * The last factor (Liu and others, 2025, arXiv:2502.16982, 2.2) scales the step to the size of AdamW's, so that the
 * same rate and decay work for both.
 *
 * Memory is on the device.  Used by the trainer's thread. */
#ifndef TANDEM_ENGINE_TRAIN_MUON_H
#define TANDEM_ENGINE_TRAIN_MUON_H

#include "engine/base/err.h"
#include "engine/train/scheduler_gate.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <stddef.h>

struct muon {
    struct muon_matrix {
        size_t p, g, m; /* offsets in the optimizer's arrays: of values, gradients, moments */
        int rows, cols;
    } * matrix;
    size_t n, cap;
    double *sum, *host_sum; /* (n) sums of squares, and the host's copy */
    float *x, *a, *b;       /* as large as the largest matrix; (k, k) of the largest smaller side k */
};

/* At the same offset in all of them. */
void muon_add(struct muon *, size_t at, int rows, int cols);
size_t muon_bytes(const struct muon *); /* bytes that muon_alloc allocates */
int muon_alloc(struct muon *, struct dev *, struct err *);
void muon_free(struct muon *, struct dev *);

/* One step of all matrices.  p, g, m: the optimizer's arrays; g is overwritten. */
struct muon_step {
    float *p, *g, *m;
    double rate, decay, grad_scale;
    bool half; /* gemms may round to bf16 */
};
void muon_step(struct muon *, struct dev *, struct scheduler_gate *, const struct muon_step *);

#endif
