/* Where the time of a step goes: a clock that is read at the borders of a step's parts.
 *
 * On a device that only enqueues, reading it waits for the device, so that the parts are the device's times; a step has
 * a handful of such reads.  The time in which the trainer stands at its gate is counted apart, wherever it stood.
 * Trainer thread. */
#ifndef TANDEM_ENGINE_TRAIN_STEP_CLOCK_H
#define TANDEM_ENGINE_TRAIN_STEP_CLOCK_H

#include "engine/train/scheduler_gate.h"
#include "engine/train/train.h"

struct step_clock {
    struct dev *d;
    struct scheduler_gate *gate; /* or NULL */
    uint64_t start, at;          /* clock: of the step; of the last read */
    uint64_t waited;             /* the gate's, at the last read */
    uint64_t cpu;                /* clock_cpu at the start; after the step, what it took */
    double part[TRAIN_PARTS];    /* seconds so far */
};

void step_clock_start(struct step_clock *);
/* Adds the time since the last read to `part`; NULL: nothing is measured. */
void step_clock_read(struct step_clock *, enum train_part);
/* The same, divided: `share` of it to one part, the rest to the other.  For the head, whose rows go forward and back a
 * few at a time: by the number of GEMMs. */
void step_clock_divide(struct step_clock *, enum train_part, double share, enum train_part rest);
/* Ends the step: what is in no part is TRAIN_OTHER.  @return the step's seconds. */
double step_clock_end(struct step_clock *);

#endif
