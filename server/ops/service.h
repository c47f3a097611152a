/* Preparations for running as a service: crash reports, and the connection to the service manager.  Main thread. */
#ifndef TANDEM_SERVER_OPS_SERVICE_H
#define TANDEM_SERVER_OPS_SERVICE_H

#include "server/config/settings.h"

/* Called first.  Directs crash reports (engine/base/crash.h) with these settings to the data directory, and opens the
 * manager's socket (sd_notify.h).  Logs reports of an earlier process and keeps only the newest sixteen; logs the
 * default data directory where none was configured, and an unusable one. */
void service_begin(const struct settings *);
/* Updates the settings in crash reports after a reload. */
void service_settings(const struct settings *);

#endif
