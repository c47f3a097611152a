/* Divergences by hand, their derivatives by the logits as finite differences, and of merged outcomes that they are no
 * larger. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/train/divergence.h"

#include <math.h>

enum { V = 6, FEW = 3 };
static const double betas[] = {0, 0.3, 0.5, 1};
static const double student[V] = {0.3, -1.2, 2.0, 0.1, -0.4, 1.1}, teacher[V] = {2.1, 1.4, 0.2, 0.1, -0.9, -1.7};

static void near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) fail_msg("%.12g, not %.12g", got, want);
}

static void log_softmax(const double *z, double *out)
{
    double sum = 0;
    for (int i = 0; i < V; i++) sum += exp(z[i]);
    for (int i = 0; i < V; i++) out[i] = z[i] - log(sum);
}

/* Of the first n tokens, which are the teacher's likeliest. */
static double of_logits(double beta, const double *z, int n, double *slope)
{
    double p[V], q[V];
    float kept[V];
    log_softmax(z, p);
    log_softmax(teacher, q);
    for (int i = 0; i < n; i++) kept[i] = (float)q[i];
    return divergence(beta, n, n < V, kept, p, slope);
}

static void by_hand(void **state)
{
    (void)state;
    double p[V], q[V], slope[V], forward = 0, reverse = 0, half = 0;
    log_softmax(student, p);
    log_softmax(teacher, q);
    for (int i = 0; i < V; i++) {
        double m = log((exp(p[i]) + exp(q[i])) / 2);
        forward += exp(q[i]) * (q[i] - p[i]);
        reverse += exp(p[i]) * (p[i] - q[i]);
        half += (exp(q[i]) * (q[i] - m) + exp(p[i]) * (p[i] - m)) / 2;
    }
    near(of_logits(0, student, V, slope), forward, 1e-6);
    near(of_logits(1, student, V, slope), reverse, 1e-6);
    near(of_logits(0.5, student, V, slope), half, 1e-6);
    for (size_t b = 0; b < sizeof betas / sizeof *betas; b++) near(of_logits(betas[b], teacher, V, slope), 0, 1e-6);
}

static void derivatives(void **state)
{
    (void)state;
    const double STEP = 1e-5;
    double p[V], slope[V], other[V];
    log_softmax(student, p);
    for (size_t b = 0; b < sizeof betas / sizeof *betas; b++)
        for (int n = FEW; n <= V; n += V - FEW) {
            double sum = 0;
            of_logits(betas[b], student, n, slope);
            for (int i = 0; i < n; i++) sum += slope[i];
            for (int i = 0; i < V; i++) {
                double z[V], up;
                for (int k = 0; k < V; k++) z[k] = student[k] + (k == i ? STEP : 0);
                up = of_logits(betas[b], z, n, other);
                z[i] -= 2 * STEP;
                double want = (up - of_logits(betas[b], z, n, other)) / (2 * STEP);
                near((i < n ? slope[i] : 0) - exp(p[i]) * sum, want, 1e-6);
            }
        }
}

static void merged(void **state)
{
    (void)state;
    double slope[V];
    for (size_t b = 0; b < sizeof betas / sizeof *betas; b++) {
        double all = of_logits(betas[b], student, V, slope), few = of_logits(betas[b], student, FEW, slope);
        assert_true(few > 0 && few < all);
    }
}

/* What is impossible for one of them, up to f32, is no reason for anything that is not finite. */
static void extremes(void **state)
{
    (void)state;
    float sure[] = {0, -200}, unlikely[] = {-100, -110};
    double p[] = {-3000, -1e-9}, slope[2];
    for (size_t b = 0; b < sizeof betas / sizeof *betas; b++)
        for (int rest = 0; rest < 2; rest++)
            for (int i = 0; i < 2; i++) {
                double d = divergence(betas[b], 2, rest, i ? unlikely : sure, p, slope);
                assert_true(isfinite(d) && isfinite(slope[0]) && isfinite(slope[1]));
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(derivatives),
        cmocka_unit_test(merged),
        cmocka_unit_test(extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
