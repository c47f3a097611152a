/* The engine's statistics: written by the engine thread with each step, read by any. */
#include "engine/base/clock.h"
#include "engine/base/flight.h"
#include "engine/serve/engine_state.h"

void engine_publish(struct engine *g, const struct plan *p)
{
    int paused = 0;
    for (const struct seq *q = g->sched.running.next; q != &g->sched.running; q = q->next) paused += q->paused;
    g->now.waiting = g->sched.n_waiting;
    g->now.running = g->sched.n_running;
    g->now.paused = paused;
    g->now.pages_cached = kv_cached(g->pool);
    g->now.pages_used = kv_pages(g->pool) - kv_available(g->pool);
    if (g->s.model.d->ops->memory) {
        struct dev_memory m;
        g->s.model.d->ops->memory(g->s.model.d, &m);
        g->now.device_used = m.used;
    }
    if (p) g->now.preemptions += (uint64_t)p->n_preempted;
    flight_counts(g->now.waiting, g->now.running, paused);
    debug_state_seqs(&g->look, &g->sched.running);
    pthread_mutex_lock(&g->stats_lock);
    g->stats = g->now;
    pthread_mutex_unlock(&g->stats_lock);
}

void engine_stats_read(const struct engine *g, struct engine_stats *out)
{
    struct engine *w = (struct engine *)g; /* only the lock is written */
    pthread_mutex_lock(&w->stats_lock);
    *out = g->stats;
    pthread_mutex_unlock(&w->stats_lock);
    out->adapters = adapters_count(&w->adapters, &out->adapter_bytes);
    uint64_t busy = engine_busy_since(g);
    out->step_started = busy > clock_now() ? 0 : busy;
    /* requests still in the inbox count as waiting */
    if (out->waiting < atomic_load(&g->queued)) out->waiting = atomic_load(&g->queued);
}
