/* Exchanges between the devices of ranks, enqueued like ops (ops.h): the host waits for none of them, and they may be
 * part of what dev_ops.replay repeats.
 *
 * The ranks are those of a struct comm, which stays open beside, for what the hosts tell each other.  Every rank calls
 * the same exchanges in the same order, and replays with the same keys: where one replays, all do.  A device that has
 * failed in an op goes on exchanging, values that nobody uses, since the others take part; one that is lost does not.
 *
 * Errors are the device's.  An exchange in which nothing moves for the comm's timeout, or whose library reports an
 * error, ends on every rank: the device fails with the rank and the exchange in its message, and so does the comm.
 *
 * Thread: the device's, which uses the comm, too. */
#ifndef TANDEM_KERNELS_COMM_DEVICE_H
#define TANDEM_KERNELS_COMM_DEVICE_H

#include "kernels/comm.h"
#include "kernels/ops.h"

/* Each rank calls it, with a device of its own, once.  Until the device is closed; the comm stays open as long.
 * @return the same on every rank; false, with a sentence in why[]: their devices cannot exchange. */
bool comm_device_open(struct comm *, struct dev *, char why[COMM_WHY_BYTES]);
/* What carries the exchanges, with its version: "NCCL 2.28.9". */
static inline const char *comm_device_name(const struct dev *d)
{
    return d->ops->comm_name(d);
}

/* Both take f32 matrices, of the same number of rows on every rank, at least one.  The columns of `whole` (T, C),
 * adjacent rows, are divided: rank r of N has C r / N .. C (r + 1) / N - 1, rounded down, which are its `part`. */

/* whole = all parts, on every rank.  N divides C. */
static inline void comm_device_join(struct dev *d, struct mat part, struct mat whole)
{
    d->ops->comm_join(d, part, whole);
}
/* The same on rank 0 alone; elsewhere only the sizes of whole are read.  The rows of the part are adjacent. */
static inline void comm_device_collect(struct dev *d, struct mat part, struct mat whole)
{
    d->ops->comm_collect(d, part, whole);
}

#endif
