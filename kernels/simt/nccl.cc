/* See nccl.h. A message goes from one rank to another; an all-gather is one from each to each. Whoever receives copies.
 */
#include "kernels/simt/nccl.h"

#include "kernels/comm.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <unistd.h>

namespace simt_runtime {

namespace {

/* One end of a message, on the stack of the thread that waits for it. */
struct message {
    const void *from; /* of a sender */
    void *to;         /* of a receiver */
    size_t bytes;
    bool captured; /* in a graph */
    message *other;
    bool done;
};

struct group {
    std::mutex lock;
    std::condition_variable changed;
    int ranks, joined = 0;
    ncclResult_t error = ncclSuccess;
    std::map<std::pair<int, int>, std::deque<message *>> waiting; /* from, to: ends of one kind */
};

struct registry {
    std::mutex lock;
    std::condition_variable changed;
    uint64_t ids = 0;
    std::map<uint64_t, std::shared_ptr<group>> groups; /* until all have joined */
};

registry &all()
{
    static registry *r = new registry;
    return *r;
}

struct id {
    pid_t process;
    uint64_t number;
};

} // namespace

/* Lives as long as work that uses it. */
struct member {
    std::shared_ptr<group> g;
    int rank;
    bool aborted = false, stuck = false;
};

struct nccl_comm {
    std::shared_ptr<member> m;
};

namespace {

/* One call: messages to or from a peer. */
struct part {
    std::shared_ptr<member> m;
    int peer;
    message v;
    cudaStream_t stream;
};

thread_local int depth;               /* of ncclGroupStart */
thread_local std::vector<part> calls; /* since then */

bool is_over(const member &m)
{
    return m.aborted || m.g->error != ncclSuccess;
}

void fail(group &g, ncclResult_t e)
{
    if (g.error == ncclSuccess) g.error = e;
    g.changed.notify_all();
}

/* Under the lock. Finds the other end, or leaves this one for it. */
void meet(member &m, int peer, message *v)
{
    bool sends = v->from != nullptr;
    auto &queue = m.g->waiting[sends ? std::pair(m.rank, peer) : std::pair(peer, m.rank)];
    if (queue.empty() || (queue.front()->from != nullptr) == sends) {
        queue.push_back(v);
        return;
    }
    message *other = queue.front();
    queue.pop_front();
    if (other->bytes != v->bytes || other->captured != v->captured) return fail(*m.g, ncclInvalidUsage);
    v->other = other;
    other->other = v;
    m.g->changed.notify_all();
}

/* Runs messages that are on their way at the same time. */
void run(member &m, std::vector<part> &parts)
{
    group &g = *m.g;
    std::unique_lock<std::mutex> held(g.lock);
    g.changed.wait(held, [&] { return !m.stuck || is_over(m); });
    for (part &p : parts)
        if (!is_over(m)) meet(m, p.peer, &p.v);
    for (part &p : parts) {
        g.changed.wait(held, [&] { return p.v.other || is_over(m); });
        if (!p.v.other || p.v.from) continue;
        const void *from = p.v.other->from;
        held.unlock(); /* the sender waits */
        memmove(p.v.to, from, p.v.bytes);
        held.lock();
        p.v.done = p.v.other->done = true;
        g.changed.notify_all();
    }
    for (part &p : parts) g.changed.wait(held, [&] { return p.v.done || (!p.v.other && is_over(m)); });
    for (auto &[way, queue] : g.waiting) /* after a failure */
        for (part &p : parts) std::erase(queue, &p.v);
}

ncclResult_t enqueue_all(std::vector<part> parts)
{
    if (parts.empty()) return ncclSuccess;
    std::shared_ptr<member> m = parts[0].m;
    cudaStream_t stream = parts[0].stream;
    cudaStreamCaptureStatus capture;
    cudaStreamIsCapturing(stream, &capture);
    for (part &p : parts) {
        p.v.captured = capture == cudaStreamCaptureStatusActive;
        if (p.m != m || p.stream != stream) return ncclInvalidUsage;
        if (!may_use(stream, p.v.from) || !may_use(stream, p.v.to)) return ncclInvalidArgument;
    }
    enqueue(
        stream,
        [m, parts] {
            std::vector<part> now = parts; /* a graph runs it again */
            run(*m, now);
        },
        WORK_KERNEL);
    return ncclSuccess;
}

ncclResult_t add(nccl_comm *c, const void *from, void *to, size_t count, ncclDataType_t t, int peer, cudaStream_t s)
{
    if (!c || !s || t != ncclFloat32 || peer < 0 || peer >= c->m->g->ranks || peer == c->m->rank || (!from && !to))
        return ncclInvalidArgument;
    part p = {c->m, peer, {from, to, count * sizeof(float), false, nullptr, false}, s};
    if (!depth) return enqueue_all({p});
    calls.push_back(p);
    return ncclSuccess;
}

} // namespace

/* ---- communicators ----------------------------------------------------------------------------------------------- */

ncclResult_t ncclGetVersion(int *version)
{
    *version = 22800;
    return ncclSuccess;
}

/* Ranks that are processes would wait for each other for ever. */
ncclResult_t ncclGetUniqueId(ncclUniqueId *out)
{
    registry &r = all();
    if (comm_launched()) return ncclSystemError;
    std::lock_guard<std::mutex> guard(r.lock);
    id own = {getpid(), ++r.ids};
    *out = {};
    memcpy(out->internal, &own, sizeof own);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *out, int ranks, ncclUniqueId unique, int rank)
{
    registry &r = all();
    id of;
    std::shared_ptr<group> g;
    memcpy(&of, unique.internal, sizeof of);
    *out = nullptr;
    if (of.process != getpid()) return ncclSystemError;
    if (rank < 0 || rank >= ranks) return ncclInvalidArgument;
    {
        std::lock_guard<std::mutex> guard(r.lock);
        std::shared_ptr<group> &found = r.groups[of.number];
        if (!found) {
            found = std::make_shared<group>();
            found->ranks = ranks;
        }
        g = found;
        if (++g->joined == ranks) r.groups.erase(of.number);
        r.changed.notify_all();
    }
    std::unique_lock<std::mutex> held(r.lock);
    r.changed.wait(held, [&] { return g->joined == ranks; });
    auto m = std::make_shared<member>();
    const char *set = getenv("SIMT_NCCL");
    m->g = g;
    m->rank = rank;
    m->stuck = rank == 1 && set && !strcmp(set, "stuck");
    *out = new nccl_comm{m};
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    delete c;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    group &g = *c->m->g;
    {
        std::lock_guard<std::mutex> guard(g.lock);
        c->m->aborted = true;
        fail(g, ncclRemoteError); /* the others would wait for it */
    }
    delete c;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *error)
{
    std::lock_guard<std::mutex> guard(c->m->g->lock);
    *error = c->m->g->error;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t e)
{
    switch (e) {
    case ncclSuccess: return "no error";
    case ncclSystemError: return "unhandled system error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    }
    return "unknown result code";
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t t, ncclComm_t c,
                           cudaStream_t s)
{
    size_t bytes = count * sizeof(float);
    char *to = static_cast<char *>(receive), *own = to + (size_t)c->m->rank * bytes;
    if (send != own) cudaMemcpyAsync(own, send, bytes, cudaMemcpyDeviceToDevice, s);
    ncclResult_t r = ncclGroupStart(), end;
    for (int peer = 0; peer < c->m->g->ranks && r == ncclSuccess; peer++) {
        if (peer == c->m->rank) continue;
        r = ncclSend(send, count, t, peer, c, s);
        if (r == ncclSuccess) r = ncclRecv(to + (size_t)peer * bytes, count, t, peer, c, s);
    }
    end = ncclGroupEnd();
    return r == ncclSuccess ? end : r;
}

ncclResult_t ncclSend(const void *p, size_t count, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s)
{
    return add(c, p, nullptr, count, t, peer, s);
}

ncclResult_t ncclRecv(void *p, size_t count, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s)
{
    return add(c, nullptr, p, count, t, peer, s);
}

ncclResult_t ncclGroupStart()
{
    depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd()
{
    if (depth == 0) return ncclInvalidUsage;
    if (--depth) return ncclSuccess;
    std::vector<part> now;
    now.swap(calls);
    return enqueue_all(std::move(now));
}

} // namespace simt_runtime
