/* The part of NCCL that nccl.cu and exchange.cu use, on the CPU, between the simulated devices of one process.
 *
 * Names and meanings are those of NCCL 2 (docs.nvidia.com/deeplearning/nccl, "NCCL API"). An operation is enqueued, and
 * runs when its stream does; it ends when those of all its ranks have run, whose threads wait for each other there.
 * What the library forbids is an error that ncclCommGetAsyncError gives to every rank that takes part: counts that
 * differ, and an operation that one rank has captured in a graph and another has not. Processes that a launcher of MPI
 * programs started get no id, since ranks of different processes cannot be joined.
 *
 * For tests, the environment variable SIMT_NCCL: "0": the library is not there; "stuck": the operations of rank 1 never
 * begin. */
#ifndef TANDEM_KERNELS_SIMT_NCCL_H
#define TANDEM_KERNELS_SIMT_NCCL_H

#include "kernels/simt/cudart.h"

namespace simt_runtime {

enum ncclResult_t {
    ncclSuccess = 0,
    ncclSystemError = 2,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
};
enum ncclDataType_t { ncclFloat32 = 7 };

typedef struct nccl_comm *ncclComm_t;
struct ncclUniqueId {
    char internal[128];
};

ncclResult_t ncclGetVersion(int *);
ncclResult_t ncclGetUniqueId(ncclUniqueId *);
ncclResult_t ncclCommInitRank(ncclComm_t *, int ranks, ncclUniqueId, int rank);
ncclResult_t ncclCommDestroy(ncclComm_t);
ncclResult_t ncclCommAbort(ncclComm_t);
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t *);
const char *ncclGetErrorString(ncclResult_t);
ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t, ncclComm_t, cudaStream_t);
ncclResult_t ncclSend(const void *, size_t count, ncclDataType_t, int peer, ncclComm_t, cudaStream_t);
ncclResult_t ncclRecv(void *, size_t count, ncclDataType_t, int peer, ncclComm_t, cudaStream_t);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();

} // namespace simt_runtime

#endif
