/* The time slice that training gets after a step of serving.  Pure.
 *
 * The inter-token latency of a request is the step plus the slice behind it.  That sum must stay within the inter-token
 * budget and within `slowdown` times the step.  A slice that overran, since an op is not interrupted, is made up for in
 * the following ones.  A minimal share always remains, so that training never stalls. */
#ifndef TANDEM_ENGINE_SERVE_TRAIN_QUANTUM_H
#define TANDEM_ENGINE_SERVE_TRAIN_QUANTUM_H

#include <stdint.h>

struct train_quantum {
    double budget_ns; /* limit of a step plus the slice behind it */
    double slowdown;  /* their limit in multiples of the step, >= 1 */
    double credit_ns; /* unused time; negative: overrun */
};

/* @return the slice in ns after a step that took step_ns; 0: none. */
static inline uint64_t train_quantum_allow(struct train_quantum *s, uint64_t step_ns)
{
    const double LEAST = 0.02, SAVED_STEPS = 2;
    double step = (double)step_ns, room = s->budget_ns - step, stretch = (s->slowdown - 1) * step;
    double slack = room < stretch ? room : stretch;
    if (slack < LEAST * step) slack = LEAST * step;
    s->credit_ns += slack;
    /* capped: unused time must not add up to one long slice later */
    if (s->credit_ns > SAVED_STEPS * slack) s->credit_ns = SAVED_STEPS * slack;
    if (s->credit_ns <= 0) return 0;
    return (uint64_t)(s->credit_ns < slack ? s->credit_ns : slack);
}

static inline void train_quantum_used(struct train_quantum *s, uint64_t ns)
{
    s->credit_ns -= (double)ns;
}

#endif
