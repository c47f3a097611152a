#include "server/tinker/losses.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

static const struct {
    const char *name;
    struct loss_config defaults;
} table[LOSSES] = {
    [LOSS_CROSS_ENTROPY] = {"cross_entropy", {0}},
    [LOSS_IMPORTANCE] = {"importance_sampling", {0}},
    [LOSS_PPO] = {"ppo", {0.8, 1.2, 0}},
    [LOSS_CISPO] = {"cispo", {0, 4, 0}},
    [LOSS_DRO] = {"dro", {0, 0, 0.05}},
};

bool loss_find(const char *name, enum loss *out, struct loss_config *defaults)
{
    for (int i = 0; i < LOSSES; i++)
        if (!strcmp(table[i].name, name)) {
            *out = (enum loss)i;
            *defaults = table[i].defaults;
            return true;
        }
    return false;
}

bool loss_needs_forward(enum loss l)
{
    return l != LOSS_CROSS_ENTROPY;
}

/* *w: minus the derivative by p.  @return the loss of a position. */
static double of_position(enum loss l, const struct loss_config *c, double p, double q, double a, double *w)
{
    double r = exp(p - q), clipped = fmin(fmax(r, c->low), c->high), d = p - q;
    switch (l) {
    case LOSS_IMPORTANCE: *w = r * a; return -r * a;
    case LOSS_PPO: *w = r * a <= clipped * a ? r * a : 0; return -fmin(r * a, clipped * a);
    case LOSS_CISPO: *w = clipped * a; return -clipped * p * a;
    case LOSS_DRO: *w = a - c->beta * d; return -(p * a - c->beta / 2 * d * d);
    default: *w = a; return a == 0 ? 0 : -p * a;
    }
}

double loss_of(enum loss l, const struct loss_config *c, int n, const float *p, const float *q, const float *a,
               float *weight)
{
    double sum = 0, w;
    for (int i = 0; i < n; i++) {
        sum += of_position(l, c, (double)p[i], q ? (double)q[i] : 0, (double)a[i], &w);
        if (weight) weight[i] = (float)w;
    }
    return sum;
}
