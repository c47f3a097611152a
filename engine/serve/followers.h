/* Ranks of a divided model (engine_config.comm) that are threads of this process, each with a device of its own. */
#ifndef TANDEM_ENGINE_SERVE_FOLLOWERS_H
#define TANDEM_ENGINE_SERVE_FOLLOWERS_H

#include "engine/serve/engine.h"

struct followers;

/* The device of a process that mpirun started: of "cuda" and "auto" the GPU of its number on its machine, others as they
 * are. */
enum { FOLLOWER_DEVICE = 48 };
const char *follower_device(const char *device, char out[FOLLOWER_DEVICE]);

/* Begins ranks 1 and on.  c: what rank 0's engine is to be opened with; its comm is set, and its threads and cpus become
 * that rank's share.  The strings of c are borrowed until followers_end.  NULL and *e on error. */
struct followers *followers_begin(struct engine_config *c, int ranks, double timeout_s, struct err *e);
/* Waits for them.  After engine_close; opened false: engine_open failed.  NULL is allowed. */
void followers_end(struct followers *, bool opened);

#endif
