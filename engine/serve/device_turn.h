/* The order in which several engines of one process use the same cores, or the same GPU: one at a time, first come,
 * first served.  A turn is a step and the time slice of training behind it.  Without a turn (NULL) every call returns
 * at once: an engine that is alone pays nothing. */
#ifndef TANDEM_ENGINE_SERVE_DEVICE_TURN_H
#define TANDEM_ENGINE_SERVE_DEVICE_TURN_H

#include <stdbool.h>

struct device_turn;

struct device_turn *device_turn_new(void);
void device_turn_free(struct device_turn *); /* once every engine that has it is closed */

/* Any thread: blocks until all who asked earlier have given it back. */
void device_turn_take(struct device_turn *);
void device_turn_give(struct device_turn *);
/* By the one who has it: whether another waits. */
bool device_turn_wanted(struct device_turn *);

#endif
