#include "engine/train/grpo.h"

#include <math.h>

static const double EPSILON = 1e-4;

static double mean_of(const double *v, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += v[i];
    return sum / n;
}

/* Of n >= 2 values, with n - 1 in the divisor, as torch.std. */
static double deviation_of(const double *v, int n)
{
    double mean = mean_of(v, n), sum = 0;
    for (int i = 0; i < n; i++) sum += (v[i] - mean) * (v[i] - mean);
    return sqrt(sum / (n - 1));
}

static bool all_equal(const double *v, int n)
{
    for (int i = 1; i < n; i++)
        if (v[i] != v[0]) return false;
    return true;
}

void grpo_advantages(const double *reward, int groups, int samples, enum train_scale scale, double *advantage,
                     struct train_rewards *out)
{
    int n = groups * samples, zero = 0;
    double deviations = 0, over_all = deviation_of(reward, n);
    for (int g = 0; g < groups; g++) {
        const double *v = reward + g * samples;
        double mean = mean_of(v, samples), within = deviation_of(v, samples);
        double divisor = scale == SCALE_NONE ? 1 : (scale == SCALE_BATCH ? over_all : within) + EPSILON;
        bool equal = all_equal(v, samples);
        /* exactly 0, where the mean of equal numbers may be rounded */
        for (int i = 0; i < samples; i++) advantage[g * samples + i] = equal ? 0 : (v[i] - mean) / divisor;
        zero += equal;
        deviations += equal ? 0 : within;
    }
    out->reward = mean_of(reward, n);
    out->reward_std = deviations / groups;
    out->zero_std = (double)zero / groups;
}

struct grpo_value grpo_value(const struct train_params *p, const struct grpo_token *t)
{
    double r = exp(t->now - t->sampled), clipped = fmin(fmax(r, 1 - p->clip_low), 1 + p->clip_high), a = t->advantage;
    bool free = r * a <= clipped * a;
    struct grpo_value v = {.loss = -(free ? r : clipped) * a, .d = free ? r * a : 0, .clipped = !free};
    if (!(p->beta > 0)) return v;
    double far = t->reference - t->now, ratio = exp(far);
    v.kl = ratio - far - 1;
    v.loss += p->beta * v.kl;
    v.d += p->beta * (ratio - 1);
    return v;
}

double grpo_share(const struct train_params *p, int n, int n_texts, int64_t n_tokens)
{
    switch (p->loss_type) {
    case LOSS_DAPO: return 1 / (double)n_tokens;
    case LOSS_DR_GRPO: return 1 / ((double)n_texts * p->max_new_tokens);
    default: return 1 / ((double)n_texts * n);
    }
}
