/* Messages between ranks by MPI, as a module that the program loads (comm_mpi.c).
 *
 * Only point-to-point messages are used: in which order MPI_Allreduce adds is the library's own affair.  Every transfer
 * is begun and then tested, never waited for, so that a rank that is gone is noticed by whoever waits for it. */
#include "kernels/comm_transport.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

/* mpi_test ends it, which static analysis does not see. */
struct comm_transfer {
    MPI_Request request;
    int receives; /* bytes; -1: it sends */
};

enum { TRANSFERS = 4, TAG = 0 }; /* comm.c has two at once */

struct world {
    MPI_Comm comm;
    struct comm_transfer transfer[TRANSFERS]; /* free: MPI_REQUEST_NULL */
};

static struct world world; /* MPI is opened once in a process */

static bool failed(int code, const char *what, char why[COMM_WHY_BYTES])
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int n = 0;
    if (code == MPI_SUCCESS) return false;
    MPI_Error_string(code, text, &n);
    snprintf(why, COMM_WHY_BYTES, "%s: %.160s", what, text);
    return true;
}

static struct comm_transfer *free_transfer(struct world *w)
{
    for (int i = 0; i < TRANSFERS; i++)
        if (w->transfer[i].request == MPI_REQUEST_NULL) return &w->transfer[i];
    return NULL;
}

static struct comm_transfer *mpi_send(void *state, const void *data, size_t bytes, int to, char why[COMM_WHY_BYTES])
{
    struct world *w = state;
    struct comm_transfer *t = free_transfer(w);
    if (!t) return snprintf(why, COMM_WHY_BYTES, "too many messages at once"), NULL;
    t->receives = -1;
    int code = MPI_Isend(data, (int)bytes, MPI_BYTE, to, TAG, w->comm, &t->request);
    return failed(code, "MPI_Isend", why) ? NULL : t; /* NOLINT(clang-analyzer-optin.mpi.MPI-Checker) */
}

static struct comm_transfer *mpi_receive(void *state, void *data, size_t bytes, int from, char why[COMM_WHY_BYTES])
{
    struct world *w = state;
    struct comm_transfer *t = free_transfer(w);
    if (!t) return snprintf(why, COMM_WHY_BYTES, "too many messages at once"), NULL;
    t->receives = (int)bytes;
    int code = MPI_Irecv(data, (int)bytes, MPI_BYTE, from, TAG, w->comm, &t->request);
    return failed(code, "MPI_Irecv", why) ? NULL : t; /* NOLINT(clang-analyzer-optin.mpi.MPI-Checker) */
}

static int mpi_test(void *state, struct comm_transfer *t, char why[COMM_WHY_BYTES])
{
    int done = 0, came = 0;
    MPI_Status status;
    (void)state;
    if (failed(MPI_Test(&t->request, &done, &status), "MPI_Test", why)) return -1;
    if (!done || t->receives < 0) return done != 0;
    if (failed(MPI_Get_count(&status, MPI_BYTE, &came), "MPI_Get_count", why)) return -1;
    if (came == t->receives) return 1;
    snprintf(why, COMM_WHY_BYTES, "the other rank has a message of another size");
    return -1;
}

static void mpi_fail(void *state)
{
    (void)state;
}

static void mpi_close(void *state, bool broken)
{
    struct world *w = state;
    if (broken) {
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
        _Exit(EXIT_FAILURE);
    }
    MPI_Comm_free(&w->comm);
    MPI_Finalize();
}

__attribute__((visibility("default"))) comm_module_open tandem_mpi_open;

bool tandem_mpi_open(int version, struct comm_transport *out, char why[COMM_WHY_BYTES])
{
    int done = 0, provided = 0;
    if (version != COMM_TRANSPORT_VERSION)
        return snprintf(why, COMM_WHY_BYTES, "the module for MPI is of another version of tandem"), false;
    MPI_Initialized(&done);
    if (done) return snprintf(why, COMM_WHY_BYTES, "MPI is open already"), false;
    if (failed(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread", why)) return false;
    for (int i = 0; i < TRANSFERS; i++) world.transfer[i].request = MPI_REQUEST_NULL;
    if (failed(MPI_Comm_dup(MPI_COMM_WORLD, &world.comm), "MPI_Comm_dup", why)) return false;
    MPI_Comm_set_errhandler(world.comm, MPI_ERRORS_RETURN);
    *out = (struct comm_transport){.state = &world,
                                   .send = mpi_send,
                                   .receive = mpi_receive,
                                   .test = mpi_test,
                                   .fail = mpi_fail,
                                   .close = mpi_close};
    out->one_thread = provided < MPI_THREAD_SERIALIZED;
    MPI_Comm_rank(world.comm, &out->rank);
    MPI_Comm_size(world.comm, &out->ranks);
    if (out->ranks <= COMM_RANKS_MAX) return true;
    snprintf(why, COMM_WHY_BYTES, "%d ranks; there may be %d", out->ranks, COMM_RANKS_MAX);
    MPI_Finalize();
    return false;
}
