/* What people may see of a running engine: its last steps, who holds a slot, and, when somebody asks for it, a trace of
 * every step, phase and op.
 *
 * Written by the engine thread, read by any (engine_last_steps, engine_running, engine_trace_*: in debug_state.c).  The
 * trainer's ops are noted on its own thread, which runs only while the engine thread waits for it
 * (train/scheduler_gate.h), so a trace needs no lock. */
#ifndef TANDEM_ENGINE_SERVE_DEBUG_STATE_H
#define TANDEM_ENGINE_SERVE_DEBUG_STATE_H

#include "engine/base/clock.h"
#include "engine/serve/engine.h"
#include "engine/serve/sched.h"
#include "kernels/trace.h"

#include <pthread.h>

struct debug_state {
    pthread_mutex_t lock;
    struct step_record steps[ENGINE_STEPS_KEPT]; /* a ring; under the lock, as the next three */
    uint64_t n_steps;
    struct seq_view seqs[ENGINE_SEQS_KEPT];
    int n_seqs;

    struct step_record step; /* the engine thread's: the one that is computed, or was last */
    uint64_t prefill;        /* tokens of prompts in it */
    _Atomic bool traced;     /* somebody has asked for a trace and not taken it yet */
    _Atomic bool pending;    /* one is to be begun or taken */
    pthread_cond_t answered;
    struct engine_trace *asked, *done; /* under the lock, as the next: to be begun; as it was taken */
    bool take;
    /* the engine thread's */
    struct engine_trace *trace; /* NULL: off */
    struct dev_trace *ops;      /* made once, kept to the end */
    pthread_t thread;
};

/* in engine.c */
struct debug_state *engine_debug_state(const struct engine *);
void engine_poke(struct engine *); /* it comes by debug_state_serve soon */

void debug_state_init(struct debug_state *);
void debug_state_close(struct debug_state *); /* before the device is closed */

/* A step: begin before any of its requests may end, end when it is computed (counts it in *now), training when training
 * had `ns` after it, keep when all is said. */
void debug_state_begin(struct debug_state *, const struct plan *, struct engine_stats *now, uint64_t start);
void debug_state_end(struct debug_state *, struct engine_stats *now);
void debug_state_training(struct debug_state *, uint64_t start, uint64_t ns);
void debug_state_keep(struct debug_state *, const struct sched *, int pages_used);
/* running: the schedule's list */
void debug_state_seqs(struct debug_state *, const struct seq *running);

/* By the engine thread, between two steps: begins and ends traces as it was asked to. */
void debug_state_serve(struct debug_state *, struct dev *);
void debug_state_stop(struct debug_state *); /* the engine closes: a trace that is on ends */
void debug_state_note(struct debug_state *, const struct trace_event *);

/* The part of a step since *since is over; *since becomes now.  Free when no trace is on. */
static inline void debug_state_phase(struct debug_state *l, const char *name, uint64_t *since)
{
    if (!l->trace) return;
    uint64_t now = clock_now();
    debug_state_note(l, &(struct trace_event){.name = name, .start = *since, .end = now, .what = TRACE_PHASE});
    *since = now;
}

#endif
