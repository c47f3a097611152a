/* kernels/cuda/runtime/nccl_api.h against NVIDIA's header, where there is one: it compiles, or they differ. */
#include <nccl.h>

#include "kernels/cuda/runtime/nccl_api.h"

#include <type_traits>

#define SAME(name) static_assert((int)::name == (int)nccl_api::name, #name)
#define FITS(type)                                                                                                     \
    static_assert(sizeof(::type) == sizeof(nccl_api::type) && alignof(::type) == alignof(nccl_api::type), #type)

SAME(ncclSuccess);
SAME(ncclInProgress);
SAME(ncclFloat32);
FITS(ncclResult_t);
FITS(ncclDataType_t);
FITS(ncclComm_t);
FITS(ncclUniqueId);

/* The type of ours that one of NVIDIA's is declared as; others are the same in both. */
template <class T> struct ours {
    typedef T type;
};
template <> struct ours<::ncclResult_t> {
    typedef nccl_api::ncclResult_t type;
};
template <> struct ours<::ncclDataType_t> {
    typedef nccl_api::ncclDataType_t type;
};
template <> struct ours<::ncclComm_t> {
    typedef nccl_api::ncclComm_t type;
};
template <> struct ours<::ncclUniqueId> {
    typedef nccl_api::ncclUniqueId type;
};
template <class T> struct ours<T *> {
    typedef typename ours<T>::type *type;
};
template <> struct ours<const char *> {
    typedef const char *type;
};

template <class R, class... A> auto declared(R (*)(A...)) -> typename ours<R>::type (*)(typename ours<A>::type...);

#define CALLS(name)                                                                                                    \
    static_assert(std::is_same_v<decltype(declared(&::name)), decltype(&nccl_api::name)>,                              \
                  #name " is declared otherwise")

CALLS(ncclGetVersion);
CALLS(ncclGetUniqueId);
CALLS(ncclCommInitRank);
CALLS(ncclCommDestroy);
CALLS(ncclCommAbort);
CALLS(ncclCommGetAsyncError);
CALLS(ncclGetErrorString);
CALLS(ncclAllGather);
CALLS(ncclSend);
CALLS(ncclRecv);
CALLS(ncclGroupStart);
CALLS(ncclGroupEnd);
