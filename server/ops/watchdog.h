/* The watchdog: a thread that checks periodically whether the engine and the loop make progress.
 *
 *     engine stuck: engine_busy_since is longer ago than the limit (--step-timeout)
 *     loop stuck:   a wake-up sent to the loop was not answered within the limit
 *
 * A full queue is neither.  A stall is logged once, with the stacks of all threads (engine/base/crash.h).  While it
 * lasts, the service manager gets no WATCHDOG=1, so that it restarts the daemon.  /health makes the engine's check
 * itself (health_good), without this thread's delay.  While the model loads, the service manager is asked for more
 * time as long as the loop answers.  The thread sleeps for up to five seconds, so an idle daemon stays idle. */
#ifndef TANDEM_SERVER_OPS_WATCHDOG_H
#define TANDEM_SERVER_OPS_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>

struct engine;
struct uv_loop_s;
struct watchdog;

enum watchdog_verdict { WATCHDOG_WELL, WATCHDOG_ENGINE_STUCK, WATCHDOG_LOOP_STUCK };

struct watchdog_view { /* times are clock_now() */
    uint64_t now;
    uint64_t engine_since;          /* engine_busy_since; 0: idle, or no engine */
    uint64_t loop_asked, loop_seen; /* of the last wake-up sent to the loop, and of its last answer */
    uint64_t resumed;               /* when the process (or its machine) was last found to have been stopped: earlier
                                       times count from then on */
    double limit;                   /* seconds */
};

/* @return whether `since` is at least `limit` seconds before `now`; false for since 0. */
bool watchdog_late(uint64_t since, uint64_t now, double limit);
enum watchdog_verdict watchdog_judge(const struct watchdog_view *);
/* @return the sleep between two checks, nanoseconds.  watchdog_us: the service manager's period, 0: none. */
uint64_t watchdog_period(double limit, uint64_t watchdog_us);

/* Starts the thread.  This and the functions below: loop thread. */
struct watchdog *watchdog_open(struct uv_loop_s *, double limit);
void watchdog_limit(struct watchdog *, double limit);
/* Watches this engine too, or no longer: when the call returns, the thread does not use it. */
void watchdog_engine_opened(struct watchdog *, const struct engine *);
void watchdog_engine_closes(struct watchdog *, const struct engine *);
/* Serving has begun: the service manager is not asked for more time. */
void watchdog_ready(struct watchdog *);
/* Joins the thread; frees itself when the loop has closed the handle. */
void watchdog_close(struct watchdog *);

#endif
