/* The part of NCCL's interface that nccl.cu and exchange.cu use, so that tandem builds without that library's header;
 * the library itself is opened by name when ranks exchange.  Names, values and layouts are those of
 * docs.nvidia.com/deeplearning/nccl, "NCCL API", the same since version 2.8; tests/gpu/nccl_abi.cu compares them with
 * the header where there is one. */
#ifndef TANDEM_KERNELS_CUDA_RUNTIME_NCCL_API_H
#define TANDEM_KERNELS_CUDA_RUNTIME_NCCL_API_H

#include <cuda_runtime.h>

#include <cstddef>

namespace nccl_api {

enum ncclResult_t : int { ncclSuccess = 0, ncclInProgress = 7 };
enum ncclDataType_t : int { ncclFloat32 = 7 };

typedef struct communicator *ncclComm_t;
struct ncclUniqueId {
    char internal[128];
};

/* Declared only for their types, with which the loaded functions are called; never linked. */
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

} // namespace nccl_api

#endif
