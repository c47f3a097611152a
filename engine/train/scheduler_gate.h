/* The turnstile between serving and training: one device, two threads, never both.
 *
 * The trainer's thread passes the gate before every op; the engine's thread gives it the device for a while, between
 * two steps or as long as nobody asks for text, and has it back at the next op boundary.  So that a boundary is never
 * far, the trainer cuts its ops as small as the gate wants (op_chunks.h); how an op is cut does not change its result.
 */
#ifndef TANDEM_ENGINE_TRAIN_SCHEDULER_GATE_H
#define TANDEM_ENGINE_TRAIN_SCHEDULER_GATE_H

#include <stdbool.h>
#include <stdint.h>

struct dev;
struct dev_error;
struct scheduler_gate;

/* d: the device, for errors of the trainer's ops; NULL: they stay in it.  wake(arg) is called on the trainer's thread
 * when it begins to want the device, while the engine may be asleep. */
struct scheduler_gate *scheduler_gate_new(struct dev *d, void (*wake)(void *), void *arg);
void scheduler_gate_free(struct scheduler_gate *);

/* ---- the trainer's thread; a gate of NULL is always open ---- */

/* Returns when the device is the trainer's for one op more.  What a device that only enqueues has not done when the
 * trainer's turn ends is waited for, and so is it now and then before. */
void scheduler_gate_pass(struct scheduler_gate *);
/* What an op mostly does.  The gate learns how fast each kind of work is, so a cost may be in any unit of its kind.
 * SUMS and STATE are of ops whose sizes depend on shapes alone: products of gradients, and what moves floats of the
 * optimizer and of sums over tokens. */
enum train_work {
    WORK_LINEAR,
    WORK_BACK,
    WORK_GEMM,
    WORK_ATTN,
    WORK_ATTN_BACK,
    WORK_LOSS,
    WORK_MOVE,
    WORK_SUMS,
    WORK_STATE,
    WORK_KINDS
};

/* After a pass, which knows who else wants the device: what the op may cost; INFINITY for a gate of NULL. */
double scheduler_gate_room(struct scheduler_gate *, enum train_work);
/* The op that comes is of this kind and costs so much. */
void scheduler_gate_cost(struct scheduler_gate *, enum train_work, double cost);
/* Both for an op of rows, n of which cost about fixed + n * row_cost: how many of `rows` rows to do, 1 .. rows.  What
 * is fixed (a weight is read) is not made to be the most of it. */
int scheduler_gate_rows(struct scheduler_gate *, enum train_work, int rows, double row_cost, double fixed);
/* Ops are not cut finer than into so many ns; 100 us.  Tests cut them finer than is worth while. */
void scheduler_gate_finest(struct scheduler_gate *, double ns);
/* The device is not needed for a while: a file is written, or the job ended.  The next pass asks again. */
void scheduler_gate_leave(struct scheduler_gate *);

/* Takes the first error of an op since the last call; false: none.  The gate keeps errors, so that what fails in
 * training does not end requests, whose errors the device has. */
bool scheduler_gate_error(struct scheduler_gate *, struct dev_error *out);

/* ---- the engine's thread ---- */

/* The trainer waits for the device. */
bool scheduler_gate_wanted(struct scheduler_gate *);
/* The trainer has the device for ns, or until stop(arg) is true, which it asks at each boundary on its own thread
 * (NULL: only ns counts, and ops are cut finer, because somebody waits for the next step).  Returns the ns it took, 0
 * when it did not want any. */
uint64_t scheduler_gate_give(struct scheduler_gate *, uint64_t ns, bool (*stop)(void *), void *arg);
/* Whether the calling thread may use the device now: the trainer inside the gate, every other thread while the trainer
 * is outside, all of them once the gate is open.  Any thread. */
bool scheduler_gate_permits(struct scheduler_gate *);
/* From now on every pass returns at once: nobody else uses the device any more. */
void scheduler_gate_open(struct scheduler_gate *);

#endif
