/* The duration of steps, from their start until the device has computed them.  Pure.
 *
 * On an asynchronous device model_forward returns long before the step is computed, so the duration of a step is
 * estimated from the last one of the same kind. */
#ifndef TANDEM_ENGINE_SERVE_STEP_TIMES_H
#define TANDEM_ENGINE_SERVE_STEP_TIMES_H

#include <stdbool.h>
#include <stdint.h>

struct step_times {
    uint64_t decode_ns, prompt_ns; /* of the last step in which every sequence had one token, and of the last other */
};

static inline void step_times_note(struct step_times *t, bool decodes, uint64_t ns)
{
    *(decodes ? &t->decode_ns : &t->prompt_ns) = ns;
}

/* @return the time until which a step may wait for masks.  The forward pass was started at `start` and its ops returned
 * at `now`.  Until the device has finished the pass, waiting costs nothing; beyond that, a step waits 1/32 of the
 * pass's duration while other rows could be sampled, and once the duration when none can, which is what computing the
 * held rows again would take. */
static inline uint64_t step_times_mask_wait(const struct step_times *t, bool decodes, bool enqueues, uint64_t start,
                                            uint64_t now, bool others)
{
    uint64_t took = now - start, last = decodes ? t->decode_ns : t->prompt_ns;
    if (enqueues && last > took) took = last;
    return start + took + took / (others ? 32 : 1);
}

#endif
