/* What the daemon tells the service manager: datagrams of NAME=VALUE lines to the socket in $NOTIFY_SOCKET, as
 * sd_notify(3) describes them (a file's path, or "@name" for an abstract socket).  Without that variable every call
 * does nothing.  Any thread once sd_notify_open has run; nothing blocks: a manager that does not read is not waited
 * for.
 */
#ifndef TANDEM_SERVER_OPS_SD_NOTIFY_H
#define TANDEM_SERVER_OPS_SD_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

/* Reads the environment; once, before there are other threads. */
void sd_notify_open(void);
bool sd_notify_wanted(void); /* there is somebody to tell */
/* Microseconds within which WATCHDOG=1 is expected again ($WATCHDOG_USEC, meant for this process); 0: nobody waits. */
uint64_t sd_notify_watchdog_us(void);

/* "STATUS=...": one line for people; control characters become blanks. */
__attribute__((format(printf, 1, 2))) void sd_notify_status(const char *fmt, ...);
void sd_notify_ready(void);
void sd_notify_reloading(void); /* with the monotonic clock, as the protocol wants; sd_notify_ready ends it */
/* The end has begun; it may take so long before the manager loses patience. */
void sd_notify_stopping(double seconds);
void sd_notify_alive(void); /* WATCHDOG=1 */
/* Starting takes longer: so much more time, from now on. */
void sd_notify_more_time(double seconds);

#endif
