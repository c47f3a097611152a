/* The worker threads of the cpu device. */
#ifndef TANDEM_KERNELS_CPU_POOL_H
#define TANDEM_KERNELS_CPU_POOL_H

struct pool;

/* One of n_tasks tasks, numbered from 0, on worker 0 (the caller) .. threads - 1. */
typedef void pool_fn(void *ctx, int task, int worker);

enum { POOL_TASKS_MAX = 65535 };

struct pool *pool_open(int threads); /* NULL: out of memory or threads */
void pool_close(struct pool *);

/* Runs every task and returns when all are done; tasks start in order, on any free worker. One caller at a time.
 * With one task, or one thread, no worker is woken. */
void pool_run(struct pool *, pool_fn *, void *ctx, int n_tasks);

/* Binds the calling thread to cpus[0] and worker i to cpus[i % n]; with fewer cpus than threads, workers stop
 * spinning. @return 0, or -1 when the system refuses one. */
int pool_pin(struct pool *, const int *cpus, int n);
int pool_cores(void); /* cores this process may run on */

#endif
