/* SIGHUP: what can change without a restart is read again.  Options marked `reloadable` (config/table.c) from the
 * environment and the file; what else is reloaded has a call in reload_all.  A file that cannot be read or has an error
 * in it changes nothing at all.  What changed, and what would but needs a restart, is a line of the log.  Loop thread.
 */
#ifndef TANDEM_SERVER_OPS_RELOAD_H
#define TANDEM_SERVER_OPS_RELOAD_H

#include "server/api/app.h"
#include "server/config/settings.h"

/* The words the daemon was called with, without program and subcommand: they still win over file and environment. */
struct reload {
    struct app *app;
    struct settings *live; /* what app->set points to */
    int argc;
    char **argv;
};

void reload_all(const struct reload *);
/* Limits and times of the HTTP server as the settings have them; the other fields are left alone. */
void reload_http_config(const struct settings *, struct http_server_config *);

#endif
