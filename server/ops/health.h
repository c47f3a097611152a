/* Whether the daemon as a whole makes progress.  Loop thread. */
#ifndef TANDEM_SERVER_OPS_HEALTH_H
#define TANDEM_SERVER_OPS_HEALTH_H

#include <stdbool.h>

struct app;

/* @return false when one engine step, or a message to the engine, has been pending for longer than --step-timeout. */
bool health_good(const struct app *);
/* Requests short scheduler slices for the calling thread, the loop's, so that it runs as soon as it wakes even when
 * compute threads occupy all cores: clients wait for it, and it is never busy for long.  Linux 6.12 (ignored by earlier
 * versions); not inherited by threads created later. */
void health_short_time_slices(void);

#endif
