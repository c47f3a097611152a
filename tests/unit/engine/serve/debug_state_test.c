/* What people see of a running engine: its steps are counted and kept, a trace has all of them, costs nothing when it
 * is off, changes no text, and is bounded.
 *
 *   debug_state_test FIXTURES/models */
#include "tests/unit/engine/serve/engine_rig.h"

#include "engine/serve/manual_step.h"
#include "engine/serve/setup.h"

#include <stdlib.h>

static const char *fixtures;

struct text {
    int32_t ids[64];
    int n;
};

static void take_event(const struct event_batch *b, const struct event *v)
{
    struct text *t = v->user;
    (void)b;
    if (v->kind == EV_TOKEN) t->ids[t->n++] = v->token;
}

static void generate(struct rig *r, struct text *out, int n)
{
    int32_t ids[32];
    struct err e;
    *out = (struct text){0};
    struct gen_request q = {.prompt = ids,
                            .n_prompt = encode(r, "Once upon a time", ids),
                            .max_new_tokens = n,
                            .ignore_eos = true,
                            .sampling = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition = 1},
                            .user = out};
    if (!engine_submit(r->g, &q, &e)) fail_msg("%s", e.msg);
    r->left = 1;
    run_out(r);
}

static const struct dev_ops *table(struct rig *r)
{
    return engine_setup(r->g)->model.d->ops;
}

static void test_steps(void **state)
{
    (void)state;
    struct rig r;
    struct text t;
    struct engine_stats s;
    struct step_record v[ENGINE_STEPS_KEPT];
    struct seq_view seqs[ENGINE_SEQS_KEPT];
    struct engine_config c = base_config(fixtures);
    rig_open(&r, c);
    assert_int_equal(engine_last_steps(r.g, v), 0);
    for (int i = 0; i < 3; i++) generate(&r, &t, 40); /* the first step of the first reads the prompt */
    do engine_stats_read(r.g, &s);
    while (s.steps < 120 || engine_last_steps(r.g, v) < ENGINE_STEPS_KEPT || v[ENGINE_STEPS_KEPT - 1].number < 120);
    assert_int_equal(s.steps, 120);
    assert_int_equal(histogram_count(&s.step_seconds), 120);
    assert_int_equal(histogram_count(&s.step_tokens), 120);
    assert_true(s.step_seqs.sum == 120);
    assert_int_equal(s.decode_tokens, 3 * 39);
    assert_true(s.step_tokens.sum == (double)(s.prefill_tokens + s.decode_tokens));
    assert_int_equal(s.held_rows + s.failed_steps, 0);
    for (int i = 0; i < ENGINE_STEPS_KEPT; i++) {
        assert_int_equal(v[i].number, 120 - ENGINE_STEPS_KEPT + 1 + i);
        assert_true(v[i].seqs == 1 && v[i].rows == 1 && v[i].tokens >= 1 && v[i].ns > 0 && v[i].train_ns == 0);
        assert_true(!i || v[i].started >= v[i - 1].started + v[i - 1].ns);
    }
    assert_int_equal(engine_running(r.g, seqs), 0);
    rig_close(&r);
}

static int count(const struct engine_trace *t, enum trace_what what)
{
    int n = 0;
    for (size_t i = 0; i < t->n; i++) n += t->v[i].what == what;
    return n;
}

static void test_trace(void **state)
{
    (void)state;
    struct rig r;
    struct text before, during, after;
    struct err e;
    rig_open(&r, base_config(fixtures));
    const struct dev_ops *own = table(&r);
    generate(&r, &before, 20);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(engine_trace_start(r.g, 100000, &e), 0);
        assert_int_equal(engine_trace_start(r.g, 100000, &e), ERR_FULL);
        generate(&r, &during, 20);
        assert_ptr_not_equal(table(&r), own);
        struct engine_trace *t = engine_trace_stop(r.g);
        assert_ptr_equal(table(&r), own); /* off is what it always was */
        generate(&r, &after, 20);
        assert_memory_equal(&before, &during, sizeof before);
        assert_memory_equal(&before, &after, sizeof before);
        assert_int_equal(count(t, TRACE_STEP), 20);
        assert_true(count(t, TRACE_PHASE) >= 20 * 4);
        assert_true(count(t, TRACE_OP) > 20 * 10);
        assert_int_equal(t->lost, 0);
        for (size_t i = 0; i < t->n; i++) {
            const struct trace_event *v = &t->v[i];
            assert_true(v->name && v->start >= t->start && v->end >= v->start && v->end <= t->end);
            assert_int_equal(v->track, TRACK_ENGINE);
            assert_true(!i || v->end >= t->v[i - 1].end);
        }
        engine_trace_free(t);
    }
    rig_close(&r);
}

static void test_a_trace_is_bounded(void **state)
{
    (void)state;
    struct rig r;
    struct text t;
    struct err e;
    rig_open(&r, base_config(fixtures));
    assert_int_equal(engine_trace_start(r.g, 100, &e), 0);
    generate(&r, &t, 20);
    struct engine_trace *trace = engine_trace_stop(r.g);
    assert_true(trace->n == 100 && trace->lost > 100);
    engine_trace_free(trace);
    assert_int_equal(engine_trace_start(r.g, 10, &e), 0); /* at once taken: nothing happened */
    trace = engine_trace_stop(r.g);
    assert_int_equal(trace->n, 0);
    engine_trace_free(trace);
    assert_int_equal(engine_trace_start(r.g, 10, &e), 0); /* an engine that closes frees it */
    generate(&r, &t, 2);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_trace),
        cmocka_unit_test(test_a_trace_is_bounded),
    };
    fixtures = argc > 1 ? argv[1] : "tests/fixtures/models";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
