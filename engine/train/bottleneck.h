/* What bounds a job, and what to change: rules over what its steps took.  Pure; any thread. */
#ifndef TANDEM_ENGINE_TRAIN_BOTTLENECK_H
#define TANDEM_ENGINE_TRAIN_BOTTLENECK_H

#include "engine/train/train.h"

/* What the rules look at.  All but usage and plan may be unknown: 0. */
struct train_facts {
    struct train_usage usage;
    struct train_plan plan;
    double ceiling_ratio; /* share of the machine's ceiling */
    double
        best_ratio; /* tokens/s of the fastest larger batch that was measured, relative to these; 1: none is faster */
    double clock_ratio; /* the machine's rate after the steps, relative to before them */
};

struct train_advice {
    const char *rule;   /* static: "slow data" */
    char cause[160];    /* "getting the rows takes 31 % of a step" */
    const char *change; /* static: the option, and how to set it */
    double gain;        /* expected tokens/s relative to now: 1.4, at most */
};

enum { TRAIN_ADVICE_MAX = 16, TRAIN_STEPS_LEAST = 3 };

/* The facts that an event of a job tells, which must have a plan. */
struct train_facts train_facts_of(const struct train_event *);
/* Largest gain first; none before TRAIN_STEPS_LEAST steps.  @return how many. */
int train_advise(const struct train_facts *, struct train_advice out[TRAIN_ADVICE_MAX]);
/* "rule: cause: change; gain" */
void train_advice_text(const struct train_advice *, char *out, size_t size);

#endif
