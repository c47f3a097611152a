/* What people may see of a running engine: its last steps, who holds a slot, and, when somebody asks for it, a trace of
 * every step, phase and op.
 *
 * Written by the engine thread; look_steps and look_seqs by any.  The trainer's ops are noted on its own thread, which
 * runs only while the engine thread waits for it (train_gate.h), so a trace needs no lock. */
#ifndef TANDEM_LOOK_H
#define TANDEM_LOOK_H

#include "engine/base/clock.h"
#include "engine/engine.h"
#include "engine/sched.h"
#include "kernels/trace.h"

#include <pthread.h>

struct look {
    pthread_mutex_t lock;
    struct step_record steps[ENGINE_STEPS_KEPT]; /* a ring; under the lock, as the next three */
    uint64_t n_steps;
    struct seq_view seqs[ENGINE_SEQS_KEPT];
    int n_seqs;

    struct step_record step; /* the engine thread's: the one that is computed, or was last */
    _Atomic bool traced; /* somebody has asked for a trace and not taken it yet */
    /* the engine thread's */
    struct engine_trace *trace; /* NULL: off */
    struct dev_trace *ops;      /* made once, kept to the end */
    pthread_t thread;
};

void look_init(struct look *);
void look_close(struct look *); /* before the device is closed */

/* A step: begin before any of its requests may end, end when it is computed (counts it in *now), training when training
 * had `ns` after it, keep when all is said. */
void look_begin(struct look *, const struct plan *, struct engine_stats *now, uint64_t start);
void look_end(struct look *, struct engine_stats *now);
void look_training(struct look *, uint64_t start, uint64_t ns);
void look_keep(struct look *, const struct sched *, int pages_used);
/* running: the schedule's list */
void look_seqs(struct look *, const struct seq *running);
int look_read_steps(struct look *, struct step_record out[ENGINE_STEPS_KEPT]);
int look_read_seqs(struct look *, struct seq_view out[ENGINE_SEQS_KEPT]);

/* By the engine thread, between two steps.  Takes the trace over; where memory for noting ops is lacking, it has none.
 */
void look_trace_on(struct look *, struct dev *, struct engine_trace *);
struct engine_trace *look_trace_off(struct look *);
void look_note(struct look *, const struct trace_event *);

/* The part of a step since *since is over; *since becomes now.  Free when no trace is on. */
static inline void look_phase(struct look *l, const char *name, uint64_t *since)
{
    if (!l->trace) return;
    uint64_t now = clock_now();
    look_note(l, &(struct trace_event){.name = name, .start = *since, .end = now, .what = TRACE_PHASE});
    *since = now;
}

#endif
