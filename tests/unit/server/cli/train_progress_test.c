/* What tandem train shows: times, the bar, and lines that stay few however long the job. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/cli/train_progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void test_times(void **state)
{
    (void)state;
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {{0, "0 s"},          {59.4, "59 s"}, {59.6, "1:00"},  {3599, "59:59"}, {3600, "1:00:00"},
                 {90061, "25:01:01"}, {NAN, "?"},     {INFINITY, "?"}, {-1, "?"},       {1e300, "?"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char got[32];
        train_time_text(cases[i].seconds, got);
        assert_string_equal(got, cases[i].text);
    }
}

static void test_bar(void **state)
{
    (void)state;
    char text[256];
    struct train_event e = {.step = 25, .steps = 100, .tokens_per_s = 812.3, .eta_s = 75};
    train_bar_text(&e, 2.34567, 200, text);
    assert_string_equal(text, " 25% [######..................] step 25 of 100  loss 2.3457  812 tokens/s  1:15 left");
    train_bar_text(&e, 2.34567, 30, text);
    assert_int_equal(strlen(text), 30);
    e.steps = 0; /* nothing known */
    train_bar_text(&e, NAN, 200, text);
    assert_non_null(strstr(text, "  0% ["));
}

static void test_summary(void **state)
{
    (void)state;
    struct buf text = {0};
    struct train_progress p = {.eval_loss = NAN, .best_loss = NAN};
    struct train_usage u = {.steps = 10, .rows = 40, .tokens = 5000, .seconds = 10, .host_peak = (size_t)3 << 30};
    u.part[TRAIN_DATA] = 1, u.part[TRAIN_FORWARD] = 3, u.part[TRAIN_BACKWARD] = 6;
    train_summary_text(&text, &p, &u);
    assert_string_equal(text.data,
                        "summary: 10 steps in 10 s: 500 tokens/s, 4.0 rows/s, 500 tokens a step\n"
                        "time of a step: data 10.0 %, forward 30.0 %, backward 60.0 %, optimizer 0.0 %, wait 0.0 %, "
                        "other 0.0 %\n"
                        "memory at most: 3.00 GiB of the host\n");
    buf_clear(&text);
    u.device_peak = (size_t)1 << 29, u.eval_seconds = 120, u.checkpoint_seconds = 50, u.cpu_seconds = 15;
    p.best_loss = 1.5, p.cost_per_hour = 20, p.macs_per_token = 1e8;
    train_summary_text(&text, &p, &u);
    assert_non_null(strstr(text.data, "10 steps in 3:00: 500 tokens/s"));
    assert_non_null(strstr(text.data, "evaluations 2:00; checkpoints 50 s\n"));
    assert_non_null(strstr(text.data, ", 0.50 GiB of the device\nprocessor: 1.50 cores on average, 50 G multiply-adds/s\nbest evaluation: "
                                      "loss 1.5000\ncost: 1 at 20 an hour\n"));
    buf_clear(&text);
    u.steps = 0; /* a job that was done already */
    train_summary_text(&text, &p, &u);
    assert_int_equal(text.len, 0);
    buf_free(&text);
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p++) n++;
    return n;
}

/* a job of `steps` steps; free() what it prints */
static char *job(int64_t steps, bool bar)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    struct train_progress p;
    struct train_plan plan = {.steps = steps, .rows = 5};
    train_progress_init(&p, f, bar);
    train_progress_show(&p, &(struct train_event){.kind = TRAIN_PLAN, .plan = &plan});
    for (int64_t i = 1; i <= steps; i++) {
        train_progress_show(
            &p, &(struct train_event){.kind = TRAIN_STEP, .step = i, .steps = steps, .loss = 2, .eta_s = 1});
        if (i == 3)
            train_progress_show(&p, &(struct train_event){.kind = TRAIN_WARNING, .step = i, .text = "look out"});
    }
    train_progress_show(&p, &(struct train_event){.kind = TRAIN_SUCCEEDED, .step = steps, .steps = steps});
    assert_int_equal(p.last, TRAIN_SUCCEEDED);
    fclose(f);
    return text;
}

static void test_lines(void **state)
{
    (void)state;
    char *few = job(10, false), *many = job(12345, false), *bar = job(10, true);
    assert_int_equal(count(few, "\nstep "), 10);
    assert_int_equal(count(few, "warning: look out\n"), 1);
    assert_true(count(many, "\nstep ") >= 90 && count(many, "\nstep ") <= 110);
    assert_non_null(strstr(many, "step 12345 of 12345"));
    assert_int_equal(count(bar, "\r"), 10);
    assert_non_null(strstr(bar, "\nwarning: look out\n")); /* not on the bar's line */
    assert_int_equal(bar[strlen(bar) - 1], '\n');
    free(few);
    free(many);
    free(bar);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_bar),
        cmocka_unit_test(test_summary),
        cmocka_unit_test(test_lines),
    };
    return cmocka_run_group_tests_name("train_progress", tests, NULL, NULL);
}
