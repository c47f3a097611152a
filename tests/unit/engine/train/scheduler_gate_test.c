/* The scheduler gate: trainer and engine never use the device at once, neither waits forever, and ops are split to fit
 * the time slice. */
#include "engine/train/scheduler_gate.h"

#include "engine/base/clock.h"
#include "engine/serve/train_quantum.h"
#include "kernels/ops.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

struct world {
    struct scheduler_gate *gate;
    _Atomic int users;   /* threads that use the device now */
    _Atomic int clashes; /* times that two used it at once */
    _Atomic int wakes;
    _Atomic bool wanted_back, end;
    int ops, leave_every; /* ops the trainer does; after how many it leaves for a moment */
    _Atomic int done;
};

static void use_device(struct world *w)
{
    if (atomic_fetch_add(&w->users, 1)) atomic_fetch_add(&w->clashes, 1);
    for (uint64_t until = clock_now() + 2000; clock_now() < until;) {
    }
    atomic_fetch_sub(&w->users, 1);
}

static void count_wake(void *arg)
{
    atomic_fetch_add(&((struct world *)arg)->wakes, 1);
}

static void *trainer(void *arg)
{
    struct world *w = arg;
    for (int i = 0; i < w->ops; i++) {
        scheduler_gate_pass(w->gate);
        use_device(w);
        atomic_fetch_add(&w->done, 1);
        if (w->leave_every && i % w->leave_every == 0) scheduler_gate_leave(w->gate);
    }
    scheduler_gate_leave(w->gate);
    atomic_store(&w->end, true);
    return NULL;
}

static bool wanted_back(void *arg)
{
    return atomic_load(&((struct world *)arg)->wanted_back);
}

static void test_null_is_open(void **state)
{
    (void)state;
    scheduler_gate_pass(NULL);
    scheduler_gate_leave(NULL);
    assert_int_equal(scheduler_gate_rows(NULL, WORK_MOVE, 1000, 1e9, 0), 1000);
    assert_false(scheduler_gate_wanted(NULL));
    assert_int_equal(scheduler_gate_grant(NULL, 1000, NULL, NULL), 0);
}

/* Two thousand steps of serving, interleaved with ops of training. */
static void test_interleaved(void **state)
{
    (void)state;
    struct world w = {.ops = 2000, .leave_every = 50};
    w.gate = scheduler_gate_new(NULL, count_wake, &w);
    pthread_t t;
    pthread_create(&t, NULL, trainer, &w);
    while (!atomic_load(&w.end)) {
        use_device(&w); /* a step */
        if (scheduler_gate_wanted(w.gate)) assert_true(scheduler_gate_grant(w.gate, 20000, NULL, NULL) > 0);
    }
    pthread_join(t, NULL);
    assert_int_equal(w.clashes, 0);
    assert_int_equal(w.done, 2000);
    assert_true(w.wakes >= 2000 / 50); /* one for each time that the trainer returned to the gate */
    assert_int_equal(scheduler_gate_grant(w.gate, 1000, NULL, NULL), 0);
    scheduler_gate_free(w.gate);
}

/* With no request to serve, the trainer keeps the device until the engine wants it back. */
static void test_stop(void **state)
{
    (void)state;
    struct world w = {.ops = 1 << 30};
    w.gate = scheduler_gate_new(NULL, count_wake, &w);
    pthread_t t;
    pthread_create(&t, NULL, trainer, &w);
    while (!scheduler_gate_wanted(w.gate)) {
    }
    atomic_store(&w.wanted_back, true);
    scheduler_gate_grant(w.gate, UINT64_MAX / 2, wanted_back, &w); /* returns at the first boundary */
    use_device(&w);
    int before = atomic_load(&w.done);
    assert_true(before >= 1);
    use_device(&w);
    assert_int_equal(atomic_load(&w.done), before); /* the trainer waits */
    assert_int_equal(w.clashes, 0);
    w.ops = 0; /* the trainer reads it only after its next slice began */
    scheduler_gate_open(w.gate);
    pthread_join(t, NULL);
    scheduler_gate_free(w.gate);
}

static void test_rows(void **state)
{
    (void)state;
    struct scheduler_gate *g = scheduler_gate_new(NULL, NULL, NULL);
    scheduler_gate_open(g);
    scheduler_gate_pass(g);
    assert_int_equal(scheduler_gate_rows(g, WORK_LINEAR, 1, 1e12, 0), 1);
    assert_int_equal(scheduler_gate_rows(g, WORK_LINEAR, 64, 1, 0), 64); /* rows of low cost: all in one chunk */
    int n = scheduler_gate_rows(g, WORK_LINEAR, 1000000, 1e6, 0);
    assert_true(n >= 1 && n < 1000000); /* rows of high cost are split */
    assert_true(n <= 16 || n % 16 == 0);
    assert_int_equal(scheduler_gate_rows(g, WORK_LINEAR, 5, 1e15, 0), 1);
    assert_int_equal(scheduler_gate_rows(g, WORK_LINEAR, 1000, 1e12, 40e12),
                     16); /* rows that cost half the fixed part */
    scheduler_gate_free(g);
}

/* After an op that took long, the next ops of its kind are split smaller, those of other kinds are not. */
static void test_rates(void **state)
{
    (void)state;
    struct scheduler_gate *g = scheduler_gate_new(NULL, NULL, NULL);
    scheduler_gate_open(g);
    scheduler_gate_pass(g);
    assert_true(isinf(scheduler_gate_max_cost(NULL, WORK_MOVE)));
    double move = scheduler_gate_max_cost(g, WORK_MOVE), loss = scheduler_gate_max_cost(g, WORK_LOSS);
    scheduler_gate_cost(g, WORK_MOVE, 1);
    for (uint64_t until = clock_now() + 1000000; clock_now() < until;) {
    }
    scheduler_gate_pass(g);
    assert_true(scheduler_gate_max_cost(g, WORK_MOVE) < move);
    assert_true(scheduler_gate_max_cost(g, WORK_LOSS) == loss);
    move = scheduler_gate_max_cost(g, WORK_MOVE);
    scheduler_gate_pass(g); /* an op of undeclared cost */
    assert_true(scheduler_gate_max_cost(g, WORK_MOVE) == move);
    scheduler_gate_finest(g, 1000);
    assert_true(scheduler_gate_max_cost(g, WORK_MOVE) < move);
    scheduler_gate_free(g);
}

/* A failed op of the trainer leaves no error to the engine, which uses the device next. */
static void test_errors(void **state)
{
    (void)state;
    char why[160];
    struct dev *d = dev_open(&(struct dev_config){.name = "ref"}, why);
    struct scheduler_gate *g = scheduler_gate_new(d, NULL, NULL);
    struct dev_error e;
    scheduler_gate_open(g);
    scheduler_gate_pass(g);
    assert_false(scheduler_gate_error(g, &e));
    dev_fail(d, "gemm", "out of memory");
    scheduler_gate_leave(g);
    assert_null(d->error.op);
    assert_true(scheduler_gate_error(g, &e));
    assert_string_equal(e.op, "gemm");
    assert_false(scheduler_gate_error(g, &e));
    scheduler_gate_free(g);
    dev_close(d);
}

/* ---- a device that enqueues -------------------------------------------------------------------------------------- */

enum { QUEUED_OPS = 500, QUEUE_MOST = 32 };

static struct {
    struct scheduler_gate *gate;
    _Atomic int queued; /* ops enqueued and not yet run */
    _Atomic int most, waits;
    _Atomic bool end;
    uint64_t op_ns; /* duration of an op on the device */
    double cost;    /* 0: not declared */
} queue;

static int finish_queue(struct dev *d)
{
    (void)d;
    int n = atomic_exchange(&queue.queued, 0);
    if (n > atomic_load(&queue.most)) atomic_store(&queue.most, n);
    atomic_fetch_add(&queue.waits, 1);
    for (uint64_t until = clock_now() + (uint64_t)n * queue.op_ns; clock_now() < until;) {
    }
    return 0;
}

static void *enqueuer(void *arg)
{
    (void)arg;
    for (int i = 0; i < QUEUED_OPS; i++) {
        scheduler_gate_pass(queue.gate);
        if (queue.cost > 0) scheduler_gate_cost(queue.gate, WORK_MOVE, queue.cost);
        atomic_fetch_add(&queue.queued, 1);
    }
    scheduler_gate_leave(queue.gate);
    assert_int_equal(atomic_load(&queue.queued), 0);
    atomic_store(&queue.end, true);
    return NULL;
}

static bool never(void *arg)
{
    (void)arg;
    return false;
}

/* The queue is empty when a time slice ends. Within one it is bounded: at most 32 ops, and of long ones an eighth of
 * the slice, or a millisecond when serving does not wait for the slice's end. */
static void test_queue(void **state)
{
    (void)state;
    enum { SLICE = 2000000, SHORT = 5000, LONG = 80000 };
    static const double TOLD_SHORT = 1000, TOLD_LONG = 2.0 * LONG; /* too low; as the initial rates give it */
    static const struct {
        uint64_t op_ns;
        double cost;
        bool alone;
        int most;
    } cases[] = {
        {SHORT, TOLD_SHORT, false, QUEUE_MOST}, {SHORT, 0, false, QUEUE_MOST}, {SHORT, TOLD_SHORT, true, QUEUE_MOST},
        {SHORT, 0, true, QUEUE_MOST},           {LONG, TOLD_LONG, false, 4},   {LONG, TOLD_LONG, true, 13}};
    char why[160];
    struct dev *d = dev_open(&(struct dev_config){.name = "ref"}, why);
    const struct dev_ops *own = d->ops;
    struct dev_ops ops = *own;
    ops.host_memory = false;
    ops.finish = finish_queue;
    d->ops = &ops;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        pthread_t t;
        memset(&queue, 0, sizeof queue);
        queue.gate = scheduler_gate_new(d, NULL, NULL);
        queue.op_ns = cases[k].op_ns;
        queue.cost = cases[k].cost;
        double room = scheduler_gate_max_cost(queue.gate, WORK_MOVE);
        pthread_create(&t, NULL, enqueuer, NULL);
        while (!atomic_load(&queue.end)) {
            scheduler_gate_grant(queue.gate, SLICE, cases[k].alone ? never : NULL, NULL);
            assert_int_equal(atomic_load(&queue.queued), 0);
        }
        pthread_join(t, NULL);
        /* rates are learned from the time on the device, not from that of enqueuing */
        double learned = scheduler_gate_max_cost(queue.gate, WORK_MOVE);
        if (!queue.cost) assert_true(learned == room);
        if (queue.cost == TOLD_SHORT) assert_true(learned < room / 2);
        assert_true(queue.most >= 1 && queue.most <= cases[k].most);
        assert_true(queue.waits >= QUEUED_OPS / QUEUE_MOST && queue.waits < QUEUED_OPS);
        scheduler_gate_free(queue.gate);
    }
    d->ops = own;
    dev_close(d);
}

static int trims;

static void count_trim(struct dev *d)
{
    (void)d;
    trims++;
}

static void test_scratch(void **state)
{
    (void)state;
    struct dev_ops ops = {.trim = count_trim}, none = {0};
    struct dev d = {.ops = &ops}, host = {.ops = &none};
    struct scheduler_gate *g = scheduler_gate_new(NULL, NULL, NULL);
    trims = 0;
    scheduler_gate_keep_scratch(g);
    scheduler_gate_keep_scratch(g);
    scheduler_gate_drop_scratch(g, &d);
    assert_int_equal(trims, 0); /* the other trainer still needs it */
    scheduler_gate_keep_scratch(g);
    scheduler_gate_drop_scratch(g, &d);
    assert_int_equal(trims, 0);
    scheduler_gate_drop_scratch(g, &d);
    assert_int_equal(trims, 1);
    scheduler_gate_keep_scratch(NULL);
    scheduler_gate_drop_scratch(NULL, &d);
    assert_int_equal(trims, 2);
    scheduler_gate_drop_scratch(NULL, &host);
    scheduler_gate_free(g);
}

static void test_share(void **state)
{
    (void)state;
    struct train_quantum s = {.budget_ns = 50e6, .slowdown = 1.25};
    assert_int_equal(train_quantum_allow(&s, 10000000), 2500000); /* a quarter of the step */
    train_quantum_used(&s, 12000000);                             /* an op that took longer */
    int owed = 0;
    while (!train_quantum_allow(&s, 10000000)) owed++;
    assert_true(owed >= 3 && owed <= 4); /* the excess is deducted from later slices */
    s = (struct train_quantum){.budget_ns = 50e6, .slowdown = 2};
    assert_int_equal(train_quantum_allow(&s, 45000000), 5000000); /* the budget is a limit, too */
    s.credit_ns = 0;
    assert_in_range(train_quantum_allow(&s, 80000000), 1599999, 1600000); /* never 0 */
    /* unused time is not saved for later */
    for (int i = 0; i < 100; i++) train_quantum_allow(&s, 10000000);
    assert_true(s.credit_ns <= 2 * 10e6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_null_is_open), cmocka_unit_test(test_interleaved), cmocka_unit_test(test_stop),
        cmocka_unit_test(test_rates),        cmocka_unit_test(test_rows),        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_share),        cmocka_unit_test(test_queue),       cmocka_unit_test(test_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
