/* Advantages and losses of GRPO: values by hand, some from TRL's formulas, and derivatives as finite differences. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/train/grpo.h"

#include <math.h>

static void near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) fail_msg("%.12g, not %.12g", got, want);
}

/* Group 1: mean 0.5, deviation sqrt(1/3) with n - 1 = 3; group 2 has none; group 3: mean 2, deviation 2. */
static const double rewards[] = {1, 0, 0, 1, 0.1, 0.1, 0.1, 0.1, 1, 1, 5, 1};

static void advantages(void **state)
{
    (void)state;
    double a[12], s = sqrt(1.0 / 3);
    struct train_rewards r = train_no_rewards;
    grpo_advantages(rewards, 3, 4, SCALE_GROUP, a, &r);
    near(a[0], 0.5 / (s + 1e-4), 1e-12);
    near(a[1], -0.5 / (s + 1e-4), 1e-12);
    for (int i = 4; i < 8; i++) assert_true(a[i] == 0); /* exactly, though 0.1 is not exact */
    near(a[10], 3 / (2 + 1e-4), 1e-12);
    near(r.reward, (2 + 0.4 + 8) / 12, 1e-12);
    near(r.reward_std, (s + 0 + 2) / 3, 1e-12);
    near(r.zero_std, 1.0 / 3, 1e-12);
    grpo_advantages(rewards, 3, 4, SCALE_NONE, a, &r);
    near(a[0], 0.5, 1e-12);
    near(a[10], 3, 1e-12);
    grpo_advantages(rewards, 3, 4, SCALE_BATCH, a, &r);
    double mean = 10.4 / 12, sum = 0;
    for (int i = 0; i < 12; i++) sum += (rewards[i] - mean) * (rewards[i] - mean);
    near(a[10], 3 / (sqrt(sum / 11) + 1e-4), 1e-12);
    assert_true(isnan(r.kl) && isnan(r.chosen));
}

static void on_policy(void **state)
{
    (void)state;
    struct train_params p = {.clip_low = 0.2, .clip_high = 0.2};
    for (int i = -1; i <= 1; i += 2) {
        struct grpo_value v = grpo_value(&p, &(struct grpo_token){-1.5, -1.5, 0, i * 0.7});
        assert_true(v.loss == -i * 0.7 && v.d == i * 0.7 && !v.clipped && v.kl == 0);
    }
}

static void clipping(void **state)
{
    (void)state;
    struct train_params p = {.clip_low = 0.2, .clip_high = 0.3};
    struct grpo_value up = grpo_value(&p, &(struct grpo_token){log(1.5), 0, 0, 2});
    assert_true(up.clipped && up.d == 0);
    near(up.loss, -1.3 * 2, 1e-12);
    struct grpo_value down = grpo_value(&p, &(struct grpo_token){log(0.5), 0, 0, -2});
    assert_true(down.clipped && down.d == 0);
    near(down.loss, 0.8 * 2, 1e-12);
    /* what makes it worse is not clipped */
    near(grpo_value(&p, &(struct grpo_token){log(1.5), 0, 0, -2}).loss, 3, 1e-12);
    near(grpo_value(&p, &(struct grpo_token){log(0.5), 0, 0, 2}).loss, -1, 1e-12);
}

static void derivatives(void **state)
{
    (void)state;
    const double STEP = 1e-6;
    struct train_params p = {.clip_low = 0.2, .clip_high = 0.2, .beta = 0.3};
    for (int i = 0; i < 36; i++) {
        struct grpo_token x = {-0.3 * (i % 6) - 0.05, -0.31 * (i / 6 % 6), -1, i % 2 ? 1.3 : -0.4}, up = x, down = x;
        up.now += STEP, down.now -= STEP;
        double d = (grpo_value(&p, &up).loss - grpo_value(&p, &down).loss) / (2 * STEP);
        struct grpo_value v = grpo_value(&p, &x);
        near(-v.d, d, 1e-5 * (1 + fabs(d)));
        assert_true(v.kl >= 0);
    }
}

static void shares(void **state)
{
    (void)state;
    struct train_params p = {.loss_type = LOSS_GRPO, .max_new_tokens = 50};
    near(grpo_share(&p, 10, 4, 100), 1.0 / 40, 1e-15);
    p.loss_type = LOSS_DAPO;
    near(grpo_share(&p, 10, 4, 100), 1.0 / 100, 1e-15);
    p.loss_type = LOSS_DR_GRPO;
    near(grpo_share(&p, 10, 4, 100), 1.0 / 200, 1e-15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(advantages),  cmocka_unit_test(on_policy), cmocka_unit_test(clipping),
        cmocka_unit_test(derivatives), cmocka_unit_test(shares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
