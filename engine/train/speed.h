/* Whether a job computes as fast at its end as it did at its beginning.  Trainer thread. */
#ifndef TANDEM_ENGINE_TRAIN_SPEED_H
#define TANDEM_ENGINE_TRAIN_SPEED_H

#include <stdint.h>

enum { SPEED_WARM_UP = 2, SPEED_STEPS = 16, SPEED_LEAST = 48 /* steps before anything is said */ };

struct speed {
    int64_t steps;
    double first[SPEED_STEPS], last[SPEED_STEPS]; /* tokens a second, of forward and backward pass */
};

void speed_add(struct speed *, double tokens_per_s);
/* @return the median of the last steps relative to that of the first after the warm-up; 0: unknown. */
double speed_ratio(const struct speed *);

#endif
