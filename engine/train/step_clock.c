#include "engine/train/step_clock.h"

#include "engine/base/clock.h"
#include "kernels/ops.h"
#include "kernels/trace.h"

#include <string.h>

static const double SECONDS = 1e-9; /* of a nanosecond */

/* Outside the gate the device is serving's, and nothing of training is queued. */
static void settle(const struct step_clock *c)
{
    if (!dev_host_memory(c->d) && scheduler_gate_inside(c->gate)) c->d->ops->finish(c->d);
}

/* Seconds since the last read without those at the gate, which are counted. */
static double lap(struct step_clock *c)
{
    settle(c);
    uint64_t now = clock_now(), waited = scheduler_gate_waited(c->gate);
    uint64_t all = now - c->at, gate = waited - c->waited;
    c->at = now;
    c->waited = waited;
    c->part[TRAIN_WAIT] += (double)gate * SECONDS;
    return all > gate ? (double)(all - gate) * SECONDS : 0;
}

void step_clock_start(struct step_clock *c)
{
    memset(c->part, 0, sizeof c->part);
    c->start = c->at = clock_now();
    c->waited = scheduler_gate_waited(c->gate);
    c->cpu = clock_cpu();
}

void step_clock_read(struct step_clock *c, enum train_part part)
{
    if (c) c->part[part] += lap(c);
}

void step_clock_divide(struct step_clock *c, enum train_part part, double share, enum train_part rest)
{
    if (!c) return;
    double seconds = lap(c);
    c->part[part] += share * seconds;
    c->part[rest] += (1 - share) * seconds;
}

double step_clock_end(struct step_clock *c)
{
    step_clock_read(c, TRAIN_OTHER);
    c->cpu = clock_cpu() - c->cpu;
    return (double)(c->at - c->start) * SECONDS;
}
