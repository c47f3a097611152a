/* The histogram against sorted arrays: nearest rank, one part in 1024. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/rng.h"
#include "loadtest/hist.h"

#include <math.h>
#include <stdlib.h>

enum { N = 20000 };

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* values over many orders of magnitude */
static uint64_t value(uint64_t seed, uint64_t i)
{
    return (uint64_t)exp(30 * rng_uniform(seed, i));
}

static void percentiles_are_nearest_rank(void **state)
{
    (void)state;
    static uint64_t v[N];
    for (uint64_t seed = 1; seed <= 5; seed++) {
        struct hist *h = hist_new();
        for (int i = 0; i < N; i++) hist_add(h, v[i] = value(seed, (uint64_t)i));
        qsort(v, N, sizeof *v, ascending);
        for (double p = 0.05; p <= 100; p += 0.05) {
            size_t rank = (size_t)ceil(p / 100 * N - 1e-6);
            double want = (double)v[rank - 1], got = (double)hist_percentile(h, p);
            if (fabs(got - want) > want / 1024 + 0.5) fail_msg("p%g: %g, not %g", p, got, want);
        }
        assert_true(hist_percentile(h, 0) == v[0]);
        assert_true(hist_percentile(h, 100) == v[N - 1]);
        free(h);
    }
}

static void moments_are_exact(void **state)
{
    (void)state;
    struct hist *h = hist_new();
    assert_true(h->n == 0 && hist_mean(h) == 0 && hist_deviation(h) == 0 && hist_percentile(h, 50) == 0);
    for (uint64_t i = 1; i <= 5; i++) hist_add(h, i * 1000000);
    assert_true(hist_mean(h) == 3e6);
    assert_true(fabs(hist_deviation(h) - sqrt(2) * 1e6) < 1);
    assert_true(fabs(hist_share(h, 2500000) - 0.4) < 1e-9);
    assert_true(hist_share(h, 0) == 0 && hist_share(h, UINT64_MAX) == 1);
    free(h);
}

static void extremes_are_counted(void **state)
{
    (void)state;
    struct hist *h = hist_new();
    for (int i = 0; i < 64; i++) hist_add(h, (uint64_t)1 << i);
    hist_add(h, 0);
    hist_add(h, UINT64_MAX);
    assert_true(h->n == 66 && h->min == 0 && h->max == UINT64_MAX);
    uint64_t last = 0;
    for (double p = 0; p <= 100; p += 0.5) {
        assert_true(hist_percentile(h, p) >= last);
        last = hist_percentile(h, p);
    }
    free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(percentiles_are_nearest_rank),
        cmocka_unit_test(moments_are_exact),
        cmocka_unit_test(extremes_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
