/* How far a student's distribution is from a teacher's: the generalised Jensen-Shannon divergence of Agarwal and
 * others, 2023, https://arxiv.org/abs/2306.13649, equation 1, as in TRL's GKDTrainer.  Pure; any thread.
 *
 * The outcomes are n tokens, and with `rest` all other tokens as one.  So of the whole vocabulary it is exact, else a
 * lower bound of that: merging outcomes never makes a divergence larger. */
#ifndef TANDEM_ENGINE_TRAIN_DIVERGENCE_H
#define TANDEM_ENGINE_TRAIN_DIVERGENCE_H

#include <stdbool.h>

/* beta 0: KL(teacher || student); 1: KL(student || teacher); between: beta KL(teacher || M) + (1 - beta) KL(student ||
 * M), M = beta teacher + (1 - beta) student.  teacher, student (n): log-probabilities.  slope (n): the derivative by
 * the logit of token v is slope[v] - p_v * (sum of slopes), slope 0 for tokens that are not among the n. */
double divergence(double beta, int n, bool rest, const float *teacher, const double *student, double *slope);

#endif
