/* Tinker's losses as functions of the targets' log-probabilities p.  All are sums over positions.  Pure; any thread. */
#ifndef TANDEM_SERVER_TINKER_LOSSES_H
#define TANDEM_SERVER_TINKER_LOSSES_H

#include <stdbool.h>

enum loss { LOSS_CROSS_ENTROPY, LOSS_IMPORTANCE, LOSS_PPO, LOSS_CISPO, LOSS_DRO, LOSS_GSPO, LOSSES };

struct loss_config {
    double low, high; /* bounds of the ratio: ppo, cispo, gspo */
    double beta;      /* dro */
};

/* @return false: there is no loss of this name here. */
bool loss_find(const char *name, enum loss *, struct loss_config *defaults);
/* Whether p must be known before the gradient's weights are. */
bool loss_needs_forward(enum loss);
/* q: log-probabilities when sampled; a: advantages (cross_entropy: the weights).  weight (n): minus the derivative of
 * the loss by p; NULL: not wanted.  @return the loss. */
double loss_of(enum loss, const struct loss_config *, int n, const float *p, const float *q, const float *a,
               float *weight);

/* Of the positions that have an advantage, over all rows so far; zero-initialise. */
struct loss_stats {
    double tokens;
    double kl;        /* the sum of q - p */
    double low, high; /* the smallest and largest exp(p - q) */
};

void loss_count(struct loss_stats *, int n, const float *p, const float *q, const float *a);

#endif
