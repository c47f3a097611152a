/* f16, fp8 and nf4 weights on a device that rounds for them (rounds_more, opened with bf16_x): linear and gate_up. */
#include "tests/ops/harness.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VARIANTS = 3 }; /* nothing rounded, x and values rounded, x and codes rounded: what linear_args allows */

static float to_bf16(float x)
{
    return bf16_to_f32(f32_to_bf16(x));
}

/* the weight's values as f32, as variant v has them */
static struct weight_case values_of(const struct weight_case *c, int v)
{
    struct weight_case f = weight_random(DT_F32, c->src.rows, c->src.cols, 0);
    const uint8_t *q = c->data;
    const float *scale = c->scale;
    for (size_t i = 0; i < (size_t)c->src.rows * (size_t)c->src.cols; i++) {
        float *to = (float *)f.data + i;
        if (c->src.t == DT_F16) {
            *to = f16_to_f32(((const uint16_t *)c->data)[i]);
            continue;
        }
        if (c->src.t == DT_F8) {
            *to = e4m3_to_f32(q[i]) *
                  scale[i / (size_t)c->src.cols * (size_t)((c->src.cols + 63) / 64) + i % (size_t)c->src.cols / 64];
            if (v == 1) *to = to_bf16(*to);
            continue;
        }
        float code = nf4_code[i % 2 ? q[i / 2] & 15 : q[i / 2] >> 4];
        *to = (v == 2 ? to_bf16(code) : code) * scale[i / 64];
        if (v == 1) *to = to_bf16(*to);
    }
    return f;
}

/* a row as it is rounded for weights of type t */
static void round_row(float *to, const float *x, int n, enum dtype t)
{
    float most = 0;
    for (int i = 0; i < n; i++) most = fmaxf(most, fabsf(x[i]));
    bool moved = most > 0 && most < INFINITY && (most < 1 || most >= 0x1p15f);
    int shift = t == DT_F16 && moved ? 15 - (ilogbf(most) + 1) : 0;
    if (shift > 126) shift = 126;
    for (int i = 0; i < n; i++)
        to[i] = t == DT_F16 ? ldexpf(f16_to_f32(f32_to_f16(ldexpf(x[i], shift))), -shift) : to_bf16(x[i]);
}

/* Rows of many sizes, of zeros, and with outliers; some of values that rounding moves far; from the least to the most
 * that a float is, and at the ends of what f16 takes as it is. */
static float *rows_of(int M, int K)
{
    static const float largest[] = {1e-42f, 3e38f, 1, 32767, 32768};
    float *x = random_floats((size_t)M * (size_t)K, 1);
    for (int m = 0; m < M; m++)
        for (int k = 0; k < K; k++) {
            float *v = x + (size_t)m * (size_t)K + k;
            if (m % 7 == 1 && k % 61 == 5) *v = 3e3f;
            if (m % 7 == 2) {
                float most = largest[m / 7 % 5], by = most > 1e38f ? 1e-3f : 0.02f; /* no sum of codes overflows */
                *v = k == m % K ? most : fminf(fmaxf(*v * by, -0.5f), 0.5f) * most;
            }
            if (m % 7 == 3) *v = 0;
            if (m % 7 == 4) *v = 1 + 0x1p-8f + (float)random_below(3) * 0x1p-9f; /* at and beside a tie */
            if (m % 7 == 5) *v *= 1e-20f;
            if (m % 7 == 6) *v *= 1e6f;
        }
    return x;
}

/* want[v] (M, N) by ref over what variant v multiplies, and size (M, N), the sum of the magnitudes of its terms */
static void refs_of(struct dev *ref, const struct weight_case *c, const float *x, int M, const float *b,
                    float *want[VARIANTS], double *size)
{
    int N = c->src.rows, K = c->src.cols;
    float *rounded = random_floats((size_t)M * (size_t)K, 1);
    for (int m = 0; m < M; m++) round_row(rounded + (size_t)m * (size_t)K, x + (size_t)m * (size_t)K, K, c->src.t);
    for (int v = 0; v < VARIANTS; v++) {
        struct weight_case f = values_of(c, v);
        struct weight *w = weight_put(ref, &f);
        float *y = put(ref, NULL, (size_t)M * (size_t)N * 4), *rb = put(ref, b, (size_t)N * 4);
        float *rx = put(ref, v ? rounded : x, (size_t)M * (size_t)K * 4);
        op_linear(ref, (struct linear_args){mat_f32(y, M, N), mat_f32(rx, M, K), w, b ? rb : NULL});
        want[v] = get(ref, y, (size_t)M * (size_t)N);
        for (int m = 0; v == 0 && m < M; m++)
            for (int n = 0; n < N; n++) {
                double sum = b ? fabs((double)b[n]) : 0;
                for (int k = 0; k < K; k++)
                    sum += fabs((double)x[(size_t)m * (size_t)K + (size_t)k] *
                                ((float *)f.data)[(size_t)n * (size_t)K + (size_t)k]);
                size[(size_t)m * (size_t)N + (size_t)n] = sum;
            }
        ref->ops->free(ref, y), ref->ops->free(ref, rb), ref->ops->free(ref, rx);
        ref->ops->weight_free(ref, w);
        weight_case_free(&f);
    }
    free(rounded);
}

/* Each row is one of the variants' but for the order of its f32 sums, of which a term in 2^-19 is far more than they
 * move and far less than rounding to bf16 does.  least: what terms count for at least, where they are subnormal.  A row
 * with a NaN or an infinity gives nothing finite. */
static void check_rows(const char *label, const float *got, int ld, float *const want[VARIANTS], const double *size,
                       double least, int M, int N)
{
    for (int m = 0; m < M; m++) {
        double far[VARIANTS] = {0}, nearest = INFINITY;
        int finite = 0;
        for (int v = 0; v < VARIANTS; v++) {
            for (int n = 0; n < N; n++) {
                size_t i = (size_t)m * (size_t)N + (size_t)n;
                float y = got[(size_t)m * (size_t)ld + (size_t)n];
                if (!isfinite(size[i])) finite += isfinite(y) != 0;
                if (size[i] > FLT_MAX || isnan(size[i])) continue; /* what overflows is a matter of order */
                double e = fabs((double)y - want[v][i]) / (size[i] + least);
                far[v] = isnan(e) ? INFINITY : fmax(far[v], e);
            }
            nearest = fmin(nearest, far[v]);
        }
        CHECK(!finite, "%s: row %d is not finite, but gives finite results", label, m);
        CHECK(nearest <= 0x1p-19,
              "%s: row %d is %.3g of its terms from what nothing, values and codes rounded give: "
              "%.3g, %.3g, %.3g",
              label, m, nearest, far[0], far[1], far[2]);
    }
}

static const struct shape {
    int M, N, K;
} shapes[] = {{1, 33, 128},    {16, 65, 192},  {17, 31, 64},   {17, 129, 1088}, {31, 70, 320},  {32, 127, 128},
              {33, 257, 192},  {64, 35, 1600}, {65, 45, 256},  {100, 130, 64},  {128, 67, 192}, {129, 31, 1088},
              {255, 129, 128}, {256, 39, 320}, {257, 65, 192}, {300, 33, 64}};

/* a NaN or an infinity in one row of fourteen */
static void poison(float *x, int M, int K)
{
    for (int m = 7; m < M; m += 14) x[(size_t)m * (size_t)K + (size_t)(m % K)] = m / 14 % 2 ? INFINITY : NAN;
}

/* linear: against ref; slices have the same bits */
static void linear_case(struct dev *dev, struct dev *ref, enum dtype t, struct shape s, bool bias)
{
    if (case_left_out()) return;
    char label[LABEL];
    int ld = s.N + 3, first = WEIGHT_SLICE, part = s.N - first;
    struct weight_case c = weight_random(t, s.N, s.K, 64);
    struct weight *w = weight_put(dev, &c);
    float *x = rows_of(s.M, s.K), *b = random_floats((size_t)s.N, 1);
    poison(x, s.M, s.K);
    size_t n = (size_t)s.M * (size_t)ld;
    float *dx = put(dev, x, (size_t)s.M * (size_t)s.K * 4), *db = put(dev, b, (size_t)s.N * 4);
    float *before = random_floats(n, 1), *y = put(dev, before, n * 4), *slice = put(dev, before, n * 4);
    struct mat mx = mat_f32(dx, s.M, s.K), my = {y, DT_F32, s.M, s.N, ld}, ms = {slice, DT_F32, s.M, part, ld};
    snprintf(label, sizeof label, "%s rounds M=%d N=%d K=%d bias %d", dtype_name(t), s.M, s.N, s.K, bias);
    op_linear(dev, (struct linear_args){my, mx, w, bias ? db : NULL});
    if (part > 0) op_linear(dev, (struct linear_args){ms, mx, w, bias ? db + first : NULL, first});
    check_device(label, dev);
    float *got = get(dev, y, n), *some = get(dev, slice, n), *want[VARIANTS];
    double *size = malloc((size_t)s.M * (size_t)s.N * sizeof *size);
    if (!size) abort();
    refs_of(ref, &c, x, s.M, bias ? b : NULL, want, size);
    /* f16 is brought away from there before it is multiplied; of bf16 nobody says what tensor cores do with it */
    check_rows(label, got, ld, want, size, t == DT_F16 ? 0x1p-120 : 1e-30, s.M, s.N);
    for (int m = 0; m < s.M; m++) {
        size_t at = (size_t)m * (size_t)ld;
        compare_bits(label, got + at + s.N, before + at + s.N, (size_t)(ld - s.N));
        if (part > 0) compare_bits(label, some + at, got + at + first, (size_t)part);
    }
    for (int v = 0; v < VARIANTS; v++) free(want[v]);
    free(x), free(b), free(before), free(got), free(some), free(size);
    dev->ops->free(dev, dx), dev->ops->free(dev, db), dev->ops->free(dev, y), dev->ops->free(dev, slice);
    dev->ops->weight_free(dev, w);
    weight_case_free(&c);
}

/* gate_up: linear over the same weights, then act_mul, bit for bit (linear is held to ref above) */
static void gate_up_case(struct dev *dev, enum dtype t, int M, int F, int K, bool bias)
{
    if (case_left_out()) return;
    char label[LABEL];
    struct weight_case g = weight_random(t, F, K, 64), u = weight_random(t, F, K, 64);
    struct weight_src parts[2] = {g.src, u.src};
    struct weight *plain = dev->ops->weight_pack(dev, parts, 2);
    parts[0].gate_up = parts[1].gate_up = true;
    struct weight *fused = dev->ops->weight_pack(dev, parts, 2);
    float *x = rows_of(M, K), *b = random_floats((size_t)F * 2, 1);
    float *dx = put(dev, x, (size_t)M * (size_t)K * 4), *db = put(dev, b, (size_t)F * 8);
    size_t n = (size_t)M * (size_t)F;
    float *y = put(dev, NULL, n * 4), *z = put(dev, NULL, n * 4), *both = put(dev, NULL, n * 8);
    struct mat mx = mat_f32(dx, M, K), tmp = mat_f32(both, M, 2 * F);
    snprintf(label, sizeof label, "gate_up of %s rounds M=%d F=%d K=%d", dtype_name(t), M, F, K);
    op_gate_up(dev, (struct gate_up_args){mat_f32(y, M, F), mx, fused, bias ? db : NULL, ACT_SILU, tmp});
    op_linear(dev, (struct linear_args){tmp, mx, plain, bias ? db : NULL});
    op_act_mul(dev, (struct act_mul_args){mat_f32(z, M, F), tmp, ACT_SILU});
    check_device(label, dev);
    float *got = get(dev, y, n), *want = get(dev, z, n);
    compare_bits(label, got, want, n);
    free(x), free(b), free(got), free(want);
    void *all[] = {dx, db, y, z, both};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) dev->ops->free(dev, all[i]);
    dev->ops->weight_free(dev, plain), dev->ops->weight_free(dev, fused);
    weight_case_free(&g), weight_case_free(&u);
}

void test_rounds_more(const char *name)
{
    static const int rows[] = {1, 16, 17, 40, 130, 257};
    static const enum dtype types[] = {DT_NF4, DT_F16, DT_F8};
    bool before = with_bf16_x;
    with_bf16_x = true;
    struct dev *dev = open_checked(name, 1), *ref = open_checked("ref", 1);
    if (dev->ops->rounds_more) {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            struct shape s = shapes[i];
            linear_case(dev, ref, DT_NF4, s, i % 2);
            s.K -= (int)(i % 4);
            linear_case(dev, ref, DT_F8, s, i % 2);
            linear_case(dev, ref, DT_F16, s, i % 2);
        }
        for (size_t i = 0; i < 3 * (sizeof rows / sizeof *rows); i++)
            gate_up_case(dev, types[i % 3], rows[i / 3], 47, 128, i / 3 % 2);
    }
    dev_close(dev), dev_close(ref);
    with_bf16_x = before;
}
