/* See cudart.h. */
#include "kernels/simt/cudart.h"

#include "kernels/dev.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
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
    int device;
    std::deque<work> queue;
    graph *capture = nullptr;
    bool draining = false;
};

namespace {

const size_t SHARED_MAX = 227 << 10; /* limit per block on sm_90 */

enum { DEVICES_MAX = 16 };

struct allocation {
    size_t bytes;
    int device;
};

struct device {
    std::unordered_set<stream *> streams;
    size_t used = 0;
    std::atomic<cudaError_t> sticky = cudaSuccess;
};

/* Never destroyed: devices may be closed during process exit. */
struct state {
    std::mutex lock; /* of all but what is atomic; never held while work runs */
    int n_devices = 1;
    device devices[DEVICES_MAX];
    std::map<uintptr_t, allocation> memory; /* of all devices, by address */
    size_t limit = (size_t)4 << 30, largest = SIZE_MAX;
    long fail_after = -1;
    struct simt_counts counts = {};
    state()
    {
        if (const char *s = getenv("SIMT_FAIL_LAUNCH")) fail_after = atol(s);
        if (const char *s = getenv("SIMT_MEMORY_BYTES")) limit = strtoull(s, nullptr, 10);
        if (const char *s = getenv("SIMT_DEVICES")) n_devices = atoi(s);
        if (n_devices < 1) n_devices = 1;
        if (n_devices > DEVICES_MAX) n_devices = DEVICES_MAX;
    }
};

thread_local int current;                    /* the thread's device */
thread_local cudaError_t last = cudaSuccess; /* the thread's last error */

state &here()
{
    static state *s = new state;
    return *s;
}

void add(uint64_t *count)
{
    __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
}

cudaError_t say(cudaError_t e, int of = current)
{
    cudaError_t sticky = here().devices[of].sticky;
    if (sticky) e = sticky;
    if (e) last = e;
    return e;
}

/* The device whose memory has this address; -1: none. */
int owner_of(uintptr_t at)
{
    state &h = here();
    std::lock_guard<std::mutex> guard(h.lock);
    auto after = h.memory.upper_bound(at);
    if (after == h.memory.begin()) return -1;
    auto &[from, m] = *std::prev(after);
    return at - from < m.bytes ? m.device : -1;
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
        if (here().devices[s->device].sticky) continue;
        bool pair = w.kind != WORK_OTHER && !s->queue.empty() && s->queue.front().kind == WORK_EARLY;
        if (pair && !alone)
            simt::run_early(w.run, pop(s).run);
        else
            w.run();
        if (pair) alone = false;
    }
    s->draining = false;
}

std::vector<stream *> streams_of(int index)
{
    state &h = here();
    std::lock_guard<std::mutex> guard(h.lock);
    return {h.devices[index].streams.begin(), h.devices[index].streams.end()};
}

void drain_all(int index)
{
    for (stream *s : streams_of(index)) drain(s);
}

/* Whether a stream is being captured, which forbids its thread many calls. */
bool captures(int index)
{
    for (stream *s : streams_of(index))
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
    state &h = here();
    std::lock_guard<std::mutex> guard(h.lock);
    h.fail_after = after;
}

namespace {

bool is_to_fail()
{
    state &h = here();
    std::lock_guard<std::mutex> guard(h.lock);
    return h.fail_after >= 0 && h.fail_after-- == 0;
}

} // namespace

bool may_use(cudaStream_t s, const void *p)
{
    if (here().n_devices == 1) return true;
    int owner = owner_of(reinterpret_cast<uintptr_t>(p));
    if (owner < 0 || owner == s->device) return true;
    here().devices[s->device].sticky = last = cudaErrorIllegalAddress;
    return false;
}

bool launch_fits(cudaStream_t s, dim3 grid, dim3 block, size_t smem)
{
    state &h = here();
    device &d = h.devices[s->device];
    if (d.sticky) return false;
    if (is_to_fail()) {
        d.sticky = last = cudaErrorIllegalAddress;
        return false;
    }
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    bool fits = threads >= 1 && threads <= simt::THREADS_MAX && block.z <= 64 && grid.x >= 1 && grid.x <= 0x7fffffff &&
                grid.y >= 1 && grid.y <= 65535 && grid.z >= 1 && grid.z <= 65535 && smem <= SHARED_MAX;
    if (!fits) last = cudaErrorInvalidConfiguration;
    if (fits) add(&h.counts.launches);
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
    *n = here().n_devices;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int index)
{
    if (index < 0 || index >= here().n_devices) return say(cudaErrorInvalidDevice);
    current = index;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int index)
{
    if (index < 0 || index >= here().n_devices) return say(cudaErrorInvalidDevice);
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
    std::lock_guard<std::mutex> guard(h.lock);
    for (auto &[at, m] : h.memory) give_memory(reinterpret_cast<void *>(at), m.bytes);
    h.memory.clear();
    for (device &d : h.devices) {
        d.used = 0;
        for (stream *s : d.streams) delete s;
        d.streams.clear();
        d.sticky = cudaSuccess;
    }
    last = cudaSuccess;
    current = 0;
    h.fail_after = -1;
}

cudaError_t cudaDeviceSynchronize()
{
    drain_all(current);
    return say(cudaSuccess);
}

cudaError_t cudaGetLastError()
{
    cudaError_t e = last;
    last = here().devices[current].sticky;
    return e;
}

cudaError_t cudaPeekAtLastError()
{
    return last;
}

const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
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
    state &h = here();
    std::lock_guard<std::mutex> guard(h.lock);
    *total = h.limit;
    *free_bytes = h.limit - h.devices[current].used;
    return say(cudaSuccess);
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    state &h = here();
    device &d = h.devices[current];
    *p = nullptr;
    if (captures(current)) return say(cudaErrorStreamCaptureUnsupported);
    std::lock_guard<std::mutex> guard(h.lock);
    if (bytes > h.limit - d.used || bytes > h.largest || !take_memory(p, bytes)) return say(cudaErrorMemoryAllocation);
    add(&h.counts.memory);
    h.memory[reinterpret_cast<uintptr_t>(*p)] = {bytes, current};
    d.used += bytes;
    return say(cudaSuccess);
}

cudaError_t cudaFree(void *p)
{
    state &h = here();
    int owner = p ? owner_of(reinterpret_cast<uintptr_t>(p)) : current;
    if (owner < 0) return say(cudaErrorInvalidValue);
    if (captures(owner)) return say(cudaErrorStreamCaptureUnsupported);
    drain_all(owner);
    if (!p) return say(cudaSuccess);
    std::lock_guard<std::mutex> guard(h.lock);
    auto at = h.memory.find(reinterpret_cast<uintptr_t>(p));
    if (at == h.memory.end()) return say(cudaErrorInvalidValue);
    size_t bytes = at->second.bytes;
    h.devices[owner].used -= bytes;
    h.memory.erase(at);
    add(&h.counts.memory);
    give_memory(p, bytes);
    return say(cudaSuccess);
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    return posix_memalign(p, 256, bytes ? bytes : 1) ? say(cudaErrorMemoryAllocation) : say(cudaSuccess);
}

cudaError_t cudaFreeHost(void *p)
{
    drain_all(current);
    free(p);
    return say(cudaSuccess);
}

namespace {

/* Whether memory is what the kind of a copy says: of the stream's device, or, where both ends are devices', of any. */
bool is_of_device(const void *p, size_t bytes, const stream *s, bool both)
{
    int owner = bytes ? owner_of(reinterpret_cast<uintptr_t>(p)) : s->device;
    return both ? owner >= 0 : owner == s->device;
}

} // namespace

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s)
{
    bool both = kind == cudaMemcpyDeviceToDevice;
    if ((kind != cudaMemcpyDeviceToHost && !is_of_device(to, bytes, s, both)) ||
        (kind != cudaMemcpyHostToDevice && !is_of_device(from, bytes, s, both)))
        return say(cudaErrorInvalidValue);
    enqueue(s, [=] {
        if (bytes) memcpy(to, from, bytes);
    });
    return say(cudaSuccess);
}

/* Only between devices. */
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t s)
{
    if (kind != cudaMemcpyDeviceToDevice || width > to_pitch || width > from_pitch ||
        !is_of_device(to, width, s, true) || !is_of_device(from, width, s, true))
        return say(cudaErrorInvalidValue);
    enqueue(s, [=] {
        for (size_t i = 0; i < height; i++)
            memcpy(static_cast<char *>(to) + i * to_pitch, static_cast<const char *>(from) + i * from_pitch, width);
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
    state &h = here();
    std::lock_guard<std::mutex> guard(h.lock);
    h.devices[current].streams.insert(*s = new stream{current});
    return say(cudaSuccess);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    state &h = here();
    drain(s);
    std::lock_guard<std::mutex> guard(h.lock);
    h.devices[s->device].streams.erase(s);
    delete s;
    return say(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    if (s->capture) return say(cudaErrorStreamCaptureUnsupported);
    add(&here().counts.syncs);
    drain(s);
    return say(cudaSuccess, s->device);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
    *e = new event;
    return say(cudaSuccess);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    if (e->on) drain(e->on);
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
    add(&here().counts.event_waits);
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
    add(&here().counts.graphs);
    return say(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t s)
{
    if (here().devices[s->device].sticky) return say(cudaSuccess, s->device);
    add(&here().counts.replays);
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
    struct simt_counts c, *from = &simt_runtime::here().counts;
    uint64_t *to[] = {&c.syncs, &c.graphs, &c.replays, &c.launches, &c.memory, &c.event_waits};
    uint64_t *of[] = {&from->syncs, &from->graphs, &from->replays, &from->launches, &from->memory, &from->event_waits};
    for (int i = 0; i < 6; i++) *to[i] = __atomic_load_n(of[i], __ATOMIC_RELAXED);
    return c;
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
