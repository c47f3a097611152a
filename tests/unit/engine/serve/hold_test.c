/* Requests that are held, aborted, or come when prefixes are forgotten (hold.c).
 *
 *   hold_test MODELS_DIR */
#include "tests/unit/engine/serve/engine_rig.h"

#include "engine/serve/manual_step.h"

static const char *fixtures;

enum { MAX_TOKENS = 128 };

struct reply {
    int n, n_cached;
    int32_t ids[MAX_TOKENS];
    float logprobs[MAX_TOKENS];
    enum finish_reason finish, token_finish;
    bool done;
};

static void take_event(const struct event_batch *b, const struct event *v)
{
    struct reply *y = v->user;
    assert_false(y->done);
    if (v->kind == EV_DONE) {
        y->done = true;
        y->finish = v->finish;
        y->n_cached = v->n_cached;
        assert_int_equal(v->n_generated, y->n);
        return;
    }
    y->ids[y->n] = v->token;
    y->logprobs[y->n++] = v->logprob;
    y->token_finish = v->finish;
}

static uint64_t submit(struct rig *r, struct gen_request q, struct reply *y)
{
    struct err e = {0};
    *y = (struct reply){0};
    q.user = y;
    uint64_t id = engine_submit(r->g, &q, &e);
    if (!id) fail_msg("%s", e.msg);
    r->left++;
    return id;
}

static struct gen_request greedy(const int32_t *prompt, int n, int max_new)
{
    return (struct gen_request){.prompt = prompt,
                                .n_prompt = n,
                                .max_new_tokens = max_new,
                                .ignore_eos = true,
                                .sampling = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition = 1}};
}

static void assert_same(const struct reply *a, const struct reply *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, (size_t)a->n * sizeof *a->ids);
    assert_memory_equal(a->logprobs, b->logprobs, (size_t)a->n * sizeof *a->logprobs); /* bit for bit */
}

static const char LILY[] =
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, "
    "she saw a big dog and she was very happy. The dog wanted to play, too.";

/* Held requests have the texts they would have had; aborted ones the beginnings of these. */
static void test_holding(void **state)
{
    struct err e = {0};
    struct engine_config c = base_config(fixtures);
    struct reply whole, before, behind, text, none, late;
    struct rig r = {.g = engine_open(&c, &e)}; /* without its thread: turned by hand */
    int32_t ids[] = {1, 5, 9, 30};
    assert_non_null(r.g);
    submit(&r, greedy(ids, 4, 20), &whole);
    while (!whole.done) engine_step_once(r.g, false), pump(&r);

    submit(&r, greedy(ids, 4, 20), &before);
    for (int i = 0; i < 3; i++) engine_step_once(r.g, false);
    assert_int_equal(engine_hold(r.g, HOLD_ALL), 1);
    assert_int_equal(engine_holds_taken(r.g), 0); /* the next step could have begun */
    submit(&r, greedy(ids, 4, 20), &behind);
    uint64_t id = submit(&r, greedy(ids, 4, 20), &late);
    for (int i = 0; i < 3; i++) assert_int_equal(engine_step_once(r.g, false), 0);
    assert_int_equal(engine_holds_taken(r.g), 1);
    engine_expire(r.g, id);
    engine_step_once(r.g, false);
    pump(&r);
    assert_true(before.n == 3 && !before.done && behind.n == 0 && !behind.done);
    assert_true(late.done && late.finish == FINISH_TIMEOUT);

    engine_hold(r.g, HOLD_NEW); /* the one submitted before goes on, and so does the one behind it */
    uint64_t last = submit(&r, greedy(ids, 4, 20), &text);
    while (!before.done || !behind.done) assert_true(engine_step_once(r.g, false) > 0), pump(&r);
    assert_int_equal(engine_step_once(r.g, false), 0);
    assert_true(text.n == 0 && !text.done);
    assert_same(&whole, &before);
    assert_same(&whole, &behind);

    engine_hold(r.g, HOLD_NONE);
    for (int i = 0; i < 2; i++) engine_step_once(r.g, false);
    engine_hold(r.g, HOLD_NEW);
    id = submit(&r, greedy(ids, 4, 20), &none);
    engine_abort(r.g, last);
    engine_abort(r.g, id);
    while (!text.done || !none.done) engine_step_once(r.g, false), pump(&r);
    assert_true(text.finish == FINISH_ABORTED && text.token_finish == FINISH_ABORTED && text.n == 3);
    assert_memory_equal(text.ids, whole.ids, 3 * sizeof *text.ids);
    assert_true(none.finish == FINISH_ABORTED && none.n == 0);
    assert_int_equal(r.left, 0);
    engine_close(r.g);
}

static void test_forgotten_prefixes(void **state)
{
    struct rig r;
    struct reply a, b, running;
    int32_t ids[MAX_TOKENS];
    rig_open(&r, base_config(fixtures));
    int n = encode(&r, LILY, ids);
    assert_true(n > 17);
    submit(&r, greedy(ids, n, 10), &a);
    run_out(&r);
    submit(&r, greedy(ids, n, 100), &running);
    while (!running.n) sem_wait(&r.wake), pump(&r);
    engine_forget_prefixes(r.g); /* also those that a running text holds */
    submit(&r, greedy(ids, n, 10), &b);
    run_out(&r);
    assert_int_equal(running.n_cached, (n - 1) / 16 * 16);
    assert_int_equal(b.n_cached, 0);
    assert_same(&a, &b);
    submit(&r, greedy(ids, n, 10), &b);
    run_out(&r);
    assert_int_equal(b.n_cached, (n - 1) / 16 * 16);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_holding),
        cmocka_unit_test(test_forgotten_prefixes),
    };
    if (argc != 2) return 2;
    fixtures = argv[1];
    return cmocka_run_group_tests_name("hold", tests, NULL, NULL);
}
