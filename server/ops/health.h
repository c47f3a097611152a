/* Whether the daemon as a whole makes progress.  Loop thread. */
#ifndef TANDEM_SERVER_OPS_HEALTH_H
#define TANDEM_SERVER_OPS_HEALTH_H

#include <stdbool.h>

struct app;

/* False when the engine has been in one step, or has left a message unread, for longer than --step-timeout. */
bool health_good(const struct app *);
/* The calling thread, the loop's, runs as soon as it wakes, though compute threads fill the cores: clients wait for it,
 * and it is never busy for long.  Asks for short slices (Linux 6.12; earlier ones ignore it), which later threads do
 * not inherit. */
void health_hurry(void);

#endif
