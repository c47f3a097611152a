/* See cudart.h. */
#include "kernels/simt/cudart.h"

#include "kernels/dev.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <sys/mman.h>

namespace simt_runtime {

struct event {
    uint64_t wanted = 0, done = 0; /* records enqueued, records executed */
    stream *on = nullptr;
    double time = 0;
};

struct work {
    std::function<void()> run;
    work_kind kind;
};

struct graph {
    std::vector<work> nodes;
};

struct stream {
    std::deque<work> queue;
    graph *capture = nullptr;
    bool draining = false;
};

namespace {

const size_t SHARED_MAX = 227 << 10; /* limit per block on sm_90 */

/* Never destroyed: devices may be closed during process exit. */
struct state {
    std::unordered_set<stream *> streams;
    std::unordered_map<void *, size_t> memory;
    size_t used = 0, limit = (size_t)4 << 30;
    cudaError_t last = cudaSuccess, sticky = cudaSuccess;
    size_t largest = SIZE_MAX;
    long fail_after = -1;
    struct simt_counts counts = {};
    state()
    {
        if (const char *s = getenv("SIMT_FAIL_LAUNCH")) fail_after = atol(s);
        if (const char *s = getenv("SIMT_MEMORY_BYTES")) limit = strtoull(s, nullptr, 10);
    }
};

state &here()
{
    static state *s = new state;
    return *s;
}

cudaError_t say(cudaError_t e)
{
    if (here().sticky) e = here().sticky;
    if (e) here().last = e;
    return e;
}

work pop(stream *s)
{
    work w = std::move(s->queue.front());
    s->queue.pop_front();
    return w;
}

/* Runs what is queued, or only up to the records of event `upto`: as late as a device could. Pairs of kernels that
 * may begin early overlap; which of three form a pair depends on the schedule. */
void drain(stream *s, const event *upto = nullptr)
{
    bool alone = simt::schedule_seed() >> 1 & 1;
    if (s->draining) return;
    s->draining = true;
    while (!s->queue.empty() && !(upto && upto->done == upto->wanted)) {
        work w = pop(s);
        if (here().sticky) continue;
        bool pair = w.kind != WORK_OTHER && !s->queue.empty() && s->queue.front().kind == WORK_EARLY;
        if (pair && !alone)
            simt::run_early(w.run, pop(s).run);
        else
            w.run();
        if (pair) alone = false;
    }
    s->draining = false;
}

void drain_all()
{
    for (stream *s : here().streams) drain(s);
}

/* Whether a stream is being captured, which forbids its thread many calls. */
bool captures()
{
    for (stream *s : here().streams)
        if (s->capture) return true;
    return false;
}

double now_ms()
{
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

} // namespace

void enqueue(cudaStream_t s, std::function<void()> fn, work_kind kind)
{
    work w = {std::move(fn), kind};
    if (s->capture)
        s->capture->nodes.push_back(std::move(w));
    else
        s->queue.push_back(std::move(w));
}

void fail_launch(long after)
{
    here().fail_after = after;
}

bool launch_fits(dim3 grid, dim3 block, size_t smem)
{
    state &h = here();
    if (h.sticky) return false;
    if (h.fail_after >= 0 && h.fail_after-- == 0) {
        h.sticky = h.last = cudaErrorIllegalAddress;
        return false;
    }
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    bool fits = threads >= 1 && threads <= simt::THREADS_MAX && block.z <= 64 && grid.x >= 1 && grid.x <= 0x7fffffff &&
                grid.y >= 1 && grid.y <= 65535 && grid.z >= 1 && grid.z <= 65535 && smem <= SHARED_MAX;
    if (!fits) h.last = cudaErrorInvalidConfiguration;
    h.counts.launches += fits;
    return fits;
}

namespace {

const size_t LARGE = (size_t)64 << 20, GUARD = 4096;

/* Heap memory filled with 0xFF. Large allocations are mapped: zeros on first touch, followed by an inaccessible
 * guard page. */
bool take_memory(void **p, size_t bytes)
{
    if (bytes < LARGE) {
        if (posix_memalign(p, 256, bytes ? bytes : 1)) return false;
        memset(*p, 0xFF, bytes);
        return true;
    }
    size_t whole = (bytes + GUARD - 1) / GUARD * GUARD;
    *p = mmap(nullptr, whole + GUARD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*p == MAP_FAILED) return *p = nullptr, false;
    mprotect((char *)*p + whole, GUARD, PROT_NONE);
    return true;
}

void give_memory(void *p, size_t bytes)
{
    if (bytes < LARGE)
        free(p);
    else
        munmap(p, (bytes + GUARD - 1) / GUARD * GUARD + GUARD);
}

} // namespace

/* ---- the device ----------------------------------------------------------------------------------------------------
 */

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int index)
{
    return index == 0 ? cudaSuccess : say(cudaErrorInvalidValue);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int index)
{
    *p = {};
    snprintf(p->name, sizeof p->name, "simt");
    p->totalGlobalMem = here().limit;
    p->sharedMemPerBlockOptin = SHARED_MAX;
    p->major = 9;
    p->multiProcessorCount = 4;
    p->l2CacheSize = 4 << 20;
    return cudaSuccess;
}

void new_process()
{
    state &h = here();
    for (auto &m : h.memory) give_memory(m.first, m.second);
    h.memory.clear();
    h.used = 0;
    for (stream *s : h.streams) delete s;
    h.streams.clear();
    h.last = h.sticky = cudaSuccess;
    h.fail_after = -1;
}

cudaError_t cudaDeviceSynchronize()
{
    drain_all();
    return say(cudaSuccess);
}

cudaError_t cudaGetLastError()
{
    cudaError_t e = here().last;
    here().last = here().sticky;
    return e;
}

cudaError_t cudaPeekAtLastError()
{
    return here().last;
}

const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    }
    return "unrecognized error code";
}

/* ---- memory --------------------------------------------------------------------------------------------------------
 */

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *total = here().limit;
    *free_bytes = here().limit - here().used;
    return say(cudaSuccess);
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    state &h = here();
    *p = nullptr;
    if (captures()) return say(cudaErrorStreamCaptureUnsupported);
    if (bytes > h.limit - h.used || bytes > h.largest || !take_memory(p, bytes)) return say(cudaErrorMemoryAllocation);
    h.counts.memory++;
    h.memory[*p] = bytes;
    h.used += bytes;
    return say(cudaSuccess);
}

cudaError_t cudaFree(void *p)
{
    if (captures()) return say(cudaErrorStreamCaptureUnsupported);
    drain_all();
    if (!p) return say(cudaSuccess);
    auto at = here().memory.find(p);
    if (at == here().memory.end()) return say(cudaErrorInvalidValue);
    size_t bytes = at->second;
    here().used -= bytes;
    here().memory.erase(at);
    here().counts.memory++;
    give_memory(p, bytes);
    return say(cudaSuccess);
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    return posix_memalign(p, 256, bytes ? bytes : 1) ? say(cudaErrorMemoryAllocation) : say(cudaSuccess);
}

cudaError_t cudaFreeHost(void *p)
{
    drain_all();
    free(p);
    return say(cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t s)
{
    enqueue(s, [=] {
        if (bytes) memcpy(to, from, bytes);
    });
    return say(cudaSuccess);
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s)
{
    enqueue(s, [=] {
        if (bytes) memset(p, value, bytes);
    });
    return say(cudaSuccess);
}

/* ---- streams and events --------------------------------------------------------------------------------------------
 */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    here().streams.insert(*s = new stream);
    return say(cudaSuccess);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    drain(s);
    here().streams.erase(s);
    delete s;
    return say(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    if (s->capture) return say(cudaErrorStreamCaptureUnsupported);
    here().counts.syncs++;
    drain(s);
    return say(cudaSuccess);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
    *e = new event;
    return say(cudaSuccess);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    drain_all();
    delete e;
    return say(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    e->wanted++;
    e->on = s;
    enqueue(s, [=] {
        e->done++;
        e->time = now_ms();
    });
    return say(cudaSuccess);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    uint64_t record = e->wanted;
    enqueue(s, [=] {
        if (e->done < record) drain(e->on);
    });
    return say(cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    here().counts.event_waits++;
    if (e->on) drain(e->on, e);
    return say(cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    if (from->done < from->wanted || to->done < to->wanted) return say(cudaErrorNotReady);
    *ms = (float)(to->time - from->time);
    return say(cudaSuccess);
}

/* ---- graphs --------------------------------------------------------------------------------------------------------
 */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode)
{
    if (s->capture) return say(cudaErrorInvalidValue);
    s->capture = new graph;
    return say(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    *g = s->capture;
    s->capture = nullptr;
    return say(*g ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus *status)
{
    *status = s->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return say(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t g, unsigned long long)
{
    *exec = new graph(*g);
    here().counts.graphs++;
    return say(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t s)
{
    if (here().sticky) return say(cudaSuccess);
    here().counts.replays++;
    for (const work &w : g->nodes) enqueue(s, w.run, w.kind);
    return say(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    delete g;
    return say(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g)
{
    delete g;
    return say(cudaSuccess);
}

} // namespace simt_runtime

struct simt_counts simt_counts(void)
{
    return simt_runtime::here().counts;
}

void simt_fail_launch(long after)
{
    simt_runtime::fail_launch(after);
}

void simt_new_process(void)
{
    simt_runtime::new_process();
}

void simt_limit_allocation(size_t bytes)
{
    simt_runtime::here().largest = bytes;
}
