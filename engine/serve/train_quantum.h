/* How long training may have the device after a step of serving.  Pure.
 *
 * A client sees its next token after a step and what training took behind it.  That sum is to stay within the
 * inter-token budget, and within `slowdown` times the step; training that took longer (an op is not interrupted) pays
 * back in the steps that follow.  A small share always remains, so that it never stands still. */
#ifndef TANDEM_ENGINE_SERVE_TRAIN_QUANTUM_H
#define TANDEM_ENGINE_SERVE_TRAIN_QUANTUM_H

#include <stdint.h>

struct train_quantum {
    double budget_ns; /* of a step and the training behind it */
    double slowdown;  /* >= 1 */
    double credit_ns; /* negative: owed */
};

/* A step took step_ns: how many ns training may take now, 0 for none. */
static inline uint64_t train_quantum_allow(struct train_quantum *s, uint64_t step_ns)
{
    const double LEAST = 0.02, SAVED_STEPS = 2;
    double step = (double)step_ns, room = s->budget_ns - step, stretch = (s->slowdown - 1) * step;
    double slack = room < stretch ? room : stretch;
    if (slack < LEAST * step) slack = LEAST * step;
    s->credit_ns += slack;
    /* what training did not want is not saved up for a long absence later */
    if (s->credit_ns > SAVED_STEPS * slack) s->credit_ns = SAVED_STEPS * slack;
    if (s->credit_ns <= 0) return 0;
    return (uint64_t)(s->credit_ns < slack ? s->credit_ns : slack);
}

static inline void train_quantum_used(struct train_quantum *s, uint64_t ns)
{
    s->credit_ns -= (double)ns;
}

#endif
