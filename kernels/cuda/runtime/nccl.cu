/* NCCL: opened by name, like cuBLASLt (never linked), when the ranks of a model have devices to exchange between; and
 * the watchdog of the exchanges. A thread of its own, because the device's may itself be stuck: launches block when too
 * many are enqueued. */
#include "kernels/cuda/runtime/exchange.h"

#ifdef __CUDACC__
#include <dlfcn.h>
#endif

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace GPU_NAMESPACE {
namespace {

const double LOOK_EVERY = 0.2; /* seconds, while exchanges are on their way */
const double CALL_MOST = 5;    /* seconds that a call of the library may take to end before it is aborted under it */

#ifdef __CUDACC__
const char LIBRARY[] = "libnccl.so.2";

bool load_library(gpu_comm *c, char why[COMM_WHY_BYTES])
{
    c->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!c->library) {
        snprintf(why, COMM_WHY_BYTES,
                 "%s is not found: install NCCL (package libnccl2) or put its folder in LD_LIBRARY_PATH", LIBRARY);
        return false;
    }
    const char *missing = nullptr;
#define X(name)                                                                                                        \
    c->f.name = reinterpret_cast<decltype(c->f.name)>(dlsym(c->library, "nccl" #name));                                \
    if (!c->f.name) missing = "nccl" #name;
    NCCL_FUNCTIONS(X)
#undef X
    if (missing) snprintf(why, COMM_WHY_BYTES, "the %s of this machine has no %s", LIBRARY, missing);
    return !missing;
}

void close_library(gpu_comm *c)
{
    if (c->library) dlclose(c->library);
}
#else
bool load_library(gpu_comm *c, char why[COMM_WHY_BYTES])
{
    const char *off = getenv("SIMT_NCCL"); /* for tests: 0: the library is not there */
    if (off && !strcmp(off, "0")) return snprintf(why, COMM_WHY_BYTES, "SIMT_NCCL is 0"), false;
#define X(name) c->f.name = nccl##name;
    NCCL_FUNCTIONS(X)
#undef X
    return true;
}

void close_library(gpu_comm *) {}
#endif

bool refused(const gpu_comm *c, const char *what, ncclResult_t r, char why[COMM_WHY_BYTES])
{
    if (r == ncclSuccess) return false;
    snprintf(why, COMM_WHY_BYTES, "%s: %s", what, c->f.GetErrorString(r));
    return true;
}

/* ---- the watchdog ------------------------------------------------------------------------------------------------ */

double seconds_now()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Waits, under the lock, for a change or for `seconds`; 0: for a change. */
void wait_for_change(gpu_comm *c, double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    long ns = until.tv_nsec + (long)(seconds * 1e9);
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    if (seconds > 0)
        pthread_cond_timedwait(&c->changed, &c->lock, &until);
    else
        pthread_cond_wait(&c->changed, &c->lock);
}

/* What is wrong with the exchanges; false: nothing. waited: seconds in which none ended. */
bool is_wrong(gpu_comm *c, uint64_t ended, double waited, char why[COMM_WHY_BYTES])
{
    const gpu_exchange *x = &c->kept[ended % EXCHANGES_KEPT]; /* the one that has not */
    ncclResult_t now = ncclSuccess;
    const char *what = nullptr;
    char late[64];
    c->f.CommGetAsyncError(c->nccl, &now);
    if (now != ncclSuccess && now != ncclInProgress) {
        what = c->f.GetErrorString(now);
    } else if (comm_others_failed(c->host)) {
        what = "another rank has failed";
    } else if (waited > comm_timeout(c->host)) {
        snprintf(late, sizeof late, "nothing came from the other ranks for %g s", comm_timeout(c->host));
        what = late;
    }
    if (what) snprintf(why, COMM_WHY_BYTES, "%s of %zu bytes between devices: %s", comm_op_name(x->op), x->bytes, what);
    return what != nullptr;
}

/* Ends what is on its way. A call of the device's thread may be stuck because of it, and is not waited for then. */
void abort_all(gpu_comm *c)
{
    __atomic_store_n(&c->failed, true, __ATOMIC_RELEASE);
    for (double until = seconds_now() + CALL_MOST; c->calling && seconds_now() < until;) wait_for_change(c, LOOK_EVERY);
    c->f.CommAbort(c->nccl);
}

/* Time in which this thread did not run (the job was stopped and goes on) counts as a second at most. */
void *watch(void *arg)
{
    gpu_comm *c = static_cast<gpu_comm *>(arg);
    uint64_t before = 0;
    double waited = 0;
    pthread_mutex_lock(&c->lock);
    while (!c->end && !c->failed) {
        uint64_t ended = __atomic_load_n(c->seen, __ATOMIC_RELAXED);
        bool idle = ended >= c->enqueued, moved = ended != before;
        double at = seconds_now(), passed;
        before = ended;
        wait_for_change(c, idle ? 0 : LOOK_EVERY);
        passed = seconds_now() - at;
        waited = idle || moved ? 0 : waited + (passed < 1 ? passed : 1);
        if (!idle && !c->end && !c->failed && is_wrong(c, ended, waited, c->why)) abort_all(c);
    }
    pthread_mutex_unlock(&c->lock);
    return nullptr;
}

} // namespace

bool comm_enter(gpu_comm *c)
{
    pthread_mutex_lock(&c->lock);
    bool fine = !c->failed;
    c->calling = fine;
    pthread_mutex_unlock(&c->lock);
    return fine;
}

bool comm_leave(gpu_comm *c, ncclResult_t r)
{
    pthread_mutex_lock(&c->lock);
    c->calling = false;
    if (!c->failed && refused(c, "an exchange between devices", r, c->why)) abort_all(c);
    bool fine = !c->failed;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return fine;
}

void comm_count(gpu_comm *c, const gpu_exchange *x, int n)
{
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < n; i++) c->kept[c->enqueued++ % EXCHANGES_KEPT] = x[i];
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

bool gpu_comm_prepare(struct dev *head, struct comm_device_id *id, char why[COMM_WHY_BYTES])
{
    static_assert(sizeof(ncclUniqueId) == sizeof *id, "rank 0's id is sent to the others");
    gpu_dev *d = gpu_of(head);
    gpu_comm *c = static_cast<gpu_comm *>(calloc(1, sizeof *c));
    int version = 0;
    ncclUniqueId unique = {};
    gpu_comm_close(head);
    if (!c) return snprintf(why, COMM_WHY_BYTES, "no memory"), false;
    if (!gpu_alive(d, "exchange") || !load_library(c, why) || refused(c, "NCCL", c->f.GetVersion(&version), why) ||
        refused(c, "NCCL", c->f.GetUniqueId(&unique), why)) {
        close_library(c);
        free(c);
        return false;
    }
    snprintf(c->name, sizeof c->name, "NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    memcpy(id, &unique, sizeof *id);
    d->comm = c;
    return true;
}

/* NCCL waits here for the other ranks, which have all prepared. */
bool gpu_comm_open(struct dev *head, struct comm *host, const struct comm_device_id *id, char why[COMM_WHY_BYTES])
{
    gpu_dev *d = gpu_of(head);
    gpu_comm *c = d->comm;
    ncclUniqueId unique;
    memcpy(&unique, id, sizeof unique);
    c->rank = comm_rank(host);
    c->ranks = comm_ranks(host);
    c->ended = static_cast<uint64_t *>(gpu_alloc(head, sizeof *c->ended));
    c->seen = static_cast<uint64_t *>(gpu_alloc_host(head, sizeof *c->seen));
    bool ok = c->ended && c->seen && gpu_settle(d, "exchange");
    if (!ok) snprintf(why, COMM_WHY_BYTES, "no memory of the device");
    if (refused(c, "NCCL", c->f.CommInitRank(&c->nccl, c->ranks, unique, c->rank), why)) {
        c->nccl = nullptr;
        return false;
    }
    if (!ok) return false;
    c->host = host;
    pthread_mutex_init(&c->lock, nullptr);
    pthread_cond_init(&c->changed, nullptr);
    c->watched = pthread_create(&c->watchdog, nullptr, watch, c) == 0;
    if (!c->watched) snprintf(why, COMM_WHY_BYTES, "no thread for the watchdog of exchanges");
    return c->watched;
}

void gpu_comm_close(struct dev *head)
{
    gpu_dev *d = gpu_of(head);
    gpu_comm *c = d->comm;
    if (!c) return;
    if (c->watched) {
        pthread_mutex_lock(&c->lock);
        c->end = true;
        pthread_cond_signal(&c->changed);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->watchdog, nullptr);
    }
    /* a graph that holds exchanges must be gone before the communicator is */
    gpu_graphs_close(d);
    bool gone = c->failed || !c->nccl;
    if (!gone && (d->lost || !c->watched || comm_error(c->host) || comm_others_failed(c->host)))
        c->f.CommAbort(c->nccl); /* does not wait for the others */
    else if (!gone)
        c->f.CommDestroy(c->nccl);
    if (c->host) {
        pthread_mutex_destroy(&c->lock);
        pthread_cond_destroy(&c->changed);
    }
    gpu_free(head, c->ended);
    gpu_free_host(head, c->seen);
    close_library(c);
    free(c->captured.v);
    free(c);
    d->comm = nullptr;
}

const char *gpu_comm_name(const struct dev *head)
{
    return reinterpret_cast<const gpu_dev *>(head)->comm->name;
}

bool gpu_comm_alive(gpu_dev *d, const char *op)
{
    gpu_comm *c = d->comm;
    if (!c || !__atomic_load_n(&c->failed, __ATOMIC_ACQUIRE)) return true;
    if (c->host) comm_fail(c->host, c->why);
    dev_fail(&d->head, op, "%s", c->host ? comm_error(c->host) : c->why);
    return false;
}

bool gpu_comm_ended(gpu_dev *d, const char *op)
{
    gpu_comm *c = d->comm;
    ncclResult_t now = ncclSuccess;
    if (c->host && comm_enter(c)) {
        ncclResult_t r = c->f.CommGetAsyncError(c->nccl, &now);
        comm_leave(c, r != ncclSuccess ? r : now == ncclInProgress ? ncclSuccess : now);
    }
    return gpu_comm_alive(d, op);
}

} // namespace GPU_NAMESPACE
