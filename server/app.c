/* When a request may not come in.  Loop thread only. */
#include "server/app.h"

#include "engine/base/clock.h"
#include "server/watchdog.h"

#include <stdio.h>

static void set_retry_after(struct http_req *req, int seconds)
{
    char text[16];
    snprintf(text, sizeof text, "%d", seconds);
    http_set_header(req, "Retry-After", text);
}

void app_reply_overloaded(struct app *app, struct http_req *req)
{
    metrics_reject(&app->metrics, REJECT_OVERLOADED);
    set_retry_after(req, bridge_retry_after(app->bridge));
    http_reply_error(req, 429, "overloaded", "Model is overloaded");
}

bool app_refuses(struct app *app, struct http_req *req)
{
    if (app->state != APP_READY) {
        bool loading = app->state == APP_LOADING;
        metrics_reject(&app->metrics, loading ? REJECT_LOADING : REJECT_DRAINING);
        set_retry_after(req, loading ? 1 : 5);
        http_reply_error(req, 503, loading ? "loading" : "draining", "%s",
                         loading ? "the model is loading" : "the server is shutting down");
        return true;
    }
    if (bridge_has_room(app->bridge)) return false;
    app_reply_overloaded(app, req);
    return true;
}

bool app_healthy(const struct app *app)
{
    if (!app->engine) return true; /* loading, or already closed */
    return !watchdog_late(engine_busy_since(app->engine), clock_now(), app->set->step_timeout);
}
