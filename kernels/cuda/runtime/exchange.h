/* State shared by exchange.cu, nccl.cu and their tests; not included elsewhere.
 *
 * Every exchange ends with a kernel that counts it, on the device and in the host's memory, where a watchdog thread
 * sees how far they have come. */
#ifndef TANDEM_KERNELS_CUDA_RUNTIME_EXCHANGE_H
#define TANDEM_KERNELS_CUDA_RUNTIME_EXCHANGE_H

#include "kernels/comm_transport.h"
#include "kernels/cuda/device.h"

#ifdef __CUDACC__
#include "kernels/cuda/runtime/nccl_api.h"
#else
#include "kernels/simt/nccl.h"
#endif

#include <pthread.h>

namespace GPU_NAMESPACE {

#ifdef __CUDACC__
using namespace nccl_api;
#endif

#define NCCL_FUNCTIONS(X)                                                                                              \
    X(GetVersion)                                                                                                      \
    X(GetUniqueId)                                                                                                     \
    X(CommInitRank)                                                                                                    \
    X(CommDestroy)                                                                                                     \
    X(CommAbort)                                                                                                       \
    X(CommGetAsyncError)                                                                                               \
    X(GetErrorString)                                                                                                  \
    X(AllGather)                                                                                                       \
    X(Send)                                                                                                            \
    X(Recv)                                                                                                            \
    X(GroupStart)                                                                                                      \
    X(GroupEnd)

struct nccl_functions {
#define X(name) decltype(&nccl##name) name;
    NCCL_FUNCTIONS(X)
#undef X
};

/* An exchange as comm_profile counts it. */
struct gpu_exchange {
    enum comm_op op;
    size_t bytes, sent; /* of the rank's part; sent by this rank */
};

struct gpu_exchanges {
    gpu_exchange *v;
    int n, cap;
};

enum { EXCHANGES_KEPT = 1024 }; /* whose names the watchdog knows */

struct gpu_comm {
    nccl_functions f;
    void *library;
    char name[32];
    struct comm *host; /* NULL: prepared, not open */
    int rank, ranks;
    ncclComm_t nccl;
    uint64_t *ended, *seen; /* exchanges that have ended: on the device; the same in page-locked memory of the host */
    gpu_exchanges captured; /* by the capture in progress */
    bool expected;          /* the dry run before it had some */
    pthread_t watchdog;
    bool watched; /* there is one */
    /* Shared with it, under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool end;
    bool calling; /* the device's thread is in a call of the library */
    bool failed;  /* for good: nccl is gone, and `why` is set.  Also read without the lock */
    uint64_t enqueued;
    gpu_exchange kept[EXCHANGES_KEPT]; /* number i at i % EXCHANGES_KEPT */
    char why[COMM_WHY_BYTES];
};

/* Around a call of the library. @return false after a failure: it is not to be called, or the call failed. */
bool comm_enter(gpu_comm *);
bool comm_leave(gpu_comm *, ncclResult_t);
/* Before they are enqueued. */
void comm_count(gpu_comm *, const gpu_exchange *, int n);

} // namespace GPU_NAMESPACE

#endif
