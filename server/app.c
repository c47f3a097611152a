/* What the daemon says of itself as a whole.  Loop thread only. */
#include "server/app.h"

#include "engine/base/clock.h"
#include "server/watchdog.h"

bool app_healthy(const struct app *app)
{
    if (!app->engine) return true; /* loading, or already closed */
    return !watchdog_late(engine_busy_since(app->engine), clock_now(), app->set->step_timeout);
}
