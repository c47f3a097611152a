#include "server/ops/health.h"

#include "engine/base/clock.h"
#include "engine/serve/engine.h"
#include "server/api/app.h"
#include "server/api/model_table.h"
#include "server/config/settings.h"
#include "server/ops/watchdog.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { RESET_ON_FORK = 1 }; /* SCHED_FLAG_RESET_ON_FORK of linux/sched.h */

bool health_good(const struct app *app)
{
    for (int i = 0; i < model_table_count(app->models); i++) {
        const struct engine *engine = model_table_at(app->models, i)->engine;
        if (engine && watchdog_late(engine_busy_since(engine), clock_now(), app->set->step_timeout)) return false;
    }
    return true;
}

void health_short_time_slices(void)
{
    struct { /* sched_setattr(2), version 0 */
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } a = {.size = sizeof a, .policy = SCHED_OTHER, .flags = RESET_ON_FORK, .runtime = 100000 /* ns */};
    a.nice = getpriority(PRIO_PROCESS, 0);
    /* an operator's choice is kept; a nice value below 0 would not be inherited by threads */
    if (sched_getscheduler(0) == SCHED_OTHER && a.nice >= 0) syscall(SYS_sched_setattr, 0, &a, 0);
}
