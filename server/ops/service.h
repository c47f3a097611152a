/* The daemon as somebody's service: what is prepared at start so that its end can be understood, and what the service
 * manager is told.  Main thread. */
#ifndef TANDEM_SERVER_OPS_SERVICE_H
#define TANDEM_SERVER_OPS_SERVICE_H

#include "server/config/settings.h"

/* First thing: crash reports (engine/base/crash.h) into the data directory with these settings in them, and the
 * manager's socket (sd_notify.h).  Says when an earlier process left a report, and deletes all but the newest sixteen;
 * and which data directory is used where none was named, and when it cannot be. */
void service_begin(const struct settings *);
/* The settings are others: so is what a crash report says. */
void service_settings(const struct settings *);

#endif
