/* Checks the rule of the scheduler gate: during a time slice only the trainer's thread uses the device, otherwise only
 * other threads do.  Replaces the device's table of ops by one that CHECKs the calling thread before each call.
 *
 * For debug and sanitizer builds (TANDEM_DEBUG) and for tests; a call costs a lock. */
#ifndef TANDEM_ENGINE_SERVE_DEVICE_OWNER_H
#define TANDEM_ENGINE_SERVE_DEVICE_OWNER_H

struct dev;
struct scheduler_gate;
struct device_owner;

struct device_owner *device_owner_new(struct dev *, struct scheduler_gate *);
/* Restores the device's own table.  Call before the gate is freed; NULL is allowed. */
void device_owner_free(struct device_owner *);

#endif
