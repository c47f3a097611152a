/* Tests of the worker pool itself: every task runs once whatever the timing, and idle workers cost nothing. */
#include "tests/ops/harness.h"

#include "kernels/cpu/pool.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TASKS_MAX = 200 };

struct tally {
    int count[TASKS_MAX]; /* plain: tasks are disjoint, and a race here is what TSan is to see */
    atomic_int bad_worker;
    int threads;
};

static void tally_task(void *ctx, int task, int worker)
{
    struct tally *t = ctx;
    if (worker < 0 || worker >= t->threads) atomic_fetch_add(&t->bad_worker, 1);
    t->count[task]++;
}

static void nap(long ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

static void run_regions(int threads, int regions)
{
    struct pool *p = pool_open(threads);
    struct tally t = {.threads = threads};
    int want[TASKS_MAX] = {0};
    for (int i = 0; i < regions; i++) {
        int n = i % 50 == 0 ? TASKS_MAX : random_below(12);
        pool_run(p, tally_task, &t, n);
        for (int k = 0; k < n; k++) want[k]++;
        if (i % 97 == 0) nap(30000 + 1000 * (long)random_below(60)); /* around the time at which workers park */
    }
    for (int k = 0; k < TASKS_MAX; k++)
        CHECK(t.count[k] == want[k], "pool of %d: task %d ran %d times, not %d", threads, k, t.count[k], want[k]);
    CHECK(atomic_load(&t.bad_worker) == 0, "pool of %d: a worker out of range", threads);
    pool_close(p);
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void test_pool(void)
{
    random_seed(9);
    run_regions(1, 100);
    run_regions(2, 20000);
    run_regions(3, 5000);
    run_regions(8, 1000);
    struct pool *p = pool_open(2);
    struct tally t = {.threads = 2};
    pool_run(p, tally_task, &t, TASKS_MAX);
    nap(20000000);
    double before = cpu_seconds();
    nap(200000000);
    double used = cpu_seconds() - before;
    CHECK(used < 0.02, "an idle pool used %.3f s of processor in 0.2 s", used);
    pool_close(p);
}
