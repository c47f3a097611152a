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
    [LOSS_GSPO] = {"gspo", {1 - 3e-4, 1 + 4e-4, 0}}, /* its paper's */
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

/* One ratio for the sequence, r = exp(mean(p - q)) over the positions that have an advantage: the loss of each of them
 * is -min(r A, clip(r) A), and depends on all their p. */
static double of_sequence(const struct loss_config *c, int n, const float *p, const float *q, const float *a,
                          float *weight)
{
    double d = 0, sum = 0, taken = 0; /* taken: of the advantages that are not clipped */
    int tokens = 0;
    for (int i = 0; i < n; i++)
        if (a[i] != 0) d += (double)p[i] - (double)q[i], tokens++;
    double r = tokens ? exp(d / tokens) : 1, clipped = fmin(fmax(r, c->low), c->high);
    for (int i = 0; i < n; i++) {
        double v = (double)a[i];
        sum -= fmin(r * v, clipped * v);
        if (r * v <= clipped * v) taken += v;
    }
    for (int i = 0; i < n && weight; i++) weight[i] = a[i] != 0 ? (float)(r * taken / tokens) : 0;
    return sum;
}

void loss_count(struct loss_stats *s, int n, const float *p, const float *q, const float *a)
{
    for (int i = 0; i < n; i++) {
        double d = (double)p[i] - (double)q[i], r = exp(d);
        if (a[i] == 0) continue;
        s->low = s->tokens > 0 ? fmin(s->low, r) : r;
        s->high = s->tokens > 0 ? fmax(s->high, r) : r;
        s->kl -= d;
        s->tokens++;
    }
}

double loss_of(enum loss l, const struct loss_config *c, int n, const float *p, const float *q, const float *a,
               float *weight)
{
    double sum = 0, w;
    if (l == LOSS_GSPO) return of_sequence(c, n, p, q, a, weight);
    for (int i = 0; i < n; i++) {
        sum += of_position(l, c, (double)p[i], q ? (double)q[i] : 0, (double)a[i], &w);
        if (weight) weight[i] = (float)w;
    }
    return sum;
}
