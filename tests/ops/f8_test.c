/* Tests of fp8 weights beyond the tables of dense_test.c: the value of every code, one by one, for few rows and for
 * many, and the same rows in blocks of every size. */
#include "tests/ops/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* OCP's 8-bit floating point specification 1.0, e4m3, for a code that is not NaN */
static float code_value(int code)
{
    int exponent = code >> 3 & 15, fraction = code & 7;
    float v = exponent ? (float)(8 + fraction) : (float)fraction;
    for (int i = exponent ? exponent : 1; i < 10; i++) v /= 2;
    for (int i = 10; i < exponent; i++) v *= 2;
    return code & 0x80 ? -v : v;
}

enum { N = 33, K = 256 };

/* Output n has code (n + k) % 256 in column k, with zero for a NaN, and the scale of 2^-(k / group). */
static struct weight_case every_code(int group)
{
    struct weight_case c = weight_random(DT_F8, N, K, group);
    int groups = group ? (K - 1) / group + 1 : 1;
    for (int i = 0; i < N * K; i++) {
        int code = (i / K + i % K) % 256;
        ((uint8_t *)c.data)[i] = (uint8_t)((code & 0x7f) == 0x7f ? 0 : code);
    }
    for (int i = 0; i < N * groups; i++) ((float *)c.scale)[i] = 1.0f / (float)(1 << i % groups);
    return c;
}

/* Rows of the identity give the weight's columns. */
static void columns_case(struct dev *d, const char *level, int group, int rows)
{
    struct weight_case c = every_code(group);
    struct weight *w = weight_put(d, &c);
    float *x = calloc((size_t)rows * K, sizeof *x);
    if (!x) abort();
    float *dy = put(d, NULL, sizeof(float) * (size_t)rows * N);
    for (int k0 = 0; k0 < K; k0 += rows) {
        int some = K - k0 < rows ? K - k0 : rows;
        memset(x, 0, (size_t)rows * K * sizeof *x);
        for (int r = 0; r < some; r++) x[r * K + k0 + r] = 1;
        float *dx = put(d, x, sizeof(float) * (size_t)rows * K);
        op_linear(d, (struct linear_args){mat_f32(dy, some, N), mat_f32(dx, some, K), w, NULL});
        check_device("every code", d);
        float *y = get(d, dy, (size_t)some * N);
        for (int r = 0; r < some; r++)
            for (int n = 0; n < N; n++) {
                int k = k0 + r, code = ((uint8_t *)c.data)[n * K + k];
                float want = code_value(code) / (float)(1 << (group ? k / group : 0));
                CHECK(y[r * N + n] == want, "%s fp8/%d rows %d: code %02x is %.9g, not %.9g", level, group, some, code,
                      (double)y[r * N + n], (double)want);
            }
        free(y);
        d->ops->free(d, dx);
    }
    free(x);
    d->ops->free(d, dy);
    d->ops->weight_free(d, w);
    weight_case_free(&c);
}

void test_f8_values(const char *const *levels, int n_levels)
{
    static const int groups[] = {0, 16, 128}, rows[] = {1, 4, 5, 64};
    for (int code = 0; code < 256; code++)
        if ((code & 0x7f) != 0x7f) CHECK(e4m3_to_f32((uint8_t)code) == code_value(code), "the value of %02x", code);
    for (int i = 0; i < n_levels; i++) {
        struct dev *d = open_checked(levels[i], 1);
        for (int k = 0; k < 12; k++) columns_case(d, levels[i], groups[k % 3], rows[k / 3]);
        dev_close(d);
    }
}
