/* Notifications to the service manager: datagrams of NAME=VALUE lines to the socket in $NOTIFY_SOCKET (a path, or
 * "@name" for an abstract socket), as in sd_notify(3).  Without that variable every call is a no-op.  Any thread once
 * sd_notify_open has run.  Never blocks: a datagram is dropped when the manager does not read. */
#ifndef TANDEM_SERVER_OPS_SD_NOTIFY_H
#define TANDEM_SERVER_OPS_SD_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

/* Reads the environment; once, before there are other threads. */
void sd_notify_open(void);
bool sd_notify_wanted(void); /* whether a service manager listens */
/* Microseconds within which the next WATCHDOG=1 is expected ($WATCHDOG_USEC, if for this process); 0: no watchdog. */
uint64_t sd_notify_watchdog_us(void);

/* "STATUS=...": one line for people; control characters become blanks. */
__attribute__((format(printf, 1, 2))) void sd_notify_status(const char *fmt, ...);
void sd_notify_ready(void);
void sd_notify_reloading(void); /* sends the monotonic clock, as the protocol requires; sd_notify_ready ends it */
/* Shutdown has begun and may take this long before the manager kills the process. */
void sd_notify_stopping(double seconds);
void sd_notify_alive(void); /* WATCHDOG=1 */
/* Extends the start timeout: this much time, from now on. */
void sd_notify_more_time(double seconds);

#endif
