/* The turnstile between serving and training: the trainer's thread asks before every op, the engine's thread decides.
 *
 * The trainer calls train_gate_pass before each op it enqueues.  It returns at once while training has the device, and
 * sleeps while serving has it.  `rows` hints at how an op should be cut: train_gate_rows says how many rows of a
 * sliceable op may be done in one go. */
#ifndef TANDEM_TRAIN_GATE_H
#define TANDEM_TRAIN_GATE_H

#include <stdbool.h>
#include <stdint.h>

struct train_gate;

struct train_gate *train_gate_new(void);
void train_gate_free(struct train_gate *);

/* ---- the trainer's thread; NULL gates are open */
void train_gate_pass(struct train_gate *);
/* The device is not needed for a while (a checkpoint is written, the job ends); the next pass asks again. */
void train_gate_leave(struct train_gate *);
int train_gate_rows(struct train_gate *); /* >= 16; INT_MAX while nobody is served */

/* ---- the engine's thread */
/* Lets the trainer run for ns (UINT64_MAX: until `stop` is true), and returns when it has let go of the device: at the
 * first op boundary after.  Returns the ns it used; 0 when no trainer wants the device. */
uint64_t train_gate_give(struct train_gate *, uint64_t ns, bool (*stop)(void *), void *arg);
bool train_gate_wanted(struct train_gate *); /* a trainer waits for the device */

#endif
