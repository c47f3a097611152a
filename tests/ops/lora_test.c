/* Tests of op lora. */
#include "tests/ops/gradient.h"
#include "tests/ops/twin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* parts of different ranks, overlapping in columns, over groups that leave rows out */
static void lora_case(struct dev *dev, struct dev *ref, int T, int K, int N, int r)
{
    if (case_left_out()) return;
    char label[LABEL];
    struct twin x = twin_make(dev, ref, T, K, 1), y = twin_make(dev, ref, T, N, 2);
    int n1 = N / 2 + 1, n2 = N - N / 3, r2 = r + 3;
    struct twin a1 = twin_make(dev, ref, r, K, 0), b1 = twin_make(dev, ref, n1, r, 0);
    struct twin a2 = twin_make(dev, ref, r2, K, 0), b2 = twin_make(dev, ref, n2, r2, 0);
    struct lora_part dp[] = {{a1.dev.p, b1.dev.p, r, 0, n1, 2}, {a2.dev.p, b2.dev.p, r2, N - n2, n2, 0.5f}};
    struct lora_part rp[] = {{a1.ref.p, b1.ref.p, r, 0, n1, 2}, {a2.ref.p, b2.ref.p, r2, N - n2, n2, 0.5f}};
    int half = T / 2;
    struct lora_group dg[] = {{0, half, 2, dp}, {half, T - half - T / 8, 1, dp + 1}};
    struct lora_group rg[] = {{0, half, 2, rp}, {half, T - half - T / 8, 1, rp + 1}};
    snprintf(label, sizeof label, "lora T=%d K=%d N=%d r=%d", T, K, N, r);
    op_lora(dev, (struct lora_args){y.dev, x.dev, dg, 2});
    op_lora(ref, (struct lora_args){y.ref, x.ref, rg, 2});
    twin_compare(label, dev, ref, &y, 0);
    struct twin *all[] = {&x, &y, &a1, &b1, &a2, &b2};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) twin_free(dev, ref, all[i]);
}

/* a row each for as many adapters */
static void lora_many(struct dev *dev, struct dev *ref, int T, int K, int N, int r)
{
    enum { MOST = 64 };
    char label[LABEL];
    struct twin x = twin_make(dev, ref, T, K, 0), y = twin_make(dev, ref, T, N, 0);
    struct twin a = twin_make(dev, ref, r * T, K, 0), b = twin_make(dev, ref, N * T, r, 0);
    struct lora_part dp[MOST], rp[MOST];
    struct lora_group dg[MOST], rg[MOST];
    for (int t = 0; t < T; t++) {
        size_t at_a = (size_t)t * (size_t)(r * K), at_b = (size_t)t * (size_t)(N * r);
        dp[t] = (struct lora_part){(float *)a.dev.p + at_a, (float *)b.dev.p + at_b, r, t % 3, N - t % 5, 0.25f};
        rp[t] = (struct lora_part){(float *)a.ref.p + at_a, (float *)b.ref.p + at_b, r, t % 3, N - t % 5, 0.25f};
        if (t % 5 < t % 3) dp[t].col = rp[t].col = t % 5;
        dg[t] = (struct lora_group){T - 1 - t, t % 7 > 0, 1, dp + t};
        rg[t] = (struct lora_group){T - 1 - t, t % 7 > 0, 1, rp + t};
    }
    snprintf(label, sizeof label, "lora of %d adapters, K=%d N=%d r=%d", T, K, N, r);
    op_lora(dev, (struct lora_args){y.dev, x.dev, dg, T});
    op_lora(ref, (struct lora_args){y.ref, x.ref, rg, T});
    twin_compare(label, dev, ref, &y, 0);
    struct twin *all[] = {&x, &y, &a, &b};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) twin_free(dev, ref, all[i]);
}

/* As adapters of experts have them: groups of one row, more than the lists of one launch hold (cuda), of two adapters
 * in turn, and at last one of many rows. */
static void lora_rows(struct dev *dev, struct dev *ref)
{
    enum { GROUPS = 4000, LAST = 101, T = GROUPS + LAST - 1, K = 3, N = 5, R = 2 };
    if (case_left_out()) return;
    struct twin x = twin_make(dev, ref, T, K, 0), y = twin_make(dev, ref, T, N, 0);
    struct twin a = twin_make(dev, ref, 2 * R, K, 0), b = twin_make(dev, ref, 2 * N, R, 0);
    struct lora_part dp[2], rp[2];
    for (int i = 0; i < 2; i++) {
        size_t at_a = (size_t)i * R * K, at_b = (size_t)i * N * R;
        dp[i] = (struct lora_part){(float *)a.dev.p + at_a, (float *)b.dev.p + at_b, R, 0, N, 0.5f};
        rp[i] = (struct lora_part){(float *)a.ref.p + at_a, (float *)b.ref.p + at_b, R, 0, N, 0.5f};
    }
    struct lora_group *dg = calloc(GROUPS, sizeof *dg), *rg = calloc(GROUPS, sizeof *rg);
    if (!dg || !rg) abort();
    for (int i = 0; i < GROUPS; i++) {
        int rows = i + 1 < GROUPS ? 1 : LAST;
        dg[i] = (struct lora_group){i, rows, 1, dp + i % 2};
        rg[i] = (struct lora_group){i, rows, 1, rp + i % 2};
    }
    op_lora(dev, (struct lora_args){y.dev, x.dev, dg, GROUPS});
    op_lora(ref, (struct lora_args){y.ref, x.ref, rg, GROUPS});
    twin_compare("lora of many groups", dev, ref, &y, 0);
    free(dg), free(rg);
    struct twin *all[] = {&x, &y, &a, &b};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) twin_free(dev, ref, all[i]);
}

struct lora_loss {
    struct dev *d;
    struct lora_args a;
    const float *dy;
};

static double lora_loss(void *ctx)
{
    struct lora_loss *l = ctx;
    memset(l->a.y.p, 0, (size_t)l->a.y.rows * (size_t)l->a.y.ld * 4);
    op_lora(l->d, l->a);
    return gradient_loss(&l->a.y, l->dy);
}

/* the gradients of an adapter are the gemms that a trainer makes of them */
static void lora_gradient(struct dev *d)
{
    enum { T = 4, K = 9, N = 11, R = 3 };
    const float scale = 1.5f;
    struct twin x = twin_make(d, d, T, K, 0), y = twin_make(d, d, T, N, 0), dy = twin_make(d, d, T, N, 0);
    struct twin a = twin_make(d, d, R, K, 0), b = twin_make(d, d, N, R, 0), xa = twin_make(d, d, T, R, 0);
    struct twin dxa = twin_make(d, d, T, R, 0), dx = twin_make(d, d, T, K, 0);
    struct twin da = twin_make(d, d, R, K, 0), db = twin_make(d, d, N, R, 0);
    struct lora_part part = {a.ref.p, b.ref.p, R, 0, N, scale};
    struct lora_group group = {0, T, 1, &part};
    struct lora_loss l = {d, {y.ref, x.ref, &group, 1}, dy.ref.p};
    op_gemm(d, (struct gemm_args){.c = xa.ref, .a = x.ref, .b = a.ref, .tb = true, .alpha = 1});
    op_gemm(d, (struct gemm_args){.c = dxa.ref, .a = dy.ref, .b = b.ref, .alpha = scale});
    op_gemm(d, (struct gemm_args){.c = dx.ref, .a = dxa.ref, .b = a.ref, .alpha = 1});
    op_gemm(d, (struct gemm_args){.c = da.ref, .a = dxa.ref, .b = x.ref, .ta = true, .alpha = 1});
    op_gemm(d, (struct gemm_args){.c = db.ref, .a = dy.ref, .b = xa.ref, .ta = true, .alpha = scale});
    gradient_check((struct gradient_check){"lora by x", x.ref.p, dx.ref.p, x.n, 64, lora_loss, &l, 1, 1e-5});
    gradient_check((struct gradient_check){"lora by a", a.ref.p, da.ref.p, a.n, 64, lora_loss, &l, 1, 1e-5});
    gradient_check((struct gradient_check){"lora by b", b.ref.p, db.ref.p, b.n, 64, lora_loss, &l, 1, 1e-5});
    check_device("lora gradient", d);
    struct twin *all[] = {&x, &y, &dy, &a, &b, &xa, &dxa, &dx, &da, &db};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) twin_free(d, d, all[i]);
}

void test_lora(struct dev *dev, struct dev *ref)
{
    static const int ranks[] = {1, 4, 8, 13, 16, 64};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        lora_case(dev, ref, 1, 37, 50, ranks[i]);
        lora_case(dev, ref, 16, 64, 33, ranks[i]);
        lora_case(dev, ref, 29, 130, 97, ranks[i]);
        lora_case(dev, ref, 3, 1, 1, ranks[i]);
    }
    lora_case(dev, ref, 9, 1028, 260, 512);
    lora_many(dev, ref, 40, 36, 70, 4);
    lora_rows(dev, ref);
    lora_gradient(ref);
}
