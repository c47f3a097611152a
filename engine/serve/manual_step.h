/* Runs the engine without its thread, for benchmarks and tests: each call is one iteration of the engine loop on the
 * calling thread, which takes the place of the engine thread.  Only before engine_start. */
#ifndef TANDEM_ENGINE_SERVE_MANUAL_STEP_H
#define TANDEM_ENGINE_SERVE_MANUAL_STEP_H

#include "engine/serve/engine.h"
#include "engine/serve/setup.h"

/* Handles the inbox, plans and computes one step, posts its events.  wait: blocks until a message arrives.
 * @return the number of tokens computed: 0 when no request could run, -1 after engine_close has asked it to stop. */
int engine_step_once(struct engine *, bool wait);

struct setup *engine_setup(struct engine *); /* model and device; owned by the engine */

#endif
