/* Engines of one process take turns: one at a time, and none twice while another waits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/serve/device_turn.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { ENGINES = 4, TURNS = 2000 };

static struct device_turn *turn;
static _Atomic int inside, overlaps, finished;
static int order[ENGINES * TURNS]; /* by the one whose turn it is */
static int n_order;
static bool wanted[ENGINES * TURNS];

static void *engine(void *arg)
{
    int id = (int)(intptr_t)arg;
    for (int i = 0; i < TURNS; i++) {
        device_turn_take(turn);
        if (atomic_fetch_add(&inside, 1)) atomic_fetch_add(&overlaps, 1);
        wanted[n_order] = device_turn_wanted(turn);
        order[n_order++] = id;
        if (i % 16 == 0) sched_yield();
        atomic_fetch_sub(&inside, 1);
        device_turn_give(turn);
    }
    atomic_fetch_add(&finished, 1);
    return NULL;
}

static void test_one_at_a_time(void **state)
{
    pthread_t threads[ENGINES];
    turn = device_turn_new();
    for (int i = 0; i < ENGINES; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, engine, (void *)(intptr_t)i), 0);
    for (int i = 0; i < ENGINES; i++) pthread_join(threads[i], NULL);
    assert_int_equal(overlaps, 0);
    assert_int_equal(n_order, ENGINES * TURNS);
    for (int i = 1; i < n_order; i++) /* the one that waited comes before the one that asks again */
        if (wanted[i - 1]) assert_int_not_equal(order[i], order[i - 1]);
    assert_false(device_turn_wanted(turn));
    device_turn_free(turn);
}

static void test_alone(void **state)
{
    device_turn_take(NULL);
    assert_false(device_turn_wanted(NULL));
    device_turn_give(NULL);
    device_turn_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_at_a_time),
        cmocka_unit_test(test_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
