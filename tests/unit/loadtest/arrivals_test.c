/* Gaps have the mean and the variance of their distribution, a ramp the counts of its integral; requests are the same
 * whenever they are asked for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "loadtest/arrivals.h"
#include "loadtest/scenario.h"

#include <math.h>
#include <string.h>

enum { N = 100000 };

static void gaps_have_their_moments(void **state)
{
    (void)state;
    static const struct {
        enum arrival_kind kind;
        double shape, variance; /* in mean gaps */
    } cases[] = {{ARRIVE_POISSON, 1, 1},       {ARRIVE_GAMMA, 1, 1},    {ARRIVE_GAMMA, 0.25, 4},
                 {ARRIVE_GAMMA, 0.7, 1 / 0.7}, {ARRIVE_GAMMA, 4, 0.25}, {ARRIVE_CONSTANT, 1, 0}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct arrivals a = {.kind = cases[c].kind, .rate = 50, .shape = cases[c].shape, .seed = 7};
        double last = a.kind == ARRIVE_CONSTANT ? -0.02 : 0, sum = 0, squares = 0;
        for (int i = 0; i < N; i++) {
            double t = arrivals_next(&a), gap = (t - last) * 50;
            assert_true(gap >= 0 && isfinite(gap));
            last = t;
            sum += gap, squares += gap * gap;
        }
        double mean = sum / N, variance = squares / N - mean * mean;
        /* five standard errors of the mean; of the variance by the fourth moment of a gamma distribution */
        double error = 5 * sqrt(cases[c].variance / N) + 1e-9, k = cases[c].shape;
        double error2 = 5 * sqrt((3 + 6 / k) / N) * cases[c].variance + 1e-6;
        if (fabs(mean - 1) > error) fail_msg("case %zu: mean %g", c, mean);
        if (fabs(variance - cases[c].variance) > error2) fail_msg("case %zu: variance %g", c, variance);
    }
}

static void a_ramp_grows_linearly(void **state)
{
    (void)state;
    struct arrivals a = {.kind = ARRIVE_CONSTANT, .rate = 100, .ramp = 20};
    int first = 0, second = 0, after = 0;
    for (double t; (t = arrivals_next(&a)) < 30;) *(t < 10 ? &first : t < 20 ? &second : &after) += 1;
    assert_int_equal(first, 250);
    assert_int_equal(second, 750);
    assert_int_equal(after, 1000);
}

static void a_schedule_is_its_seed(void **state)
{
    (void)state;
    struct arrivals a = {.kind = ARRIVE_GAMMA, .rate = 3, .shape = 0.5, .seed = 1}, b = a, c = a;
    c.seed = 2;
    bool differs = false;
    for (int i = 0; i < 100; i++) {
        double t = arrivals_next(&a);
        assert_true(t == arrivals_next(&b));
        differs |= t != arrivals_next(&c);
    }
    assert_true(differs);
}

static void requests_are_drawn_as_asked(void **state)
{
    (void)state;
    struct scenario s = {.seed = 3,
                         .prompt = {10, 20},
                         .output = {1, 4},
                         .prefix = 5,
                         .groups = 2,
                         .long_share = 0.1,
                         .long_prompt = 500,
                         .slow_share = 0.2,
                         .disconnect_share = 0.3,
                         .bad_share = 0.1,
                         .leave_after = 3};
    int kinds[ASK_KINDS] = {0}, outputs[5] = {0}, leaves[4] = {0};
    for (uint64_t i = 0; i < N; i++) {
        struct ask a = scenario_ask(&s, i), b = scenario_ask(&s, i);
        assert_memory_equal(&a, &b, sizeof a);
        kinds[a.kind]++;
        assert_in_range(a.output, 1, 4);
        outputs[a.output]++;
        if (a.kind == ASK_LONG)
            assert_int_equal(a.prompt, 500);
        else
            assert_in_range(a.prompt, 10, 20);
        assert_int_equal(a.prefix, 5);
        if (a.kind == ASK_DISCONNECT) {
            assert_in_range(a.leave_after, 0, 3);
            leaves[a.leave_after]++;
        }
    }
    const double want[ASK_KINDS] = {0.3, 0.1, 0.2, 0.3, 0.1};
    for (int k = 0; k < ASK_KINDS; k++) assert_true(fabs((double)kinds[k] / N - want[k]) < 0.01);
    for (int k = 1; k <= 4; k++) assert_true(fabs((double)outputs[k] / N - 0.25) < 0.01);
    for (int k = 0; k < 4; k++) assert_true(fabs((double)leaves[k] / kinds[ASK_DISCONNECT] - 0.25) < 0.02);
}

static void prompts_share_what_they_should(void **state)
{
    (void)state;
    struct scenario s = {.seed = 3, .prompt = {12, 12}, .output = {1, 1}, .prefix = 6, .groups = 1};
    struct buf a = {0}, b = {0};
    struct ask x = scenario_ask(&s, 0), y = scenario_ask(&s, 1);
    ask_put_prompt(&a, &x, x.prompt);
    ask_put_prompt(&b, &y, y.prompt);
    size_t same = 0;
    int words = 1, blanks = 0;
    while (a.data[same] && a.data[same] == b.data[same]) words += a.data[same++] == ' ';
    for (char *p = a.data; *p; p++) blanks += *p == ' ';
    assert_int_equal(blanks, 11);
    assert_in_range(words, 7, 9); /* six, and what may be equal by chance */
    buf_free(&a);
    buf_free(&b);
    s.prefix = 50; /* longer than the prompt: one word is its own */
    assert_int_equal(scenario_ask(&s, 0).prefix, 11);
    s.prompt_max = 4;
    assert_int_equal(scenario_ask(&s, 0).prompt, 4);
    assert_int_equal(scenario_ask(&s, 0).prefix, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gaps_have_their_moments),        cmocka_unit_test(a_ramp_grows_linearly),
        cmocka_unit_test(a_schedule_is_its_seed),         cmocka_unit_test(requests_are_drawn_as_asked),
        cmocka_unit_test(prompts_share_what_they_should),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
