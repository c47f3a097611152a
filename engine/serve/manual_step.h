/* The engine by hand, for measuring: one turn of its loop on the caller's thread.  Only for an engine that was not
 * started; the caller then is the engine thread. */
#ifndef TANDEM_ENGINE_SERVE_MANUAL_STEP_H
#define TANDEM_ENGINE_SERVE_MANUAL_STEP_H

#include "engine/serve/engine.h"
#include "engine/serve/setup.h"

/* Inbox, plan, step, events.  Returns the number of tokens computed: 0 when nothing could run, -1 when told to stop.
 * wait: sleep until a message comes. */
int engine_step_once(struct engine *, bool wait);

struct setup *engine_setup(struct engine *); /* model and device; the engine's */

#endif
