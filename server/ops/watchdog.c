#include "server/ops/watchdog.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/crash.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/ops/sd_notify.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <uv.h>

#define MS UINT64_C(1000000)
#define PERIOD_MIN (10 * MS)
#define PERIOD_MAX (5000 * MS)
#define STOOD_STILL (1000 * MS) /* slept this much longer than a period */

struct watchdog {
    uv_async_t ping;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows up to `end` */
    pthread_cond_t changed;
    const struct engine **engines; /* (n_engines) */
    size_t n_engines, cap;
    double limit;
    bool ready, end;
    _Atomic uint64_t loop_seen;
    /* used by the watchdog thread only */
    uint64_t loop_asked, resumed;
    enum watchdog_verdict verdict;
};

/* ---- deciding -------------------------------------------------------------------------------------------------- */

bool watchdog_late(uint64_t since, uint64_t now, double limit)
{
    return since && now > since && (double)(now - since) * 1e-9 >= limit;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

enum watchdog_verdict watchdog_judge(const struct watchdog_view *v)
{
    if (v->loop_asked > v->loop_seen && watchdog_late(later(v->loop_asked, v->resumed), v->now, v->limit))
        return WATCHDOG_LOOP_STUCK;
    if (v->engine_since && watchdog_late(later(v->engine_since, v->resumed), v->now, v->limit))
        return WATCHDOG_ENGINE_STUCK;
    return WATCHDOG_WELL;
}

uint64_t watchdog_period(double limit, uint64_t watchdog_us)
{
    double period = limit * 1e9 / 4;
    if (watchdog_us && (double)watchdog_us * 1e3 / 3 < period) period = (double)watchdog_us * 1e3 / 3;
    if (period < (double)PERIOD_MIN) return PERIOD_MIN;
    return period > (double)PERIOD_MAX ? PERIOD_MAX : (uint64_t)period;
}

/* ---- checking --------------------------------------------------------------------------------------------------- */

static void on_ping(uv_async_t *h)
{
    struct watchdog *w = h->data;
    atomic_store(&w->loop_seen, clock_now());
}

static void report_verdict(struct watchdog *w, enum watchdog_verdict v, double limit)
{
    if (v == w->verdict) return;
    if (v == WATCHDOG_WELL) {
        log_info("watchdog: well again");
        sd_notify_status("serving");
    } else {
        const char *thread = v == WATCHDOG_LOOP_STUCK ? "the loop" : "the engine";
        log_error("watchdog: stuck, the stacks of all threads follow thread=\"%s\" step_timeout_s=%g", thread, limit);
        sd_notify_status("stuck: %s has made no progress for %g s", thread, limit);
        crash_stacks("a thread makes no progress");
    }
    w->verdict = v;
}

/* Since when the engine that has been busy for longest has been so; 0: none is.  With the lock held. */
static uint64_t busy_since(const struct watchdog *w)
{
    uint64_t since = 0;
    for (size_t i = 0; i < w->n_engines; i++) {
        uint64_t one = engine_busy_since(w->engines[i]);
        if (one && (!since || one < since)) since = one;
    }
    return since;
}

/* with the lock held */
static void check(struct watchdog *w, uint64_t now)
{
    struct watchdog_view v = {.now = now,
                              .engine_since = busy_since(w),
                              .loop_asked = w->loop_asked,
                              .loop_seen = atomic_load(&w->loop_seen),
                              .resumed = w->resumed,
                              .limit = w->limit};
    report_verdict(w, watchdog_judge(&v), v.limit);
    if (w->verdict == WATCHDOG_WELL) {
        sd_notify_alive();
        if (!w->ready) sd_notify_more_time(w->limit + (double)PERIOD_MAX * 2e-9);
    }
    if (v.loop_seen >= v.loop_asked) {
        w->loop_asked = now;
        uv_async_send(&w->ping);
    }
}

static void *watch(void *arg)
{
    struct watchdog *w = arg;
    crash_thread_begin();
    pthread_mutex_lock(&w->lock);
    while (!w->end) {
        uint64_t period = watchdog_period(w->limit, sd_notify_watchdog_us()), before = clock_now(),
                 due = before + period;
        struct timespec until = {(time_t)(due / 1000000000u), (long)(due % 1000000000u)};
        pthread_cond_timedwait(&w->changed, &w->lock, &until);
        uint64_t now = clock_now();
        if (w->end) break;
        /* a stall found before the suspension remains one */
        if (now > due + STOOD_STILL && w->verdict == WATCHDOG_WELL) w->resumed = now;
        check(w, now);
    }
    pthread_mutex_unlock(&w->lock);
    crash_thread_end();
    return NULL;
}

/* ---- the loop's side ------------------------------------------------------------------------------------------- */

struct watchdog *watchdog_open(struct uv_loop_s *loop, double limit)
{
    struct watchdog *w = mem_zalloc(sizeof *w);
    pthread_condattr_t monotonic;
    w->limit = limit;
    w->ping.data = w;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    CHECK(uv_async_init(loop, &w->ping, on_ping) == 0);
    CHECK(pthread_create(&w->thread, NULL, watch, w) == 0);
    pthread_setname_np(w->thread, "tandem-watchdog");
    return w;
}

void watchdog_limit(struct watchdog *w, double limit)
{
    pthread_mutex_lock(&w->lock);
    w->limit = limit;
    pthread_cond_signal(&w->changed); /* the period may have changed, too */
    pthread_mutex_unlock(&w->lock);
}

void watchdog_engine_opened(struct watchdog *w, const struct engine *engine)
{
    pthread_mutex_lock(&w->lock);
    mem_grow(&w->engines, &w->cap, w->n_engines + 1, sizeof *w->engines);
    w->engines[w->n_engines++] = engine;
    pthread_mutex_unlock(&w->lock);
}

void watchdog_engine_closes(struct watchdog *w, const struct engine *engine)
{
    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < w->n_engines; i++)
        if (w->engines[i] == engine) w->engines[i--] = w->engines[--w->n_engines];
    pthread_mutex_unlock(&w->lock);
}

void watchdog_ready(struct watchdog *w)
{
    pthread_mutex_lock(&w->lock);
    w->ready = true;
    pthread_mutex_unlock(&w->lock);
}

static void on_closed(uv_handle_t *h)
{
    struct watchdog *w = h->data;
    free(w->engines);
    free(w);
}

void watchdog_close(struct watchdog *w)
{
    pthread_mutex_lock(&w->lock);
    w->end = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    uv_close((uv_handle_t *)&w->ping, on_closed);
}
