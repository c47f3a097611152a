/* How the schedule shares slots, steps and pages between clients, and what waiting for pages costs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/engine/serve/sched_rig.h"

enum { HOG = 1, OTHER = 2, THIRD = 3 };

/* Different first tokens: no prefix is shared. */
static void add_for(struct world *w, struct fake *f, uint64_t client, uint64_t arrival, int n, int want)
{
    fake_init(f, arrival, n, want, 0);
    f->seq.client = client;
    f->tokens[0] = 1000 + (int32_t)arrival;
    sched_add(&w->s, &f->seq);
}

static int running_of(const struct fake *f, int n)
{
    int running = 0;
    for (int i = 0; i < n; i++) running += f[i].seq.state == SEQ_RUNNING;
    return running;
}

/* One client holds all slots and has more waiting: a newcomer's first sequence takes a slot at once, its next ones as
 * long as it has fewer, and then nobody is preempted any more. */
static void test_slots_are_shared(void **state)
{
    struct world w;
    struct fake hog[8], own[8], third;
    world_open(&w, 100, 6, 64);
    for (int i = 0; i < 8; i++) add_for(&w, &hog[i], HOG, 1 + (uint64_t)i, 4, 150);
    step(&w);
    assert_int_equal(running_of(hog, 8), 6);
    for (int i = 0; i < 8; i++) add_for(&w, &own[i], OTHER, 11 + (uint64_t)i, 4, 150);
    const struct plan *p = sched_step(&w.s);
    assert_int_equal(p->n_preempted, 1);
    assert_int_equal(own[0].seq.planned, w.s.step);
    assert_int_equal(hog[5].seq.state, SEQ_WAITING); /* the youngest */
    sched_commit(&w.s);
    for (int i = 0; i < 10; i++) {
        step(&w);
        sched_check(&w.s);
    }
    assert_int_equal(running_of(hog, 8), 3);
    assert_int_equal(running_of(own, 8), 3);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(sched_step(&w.s)->n_preempted, 0);
        sched_commit(&w.s);
    }
    add_for(&w, &third, THIRD, 30, 4, 150);
    step(&w);
    assert_int_equal(third.seq.state, SEQ_RUNNING);
    while (own[7].seq.state != SEQ_IDLE || hog[7].seq.state != SEQ_IDLE) step(&w); /* all of them end */
    world_close(&w);
}

/* Steps as the engine would do them, which take base + each x tokens, until f has ended: the time until then. */
static uint64_t time_of(struct world *w, const struct fake *f, uint64_t base, uint64_t each, uint64_t *longest)
{
    uint64_t sum = 0;
    while (f->seq.state != SEQ_IDLE) {
        const struct plan *p = sched_step(&w->s);
        uint64_t ns = base + each * (uint64_t)p->n_tokens;
        assert_true(p->n > 0);
        sched_took(&w->s, ns);
        finish_step(w, p);
        sum += ns;
        if (ns > *longest) *longest = ns;
    }
    return sum;
}

/* A client with one sequence beside one with 30, whose tokens take time or do not. */
static void pace_beside(uint64_t base, uint64_t each, uint64_t *alone, uint64_t *beside, uint64_t *longest, int *hogs)
{
    enum { HOGS = 30 };
    struct world w;
    struct fake hog[HOGS], own;
    world_open(&w, 400, 32, 256);
    add_for(&w, &own, OTHER, 1, 4, 150);
    *alone = time_of(&w, &own, base, each, longest);
    for (int i = 0; i < HOGS; i++) add_for(&w, &hog[i], HOG, 2 + (uint64_t)i, 4, 150);
    step(&w);
    add_for(&w, &own, OTHER, 100, 4, 150);
    step(&w); /* its prompt; the first time that a step without the others takes is not known before one */
    *beside = time_of(&w, &own, base, each, longest);
    *hogs = 0;
    for (int i = 0; i < HOGS; i++) *hogs += hog[i].seq.state == SEQ_IDLE ? 150 : hog[i].seq.n_computed;
    for (int i = 0; i < HOGS; i++) sched_remove(&w.s, &hog[i].seq);
    world_close(&w);
}

static void test_steps_keep_their_pace(void **state)
{
    uint64_t alone, beside, longest = 0;
    int hogs;
    pace_beside(1000, 100, &alone, &beside, &longest, &hogs); /* 30 more tokens: 3.7 times as long */
    assert_true(beside <= alone * 3 / 2 + 8 * longest);       /* PACE_MEASURE_FIRST steps before anything is known */
    assert_true(beside >= alone * 13 / 10);                   /* and what there is is used */
    assert_true(hogs >= 30 * 150 / 8);
    pace_beside(1000, 2, &alone, &beside, &longest, &hogs); /* their tokens cost next to nothing: all get theirs */
    assert_true(hogs >= 30 * 140);
    pace_beside(10, 5000, &alone, &beside, &longest, &hogs); /* their tokens cost all there is */
    assert_true(beside <= alone * 3 / 2 + 8 * longest && hogs > 30 * 8);
}

/* In a step that the others are left out of, the only sequence that is not may lose its pages.  The engine sleeps after
 * an empty plan, so then the others have the step. */
static void test_no_step_is_empty_for_want_of_pages(void **state)
{
    enum { HOGS = 6, TIMES = 40 };
    (void)state;
    struct world w;
    struct fake hog[HOGS], own;
    int left = HOGS;
    world_open(&w, 20, 6, 64);
    for (int i = 0; i < HOGS; i++) add_for(&w, &hog[i], HOG, 1 + (uint64_t)i, 4 + 3 * i, 150);
    for (int k = 0, at = 0; k < TIMES || left; at++) {
        if (k < TIMES && (k == 0 || own.seq.state == SEQ_IDLE)) add_for(&w, &own, OTHER, 100 + (uint64_t)k++, 4, 60);
        const struct plan *p = sched_step(&w.s);
        if (!p->n) fail_msg("step %d is empty", at);
        sched_took(&w.s, 10 + 5000 * (uint64_t)p->n_tokens);
        finish_step(&w, p);
        sched_check(&w.s);
        left = 0;
        for (int i = 0; i < HOGS; i++) left += hog[i].seq.state != SEQ_IDLE;
    }
    while (own.seq.state != SEQ_IDLE) step(&w);
    world_close(&w);
}

/* As many sequences as others: nobody is held back, whatever a step takes. */
static void test_equals_share_every_step(void **state)
{
    struct world w;
    struct fake a[2], b[2];
    world_open(&w, 100, 8, 64);
    for (int i = 0; i < 2; i++) {
        add_for(&w, &a[i], HOG, 1 + (uint64_t)i, 4, 100);
        add_for(&w, &b[i], OTHER, 11 + (uint64_t)i, 4, 100);
    }
    step(&w);
    for (uint64_t i = 0; i < 90; i++) {
        const struct plan *p = sched_step(&w.s);
        assert_int_equal(p->n, 4);
        sched_took(&w.s, 1000 + 900 * (i % 7));
        finish_step(&w, p);
    }
    for (int i = 0; i < 2; i++) sched_remove(&w.s, &a[i].seq), sched_remove(&w.s, &b[i].seq);
    world_close(&w);
}

/* A slot that becomes free goes to who has fewer running, not to who came first. */
static void test_free_slots_go_to_who_has_fewer(void **state)
{
    struct world w;
    struct fake hog[4], own;
    world_open(&w, 100, 2, 64);
    add_for(&w, &hog[0], HOG, 1, 4, 6);
    for (int i = 1; i < 4; i++) add_for(&w, &hog[i], HOG, 1 + (uint64_t)i, 4, 100);
    step(&w);
    add_for(&w, &own, OTHER, 9, 4, 100);
    own.seq.paused = true; /* so that it does not displace */
    step(&w);
    own.seq.paused = false;
    while (hog[0].seq.state != SEQ_IDLE) step(&w);
    step(&w);
    assert_int_equal(own.seq.state, SEQ_RUNNING);
    assert_int_equal(running_of(hog, 4), 1);
    world_close(&w);
}

/* Long prompts of one client, some started and some waiting: another's short one is computed in the next step. */
static void test_a_short_prompt_does_not_wait_for_long_ones(void **state)
{
    struct world w;
    struct fake hog[6], own, again;
    world_open(&w, 200, 16, 16);
    for (int i = 0; i < 6; i++) add_for(&w, &hog[i], HOG, 1 + (uint64_t)i, 150, 155);
    for (int i = 0; i < 3; i++) step(&w);
    add_for(&w, &own, OTHER, 9, 10, 12);
    step(&w);
    assert_int_equal(own.seq.n_known, 11); /* it has its first token */
    step(&w);
    step(&w);
    assert_int_equal(own.seq.state, SEQ_IDLE);
    add_for(&w, &again, OTHER, 10, 16, 17);
    step(&w);
    assert_int_equal(again.seq.n_known, 17);
    sched_remove(&w.s, &again.seq);
    while (hog[5].seq.state != SEQ_IDLE) step(&w);
    world_close(&w);
}

/* The step that brings its first token is not filled with what others have in bulk; these fill the next ones. */
static void test_the_step_of_a_first_token_stays_short(void **state)
{
    struct world w;
    struct fake hog[12], own, alike;
    world_open(&w, 200, 16, 100);
    w.s.c.max_prefill_tokens = 16;
    for (int i = 0; i < 12; i++) add_for(&w, &hog[i], HOG, 1 + (uint64_t)i, 80, 81);
    assert_int_equal(sched_step(&w.s)->n_tokens, 100);
    sched_commit(&w.s);
    add_for(&w, &own, OTHER, 20, 10, 60);
    add_for(&w, &alike, THIRD, 21, 30, 31);
    const struct plan *p = sched_step(&w.s);
    assert_int_equal(own.seq.planned, w.s.step);
    assert_int_equal(alike.seq.planned, w.s.step); /* it has no more than that one */
    assert_int_equal(p->n_tokens, 10 + 30 + 16);
    sched_remove(&w.s, &own.seq);
    sched_remove(&w.s, &alike.seq);
    assert_int_equal(sched_step(&w.s)->n_tokens, 100);
    for (int i = 0; i < 12; i++) sched_remove(&w.s, &hog[i].seq);
    sched_check(&w.s);
    world_close(&w);
}

/* Two clients with long prompts: neither is ahead of the other by more than the schedule's window and a step. */
static void test_prompts_share_the_steps(void **state)
{
    struct world w;
    struct fake a[10], b[3];
    world_open(&w, 200, 16, 16);
    int done[2] = {0};
    for (int i = 0; i < 10; i++) add_for(&w, &a[i], HOG, 1 + (uint64_t)i, 150, 151);
    for (int i = 0; i < 10; i++) step(&w);
    for (int i = 0; i < 3; i++) add_for(&w, &b[i], OTHER, 20 + (uint64_t)i, 150, 151);
    for (int i = 0; i < 20; i++) {
        const struct plan *p = sched_step(&w.s);
        for (int k = 0; k < p->n; k++) done[p->v[k].seq->client == OTHER] += p->v[k].n;
        sched_commit(&w.s);
    }
    assert_in_range(done[1], 150, 200); /* half of 320, and what it came in with */
    assert_int_equal(done[0] + done[1], 320);
    world_close(&w);
}

/* One client holds all pages, slots are free: another that needs no more than its part gets it. */
static void test_pages_are_shared(void **state)
{
    struct world w;
    struct fake hog[2], own;
    world_open(&w, 20, 4, 200);
    for (int i = 0; i < 2; i++) add_for(&w, &hog[i], HOG, 1 + (uint64_t)i, 140, 150);
    step(&w);
    step(&w);
    assert_int_equal(running_of(hog, 2), 2);
    assert_in_range(kv_available(w.pool), 0, 2);
    add_for(&w, &own, OTHER, 9, 60, 64);
    step(&w);
    assert_int_equal(own.seq.state, SEQ_RUNNING);
    assert_int_equal(hog[0].seq.state, SEQ_RUNNING);
    assert_int_equal(hog[1].seq.state, SEQ_WAITING);
    sched_check(&w.s);
    while (hog[1].seq.state != SEQ_IDLE) step(&w);
    assert_int_equal(hog[1].seq.n_known, 150);
    world_close(&w);
}

/* What needs nearly all pages is not starved by a stream of short requests of others. */
static void test_a_large_request_gets_its_turn(void **state)
{
    struct world w;
    struct fake large, shorts[3];
    uint64_t arrival = 10;
    world_open(&w, 10, 4, 16);
    for (int i = 0; i < 3; i++) add_for(&w, &shorts[i], OTHER, ++arrival, 30, 40);
    step(&w);
    add_for(&w, &large, HOG, ++arrival, 140, 141);
    for (int i = 0; i < 2000 && large.seq.state != SEQ_IDLE; i++) {
        step(&w);
        for (int k = 0; k < 3; k++)
            if (shorts[k].seq.state == SEQ_IDLE) add_for(&w, &shorts[k], OTHER, ++arrival, 30, 40);
    }
    assert_int_equal(large.seq.state, SEQ_IDLE);
    for (int k = 0; k < 3; k++) sched_remove(&w.s, &shorts[k].seq);
    world_close(&w);
}

/* A paused sequence keeps neither slot nor pages from another client. */
static void test_a_paused_client_keeps_nobody_out(void **state)
{
    struct world w;
    struct fake hog[4], own[4];
    world_open(&w, 12, 4, 64);
    for (int i = 0; i < 4; i++) add_for(&w, &hog[i], HOG, 1 + (uint64_t)i, 40, 60);
    for (int i = 0; i < 6; i++) step(&w);
    for (int i = 0; i < 4; i++) hog[i].seq.paused = true;
    for (int i = 0; i < 4; i++) add_for(&w, &own[i], OTHER, 10 + (uint64_t)i, 40, 45);
    for (int i = 0; i < 100 && own[3].seq.state != SEQ_IDLE; i++) step(&w);
    assert_int_equal(own[3].seq.state, SEQ_IDLE);
    for (int i = 0; i < 4; i++) sched_remove(&w.s, &hog[i].seq);
    world_close(&w);
}

/* While the first that waits does not fit, a step costs one look into the prefix table, and its prefix is used no more
 * recently for it. */
static void test_waiting_for_pages_costs_one_look(void **state)
{
    struct world w;
    struct fake known, runs, waits;
    world_open(&w, 12, 4, 400);
    fake_init(&known, 1, 100, 101, 0);
    sched_add(&w.s, &known.seq);
    while (known.seq.state != SEQ_IDLE) step(&w); /* its six pages are known */
    add_for(&w, &runs, 0, 2, 90, 150);
    step(&w);
    fake_init(&waits, 3, 140, 150, 0); /* begins as `known` did */
    sched_add(&w.s, &waits.seq);
    step(&w);
    assert_int_equal(waits.seq.state, SEQ_WAITING);
    uint64_t before = kv_lookups(w.pool);
    int steps = 0;
    for (; steps < 40 && runs.seq.state != SEQ_IDLE; steps++) {
        step(&w);
        assert_int_equal(waits.seq.state, SEQ_WAITING);
    }
    assert_true(kv_lookups(w.pool) - before <= (uint64_t)steps);
    while (waits.seq.state != SEQ_IDLE) step(&w);
    assert_int_equal(waits.seq.n_known, 150);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots_are_shared),
        cmocka_unit_test(test_steps_keep_their_pace),
        cmocka_unit_test(test_no_step_is_empty_for_want_of_pages),
        cmocka_unit_test(test_equals_share_every_step),
        cmocka_unit_test(test_free_slots_go_to_who_has_fewer),
        cmocka_unit_test(test_a_short_prompt_does_not_wait_for_long_ones),
        cmocka_unit_test(test_the_step_of_a_first_token_stays_short),
        cmocka_unit_test(test_prompts_share_the_steps),
        cmocka_unit_test(test_pages_are_shared),
        cmocka_unit_test(test_a_large_request_gets_its_turn),
        cmocka_unit_test(test_a_paused_client_keeps_nobody_out),
        cmocka_unit_test(test_waiting_for_pages_costs_one_look),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
