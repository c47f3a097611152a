/* What carries messages between ranks, under the operations of comm.h, and what devices add to it; private to kernels/.
 * Messages from one rank to another arrive in the order in which they were sent. */
#ifndef TANDEM_KERNELS_COMM_TRANSPORT_H
#define TANDEM_KERNELS_COMM_TRANSPORT_H

#include "kernels/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { COMM_TRANSPORT_VERSION = 3 }; /* of this struct, between the program and a module */

/* A transfer in progress: the transport's.  Its memory stays the caller's, unchanged, until `test` says that it is
 * done.
 */
struct comm_transfer;

struct comm_transport {
    int rank, ranks;
    bool one_thread; /* that which opened it must make all calls */
    void *state;
    /* Begin a transfer of at most INT_MAX bytes.  NULL with a sentence in why[]. */
    struct comm_transfer *(*send)(void *state, const void *, size_t bytes, int to, char why[COMM_WHY_BYTES]);
    struct comm_transfer *(*receive)(void *state, void *, size_t bytes, int from, char why[COMM_WHY_BYTES]);
    /* @return 1: done, and forgotten; 0: not yet; -1: failed, with a sentence in why[]. */
    int (*test)(void *state, struct comm_transfer *, char why[COMM_WHY_BYTES]);
    /* This rank has failed: its memory is not touched any more. */
    void (*fail)(void *state);
    /* Whether another rank has failed; any thread.  NULL: then this process is ended. */
    bool (*others_failed)(void *state);
    void (*close)(void *state, bool failed);
};

/* Takes over the transport, which it closes on failure.  NULL: no memory. */
struct comm *comm_new(const struct comm_transport *, double timeout_s);

/* ---- for exchanges between the ranks' devices (comm_device.h) ---- */

double comm_timeout(const struct comm *);     /* seconds, as opened */
bool comm_others_failed(const struct comm *); /* any thread */
/* Counts an operation that was made by other means, as one of comm.h is. */
void comm_note(struct comm *, enum comm_op, uint64_t sent, uint64_t start, uint64_t end);
/* Each rank calls it.  @return whether all are ok. */
bool comm_all_ok(struct comm *, bool ok);

/* The one symbol of a module: "tandem_mpi_open".  @return false, with a sentence in why[]. */
typedef bool comm_module_open(int version, struct comm_transport *out, char why[COMM_WHY_BYTES]);

#ifdef __cplusplus
}
#endif

#endif
