/* How long steps take, from their beginning until the device has computed them.  Pure.
 *
 * On a device that only enqueues, the time that model_forward took says nothing of the time that the step takes; the
 * last step of the same kind does. */
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

/* Until when a step may wait for masks.  The forward pass was begun at `start` and its ops have returned at `now`; on a
 * device that only enqueues it goes on until about the time that the last such step took, and until then the wait costs
 * nothing.  Beyond that a step waits 1/32 of the pass's time while other rows could be sampled, and as long as the pass
 * when none can: that is what computing the held rows again would take. */
static inline uint64_t step_times_mask_wait(const struct step_times *t, bool decodes, bool enqueues, uint64_t start,
                                            uint64_t now, bool others)
{
    uint64_t took = now - start, last = decodes ? t->decode_ns : t->prompt_ns;
    if (enqueues && last > took) took = last;
    return start + took + took / (others ? 32 : 1);
}

#endif
