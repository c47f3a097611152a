/* The losses of preference training, as functions of the log-probabilities of whole answers, or of the scores of whole
 * texts.  Pure; any thread.
 *
 * They are those of TRL; rewards are what TRL logs as such. */
#ifndef TANDEM_ENGINE_TRAIN_PREFERENCE_H
#define TANDEM_ENGINE_TRAIN_PREFERENCE_H

#include <stdbool.h>

enum preference_loss {
    PREFERENCE_DPO,   /* Rafailov and others, 2023, https://arxiv.org/abs/2305.18290 */
    PREFERENCE_ORPO,  /* Hong and others, 2024, https://arxiv.org/abs/2403.07691; without its loss of the chosen text */
    PREFERENCE_SIMPO, /* Meng and others, 2024, https://arxiv.org/abs/2405.14734 */
    PREFERENCE_REWARD, /* Bradley-Terry, of scores of whole texts, as TRL's RewardTrainer: a text's sum is its score */
    PREFERENCE_KTO     /* Ethayarajh and others, 2024, https://arxiv.org/abs/2402.01306 */
};

struct preference {
    enum preference_loss loss;
    double beta;
    double label_smoothing; /* dpo, simpo: the probability that a pair is the wrong way round */
    double gamma;           /* simpo, reward: the margin of the rewards */
    double center;          /* reward: of the square of what a pair's rewards sum up to, in the loss (TRL:
                               center_rewards_coefficient) */
    double desirable_weight, undesirable_weight; /* kto */
};

/* An answer: the sum of log p over its n >= 1 tokens, and the same of the reference, which orpo and simpo and reward do
 * not read.
 */
struct preference_answer {
    double sum, reference;
    int n;
};

struct preference_value {
    double loss;
    double chosen, rejected;     /* rewards */
    double d_chosen, d_rejected; /* derivatives of the loss by the answers' sums */
};

/* All but kto. */
struct preference_value preference_pair(const struct preference *, const struct preference_answer *chosen,
                                        const struct preference_answer *rejected);
/* kto.  kl: how far the policy is from the reference, >= 0; a constant.  What is of the other kind is 0. */
struct preference_value preference_single(const struct preference *, const struct preference_answer *, bool desirable,
                                          double kl);

#endif
