#include "engine/train/exchanger.h"

#include "engine/base/mem.h"
#include "engine/train/scheduler_gate.h"
#include "kernels/comm.h"

#include <pthread.h>
#include <stdlib.h>

enum {
    WAITING = 4
}; /* exchanges at most that are not done: gradients of a layer, weights of the next one, and spare */

struct exchange {
    exchange_fn *fn; /* NULL: the thread is to end */
    void *arg;
    int layer;
};

struct exchanger {
    struct scheduler_gate *gate;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct exchange of[WAITING]; /* under lock: number i at i % WAITING */
    uint64_t asked, done;        /* under lock: how many so far */
};

static void *run(void *arg)
{
    struct exchanger *x = arg;
    pthread_mutex_lock(&x->lock);
    for (;;) {
        while (x->done == x->asked) pthread_cond_wait(&x->changed, &x->lock);
        struct exchange next = x->of[x->done % WAITING];
        if (!next.fn) break;
        pthread_mutex_unlock(&x->lock);
        next.fn(next.arg, next.layer);
        pthread_mutex_lock(&x->lock);
        x->done++;
        pthread_cond_broadcast(&x->changed);
    }
    pthread_mutex_unlock(&x->lock);
    return NULL;
}

struct exchanger *exchanger_open(const struct comm *c, struct scheduler_gate *gate)
{
    if (!c || !comm_any_thread(c)) return NULL;
    struct exchanger *x = mem_zalloc(sizeof *x);
    x->gate = gate;
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->changed, NULL);
    if (!pthread_create(&x->thread, NULL, run, x)) return x;
    pthread_mutex_destroy(&x->lock);
    pthread_cond_destroy(&x->changed);
    free(x);
    return NULL;
}

/* Until `enough` are done, without the device.  Under lock. */
static void wait_until(struct exchanger *x, uint64_t enough)
{
    if (x->done >= enough) return;
    pthread_mutex_unlock(&x->lock);
    scheduler_gate_leave(x->gate);
    pthread_mutex_lock(&x->lock);
    while (x->done < enough) pthread_cond_wait(&x->changed, &x->lock);
}

uint64_t exchanger_start(struct exchanger *x, exchange_fn *fn, void *arg, int layer)
{
    pthread_mutex_lock(&x->lock);
    if (x->asked >= WAITING) wait_until(x, x->asked - WAITING + 1);
    x->of[x->asked % WAITING] = (struct exchange){fn, arg, layer};
    uint64_t which = ++x->asked;
    pthread_cond_broadcast(&x->changed);
    pthread_mutex_unlock(&x->lock);
    return which;
}

void exchanger_wait(struct exchanger *x, uint64_t which)
{
    pthread_mutex_lock(&x->lock);
    wait_until(x, which);
    pthread_mutex_unlock(&x->lock);
}

void exchanger_close(struct exchanger *x)
{
    if (!x) return;
    exchanger_start(x, NULL, NULL, 0);
    pthread_join(x->thread, NULL);
    pthread_mutex_destroy(&x->lock);
    pthread_cond_destroy(&x->changed);
    free(x);
}
