/* The watchdog: a thread that looks, now and then, whether the engine and the loop get on, and tells.
 *
 *     engine stuck: engine_busy_since is longer ago than the limit (--step-timeout)
 *     loop stuck:   a wake-up sent to the loop was not answered within the limit
 *
 * A full queue is neither.  What is stuck is logged once, with the stacks of all threads (engine/base/crash.h), and
 * while it lasts the service manager's watchdog is not fed, so that it ends and restarts us.  /health asks the same
 * question of the engine by itself (health_good), exactly and at once.  While the model loads, the manager is asked for
 * more time as long as the loop lives.  It sleeps for up to five seconds at a time: an idle daemon stays idle. */
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
    uint64_t engine_since;          /* engine_busy_since; 0 */
    uint64_t loop_asked, loop_seen; /* when it was last sent a wake-up, and when it last answered one */
    uint64_t resumed;               /* when the whole process was last found to have stood still (stopped, or its
                                       machine was): what is older counts from then on */
    double limit;                   /* seconds */
};

/* `since` (0: never late) is at least `limit` seconds before `now`. */
bool watchdog_late(uint64_t since, uint64_t now, double limit);
enum watchdog_verdict watchdog_judge(const struct watchdog_view *);
/* How long to sleep between two looks, nanoseconds; watchdog_us: the service manager's, 0: none. */
uint64_t watchdog_period(double limit, uint64_t watchdog_us);

/* Starts the thread.  Loop thread, as all below. */
struct watchdog *watchdog_open(struct uv_loop_s *, double limit);
void watchdog_limit(struct watchdog *, double limit);
/* From now on this engine is watched; NULL: none, and the call returns when it is not looked at any more. */
void watchdog_engine(struct watchdog *, const struct engine *);
/* Serving from now on: no more time is asked for. */
void watchdog_ready(struct watchdog *);
/* Joins the thread; the memory goes when the loop has closed the handle. */
void watchdog_close(struct watchdog *);

#endif
