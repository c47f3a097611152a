/* Debugging data of a running engine: its last steps, its running sequences and, on request, a trace of every step,
 * phase and op.
 *
 * Written by the engine thread, read by any (engine_last_steps, engine_running, engine_trace_*: in debug_state.c).  The
 * trainer's ops are recorded on its own thread, which runs only while the engine thread waits for it
 * (train/scheduler_gate.h), so a trace needs no lock. */
#ifndef TANDEM_ENGINE_SERVE_DEBUG_STATE_H
#define TANDEM_ENGINE_SERVE_DEBUG_STATE_H

#include "engine/base/clock.h"
#include "engine/serve/engine.h"
#include "engine/serve/sched.h"
#include "kernels/comm.h"
#include "kernels/trace.h"

#include <pthread.h>

struct debug_state {
    pthread_mutex_t lock;
    struct step_record steps[ENGINE_STEPS_KEPT]; /* a ring; under the lock, as the next three */
    uint64_t n_steps;
    struct seq_view seqs[ENGINE_SEQS_KEPT];
    int n_seqs;

    struct step_record step; /* engine thread only: the step in progress, or the last one */
    uint64_t prefill;        /* prompt tokens in it */
    _Atomic bool traced;     /* a trace was started and not taken yet */
    _Atomic bool pending;    /* the engine thread must begin or end a trace */
    pthread_cond_t answered;
    struct engine_trace *asked, *done; /* under the lock, as `take`: to be begun; ended */
    bool take;                         /* end the trace and set `done` */
    /* engine thread only */
    struct engine_trace *trace; /* NULL: off */
    struct dev_trace *ops;      /* created once, freed at the end */
    struct comm *ranks;         /* of the trace; NULL: the model is not divided */
    pthread_t thread;
};

/* in engine.c */
struct debug_state *engine_debug_state(const struct engine *);
void engine_poke(struct engine *); /* wakes the engine thread, so that it calls debug_state_serve */

void debug_state_init(struct debug_state *);
void debug_state_close(struct debug_state *); /* before the device is closed */

/* The calls of a step, in order: begin before any of its requests may end; end when it is computed (adds it to *now);
 * training after a time slice of `ns`; keep, which publishes its record. */
void debug_state_begin(struct debug_state *, const struct plan *, struct engine_stats *now, uint64_t start);
void debug_state_end(struct debug_state *, struct engine_stats *now);
void debug_state_training(struct debug_state *, uint64_t start, uint64_t ns);
void debug_state_publish(struct debug_state *, const struct sched *, int pages_used);
/* running: the scheduler's list */
void debug_state_seqs(struct debug_state *, const struct seq *running);

/* Engine thread, between two steps: begins and ends traces as requested.  ranks: NULL, or those of a divided model. */
void debug_state_serve(struct debug_state *, struct dev *, struct comm *ranks);
void debug_state_stop(struct debug_state *); /* when the engine closes: ends a running trace */
void debug_state_note(struct debug_state *, const struct trace_event *);

/* Records the phase of a step that began at *since and ends now; sets *since to now.  Does nothing without a trace. */
static inline void debug_state_phase(struct debug_state *l, const char *name, uint64_t *since)
{
    if (!l->trace) return;
    uint64_t now = clock_now();
    debug_state_note(l, &(struct trace_event){.name = name, .start = *since, .end = now, .what = TRACE_PHASE});
    *since = now;
}

#endif
