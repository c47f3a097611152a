/* The part of the CUDA runtime that the cuda device uses, on the CPU: memory, streams, events, graphs, launches.
 *
 * A stream is a queue that runs only when a caller waits for it (or for memory that it may write): code that relies
 * on work which a device might not have done yet fails here too. Device memory is heap memory filled with 0xFF;
 * large allocations are mapped on first touch. Names and meanings are those of the CUDA Runtime API, version 13.
 *
 * There are as many devices as the environment variable SIMT_DEVICES says, 1 to 16, by default one; each has memory of
 * SIMT_MEMORY_BYTES. A kernel that is given the address of another device's memory is an illegal access, as without
 * peer access, which is not here. Several threads may use devices at the same time, each device one thread. */
#ifndef TANDEM_KERNELS_SIMT_CUDART_H
#define TANDEM_KERNELS_SIMT_CUDART_H

#include "kernels/simt/simt.h"

#include <functional>
#include <type_traits>

namespace simt_runtime {

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidDevice = 101,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorStreamCaptureUnsupported = 900,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0, cudaStreamCaptureStatusActive = 1 };

struct stream;
struct event;
struct graph;
typedef stream *cudaStream_t;
typedef event *cudaEvent_t;
typedef graph *cudaGraph_t;
typedef graph *cudaGraphExec_t;

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlockOptin;
    int major, minor, multiProcessorCount, l2CacheSize;
};

cudaError_t cudaGetDeviceCount(int *);
cudaError_t cudaSetDevice(int);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *, int);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char *cudaGetErrorString(cudaError_t);

cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaMalloc(void **, size_t);
cudaError_t cudaFree(void *);
cudaError_t cudaMallocHost(void **, size_t);
cudaError_t cudaFreeHost(void *);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaMemsetAsync(void *, int, size_t, cudaStream_t);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *, unsigned);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned flags = 0);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *, unsigned);
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode);
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *);
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *, cudaGraph_t, unsigned long long flags = 0);
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t);
cudaError_t cudaGraphDestroy(cudaGraph_t);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t);

/* WORK_EARLY: a kernel that may begin before the preceding one has ended, if that is a kernel too. */
enum work_kind { WORK_OTHER, WORK_KERNEL, WORK_EARLY };

/* Enqueues work into a stream. */
void enqueue(cudaStream_t, std::function<void()>, work_kind = WORK_OTHER);
/* Sets the last error as a launch with these sizes would. @return true when the launch is valid. */
bool launch_fits(cudaStream_t, dim3 grid, dim3 block, size_t smem);
/* Whether a kernel of the stream's device may use what p points to; if not, the device fails for good. */
bool may_use(cudaStream_t, const void *p);
/* Injects a fault for tests: after `after` more launches one fails with a sticky error (cudaErrorIllegalAddress)
 * that only new_process clears; -1: never. Also set by the environment variable SIMT_FAIL_LAUNCH. */
void fail_launch(long after);
/* Resets the runtime to the state of a new process: no error, no memory, no streams. No device may be open. */
void new_process();

/* Of an argument that is a pointer or a matrix (p); what other structs point to is not looked at. */
template <class A> bool may_use_argument(cudaStream_t s, const A &a)
{
    if constexpr (std::is_pointer_v<A>)
        return may_use(s, (const void *)a);
    else if constexpr (requires { static_cast<const void *>(a.p); })
        return may_use(s, a.p);
    else
        return true;
}

/* early: a programmatic dependent launch. */
template <class... P, class... A>
void launch_as(cudaStream_t s, bool early, dim3 grid, dim3 block, size_t smem, void (*kernel)(P...), A... args)
{
    std::tuple<P...> with(args...);
    bool may = std::apply([=](const auto &...a) { return (may_use_argument(s, a) && ...); }, with);
    if (!may || !launch_fits(s, grid, block, smem)) return;
    auto work = [=, call = with]() mutable {
        struct run {
            void (*kernel)(P...);
            std::tuple<P...> *call;
        } r{kernel, &call};
        simt::run_grid(
            grid, block, smem, early, [](void *p) { std::apply(((run *)p)->kernel, *((run *)p)->call); }, &r);
    };
    enqueue(s, std::move(work), early ? WORK_EARLY : WORK_KERNEL);
}

template <class... P, class... A>
void launch(cudaStream_t s, dim3 grid, dim3 block, size_t smem, void (*kernel)(P...), A... args)
{
    launch_as(s, false, grid, block, smem, kernel, args...);
}

} // namespace simt_runtime

#endif
