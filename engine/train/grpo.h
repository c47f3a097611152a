/* Group-relative policy optimisation (Shao and others, 2024, https://arxiv.org/abs/2402.03300), as in TRL's
 * GRPOTrainer: rewards become advantages within the texts of a prompt, and these a loss of each token.  Pure. */
#ifndef TANDEM_ENGINE_TRAIN_GRPO_H
#define TANDEM_ENGINE_TRAIN_GRPO_H

#include "engine/train/train.h"

/* advantage (groups * samples) = reward less its group's mean, divided by the deviation within the group, or over all,
 * plus 1e-4; samples >= 2.  Sets reward, reward_std and zero_std of *out.  scale: not auto. */
void grpo_advantages(const double *reward, int groups, int samples, enum train_scale scale, double *advantage,
                     struct train_rewards *out);

/* Of a token: its log-probability now, when it was sampled, and of the reference (with beta only). */
struct grpo_token {
    double now, sampled, reference, advantage;
};
struct grpo_value {
    double loss;
    double d;  /* minus its derivative by `now` */
    double kl; /* k3, an estimate of the distance to the reference (Schulman, http://joschu.net/blog/kl-approx.html) */
    bool clipped;
};
/* loss = -min(r A, clip(r) A) + beta k3, with r = exp(now - sampled). */
struct grpo_value grpo_value(const struct train_params *, const struct grpo_token *);

/* By what the loss of each token of a text of n tokens is multiplied: n_texts texts with n_tokens tokens are in the
 * step.  grpo: 1 / (texts * n); dapo: 1 / tokens; dr_grpo: 1 / (texts * max_new_tokens). */
double grpo_share(const struct train_params *, int n, int n_texts, int64_t n_tokens);

#endif
