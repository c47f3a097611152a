#include "server/ops/reload.h"

#include "engine/base/buf.h"
#include "engine/base/log.h"
#include "server/access/admission.h"
#include "server/access/credentials.h"
#include "server/config/settings.h"
#include "server/net/http.h"
#include "server/net/sse.h"
#include "server/ops/process.h"
#include "server/ops/sd_notify.h"
#include "server/ops/service.h"
#include "server/ops/watchdog.h"

#include <stdio.h>

void reload_http_config(const struct settings *set, struct http_server_config *c)
{
    c->max_connections = set->max_connections;
    c->max_header_bytes = set->max_header_size;
    c->max_body_bytes = set->max_body_size;
    c->header_timeout_ms = (int)(set->header_timeout * 1000);
    c->body_timeout_ms = (int)(set->body_timeout * 1000);
    c->idle_timeout_ms = (int)(set->idle_timeout * 1000);
    c->write_timeout_ms = (int)(set->write_timeout * 1000);
    c->cors_origin = set->cors_origin && *set->cors_origin ? set->cors_origin : NULL;
}

static void log_change(void *arg, const struct setting_option *o, const char *was, const char *now, bool taken)
{
    (void)arg;
    if (taken)
        log_info("reloaded option=%s was=\"%.200s\" now=\"%.200s\"", o->name, was, now);
    else
        log_warn("changed, but needs a restart option=%s is=\"%.200s\" wanted=\"%.200s\"", o->name, was, now);
}

/* Passes the settings to the components that keep copies of them. */
static void apply(const struct reload *r)
{
    const struct settings *set = r->live;
    struct http_server_config http;
    http_server_defaults(&http);
    reload_http_config(set, &http);
    http_server_reconfigure(r->app->http, &http);
    sse_hub_keepalive(r->app->sse, set->sse_keepalive);
    watchdog_limit(r->app->watchdog, set->step_timeout);
    process_files(set->max_connections);
    log_set_level((enum log_level)log_parse_level(set->log_level));
    service_settings(set);
}

static void reload_settings(const struct reload *r)
{
    struct settings fresh;
    struct err e = {0};
    if (settings_parse(&fresh, CMD_SERVE, r->argc, r->argv, &e)) {
        log_error("the settings are not reloaded reason=\"%s\"", e.msg);
    } else {
        int n = settings_reload(r->live, &fresh, CMD_SERVE, log_change, NULL);
        if (n) apply(r);
        log_info("settings reloaded changed=%d", n);
    }
    settings_free(&fresh);
}

void reload_all(const struct reload *r)
{
    bool tell = r->app->state == SERVING_READY; /* else the READY=1 that ends a reload would be false */
    if (tell) sd_notify_reloading();
    reload_settings(r);
    credentials_reload(&r->app->credentials);
    if (tell) sd_notify_ready();
}
