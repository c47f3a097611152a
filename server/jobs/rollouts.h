/* The texts of method grpo: sampled by the engine that serves, with the adapter that is trained, and judged.
 *
 * The trainer's thread asks and waits (rollouts_make).  Before each step it publishes its adapter under a name that no
 * client can use.  The texts are requests of the daemon's own, behind those of all clients, at most as many at a time
 * as can run at once; they are submitted on the loop, and judged on the trainer's thread. */
#ifndef TANDEM_SERVER_JOBS_ROLLOUTS_H
#define TANDEM_SERVER_JOBS_ROLLOUTS_H

#include "engine/train/train.h"

struct bridge;
struct engine;
struct rewards;
struct rollouts;
struct uv_loop_s;

struct rollouts_config {
    struct uv_loop_s *loop;
    struct bridge *bridge; /* of the engine */
    struct engine *engine;
    struct rewards *rewards;    /* borrowed, as the next */
    const struct dataset *data; /* the prompts */
    const char *job;            /* its id, for the adapter's name */
};

struct rollouts *rollouts_open(const struct rollouts_config *); /* loop thread */
/* Is train_job.rollout, with arg the struct rollouts. */
int rollouts_make(void *arg, struct train_rollout *, struct err *e);
/* Loop thread, after the job's last event: drops what is under way, and unloads the adapter. */
void rollouts_close(struct rollouts *);

#endif
