#include "engine/train/scheduler_gate.h"

#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "engine/base/mem.h"
#include "kernels/ops.h"
#include "kernels/trace.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* The duration of a chunk of an op: about a quarter of the time slice, at least enough to be worth a launch, at most
 * what a request that has just arrived may wait. */
#define CHUNK_SHARE 0.25
#define CHUNK_MIN_NS 100e3
#define CHUNK_MAX_NS 10e6
/* Limits of an asynchronous device's queue: a share of the time slice, a duration, a number of ops.  Serving waits for
 * whatever is still queued at the end of the slice. */
#define QUEUE_SHARE 0.125
#define QUEUE_MAX_NS 1e6
#define QUEUE_OPS 32
/* Weights of a new measurement in a rate.  A slower one counts more: an op that takes longer than its slice delays the
 * next token of a request. */
#define WEIGHT_SLOWER 0.4
#define WEIGHT_FASTER 0.1
/* Initial rates in cost per ns, used until one was measured: multiply-adds, logits, floats moved. */
static const double first_rate[WORK_KINDS] = {20, 20, 10, 10, 10, 0.5, 2, 10, 2};

enum trainer_state { AWAY, WAITING, INSIDE }; /* not using the device; waiting for a time slice; in one */

struct scheduler_gate {
    struct dev *d;
    void (*wake)(void *);
    void *wake_arg;
    pthread_mutex_t lock;
    pthread_cond_t to_trainer, to_engine;
    enum trainer_state trainer; /* under lock; WAITING -> INSIDE by the engine thread, other changes by the trainer's */
    _Atomic bool open;

    /* set by the engine thread before a time slice */
    uint64_t granted, until;
    bool (*stop)(void *);
    void *stop_arg;

    /* used by the trainer thread only */
    struct dev_error error;
    bool inside;
    uint64_t waited;         /* ns in wait_outside, in all */
    double rate[WORK_KINDS]; /* cost per ns */
    double least_ns;         /* shortest chunk of an op */
    int scratch;             /* trainers that keep it */
    double cost;             /* of the op issued last; 0: not declared */
    enum train_work work;    /* likewise */
    uint64_t passed;         /* clock at the last pass with nothing queued */
    struct {
        double ns[WORK_KINDS], all; /* estimated from the rates */
        int n;
        bool unknown; /* the cost of at least one was not declared */
    } queued;         /* ops issued since the device was last waited for */
};

/* The gate whose trainer thread this is: the last one it waited at or left. */
static _Thread_local const struct scheduler_gate *trainer_of;

struct scheduler_gate *scheduler_gate_new(struct dev *d, void (*wake)(void *), void *arg)
{
    struct scheduler_gate *g = mem_zalloc(sizeof *g);
    *g = (struct scheduler_gate){.d = d, .wake = wake, .wake_arg = arg, .least_ns = CHUNK_MIN_NS};
    for (int i = 0; i < WORK_KINDS; i++) g->rate[i] = first_rate[i];
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->to_trainer, NULL);
    pthread_cond_init(&g->to_engine, NULL);
    return g;
}

void scheduler_gate_free(struct scheduler_gate *g)
{
    if (!g) return;
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->to_trainer);
    pthread_cond_destroy(&g->to_engine);
    free(g);
}

/* ---- trainer thread -------------------------------------------------------------------------------------------- */

static void wait_outside(struct scheduler_gate *g)
{
    trainer_of = g;
    pthread_mutex_lock(&g->lock);
    bool begins = g->trainer == AWAY;
    g->trainer = WAITING;
    pthread_cond_signal(&g->to_engine);
    if (begins && g->wake) {
        pthread_mutex_unlock(&g->lock);
        g->wake(g->wake_arg);
        pthread_mutex_lock(&g->lock);
    }
    while (g->trainer != INSIDE && !atomic_load(&g->open)) pthread_cond_wait(&g->to_trainer, &g->lock);
    g->trainer = INSIDE;
    g->inside = true;
    pthread_mutex_unlock(&g->lock);
}

/* Moves the device's error into the gate.  Called while the trainer still has the device. */
static void keep_error(struct scheduler_gate *g)
{
    if (!g->d || !g->d->error.op) return;
    if (!g->error.op) g->error = g->d->error;
    dev_clear_error(g->d);
}

bool scheduler_gate_error(struct scheduler_gate *g, struct dev_error *out)
{
    if (g->inside) keep_error(g);
    *out = g->error;
    g->error.op = NULL;
    return out->op != NULL;
}

bool scheduler_gate_failed(struct scheduler_gate *g, struct dev *d, struct err *e)
{
    struct dev_error w;
    if (g ? !scheduler_gate_error(g, &w) : !d->error.op) return false;
    if (!g) {
        w = d->error;
        dev_clear_error(d);
    }
    err_set(e, w.lost ? ERR_LOST : ERR_NOMEM, "device: op %s: %s", w.op, w.msg);
    return true;
}

static bool may_go_on(const struct scheduler_gate *g, uint64_t now)
{
    if (atomic_load_explicit(&g->open, memory_order_relaxed)) return true;
    return now < g->until && !(g->stop && g->stop(g->stop_arg));
}

/* Whether ops may still run after their calls return and serving would have to wait for them. */
static bool enqueues(const struct scheduler_gate *g)
{
    return g->d && !atomic_load_explicit(&g->open, memory_order_relaxed) && !dev_host_memory(g->d);
}

/* Adds the op issued before this pass to the queued ones. */
static void note_op(struct scheduler_gate *g)
{
    double ns = g->cost > 0 ? g->cost / g->rate[g->work] : 0;
    g->queued.ns[g->work] += ns;
    g->queued.all += ns;
    g->queued.n++;
    g->queued.unknown |= ns <= 0;
    g->cost = 0;
}

static bool queue_is_full(const struct scheduler_gate *g)
{
    double most = g->stop ? QUEUE_MAX_NS : QUEUE_SHARE * (double)g->granted;
    return g->queued.n >= QUEUE_OPS || g->queued.all >= (most < QUEUE_MAX_NS ? most : QUEUE_MAX_NS);
}

/* Everything queued has ended at `now`: updates the rates from the time since the pass before it.  When some of the
 * costs are unknown, the time is only an upper bound for the others, so a rate may rise but not fall. */
static void settle(struct scheduler_gate *g, uint64_t now)
{
    double faster = now > g->passed ? g->queued.all / (double)(now - g->passed) : 0;
    if (faster > 1 || (faster > 0 && !g->queued.unknown)) {
        for (int k = 0; k < WORK_KINDS; k++) {
            double share = g->queued.ns[k] / g->queued.all, seen = g->rate[k] * faster;
            g->rate[k] += share * (faster < 1 ? WEIGHT_SLOWER : WEIGHT_FASTER) * (seen - g->rate[k]);
        }
    }
    memset(&g->queued, 0, sizeof g->queued);
    g->passed = now;
}

void scheduler_gate_pass(struct scheduler_gate *g)
{
    if (!g) return;
    note_op(g);
    uint64_t now = clock_now();
    bool waits = g->inside && enqueues(g);
    bool ends = g->inside && !may_go_on(g, now + (waits ? (uint64_t)g->queued.all : 0));
    if (waits && (ends || queue_is_full(g))) {
        g->d->ops->finish(g->d);
        now = clock_now();
        ends = ends || !may_go_on(g, now);
        waits = false;
    }
    if (!waits) settle(g, now);
    if (ends) {
        keep_error(g);
        g->inside = false;
    }
    if (g->inside) return;
    uint64_t out = clock_now();
    wait_outside(g);
    g->passed = clock_now();
    g->waited += g->passed - out;
}

uint64_t scheduler_gate_waited(const struct scheduler_gate *g)
{
    return g ? g->waited : 0;
}

void scheduler_gate_keep_scratch(struct scheduler_gate *g)
{
    if (g) g->scratch++;
}

void scheduler_gate_drop_scratch(struct scheduler_gate *g, struct dev *d)
{
    if ((!g || !--g->scratch) && d->ops->trim) d->ops->trim(d);
}

bool scheduler_gate_inside(const struct scheduler_gate *g)
{
    return !g || g->inside;
}

double scheduler_gate_max_cost(struct scheduler_gate *g, enum train_work work)
{
    if (!g) return INFINITY;
    double ns = g->inside && !g->stop ? CHUNK_SHARE * (double)g->granted : CHUNK_MAX_NS;
    ns = ns < g->least_ns ? g->least_ns : ns > CHUNK_MAX_NS ? CHUNK_MAX_NS : ns;
    return ns * g->rate[work];
}

void scheduler_gate_finest(struct scheduler_gate *g, double ns)
{
    g->least_ns = ns;
}

void scheduler_gate_cost(struct scheduler_gate *g, enum train_work work, double cost)
{
    if (!g) return;
    g->work = work;
    g->cost = cost;
}

int scheduler_gate_rows(struct scheduler_gate *g, enum train_work work, int rows, double row_cost, double fixed)
{
    if (!g || rows < 1) return rows;
    double most = (scheduler_gate_max_cost(g, work) - fixed) / row_cost, least = fixed / (2 * row_cost) + 1;
    if (most < least) most = least;
    int n = most >= rows ? rows : (int)most;
    if (n > 16 && n < rows) n -= n % 16; /* whole register blocks */
    scheduler_gate_cost(g, work, fixed + n * row_cost);
    return n;
}

void scheduler_gate_leave(struct scheduler_gate *g)
{
    if (!g) return;
    trainer_of = g;
    if (g->inside && enqueues(g)) g->d->ops->finish(g->d);
    if (g->inside) keep_error(g);
    memset(&g->queued, 0, sizeof g->queued);
    pthread_mutex_lock(&g->lock);
    g->trainer = AWAY;
    g->inside = false;
    g->cost = 0;
    pthread_cond_signal(&g->to_engine);
    pthread_mutex_unlock(&g->lock);
}

void scheduler_gate_settle(struct scheduler_gate *g, struct dev *d)
{
    if (g)
        scheduler_gate_leave(g);
    else
        d->ops->finish(d);
}

/* ---- engine thread --------------------------------------------------------------------------------------------- */

bool scheduler_gate_wanted(struct scheduler_gate *g)
{
    if (!g) return false;
    pthread_mutex_lock(&g->lock);
    bool wanted = g->trainer == WAITING;
    pthread_mutex_unlock(&g->lock);
    return wanted;
}

uint64_t scheduler_gate_grant(struct scheduler_gate *g, uint64_t ns, bool (*stop)(void *), void *arg)
{
    if (!g) return 0;
    uint64_t start = clock_now();
    pthread_mutex_lock(&g->lock);
    bool wanted = g->trainer == WAITING;
    if (wanted) {
        g->granted = ns;
        g->until = start + ns;
        g->stop = stop;
        g->stop_arg = arg;
        g->trainer = INSIDE;
        pthread_cond_signal(&g->to_trainer);
        while (g->trainer == INSIDE) pthread_cond_wait(&g->to_engine, &g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    return wanted ? clock_now() - start : 0;
}

void scheduler_gate_open(struct scheduler_gate *g)
{
    pthread_mutex_lock(&g->lock);
    atomic_store(&g->open, true);
    pthread_cond_signal(&g->to_trainer);
    pthread_mutex_unlock(&g->lock);
}

/* ---- any thread -------------------------------------------------------------------------------------------------- */

bool scheduler_gate_permits(struct scheduler_gate *g)
{
    pthread_mutex_lock(&g->lock);
    bool inside = g->trainer == INSIDE;
    pthread_mutex_unlock(&g->lock);
    return (trainer_of == g) == inside || atomic_load(&g->open);
}
