/* server/api/answered.c: what is kept of answers, for whom, and what is dropped when there is no more room. */
#include "engine/serve/engine.h"
#include "server/api/answered.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int32_t prompts[] = {7, 8, 9, 4};

static void say(struct answered_draft *d, int sequence, int32_t id, enum finish_reason finish)
{
    const struct event ev = {.kind = EV_TOKEN, .token = id, .logprob = -0.5f, .finish = finish};
    answered_add(d, sequence, &ev);
}

/* A request of two prompts with two sequences each. */
static void keep(struct answered_ring *r, uint64_t client, const char *id, const char *header, const int *order, int n)
{
    struct answered_draft *d = answered_begin(r, 4);
    for (int i = 0; i < 4; i++) {
        say(d, i, 10 + i, FINISH_NONE);
        say(d, i, 20 + i, i % 2 ? FINISH_EOS : FINISH_LENGTH);
    }
    static const int32_t eos[] = {2, 22};
    const struct engine_info info = {.eos = eos, .n_eos = 2};
    const struct answered_prompt prompt[] = {{prompts, 3}, {prompts + 3, 1}};
    const struct answered_facts facts = {.info = &info,
                                         .adapter = "pirate",
                                         .id = id,
                                         .header_id = header,
                                         .client = client,
                                         .prompt = prompt,
                                         .n_prompts = 2,
                                         .order = order,
                                         .n_choices = n};
    answered_keep(d, &facts);
}

static void test_found(void **state)
{
    struct answered_ring *r = answered_open(1 << 20);
    static const int order[] = {1, 3};
    (void)state;
    keep(r, 1, "cmpl-1", "mine", order, 2);
    for (int i = 0; i < 2; i++) {
        struct answered *a = answered_find(r, 1, i ? "mine" : "cmpl-1");
        assert_non_null(a);
        assert_int_equal(a->n_choices, 2);
        assert_string_equal(a->adapter, "pirate");
        const struct answered_choice *first = &a->choice[0], *second = &a->choice[1];
        assert_int_equal(first->n, 2);
        assert_int_equal(first->ids[0], 11);
        assert_int_equal(first->ids[1], 21);
        assert_true(first->ended);
        assert_int_equal(first->n_prompt, 3);
        assert_int_equal(first->prompt[2], 9);
        assert_int_equal(second->ids[0], 13);
        assert_int_equal(second->n_prompt, 1);
        assert_int_equal(second->prompt[0], 4);
        answered_release(a);
    }
    assert_null(answered_find(r, 2, "cmpl-1")); /* another client's */
    assert_null(answered_find(r, 1, "cmpl-2"));
    assert_null(answered_find(r, 1, ""));
    keep(r, 1, "cmpl-2", "mine", NULL, 4); /* an id that comes again is the newer request's */
    struct answered *a = answered_find(r, 1, "mine");
    assert_int_equal(a->n_choices, 4);
    assert_false(a->choice[0].ended);
    assert_true(a->choice[2].ended); /* at its end and as long as it might be, at once */
    answered_close(r);
    assert_int_equal(a->choice[3].ids[1], 23); /* a reference outlives the ring */
    answered_release(a);
}

static void test_oldest_go(void **state)
{
    char id[32];
    struct answered_ring *r = answered_open(64 << 10);
    (void)state;
    for (int i = 0; i < 1000; i++) {
        snprintf(id, sizeof id, "id-%d", i);
        keep(r, 1, id, id, NULL, 4);
        struct answered_totals t = answered_totals(r);
        assert_true(t.bytes <= t.max_bytes);
    }
    struct answered_totals t = answered_totals(r);
    assert_in_range(t.requests, 10, 900);
    for (int i = 0; i < 1000; i++) {
        snprintf(id, sizeof id, "id-%d", i);
        struct answered *a = answered_find(r, 1, id);
        assert_int_equal(a != NULL, i >= 1000 - t.requests);
        answered_release(a);
    }
    answered_close(r);

    r = answered_open((size_t)1 << 30); /* as many as there may be */
    for (int i = 0; i < ANSWERED_REQUESTS + 5; i++) {
        snprintf(id, sizeof id, "id-%d", i);
        keep(r, 1, id, id, NULL, 4);
    }
    assert_int_equal(answered_totals(r).requests, ANSWERED_REQUESTS);
    assert_null(answered_find(r, 1, "id-4"));
    struct answered *a = answered_find(r, 1, "id-5");
    assert_non_null(a);
    answered_release(a);
    answered_close(r);
}

/* A text that alone is larger than the ring is not kept, and takes what is there only as far as it goes. */
static void test_too_large(void **state)
{
    struct answered_ring *r = answered_open(16 << 10);
    (void)state;
    keep(r, 1, "small", "small", NULL, 4);
    struct answered_draft *d = answered_begin(r, 1);
    for (int i = 0; i < 100000; i++) say(d, 0, i, FINISH_NONE);
    const struct answered_prompt prompt = {prompts, 1};
    const struct answered_facts facts = {
        .id = "large", .header_id = "large", .client = 1, .prompt = &prompt, .n_prompts = 1, .n_choices = 1};
    answered_keep(d, &facts);
    assert_null(answered_find(r, 1, "large"));
    keep(r, 1, "after", "after", NULL, 4);
    struct answered *a = answered_find(r, 1, "after");
    assert_non_null(a);
    answered_release(a);
    d = answered_begin(r, 1);
    say(d, 0, 1, FINISH_NONE);
    answered_drop(d);
    size_t before = answered_totals(r).bytes;
    assert_null(answered_begin(r, 1 << 20));
    assert_int_equal(answered_totals(r).bytes, before);
    answered_close(r);
}

/* Where no feedback is collected, or nothing fits, all of it does nothing. */
static void test_off(void **state)
{
    (void)state;
    assert_null(answered_begin(NULL, 1));
    say(NULL, 0, 1, FINISH_NONE);
    answered_keep(NULL, NULL);
    answered_drop(NULL);
    answered_close(NULL);
    answered_release(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_found),
        cmocka_unit_test(test_oldest_go),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
