/* When the device fails: whose requests end, and how it begins anew.
 *
 * An error of one op is its step's.  An error that the device keeps (an illegal address in a kernel, a card that fell
 * off the bus) makes it useless to the process until it is reset: it is opened anew once, with the weights loaded again
 * and an empty cache, and what waits or runs goes on from its tokens.  If it is lost again soon, or does not come back,
 * the daemon ends, so that its supervisor begins with a new process. */
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/engine_state.h"
#include "engine/ready.h"
#include "kernels/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t AGAIN_NS = 5ull * 60 * 1000 * 1000 * 1000; /* lost again within it: for good */

static const char LOST[] = "the device was lost";

/* What the device says, for the events of those it concerns.  Who reads these may be slow, so no text makes place for
 * another: when there is no more room, the log alone has the words. */
static const char *failure_text(struct engine *g, const struct dev_error *err)
{
    const int max = (int)(sizeof g->failure / sizeof *g->failure);
    char text[sizeof *g->failure];
    snprintf(text, sizeof text, "the device failed in the step: %s: %s", err->op ? err->op : "?", err->msg);
    for (int i = 0; i < g->n_failures; i++)
        if (strcmp(g->failure[i], text) == 0) return g->failure[i];
    if (g->n_failures == max) return "the device failed in the step";
    return memcpy(g->failure[g->n_failures++], text, sizeof text);
}

/* A training job ends before the device does: all its ops fail. */
static void end_training(struct engine *g)
{
    const uint64_t SLICE_NS = 50 * 1000 * 1000;
    while (training_runs(&g->training))
        if (!train_gate_give(g->gate, SLICE_NS, NULL, NULL))
            nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
}

bool engine_end_stale(struct engine *g, struct request *r)
{
    bool stale = r->adapter && !adapters_alive(&g->adapters, r->adapter);
    if (stale) engine_end_request(g, r, FINISH_ERROR, -1, LOST);
    return stale;
}

static void end_all_stale(struct engine *g)
{
    for (uint32_t i = 0; i <= g->id_mask; i++)
        for (struct request *r = g->by_id[i], *next; r; r = next) {
            next = r->next;
            engine_end_stale(g, r);
        }
}

static int restart(struct engine *g, struct err *e)
{
    const struct engine_info *m = &g->s.info;
    end_training(g);
    sched_restart(&g->sched);
    kv_pool_free(g->pool);
    g->pool = kv_pool_new(m->pages, rng_mix(clock_unix()));
    g->sched.kv = g->pool;
    batch_close(&g->batch, g->s.model.d);
    adapters_forget(&g->adapters);
    int rc = setup_restart(&g->s, e);
    if (!rc) rc = ready_device(&g->batch, &g->s, e);
    if (!rc) rc = adapters_restore(&g->adapters, g->s.model.d, e);
    if (!rc) end_all_stale(g); /* now, since others may have taken names away meanwhile */
    return rc;
}

static void give_up(struct engine *g, const char *why)
{
    log_error("the device is lost for good: %s", why);
    g->now.device_lost = true;
    atomic_store(&g->lost, true);
    engine_end_all(g);
    if (g->events.notify) g->events.notify(g->events.arg); /* there may be nobody whose end would */
}

/* Opening it anew takes about as long as the start did: so long nobody is to think that the engine hangs. */
static uint64_t patience_ns(const struct engine *g)
{
    return (uint64_t)((60 + 4 * g->s.info.load_seconds) * 1e9);
}

static void recover(struct engine *g)
{
    uint64_t start = clock_now();
    struct err e = {0};
    if (g->restarted && start - g->restarted < AGAIN_NS) {
        give_up(g, "it had been opened anew only just before");
        return;
    }
    g->restarted = start ? start : 1;
    log_error("the device is lost: opening it anew; waiting=%d running=%d", g->sched.n_waiting, g->sched.n_running);
    atomic_store(&g->busy_since, start + patience_ns(g));
    pthread_rwlock_wrlock(&g->model_lock);
    int rc = restart(g, &e);
    if (rc) atomic_store(&g->lost, true);
    pthread_rwlock_unlock(&g->model_lock);
    atomic_store(&g->busy_since, clock_now());
    if (rc) {
        give_up(g, e.msg);
        return;
    }
    engine_end_preempted(g);
    g->now.device_restarts++;
    log_write(LOG_WARN, "the device is back seconds=%.3f", (double)(clock_now() - start) * 1e-9);
}

static bool is_lost(const struct engine *g)
{
    const struct dev *d = g->s.model.d;
    return d->ops->lost && d->ops->lost(d);
}

void engine_fail_step(struct engine *g, const struct plan *p)
{
    struct dev *d = g->s.model.d;
    const char *text = failure_text(g, &d->error);
    log_error("step failed op=%s error=\"%s\"", d->error.op ? d->error.op : "?", d->error.msg);
    dev_clear_error(d);
    g->now.failed_steps++;
    for (int i = 0; i < p->n; i++) engine_end_request(g, (struct request *)p->v[i].seq, FINISH_ERROR, -1, text);
    if (is_lost(g)) recover(g);
}

bool engine_look_after(struct engine *g)
{
    if (!is_lost(g) || atomic_load(&g->lost)) return false;
    recover(g);
    return true;
}

void engine_end_all(struct engine *g)
{
    for (uint32_t i = 0; i <= g->id_mask; i++)
        while (g->by_id[i]) engine_end_request(g, g->by_id[i], FINISH_ERROR, -1, LOST);
}

bool engine_lost(const struct engine *g)
{
    return atomic_load(&g->lost);
}
