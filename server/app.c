/* What the daemon says of itself as a whole.  Loop thread only. */
#include "server/app.h"

#include "engine/base/clock.h"

bool app_healthy(const struct app *app)
{
    struct engine_stats s;
    if (!app->engine) return true; /* loading, or already closed */
    engine_stats_read(app->engine, &s);
    uint64_t now = clock_now();
    return !s.step_started || now < s.step_started || (double)(now - s.step_started) * 1e-9 < app->set->step_timeout;
}
