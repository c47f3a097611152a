#include "engine/train/preference.h"

#include <math.h>

/* log(1 / (1 + exp(-x))), without overflow. */
static double log_sigmoid(double x)
{
    return x < 0 ? x - log1p(exp(x)) : -log1p(exp(-x));
}

static double sigmoid(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

/* -log sigmoid(x), with smoothing of labels (conservative DPO); *d: its derivative. */
static double smooth_loss(double x, double smoothing, double *d)
{
    *d = -sigmoid(-x) * (1 - smoothing) + sigmoid(x) * smoothing;
    return -log_sigmoid(x) * (1 - smoothing) - log_sigmoid(-x) * smoothing;
}

static double mean_of(const struct preference_answer *a)
{
    return a->sum / a->n;
}

/* log(p / (1 - p)) of p = exp(mean); *d: its derivative by the mean, 1 / (1 - p).  A probability of 1 has none: it is
 * kept from there by the rounding of f32. */
static double log_odds(double mean, double *d)
{
    const double MOST = -6e-8;
    if (mean > MOST) mean = MOST;
    *d = -1 / expm1(mean);
    return mean - log(-expm1(mean));
}

static struct preference_value dpo(const struct preference *p, const struct preference_answer *c,
                                   const struct preference_answer *r)
{
    struct preference_value v = {.chosen = p->beta * (c->sum - c->reference),
                                 .rejected = p->beta * (r->sum - r->reference)};
    double d;
    v.loss = smooth_loss(v.chosen - v.rejected, p->label_smoothing, &d);
    v.d_chosen = p->beta * d;
    v.d_rejected = -p->beta * d;
    return v;
}

/* beta times equation 6 of the paper, the loss of the odds ratio. */
static struct preference_value orpo(const struct preference *p, const struct preference_answer *c,
                                    const struct preference_answer *r)
{
    double d, d_chosen, d_rejected;
    double ratio = log_odds(mean_of(c), &d_chosen) - log_odds(mean_of(r), &d_rejected);
    struct preference_value v = {.chosen = p->beta * mean_of(c), .rejected = p->beta * mean_of(r)};
    v.loss = p->beta * smooth_loss(ratio, 0, &d);
    v.d_chosen = p->beta * d * d_chosen / c->n;
    v.d_rejected = -p->beta * d * d_rejected / r->n;
    return v;
}

static struct preference_value simpo(const struct preference *p, const struct preference_answer *c,
                                     const struct preference_answer *r)
{
    struct preference_value v = {.chosen = p->beta * mean_of(c), .rejected = p->beta * mean_of(r)};
    double d;
    v.loss = smooth_loss(v.chosen - v.rejected - p->gamma, p->label_smoothing, &d);
    v.d_chosen = p->beta * d / c->n;
    v.d_rejected = -p->beta * d / r->n;
    return v;
}

static struct preference_value reward(const struct preference *p, const struct preference_answer *c,
                                      const struct preference_answer *r)
{
    struct preference_value v = {.chosen = c->sum, .rejected = r->sum};
    double d, both = c->sum + r->sum;
    v.loss = smooth_loss(c->sum - r->sum - p->gamma, 0, &d) + p->center * both * both;
    v.d_chosen = d + 2 * p->center * both;
    v.d_rejected = -d + 2 * p->center * both;
    return v;
}

struct preference_value preference_pair(const struct preference *p, const struct preference_answer *chosen,
                                        const struct preference_answer *rejected)
{
    switch (p->loss) {
    case PREFERENCE_ORPO: return orpo(p, chosen, rejected);
    case PREFERENCE_SIMPO: return simpo(p, chosen, rejected);
    case PREFERENCE_REWARD: return reward(p, chosen, rejected);
    default: return dpo(p, chosen, rejected);
    }
}

/* Equation 8 of the paper. */
struct preference_value preference_single(const struct preference *p, const struct preference_answer *a, bool desirable,
                                          double kl)
{
    double ratio = a->sum - a->reference, weight = desirable ? p->desirable_weight : p->undesirable_weight;
    double s = sigmoid(p->beta * (desirable ? ratio - kl : kl - ratio)), d = weight * p->beta * s * (1 - s);
    struct preference_value v = {.loss = weight * (1 - s)};
    *(desirable ? &v.chosen : &v.rejected) = p->beta * ratio;
    *(desirable ? &v.d_chosen : &v.d_rejected) = desirable ? -d : d;
    return v;
}
