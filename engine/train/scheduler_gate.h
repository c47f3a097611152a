/* The scheduler gate: the engine thread and the trainer thread share one device and never use it at the same time.
 *
 * The trainer thread passes the gate before every op.  The engine thread grants it time slices, between two steps or
 * while no request can run, and gets the device back at the next op boundary.  To keep that wait short, the trainer
 * splits its ops into chunks of the cost that the gate allows (op_chunks.h); results do not depend on the split. */
#ifndef TANDEM_ENGINE_TRAIN_SCHEDULER_GATE_H
#define TANDEM_ENGINE_TRAIN_SCHEDULER_GATE_H

#include <stdbool.h>
#include <stdint.h>

struct dev;
struct dev_error;
struct err;
struct scheduler_gate;

/* d: the device whose errors the gate collects (scheduler_gate_error); NULL: errors stay in the device.  wake(arg) is
 * called on the trainer thread when it starts to wait for the device, since the engine thread may be asleep. */
struct scheduler_gate *scheduler_gate_new(struct dev *d, void (*wake)(void *), void *arg);
void scheduler_gate_free(struct scheduler_gate *);

/* ---- trainer thread; a NULL gate is always open ---- */

/* Nanoseconds that scheduler_gate_pass has blocked so far, in all. */
uint64_t scheduler_gate_waited(const struct scheduler_gate *);
/* Whether the trainer has the device now. */
bool scheduler_gate_inside(const struct scheduler_gate *);
/* Blocks until the trainer may issue one more op.  On an asynchronous device it also waits for the queued ops at the
 * end of a time slice, and within one when the queue has grown too long. */
void scheduler_gate_pass(struct scheduler_gate *);
/* The kind of work that dominates an op.  The gate measures a rate for each kind, so the unit of a cost matters only
 * within its kind.  SUMS and STATE: ops whose chunk sizes depend on shapes alone (weight-gradient GEMMs; element-wise
 * ops of the optimizer and of sums over tokens). */
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

/* @return the largest cost the next op may have; INFINITY for a NULL gate.  Valid after scheduler_gate_pass. */
double scheduler_gate_max_cost(struct scheduler_gate *, enum train_work);
/* Declares the kind and cost of the op about to be issued; the gate updates the kind's rate from its duration. */
void scheduler_gate_cost(struct scheduler_gate *, enum train_work, double cost);
/* Both of the above for an op in which n rows cost about fixed + n * row_cost.  @return how many of the `rows` rows to
 * take, 1 .. rows: at least so many that they cost half the fixed part (reading a weight). */
int scheduler_gate_rows(struct scheduler_gate *, enum train_work, int rows, double row_cost, double fixed);
/* Sets the smallest duration of a chunk, 100 us by default.  Tests set less to get more chunks. */
void scheduler_gate_finest(struct scheduler_gate *, double ns);
/* Returns the device before a pause in which the trainer issues no ops (writing a file, end of the job).  The next
 * pass waits for it again. */
void scheduler_gate_leave(struct scheduler_gate *);
/* The same before the trainer waits for something else than the device, which has then done all that was enqueued; also
 * without a gate. */
void scheduler_gate_settle(struct scheduler_gate *, struct dev *d);

/* Scratch beyond that of serving (ops.h: reserve, trim) is shared by the trainers of a gate: each keeps it from before
 * its reserve on, and when the last one drops it, it is freed.  Inside; without a gate each drop frees it. */
void scheduler_gate_keep_scratch(struct scheduler_gate *);
void scheduler_gate_drop_scratch(struct scheduler_gate *, struct dev *d);

/* Takes the first error of the trainer's ops since the last call.  @return false when there was none.  The gate moves
 * these errors out of the device, where they would end requests. */
bool scheduler_gate_error(struct scheduler_gate *, struct dev_error *out);
/* The same as an error of the caller: ERR_LOST, ERR_NOMEM.  Without a gate (NULL) of the device itself. */
bool scheduler_gate_failed(struct scheduler_gate *, struct dev *d, struct err *e);

/* ---- engine thread ---- */

/* @return true while the trainer waits for the device. */
bool scheduler_gate_wanted(struct scheduler_gate *);
/* Grants the trainer a time slice and blocks until it ends: after ns, or when stop(arg), which the trainer thread calls
 * at each op boundary, returns true.  stop NULL: serving waits for the end of the slice, so ops are split finer.
 * @return the ns used; 0 when the trainer did not wait for the device. */
uint64_t scheduler_gate_grant(struct scheduler_gate *, uint64_t ns, bool (*stop)(void *), void *arg);
/* @return whether the calling thread may use the device now: the trainer thread during its time slice, any other thread
 * outside it, all threads once the gate is open.  Any thread. */
bool scheduler_gate_permits(struct scheduler_gate *);
/* Every pass returns at once from now on: serving has ended and only the trainer uses the device. */
void scheduler_gate_open(struct scheduler_gate *);

#endif
