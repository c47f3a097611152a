/* A pool of worker threads for short parallel regions, thousands of them per second.
 *
 * One 64-bit `claim` holds the region's number, its task count and the next task; taking a task is a
 * compare-and-swap of it. A worker that reads fn and ctx and then succeeds with the swap knows that they belong to
 * that region: while a task is untaken the region cannot end, so the caller cannot have replaced them. A worker that
 * slept through a region never touches it, so the caller waits for tasks, not for workers.
 *
 * An idle worker spins for about SPIN_NS, then sleeps on a futex: an idle pool costs nothing, and within a decode
 * step the next region finds the workers awake. With more threads than cores no worker spins. */
#include "kernels/cpu/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SPIN_NS = 40000 };

struct worker {
    struct pool *pool;
    pthread_t thread;
    int id;
};

struct pool {
    _Alignas(64) _Atomic uint64_t claim; /* region << 32 | n_tasks << 16 | next */
    _Atomic(pool_fn *) fn;
    _Atomic(void *) ctx;
    _Alignas(64) _Atomic uint32_t done; /* tasks finished; a futex while caller_waits */
    _Atomic uint32_t caller_waits;
    _Alignas(64) _Atomic uint32_t wake; /* futex of the sleeping workers */
    _Atomic uint32_t sleepers;
    _Atomic bool stop;
    uint32_t region;
    int threads;
    _Atomic int spin_ns; /* 0: no spinning */
    struct worker workers[];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static bool claim_open(uint64_t t)
{
    return (t & 0xffff) < ((t >> 16) & 0xffff);
}

/* Takes and runs tasks until none is left. */
static void pool_work(struct pool *p, int worker)
{
    uint64_t t = atomic_load_explicit(&p->claim, memory_order_acquire);
    while (claim_open(t)) {
        pool_fn *fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
        void *ctx = atomic_load_explicit(&p->ctx, memory_order_relaxed);
        if (!atomic_compare_exchange_weak_explicit(&p->claim, &t, t + 1, memory_order_acq_rel, memory_order_acquire))
            continue;
        fn(ctx, (int)(t & 0xffff), worker);
        uint32_t n = (uint32_t)(t >> 16) & 0xffff;
        if (atomic_fetch_add(&p->done, 1) + 1 == n && atomic_load(&p->caller_waits)) futex_wake(&p->done, 1);
        t = atomic_load_explicit(&p->claim, memory_order_acquire);
    }
}

static bool pool_idle(struct pool *p)
{
    return !claim_open(atomic_load(&p->claim)) && !atomic_load(&p->stop);
}

static void worker_sleep(struct pool *p)
{
    uint32_t seen = atomic_load(&p->wake);
    /* before the last check, so that a new region sees this sleeper or this worker sees the region */
    atomic_fetch_add(&p->sleepers, 1);
    if (pool_idle(p)) futex_wait(&p->wake, seen);
    atomic_fetch_sub(&p->sleepers, 1);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    while (!atomic_load(&p->stop)) {
        pool_work(p, w->id);
        int spin = atomic_load_explicit(&p->spin_ns, memory_order_relaxed);
        int64_t until = spin ? now_ns() + spin : 0;
        bool idle;
        do {
            for (int i = 0; (idle = pool_idle(p)) && i < 32; i++) cpu_relax();
        } while (idle && until && now_ns() < until);
        if (idle) worker_sleep(p);
    }
    return NULL;
}

void pool_run(struct pool *p, pool_fn *fn, void *ctx, int n_tasks)
{
    if (p->threads == 1 || n_tasks <= 1) {
        for (int i = 0; i < n_tasks; i++) fn(ctx, i, 0);
        return;
    }
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->ctx, ctx, memory_order_relaxed);
    atomic_store(&p->done, 0);
    atomic_store(&p->claim, (uint64_t)++p->region << 32 | (uint64_t)n_tasks << 16);
    if (atomic_load(&p->sleepers)) {
        atomic_fetch_add(&p->wake, 1);
        futex_wake(&p->wake, n_tasks - 1);
    }
    pool_work(p, 0);
    uint32_t done;
    int spin = atomic_load_explicit(&p->spin_ns, memory_order_relaxed);
    int64_t until = spin ? now_ns() + spin : 0;
    while ((done = atomic_load(&p->done)) != (uint32_t)n_tasks) {
        cpu_relax();
        if (until && now_ns() < until) continue;
        atomic_store(&p->caller_waits, 1);
        futex_wait(&p->done, done);
        atomic_store(&p->caller_waits, 0);
    }
}

int pool_pin(struct pool *p, const int *cpus, int n)
{
    if (n < p->threads) atomic_store(&p->spin_ns, 0);
    for (int i = 0; i < p->threads; i++) {
        cpu_set_t set;
        CPU_ZERO(&set);
        if (cpus[i % n] < 0 || cpus[i % n] >= CPU_SETSIZE) return -1;
        CPU_SET(cpus[i % n], &set);
        if (pthread_setaffinity_np(i ? p->workers[i].thread : pthread_self(), sizeof set, &set)) return -1;
    }
    return 0;
}

int pool_cores(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n > 0 ? n : 1;
}

struct pool *pool_open(int threads)
{
    size_t bytes = sizeof(struct pool) + (size_t)threads * sizeof(struct worker);
    struct pool *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p) return NULL;
    *p = (struct pool){.threads = 1, .spin_ns = threads <= pool_cores() ? SPIN_NS : 0};
    for (int i = 1; i < threads; i++) {
        p->workers[i] = (struct worker){.pool = p, .id = i};
        if (pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i])) {
            pool_close(p);
            return NULL;
        }
        p->threads = i + 1;
    }
    return p;
}

void pool_close(struct pool *p)
{
    if (!p) return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->wake, 1);
    futex_wake(&p->wake, 1024);
    for (int i = 1; i < p->threads; i++) pthread_join(p->workers[i].thread, NULL);
    free(p);
}
