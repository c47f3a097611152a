/* The engine by hand, for measuring: one turn of its loop on the caller's thread.  Only for an engine that was not
 * started; the caller then is the engine thread. */
#ifndef TANDEM_TURN_H
#define TANDEM_TURN_H

#include "engine/engine.h"
#include "engine/setup.h"

/* Inbox, plan, step, events.  Returns the number of tokens computed: 0 when nothing could run, -1 when told to stop.
 * wait: sleep until a message comes. */
int engine_turn(struct engine *, bool wait);

struct setup *engine_setup(struct engine *); /* model and device; the engine's */

#endif
