/* The losses of preferences: their derivatives are finite differences, and some values known by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/train/preference.h"

#include <math.h>

#define STEP 1e-5

static void near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) fail_msg("%.12g, not %.12g", got, want);
}

static const struct preference all[] = {
    {.loss = PREFERENCE_DPO, .beta = 0.1},
    {.loss = PREFERENCE_DPO, .beta = 2, .label_smoothing = 0.2},
    {.loss = PREFERENCE_ORPO, .beta = 0.7},
    {.loss = PREFERENCE_SIMPO, .beta = 2, .gamma = 1},
    {.loss = PREFERENCE_SIMPO, .beta = 0.3, .gamma = 0.5, .label_smoothing = 0.1},
    {.loss = PREFERENCE_REWARD},
    {.loss = PREFERENCE_REWARD, .gamma = 0.5, .center = 0.05},
};

static void derivatives_of_pairs(void **state)
{
    (void)state;
    static const double sums[] = {-0.01, -3, -17.5, -120};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        for (int i = 0; i < 16; i++) {
            struct preference_answer c = {sums[i % 4], -9, 4}, r = {sums[i / 4], -11, 7};
            struct preference_value v = preference_pair(&all[k], &c, &r);
            struct preference_answer up = c, down = c;
            up.sum += STEP * fabs(c.sum), down.sum -= STEP * fabs(c.sum);
            double d = preference_pair(&all[k], &up, &r).loss - preference_pair(&all[k], &down, &r).loss;
            near(v.d_chosen, d / (up.sum - down.sum), 1e-6 * (1 + fabs(v.d_chosen)));
            up = down = r;
            up.sum += STEP * fabs(r.sum), down.sum -= STEP * fabs(r.sum);
            d = preference_pair(&all[k], &c, &up).loss - preference_pair(&all[k], &c, &down).loss;
            near(v.d_rejected, d / (up.sum - down.sum), 1e-6 * (1 + fabs(v.d_rejected)));
            assert_true(v.d_chosen <= 0 || all[k].label_smoothing > 0);
        }
}

static void derivatives_of_singles(void **state)
{
    (void)state;
    const struct preference p = {
        .loss = PREFERENCE_KTO, .beta = 0.3, .desirable_weight = 1.5, .undesirable_weight = 0.5};
    for (int i = 0; i < 12; i++) {
        struct preference_answer a = {-3.0 * i - 1, -12, 5}, up = a, down = a;
        bool desirable = i % 2;
        double kl = i % 3;
        up.sum += STEP, down.sum -= STEP;
        struct preference_value v = preference_single(&p, &a, desirable, kl);
        double d = (preference_single(&p, &up, desirable, kl).loss - preference_single(&p, &down, desirable, kl).loss) /
                   (2 * STEP);
        near(desirable ? v.d_chosen : v.d_rejected, d, 1e-6);
        near(desirable ? v.d_rejected : v.d_chosen, 0, 0);
        near(desirable ? v.rejected : v.chosen, 0, 0);
        near(desirable ? v.chosen : v.rejected, 0.3 * (a.sum + 12), 1e-12);
    }
}

static void known_values(void **state)
{
    (void)state;
    struct preference_answer c = {-10, -10, 5}, r = {-20, -20, 5};
    struct preference_value v = preference_pair(&all[0], &c, &r); /* the policy is the reference */
    near(v.loss, log(2), 1e-12);
    near(v.d_chosen, -0.05, 1e-12);
    near(v.d_rejected, 0.05, 1e-12);
    c.sum = -7; /* its reward is 0.3 */
    v = preference_pair(&all[0], &c, &r);
    near(v.loss, log1p(exp(-0.3)), 1e-12);
    near(v.chosen, 0.3, 1e-12);
    const struct preference simpo = {.loss = PREFERENCE_SIMPO, .beta = 2, .gamma = 1};
    v = preference_pair(&simpo, &c, &r); /* 2 (-1.4 + 4) - 1 */
    near(v.loss, log1p(exp(-4.2)), 1e-12);
    const struct preference reward = {.loss = PREFERENCE_REWARD, .gamma = 0.5, .center = 0.01};
    v = preference_pair(&reward, &(struct preference_answer){.sum = 2}, &(struct preference_answer){.sum = 0.5});
    near(v.loss, log1p(exp(-1)) + 0.01 * 6.25, 1e-12);
    assert_true(v.chosen == 2 && v.rejected == 0.5);
    const struct preference orpo = {.loss = PREFERENCE_ORPO, .beta = 0.1};
    c.sum = 5 * log(0.5), r.sum = 5 * log(0.2); /* odds 1 and 1/4 */
    v = preference_pair(&orpo, &c, &r);
    near(v.loss, 0.1 * log1p(0.25), 1e-12);
    near(v.chosen, 0.1 * log(0.5), 1e-12);
    c.sum = 0; /* a probability of 1 */
    v = preference_pair(&orpo, &c, &r);
    assert_true(isfinite(v.loss) && isfinite(v.d_chosen));
    c.sum = -1e6, r.sum = 0, r.reference = -1e6; /* nothing overflows */
    v = preference_pair(&all[1], &c, &r);
    assert_true(isfinite(v.loss) && isfinite(v.d_chosen) && isfinite(v.d_rejected));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(derivatives_of_pairs),
        cmocka_unit_test(derivatives_of_singles),
        cmocka_unit_test(known_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
