/* SIGHUP: reloads what can change without a restart: options marked `reloadable` (config/table.c) from environment and
 * file, and everything else called in reload_all.  A file that cannot be read or has an error changes nothing.  Each
 * change is logged, and each difference that needs a restart.  Loop thread. */
#ifndef TANDEM_SERVER_OPS_RELOAD_H
#define TANDEM_SERVER_OPS_RELOAD_H

#include "server/api/app.h"
#include "server/config/settings.h"

/* argv without program and subcommand: flags still override file and environment. */
struct reload {
    struct app *app;
    struct settings *live; /* app->set points to it */
    int argc;
    char **argv;
};

void reload_all(const struct reload *);
/* Sets the limits and timeouts of the HTTP server from the settings; leaves the other fields unchanged. */
void reload_http_config(const struct settings *, struct http_server_config *);

#endif
