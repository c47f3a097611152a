/* Collective operations over ranks: the processes of one job, or threads of one process, that call the same operations
 * in the same order.  On host memory; each returns when its result is there.
 *
 * Sums are made in a binary tree over the ranks: that of ranks [a, b) is the sum of its first half, of the largest
 * power of two below b - a ranks, plus that of the rest.  So a sum has the same bits on all ranks and in every run,
 * whatever the transport is, and four ranks with two values each give the tree that one rank with eight values gives.
 *
 * Errors.  The first failure is kept, as a device keeps its own: operations after it do nothing, and comm_error says
 * what failed.  A rank from which nothing arrives for `timeout` seconds is a failure that names it and the operation.
 * There is no way back: the process, or the group of threads, is to end.
 *
 * Thread.  A struct comm is used by one thread at a time: by the one that opened it, unless comm_any_thread. */
#ifndef TANDEM_KERNELS_COMM_H
#define TANDEM_KERNELS_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct comm;

enum { COMM_RANKS_MAX = 1024, COMM_WHY_BYTES = 240 };

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Whether a launcher of MPI programs started this process: mpirun, or srun with more than one task. */
bool comm_launched(void);
/* The place of this process among those that a launcher started on its machine; 0: no launcher says it. */
int comm_local_rank(void);
/* The ranks that mpirun or srun started.  MPI is in a module of its own, which is loaded here: a file beside the
 * program, in the directory of installed modules, or named by TANDEM_MPI_MODULE.  At most once in a process.
 * @return NULL, with a sentence in why[]. */
struct comm *comm_open_mpi(double timeout_s, char why[COMM_WHY_BYTES]);
/* Threads of this process: out[i] is rank i's, 1..COMM_RANKS_MAX of them; each is closed.  @return false: no memory. */
bool comm_open_local(int ranks, double timeout_s, struct comm **out);

/* Those of the ranks first .. first + ranks - 1, of which this is one, for operations among them alone; there it is
 * rank 0 that is `first`.  Errors, the profile and waiting are those of the whole, whose messages keep their order.
 * NULL: no memory.  Closed before it. */
struct comm *comm_group(const struct comm *, int first, int ranks);
void comm_group_close(struct comm *); /* NULL is allowed */

int comm_rank(const struct comm *);
int comm_ranks(const struct comm *);
/* Whether another thread than the one that opened it may use it. */
bool comm_any_thread(const struct comm *);
/* The first failure, as a sentence that begins with the rank and its operation; NULL: none. */
const char *comm_error(const struct comm *);
/* Between true and false, which nest, an operation waits as long as it takes: for a rank that may have nothing to say for
 * a long time. */
void comm_wait_long(struct comm *, bool);
/* Fails because of something outside the operations; for the others this rank is gone. */
void comm_fail(struct comm *, const char *why);
/* Waits until the other ranks close, too.  After a failure it does not wait: with MPI it ends all processes, with the
 * exit status 1, and does not return. */
void comm_close(struct comm *);

/* ---- operations -------------------------------------------------------------------------------------------------- */

/* v (n) becomes the sum over the ranks. */
void comm_all_reduce(struct comm *, float *v, size_t n);
/* out (n) becomes block `rank` of the sum over the ranks; in (ranks, n).  out may be that block of `in`. */
void comm_reduce_scatter(struct comm *, const float *in, float *out, size_t n);
/* out (ranks, bytes): the blocks of all ranks.  `in` may be the rank's block of out. */
void comm_all_gather(struct comm *, const void *in, void *out, size_t bytes);
/* The same of parts of any size: rank r's are from[r] .. from[r + 1] - 1, rising; from (ranks + 1).  Reduced, v has
 * sums in the rank's own part alone, and the other parts are as before; gathered, from counts bytes. */
void comm_reduce_parts(struct comm *, float *v, const size_t *from);
void comm_gather_parts(struct comm *, void *v, const size_t *from);
void comm_broadcast(struct comm *, void *v, size_t bytes, int root);
/* Block i of `in` becomes block `rank` of rank i's out; both (ranks, bytes), and apart. */
void comm_all_to_all(struct comm *, const void *in, void *out, size_t bytes);
/* One sends what the other receives, of the same size; not to itself. */
void comm_send(struct comm *, const void *, size_t bytes, int to);
void comm_receive(struct comm *, void *, size_t bytes, int from);

/* ---- profile ----------------------------------------------------------------------------------------------------- */

enum comm_op {
    COMM_ALL_REDUCE,
    COMM_REDUCE_SCATTER,
    COMM_ALL_GATHER,
    COMM_BROADCAST,
    COMM_ALL_TO_ALL,
    COMM_SEND,
    COMM_RECEIVE,
    COMM_OPS
};
const char *comm_op_name(enum comm_op); /* "all-reduce" ... */

/* Of one kind of operation so far.  seconds: from its call to its return, waiting for other ranks included. */
struct comm_profile {
    uint64_t calls, sent_bytes;
    double seconds;
};
struct comm_profile comm_profile(const struct comm *, enum comm_op);
/* Sets a callback that is called after every operation, on its thread, with what it sent and its start and end in
 * CLOCK_MONOTONIC nanoseconds; NULL: none. */
void comm_on_op(struct comm *, void (*fn)(void *arg, enum comm_op, uint64_t sent, uint64_t start, uint64_t end),
                void *arg);

#ifdef __cplusplus
}
#endif

#endif
