/* The engine thread's loop: inbox -> schedule -> step -> statistics -> events -> time slice of training.  Sleeps in its
 * inbox when nothing can run. */
#include "engine/base/clock.h"
#include "engine/base/crash.h"
#include "engine/base/log.h"
#include "engine/serve/device_turn.h"
#include "engine/serve/engine_state.h"
#include "engine/serve/kv_published.h"
#include "engine/serve/kv_tier.h"
#include "engine/serve/manual_step.h"

#include <string.h>

/* The longest time slice of training while no request can run: statistics are published between two of them. */
enum { IDLE_SLICE_NS = 500 * 1000 * 1000 };

/* Whether training's time slice ends: for a message, or for another engine's step. */
static bool is_wanted(void *arg)
{
    struct engine *g = arg;
    return mailbox_waiting(&g->inbox) || device_turn_wanted(g->turn);
}

/* Grants training a time slice: after a step what train_quantum.h allows, when no request can run until the next
 * message arrives. */
static void run_training(struct engine *g, const struct plan *p)
{
    if (!scheduler_gate_wanted(g->gate)) return;
    uint64_t used = 0, start = clock_now();
    if (!p->n) {
        atomic_store(&g->busy_since, clock_now() + IDLE_SLICE_NS); /* this thread is late only after the slice */
        used = scheduler_gate_grant(g->gate, IDLE_SLICE_NS, is_wanted, g);
    } else {
        uint64_t ns = train_quantum_allow(&g->share, g->now.last_step_ns);
        if (ns) used = scheduler_gate_grant(g->gate, ns, NULL, NULL);
        train_quantum_used(&g->share, used);
    }
    g->now.train_ns += used;
    debug_state_training(&g->look, start, used);
}

int engine_step_once(struct engine *g, bool wait)
{
    static const struct plan nothing;
    if (!engine_take_inbox(g, wait && !scheduler_gate_wanted(g->gate) && !kv_tier_ready(g))) return -1;
    kv_tier_run(g);
    debug_state_serve(&g->look, g->s.model.d, g->s.model.shard ? g->s.model.shard->comm : NULL);
    if (engine_lost(g)) engine_end_all(g);
    const struct plan *p = g->hold == HOLD_ALL ? &nothing : sched_step(&g->sched);
    bool uses = p->n || scheduler_gate_wanted(g->gate); /* the device */
    if (p->n_preempted) engine_end_preempted(g);
    if (uses) device_turn_take(g->turn);
    engine_speculate(g, p);
    int n = p->n, tokens = p->n_tokens; /* copied: the plan is not valid once its requests have ended */
    if (n) engine_run_step(g, p);
    engine_publish(g, p); /* before the events: a client that saw its request end must see its pages free */
    kv_published_flush(g->published); /* before them, too: a router can know of a text's pages before its next turn */
    events_post(&g->events);
    kv_tier_submit(g);
    if (uses && !engine_lost(g)) run_training(g, p);
    if (uses) device_turn_give(g->turn);
    if (engine_check_device(g)) { /* posted now: the loop may sleep long before its next iteration */
        engine_publish(g, NULL);
        events_post(&g->events);
    }
    if (n) debug_state_publish(&g->look, &g->sched, g->now.pages_used);
    atomic_store(&g->busy_since, 0);
    return tokens;
}

struct setup *engine_setup(struct engine *g)
{
    return &g->s;
}

static void *engine_main(void *arg)
{
    struct engine *g = arg;
    struct err e = {0};
    int n = 0;
    crash_thread_begin();
    if (setup_pin(&g->s, &e)) log_write(LOG_WARN, "%s", e.msg);
    while ((n = engine_step_once(g, n == 0)) >= 0) {
    }
    kv_tier_flush(g);
    crash_thread_end();
    return NULL;
}

int engine_start(struct engine *g, void (*notify)(void *), void *arg, struct err *e)
{
    g->events.notify = notify;
    g->events.arg = arg;
    int rc = pthread_create(&g->thread, NULL, engine_main, g);
    if (rc) return err_set(e, ERR_IO, "cannot start the engine thread: %s", strerror(rc));
    pthread_setname_np(g->thread, "tandem-engine");
    g->started = true;
    return 0;
}
