/* Tests of the products of training: gemm, linear_back, embed_back, col_sum, weight_update, and linear on gate_up
 * weights. */
#include "tests/ops/gradient.h"
#include "tests/ops/twin.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How far rounding to bf16 may move a sum of n products. Each factor moves by 2^-8 of itself at most, a product by 2^-7.
 * Of many products some move up and some down: by 0.02 sqrt(n) of a factor's usual `size`, the other being random_float,
 * which is about twenty standard deviations. Of few all may move the same way, and did, of two products of f16 or int4
 * for 5 seeds of 200: the worst case, of factors up to `largest` and 3.4. */
static double bf16_moves(int n, double size, double largest)
{
    return n > 1 && n <= 4 ? n * 3.4 * largest * 0x1p-7 : 0.02 * sqrt(n) * size;
}

/* ---- gemm ---------------------------------------------------------------------------------------------------- */

static const struct gemm_shape {
    int M, N, K;
} gemm_shapes[] = {{1, 1, 1},     {1, 8, 33},    {3, 17, 2},    {7, 31, 16},   {12, 32, 64}, {13, 33, 65},
                   {25, 8, 130},  {40, 7, 96},   {33, 64, 8},   {19, 97, 16},  {8, 130, 37}, {130, 8, 40},
                   {64, 48, 31},  {70, 65, 129}, {5, 100, 64},  {100, 16, 16}, {2, 3, 1000}, {47, 80, 50},
                   {16, 257, 20}, {96, 96, 24},  {3, 35, 10300}};
/* the same without gaps between rows */
static const struct gemm_shape dense_shapes[] = {{5, 8, 8}, {70, 64, 64}, {65, 96, 72}, {64, 128, 80}};

static void gemm_case(struct dev *dev, struct dev *ref, struct gemm_shape s, int variant, bool gaps)
{
    if (case_left_out()) return;
    bool ta = variant & 1, tb = variant & 2, accumulate = variant & 4, half = variant & 8;
    char label[LABEL];
    struct twin a = twin_make(dev, ref, ta ? s.K : s.M, ta ? s.M : s.K, gaps ? variant % 3 : 0);
    struct twin b = twin_make(dev, ref, tb ? s.N : s.K, tb ? s.K : s.N, gaps ? variant % 2 * 5 : 0);
    struct twin c = twin_make(dev, ref, s.M, s.N, gaps ? 3 : 0);
    float alpha = variant % 3 ? 0.75f : 1;
    snprintf(label, sizeof label, "gemm M=%d N=%d K=%d%s%s%s%s", s.M, s.N, s.K, ta ? " ta" : "", tb ? " tb" : "",
             accumulate ? " accumulate" : "", half ? " half" : "");
    op_gemm(dev, (struct gemm_args){c.dev, a.dev, b.dev, ta, tb, accumulate, half, alpha});
    op_gemm(ref, (struct gemm_args){c.ref, a.ref, b.ref, ta, tb, accumulate, half, alpha});
    twin_compare(label, dev, ref, &c, half && dev->bf16_x ? bf16_moves(s.K, 1, 3.4) : 0);
    twin_free(dev, ref, &a), twin_free(dev, ref, &b), twin_free(dev, ref, &c);
}

/* c = alpha op(a) op(b): the gradients by a and b are gemms again */
struct gemm_loss {
    struct dev *d;
    struct gemm_args a;
    const float *dc;
};

static double gemm_loss(void *ctx)
{
    struct gemm_loss *g = ctx;
    op_gemm(g->d, g->a);
    return gradient_loss(&g->a.c, g->dc);
}

static void gemm_gradient(struct dev *ref, bool ta, bool tb)
{
    enum { M = 5, N = 7, K = 6 };
    struct twin a = twin_make(ref, ref, ta ? K : M, ta ? M : K, 0), b = twin_make(ref, ref, tb ? N : K, tb ? K : N, 0);
    struct twin c = twin_make(ref, ref, M, N, 0), dc = twin_make(ref, ref, M, N, 0);
    struct twin da = twin_make(ref, ref, a.ref.rows, a.ref.cols, 0),
                db = twin_make(ref, ref, b.ref.rows, b.ref.cols, 0);
    struct gemm_loss g = {ref, {c.ref, a.ref, b.ref, ta, tb, false, false, 0.5f}, dc.ref.p};
    if (ta)
        op_gemm(ref, (struct gemm_args){da.ref, b.ref, dc.ref, tb, true, false, false, 0.5f});
    else
        op_gemm(ref, (struct gemm_args){da.ref, dc.ref, b.ref, false, !tb, false, false, 0.5f});
    if (tb)
        op_gemm(ref, (struct gemm_args){db.ref, dc.ref, a.ref, true, ta, false, false, 0.5f});
    else
        op_gemm(ref, (struct gemm_args){db.ref, a.ref, dc.ref, !ta, false, false, false, 0.5f});
    gradient_check((struct gradient_check){"gemm by a", a.ref.p, da.ref.p, a.n, 64, gemm_loss, &g, 1, 1e-5});
    gradient_check((struct gradient_check){"gemm by b", b.ref.p, db.ref.p, b.n, 64, gemm_loss, &g, 1, 1e-5});
    struct twin *all[] = {&a, &b, &c, &dc, &da, &db};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) twin_free(ref, ref, all[i]);
}

void test_gemm(struct dev *dev, struct dev *ref)
{
    for (size_t s = 0; s < sizeof gemm_shapes / sizeof *gemm_shapes; s++)
        for (int variant = 0; variant < 16; variant++) gemm_case(dev, ref, gemm_shapes[s], variant, true);
    for (size_t s = 0; s < sizeof dense_shapes / sizeof *dense_shapes; s++)
        for (int variant = 0; variant < 16; variant++) gemm_case(dev, ref, dense_shapes[s], variant, false);
    for (int i = 0; i < 4; i++) gemm_gradient(ref, i & 1, i & 2);
}

/* ---- weights ------------------------------------------------------------------------------------------------- */

static const struct weight_kind {
    enum dtype t;
    int group;
} weight_kinds[] = {{DT_F32, 0},    {DT_BF16, 0},  {DT_F16, 0},   {DT_I8, 0},     {DT_I4, 32},
                    {DT_I4, 64},    {DT_I4, 128},  {DT_NF4, 64},  {DT_BLOCK, 0},  {DT_BLOCK, 1},
                    {DT_BLOCK, 2},  {DT_BLOCK, 3}, {DT_BLOCK, 8}, {DT_BLOCK, 12}, {DT_BLOCK, 14},
                    {DT_BLOCK, 15}, {DT_F8, 0},    {DT_F8, 16},   {DT_F8, 128}};

/* a weight of N rows on one device; gate_up: two parts of N / 2 rows with different contents */
struct any_weight {
    struct weight_case part[2];
    int n_parts;
};

static struct any_weight any_weight(struct weight_kind kind, int N, int K, bool gate_up)
{
    struct any_weight w = {.n_parts = gate_up ? 2 : 1};
    for (int i = 0; i < w.n_parts; i++) {
        w.part[i] = weight_random(kind.t, N / w.n_parts, K, kind.group);
        w.part[i].src.gate_up = gate_up;
    }
    return w;
}

static struct weight *any_put(struct dev *d, const struct any_weight *w)
{
    struct weight_src src[2] = {w->part[0].src, w->part[1].src};
    struct weight *packed = d->ops->weight_pack(d, src, w->n_parts);
    if (!packed) abort();
    return packed;
}

static void any_free(struct any_weight *w)
{
    for (int i = 0; i < w->n_parts; i++) weight_case_free(&w->part[i]);
}

/* ---- linear_back --------------------------------------------------------------------------------------------- */

static const struct back_shape {
    int T, N, K;
} back_shapes[] = {{1, 1, 1},    {1, 16, 4},    {2, 34, 31},   {3, 14, 32}, {5, 66, 33},  {12, 32, 64}, {13, 62, 63},
                   {7, 130, 97}, {25, 48, 192}, {40, 100, 65}, {8, 2, 128}, {3, 300, 37}, {3, 5190, 3}, {2, 10242, 33}};

static void back_case(struct dev *dev, struct dev *ref, struct back_shape s, struct weight_kind kind, bool gate_up,
                      bool accumulate)
{
    if (case_left_out()) return;
    char label[LABEL];
    struct any_weight c = any_weight(kind, s.N, s.K, gate_up);
    struct weight *dw = any_put(dev, &c), *rw = any_put(ref, &c);
    struct twin dy = twin_make(dev, ref, s.T, s.N, 1), dx = twin_make(dev, ref, s.T, s.K, 2);
    snprintf(label, sizeof label, "linear_back %s/%d T=%d N=%d K=%d%s%s", dtype_name(kind.t), kind.group, s.T, s.N, s.K,
             gate_up ? " gate_up" : "", accumulate ? " accumulate" : "");
    op_linear_back(dev, (struct linear_back_args){dx.dev, dy.dev, dw, accumulate});
    op_linear_back(ref, (struct linear_back_args){dx.ref, dy.ref, rw, accumulate});
    double size = 1, largest = 3.4;
    if (kind.t == DT_I8) size = 45, largest = 127;
    if (kind.t == DT_I4) size = 2.7, largest = 8;
    if (kind.t == DT_F8) size = 4, largest = 7;
    if (kind.t == DT_BLOCK) {
        largest = fmax(block_largest(&c.part[0].src), gate_up ? block_largest(&c.part[1].src) : 0);
        size = largest / 2;
    }
    twin_compare(label, dev, ref, &dx, dev->bf16_x && kind.t != DT_F32 ? bf16_moves(s.N, size, largest) : 0);
    twin_free(dev, ref, &dy), twin_free(dev, ref, &dx);
    dev->ops->weight_free(dev, dw), ref->ops->weight_free(ref, rw);
    any_free(&c);
}

/* <linear(x), dy> = <x, linear_back(dy)> */
static void back_adjoint(struct dev *d, int T, int N, int K, bool gate_up)
{
    struct any_weight c = any_weight((struct weight_kind){DT_F32, 0}, N, K, gate_up);
    struct weight *w = any_put(d, &c);
    struct twin x = twin_make(d, d, T, K, 0), y = twin_make(d, d, T, N, 0), dy = twin_make(d, d, T, N, 0),
                dx = twin_make(d, d, T, K, 0);
    op_linear(d, (struct linear_args){y.dev, x.dev, w, NULL});
    op_linear_back(d, (struct linear_back_args){dx.dev, dy.dev, w, false});
    check_device("adjoint", d);
    float *got_y = get(d, y.dev.p, y.n), *got_dx = get(d, dx.dev.p, dx.n);
    struct mat my = mat_f32(got_y, T, N), mdx = mat_f32(got_dx, T, K);
    double left = gradient_loss(&my, dy.host), right = gradient_loss(&mdx, x.host), size = 0;
    for (size_t i = 0; i < dy.n; i++) size += fabs((double)got_y[i] * (double)dy.host[i]);
    free(got_y), free(got_dx);
    CHECK(fabs(left - right) <= 1e-5 * size, "linear and linear_back T=%d N=%d K=%d gate_up %d: %.9g and %.9g", T, N, K,
          gate_up, left, right);
    struct twin *all[] = {&x, &y, &dy, &dx};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) twin_free(d, d, all[i]);
    d->ops->weight_free(d, w);
    any_free(&c);
}

struct linear_loss {
    struct dev *d;
    struct linear_args a;
    const float *dy;
};

static double linear_loss(void *ctx)
{
    struct linear_loss *l = ctx;
    op_linear(l->d, l->a);
    return gradient_loss(&l->a.y, l->dy);
}

static void back_gradient(struct dev *ref, struct weight_kind kind, bool gate_up)
{
    enum { T = 3, N = 10, K = 64 };
    struct any_weight c = any_weight(kind, N, K, gate_up);
    struct weight *w = any_put(ref, &c);
    struct twin x = twin_make(ref, ref, T, K, 0), y = twin_make(ref, ref, T, N, 0), dy = twin_make(ref, ref, T, N, 0),
                dx = twin_make(ref, ref, T, K, 0);
    struct linear_loss l = {ref, {y.ref, x.ref, w, NULL}, dy.ref.p};
    op_linear_back(ref, (struct linear_back_args){dx.ref, dy.ref, w, false});
    gradient_check((struct gradient_check){"linear by x", x.ref.p, dx.ref.p, x.n, 64, linear_loss, &l, 1, 1e-5});
    struct twin *all[] = {&x, &y, &dy, &dx};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) twin_free(ref, ref, all[i]);
    ref->ops->weight_free(ref, w);
    any_free(&c);
}

/* linear on a gate_up weight: the bits of linear on the two parts in turn */
static void linear_of_gate_up(struct dev *d, int T, int F, int K, struct weight_kind kind)
{
    if (case_left_out()) return;
    char label[LABEL];
    struct any_weight c = any_weight(kind, 2 * F, K, true);
    struct weight *both = any_put(d, &c), *one[2];
    struct twin x = twin_make(d, d, T, K, 0), y = twin_make(d, d, T, 2 * F, 1), z = twin_make(d, d, T, 2 * F, 1);
    float *b = random_floats((size_t)F * 2, 1), *db = put(d, b, (size_t)F * 2 * 4);
    op_linear(d, (struct linear_args){y.dev, x.dev, both, db});
    for (int i = 0; i < 2; i++) {
        struct weight_src plain = c.part[i].src;
        plain.gate_up = false;
        one[i] = d->ops->weight_pack(d, &plain, 1);
        struct mat half = z.dev;
        half.p = (float *)z.dev.p + i * F;
        half.cols = F;
        op_linear(d, (struct linear_args){half, x.dev, one[i], db + i * F});
    }
    snprintf(label, sizeof label, "linear of gate_up %s/%d T=%d F=%d K=%d", dtype_name(kind.t), kind.group, T, F, K);
    float *got = get(d, y.dev.p, y.n), *want = get(d, z.dev.p, z.n);
    for (int t = 0; t < T; t++)
        compare_bits(label, got + (size_t)t * (size_t)y.dev.ld, want + (size_t)t * (size_t)z.dev.ld, (size_t)F * 2);
    for (int t = 0; t < T; t++) {
        size_t i = (size_t)t * (size_t)y.dev.ld + (size_t)F * 2;
        compare_bits(label, got + i, y.host + i, 1);
    }
    check_device(label, d);
    free(got), free(want), free(b);
    d->ops->free(d, db);
    struct twin *all[] = {&x, &y, &z};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) twin_free(d, d, all[i]);
    struct weight *weights[] = {both, one[0], one[1]};
    for (int i = 0; i < 3; i++) d->ops->weight_free(d, weights[i]);
    any_free(&c);
}

void test_linear_back(struct dev *dev, struct dev *ref)
{
    static const int inter[] = {1, 15, 16, 17, 33, 50};
    for (size_t k = 0; k < sizeof weight_kinds / sizeof *weight_kinds; k++) {
        struct weight_kind kind = weight_kinds[k];
        for (size_t s = 0; s < sizeof back_shapes / sizeof *back_shapes; s++) {
            struct back_shape sh = back_shapes[s];
            if (kind.t == DT_NF4 && sh.K % kind.group) continue;
            for (int variant = 0; variant < 4; variant++)
                if (!(variant & 1) || sh.N % 2 == 0) back_case(dev, ref, sh, kind, variant & 1, variant & 2);
        }
        for (size_t i = 0; i < sizeof inter / sizeof *inter; i++) {
            linear_of_gate_up(dev, 1 + (int)i * 5, inter[i], 64, kind);
            linear_of_gate_up(ref, 2, inter[i], 64, kind);
        }
        bool floats = kind.t == DT_F32 || kind.t == DT_NF4 || kind.t == DT_F16;
        if (floats) back_gradient(ref, kind, k % 2);
    }
    for (int i = 0; i < 2; i++) {
        back_adjoint(dev, 9, 46, 33, i);
        back_adjoint(ref, 9, 46, 33, i);
    }
}

/* ---- sums ---------------------------------------------------------------------------------------------------- */

void test_embed_back(struct dev *dev, struct dev *ref)
{
    static const int cols[] = {1, 15, 17, 67, 300};
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++)
        for (int T = 0; T < 70; T += 23) {
            enum { V = 11, P = 7 };
            int C = cols[i];
            int32_t id[70], at[70];
            char label[LABEL];
            for (int t = 0; t < T; t++) id[t] = random_below(V), at[t] = random_below(P);
            struct twin dx = twin_make(dev, ref, T, C, 1), table = twin_make(dev, ref, V, C, 2);
            struct twin pos = twin_make(dev, ref, P, C, 0);
            int32_t *d[] = {put(dev, id, sizeof id), put(dev, at, sizeof at)};
            int32_t *r[] = {put(ref, id, sizeof id), put(ref, at, sizeof at)};
            struct mat none = {0};
            bool with = i % 2;
            snprintf(label, sizeof label, "embed_back T=%d C=%d pos %d", T, C, with);
            float scale = i < 3 ? 0 : 2.7f;
            op_embed_back(dev, (struct embed_back_args){table.dev, with ? pos.dev : none, dx.dev, d[0], d[1], scale});
            op_embed_back(ref, (struct embed_back_args){table.ref, with ? pos.ref : none, dx.ref, r[0], r[1], scale});
            float *got = get(dev, table.dev.p, table.n), *want = get(ref, table.ref.p, table.n);
            compare_bits(label, got, want, table.n);
            twin_compare(label, dev, ref, &pos, 0);
            free(got), free(want);
            for (int k = 0; k < 2; k++) dev->ops->free(dev, d[k]), ref->ops->free(ref, r[k]);
            struct twin *all[] = {&dx, &table, &pos};
            for (size_t k = 0; k < sizeof all / sizeof *all; k++) twin_free(dev, ref, all[k]);
        }
}

void test_col_sum(struct dev *dev, struct dev *ref)
{
    static const int cols[] = {1, 15, 16, 17, 67, 300};
    for (size_t i = 0; i < sizeof cols / sizeof *cols; i++)
        for (int T = 0; T < 700; T += T < 90 ? 45 : 512) {
            char label[LABEL];
            struct twin x = twin_make(dev, ref, T, cols[i], 3), out = twin_make(dev, ref, 1, cols[i], 0);
            snprintf(label, sizeof label, "col_sum T=%d C=%d", T, cols[i]);
            op_col_sum(dev, (struct col_sum_args){x.dev, out.dev.p});
            op_col_sum(ref, (struct col_sum_args){x.ref, out.ref.p});
            twin_compare(label, dev, ref, &out, 0);
            twin_free(dev, ref, &x), twin_free(dev, ref, &out);
        }
}

/* ---- weight_update ------------------------------------------------------------------------------------------- */

/* A weight updated gives the bits that a weight packed from the rounded values gives. */
static void update_case(struct dev *d, enum dtype t, int N, int K, bool gate_up)
{
    char label[LABEL];
    struct any_weight old = any_weight((struct weight_kind){t, 0}, N, K, gate_up);
    struct any_weight fresh = any_weight((struct weight_kind){DT_F32, 0}, N, K, gate_up);
    struct any_weight rounded = any_weight((struct weight_kind){t, 0}, N, K, gate_up);
    for (int p = 0; p < fresh.n_parts; p++) {
        float *from = fresh.part[p].data;
        for (int i = 0; i < N / fresh.n_parts * K; i++) {
            if (t == DT_F32) ((float *)rounded.part[p].data)[i] = from[i];
            if (t == DT_BF16) ((uint16_t *)rounded.part[p].data)[i] = f32_to_bf16(from[i]);
            if (t == DT_F16) ((uint16_t *)rounded.part[p].data)[i] = f32_to_f16(from[i]);
        }
    }
    struct weight *w = any_put(d, &old), *want = any_put(d, &rounded);
    struct weight_src src[2] = {fresh.part[0].src, fresh.part[1].src};
    void *values[2] = {0};
    for (int p = 0; p < fresh.n_parts; p++)
        src[p].data = values[p] = put(d, src[p].data, (size_t)src[p].rows * (size_t)K * 4);
    snprintf(label, sizeof label, "weight_update %s N=%d K=%d gate_up %d", dtype_name(t), N, K, gate_up);
    for (int piece = 0; piece < 3; piece++) {
        if (N % 3) {
            d->ops->weight_update(d, w, src, fresh.n_parts, 0, 1);
            break;
        }
        d->ops->weight_update(d, w, src, fresh.n_parts, (piece + 1) % 3, 3);
    }
    check_device(label, d);
    struct twin x = twin_make(d, d, 3, K, 0), y = twin_make(d, d, 3, N, 0), z = twin_make(d, d, 3, N, 0);
    op_linear(d, (struct linear_args){y.dev, x.dev, w, NULL});
    op_linear(d, (struct linear_args){z.dev, x.dev, want, NULL});
    float *got = get(d, y.dev.p, y.n), *expected = get(d, z.dev.p, z.n);
    compare_bits(label, got, expected, y.n);
    free(got), free(expected);
    for (int p = 0; p < fresh.n_parts; p++) d->ops->free(d, values[p]);
    if (d->ops->weight_packed) {
        size_t n, m;
        const void *a = d->ops->weight_packed(w, &n), *b = d->ops->weight_packed(want, &m);
        CHECK(n == m && !memcmp(a, b, n), "%s: the packed bytes differ", label);
    }
    struct twin *all[] = {&x, &y, &z};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) twin_free(d, d, all[i]);
    d->ops->weight_free(d, w), d->ops->weight_free(d, want);
    any_free(&old), any_free(&fresh), any_free(&rounded);
}

static void update_refused(struct dev *d)
{
    struct any_weight c = any_weight((struct weight_kind){DT_I8, 0}, 4, 8, false);
    struct any_weight f = any_weight((struct weight_kind){DT_F32, 0}, 4, 8, false);
    struct weight *w8 = any_put(d, &c), *wf = any_put(d, &f);
    struct weight_src src = f.part[0].src, narrow = src;
    narrow.cols = 7;
    d->ops->weight_update(d, w8, &src, 1, 0, 1);
    CHECK(d->error.op && !strcmp(d->error.op, "weight_update"), "an int8 weight was updated");
    dev_clear_error(d);
    src.data = narrow.data = put(d, src.data, 4 * 8 * 4);
    d->ops->weight_update(d, wf, &narrow, 1, 0, 1);
    CHECK(d->error.op && !strcmp(d->error.op, "weight_update"), "a weight was updated in another shape");
    dev_clear_error(d);
    d->ops->weight_update(d, wf, &src, 1, 2, 2);
    CHECK(d->error.op && !strcmp(d->error.op, "weight_update"),
          "a weight was updated in a piece that it does not have");
    dev_clear_error(d);
    d->ops->free(d, (void *)(uintptr_t)src.data);
    d->ops->weight_free(d, w8), d->ops->weight_free(d, wf);
    any_free(&c), any_free(&f);
}

static void test_updates(struct dev *d)
{
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    for (int k = 0; k < 3; k++) {
        update_case(d, types[k], 1, 1, false);
        update_case(d, types[k], 33, 31, false);
        update_case(d, types[k], 64, 48, false);
        update_case(d, types[k], 34, 17, true);
        update_case(d, types[k], 96, 32, true);
    }
    update_refused(d);
}

/* ---- bits ---------------------------------------------------------------------------------------------------- */

/* One product with fixed contents, of which `rows` rows from row0 on are computed on d; the result's rows, malloc. */
struct bits_case {
    const char *name;
    int rows, cols; /* of the result */
    float *(*run)(const struct bits_case *, struct dev *d, int row0, int rows);
    bool by_rows;      /* a row depends on its own input only */
    const float *left; /* (rows, depth), or with ta (depth, rows) */
    const float *right;
    int depth;
    bool ta, tb, half, gate_up, accumulate;
    struct any_weight weight;
};

static float *bits_take(struct dev *d, const struct bits_case *b, struct mat c)
{
    float *host = get(d, c.p, (size_t)c.rows * (size_t)c.cols);
    check_device(b->name, d);
    d->ops->free(d, c.p);
    return host;
}

static float *bits_gemm(const struct bits_case *b, struct dev *d, int row0, int rows)
{
    size_t left = (size_t)b->rows * (size_t)b->depth, right = (size_t)b->cols * (size_t)b->depth;
    float *a = put(d, b->left, left * 4), *w = put(d, b->right, right * 4);
    struct mat c = mat_f32(put(d, NULL, (size_t)rows * (size_t)b->cols * 4), rows, b->cols);
    struct mat ma =
        b->ta ? mat_f32(a, b->depth, b->rows) : mat_f32(a + (size_t)row0 * (size_t)b->depth, rows, b->depth);
    struct mat mb = b->tb ? mat_f32(w, b->cols, b->depth) : mat_f32(w, b->depth, b->cols);
    op_gemm(d, (struct gemm_args){c, ma, mb, b->ta, b->tb, b->accumulate, b->half, 0.3f});
    d->ops->finish(d);
    d->ops->free(d, a), d->ops->free(d, w);
    return bits_take(d, b, c);
}

static float *bits_back(const struct bits_case *b, struct dev *d, int row0, int rows)
{
    float *dy = put(d, b->left, (size_t)b->rows * (size_t)b->depth * 4);
    struct weight *w = any_put(d, &b->weight);
    struct mat c = mat_f32(put(d, NULL, (size_t)rows * (size_t)b->cols * 4), rows, b->cols);
    op_linear_back(d, (struct linear_back_args){c, mat_f32(dy + (size_t)row0 * (size_t)b->depth, rows, b->depth), w,
                                                b->accumulate});
    d->ops->finish(d);
    d->ops->free(d, dy), d->ops->weight_free(d, w);
    return bits_take(d, b, c);
}

/* many rows of a deep bf16 weight take k in parts */
static float *bits_linear(const struct bits_case *b, struct dev *d, int row0, int rows)
{
    float *x = put(d, b->left, (size_t)b->rows * (size_t)b->depth * 4);
    float *bias = put(d, b->right, (size_t)b->cols * 4);
    struct weight *w = any_put(d, &b->weight);
    struct mat y = mat_f32(put(d, NULL, (size_t)rows * (size_t)b->cols * 4), rows, b->cols);
    op_linear(d, (struct linear_args){y, mat_f32(x + (size_t)row0 * (size_t)b->depth, rows, b->depth), w, bias});
    d->ops->finish(d);
    d->ops->free(d, x), d->ops->free(d, bias), d->ops->weight_free(d, w);
    return bits_take(d, b, y);
}

/* all rows in one group, or where these are few each in a group of its own */
static float *bits_lora(const struct bits_case *b, struct dev *d, int row0, int rows)
{
    enum { R = 8 };
    float *x = put(d, b->left, (size_t)b->rows * (size_t)b->depth * 4);
    float *w = put(d, b->right, (size_t)(b->depth + b->cols) * R * 4);
    struct mat c = mat_f32(put(d, NULL, (size_t)rows * (size_t)b->cols * 4), rows, b->cols);
    struct lora_part part = {w, w + (size_t)b->depth * R, R, 0, b->cols, 0.7f};
    struct lora_group group[4];
    int n = rows <= 4 ? rows : 1;
    for (int i = 0; i < n; i++) group[i] = (struct lora_group){i, n == 1 ? rows : 1, 1, &part};
    op_lora(d, (struct lora_args){c, mat_f32(x + (size_t)row0 * (size_t)b->depth, rows, b->depth), group, n});
    d->ops->finish(d);
    d->ops->free(d, x), d->ops->free(d, w);
    return bits_take(d, b, c);
}

static float *bits_sum(const struct bits_case *b, struct dev *d, int row0, int rows)
{
    float *x = put(d, b->left, (size_t)b->depth * (size_t)b->cols * 4);
    struct mat c = mat_f32(put(d, NULL, (size_t)b->cols * 4), 1, b->cols);
    op_col_sum(d, (struct col_sum_args){mat_f32(x, b->depth, b->cols), c.p});
    d->ops->finish(d);
    d->ops->free(d, x);
    return bits_take(d, b, c);
}

/* A weight's outputs in slices: linear writes each slice of y, linear_back adds up slice by slice, and the bits are
 * those of one call. */
static void slices_check(struct dev *d, struct weight_kind kind, bool accumulate)
{
    enum { T = 14, K = 64, N = 2 * BACK_SLICE + 75 };
    static const int forward[] = {0, 32, 96, 1280, 2624, N}, back[] = {0, 1280, N}, back3[] = {0, 1280, 2560, N};
    char label[LABEL];
    size_t wide = (size_t)T * N, narrow = (size_t)T * K;
    float *big = random_floats(wide, 1), *small = random_floats(narrow, 1), *bias = random_floats(N, 1);
    struct any_weight c = any_weight(kind, N, K, false);
    struct weight *w = any_put(d, &c);
    float *x = put(d, small, narrow * 4), *dy = put(d, big, wide * 4), *b = put(d, bias, N * 4);
    float *y = put(d, big, wide * 4), *y2 = put(d, NULL, wide * 4), *dx = put(d, small, narrow * 4);
    op_linear(d, (struct linear_args){mat_f32(y, T, N), mat_f32(x, T, K), w, b});
    op_linear_back(d, (struct linear_back_args){mat_f32(dx, T, K), mat_f32(dy, T, N), w, accumulate});
    for (int i = 0; i + 1 < (int)(sizeof forward / sizeof *forward); i++) {
        int from = forward[i], n = forward[i + 1] - from;
        struct mat part = {y2 + from, DT_F32, T, n, N};
        op_linear(d, (struct linear_args){part, mat_f32(x, T, K), w, b + from, from});
    }
    d->ops->finish(d);
    float *want = get(d, y, wide), *got = get(d, y2, wide), *want_back = get(d, dx, narrow);
    snprintf(label, sizeof label, "linear %s/%d in slices", dtype_name(kind.t), kind.group);
    check_device(label, d);
    compare_bits(label, got, want, wide);
    for (int way = 0; way < 2; way++) {
        const int *at = way ? back3 : back;
        float *dx2 = put(d, small, narrow * 4);
        for (int i = 0; at[i] < N; i++) {
            struct mat part = {dy + at[i], DT_F32, T, at[i + 1] - at[i], N};
            op_linear_back(d, (struct linear_back_args){mat_f32(dx2, T, K), part, w, accumulate || i > 0, at[i]});
        }
        d->ops->finish(d);
        float *sum = get(d, dx2, narrow);
        snprintf(label, sizeof label, "linear_back %s/%d in %d slices", dtype_name(kind.t), kind.group, way + 2);
        check_device(label, d);
        compare_bits(label, sum, want_back, narrow);
        free(sum);
        d->ops->free(d, dx2);
    }
    void *device[] = {x, dy, b, y, y2, dx}, *host[] = {big, small, bias, want, got, want_back};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) d->ops->free(d, device[i]), free(host[i]);
    d->ops->weight_free(d, w);
    any_free(&c);
}

static void bits_check(const struct bits_case *b, const char *const *levels, int n_levels)
{
    float *want = NULL;
    size_t n = (size_t)b->rows * (size_t)b->cols;
    for (int i = 0; i < n_levels; i++)
        for (int threads = 1; threads <= 3; threads++) {
            char label[LABEL];
            struct dev *d = open_checked(levels[i], threads);
            bool product = b->run == bits_gemm || b->run == bits_back || b->run == bits_linear;
            if (threads == 1 && product && own_bf16_sums(levels[i])) {
                free(want);
                want = NULL;
            }
            bool gpu = !d->ops->host_memory; /* has no threads, and other kernels of linear for many rows */
            if (gpu && threads != 2) {
                dev_close(d);
                continue;
            }
            bool alone = b->by_rows && threads == 2 && !(gpu && b->run == bits_linear);
            float *got = b->run(b, d, 0, b->rows);
            snprintf(label, sizeof label, "%s: %s, %d threads, bf16 x %d", b->name, levels[i], threads, with_bf16_x);
            if (want) compare_bits(label, got, want, n);
            for (int row = 0; alone && row<b->rows; row += b->rows> 64 ? 23 : 1 + row % 3) {
                int rows = 1 + row % 3 < b->rows - row ? 1 + row % 3 : b->rows - row;
                float *some = b->run(b, d, row, rows);
                snprintf(label, sizeof label, "%s: %s, rows %d.. alone, bf16 x %d", b->name, levels[i], row,
                         with_bf16_x);
                compare_bits(label, some, got + (size_t)row * (size_t)b->cols, (size_t)rows * (size_t)b->cols);
                free(some);
            }
            if (want)
                free(got);
            else
                want = got;
            dev_close(d);
        }
    free(want);
}

/* a NaN in one row's input makes that row of the result NaN, and no other row */
static void nan_check(const struct bits_case *b, const char *level)
{
    struct bits_case with = *b;
    struct dev *d = open_checked(level, 2);
    size_t n = (size_t)b->rows * (size_t)b->depth;
    float *left = malloc(n * sizeof *left);
    if (!left) abort();
    memcpy(left, b->left, n * sizeof *left);
    left[2 * (size_t)b->depth + (size_t)b->depth / 2] = NAN;
    with.left = left;
    float *got = with.run(&with, d, 0, b->rows), *want = b->run(b, d, 0, b->rows);
    for (int r = 0; r < b->rows; r++)
        for (int c = 0; c < b->cols; c++) {
            size_t i = (size_t)r * (size_t)b->cols + (size_t)c;
            CHECK(isnan(got[i]) == (r == 2), "%s: %s: a NaN in row 2, and [%d][%d] is %g", b->name, level, r, c,
                  (double)got[i]);
            CHECK(r == 2 || got[i] == want[i], "%s: %s: a NaN in row 2 changed row %d", b->name, level, r);
        }
    free(left), free(got), free(want);
    dev_close(d);
}

static void test_slices(struct dev *d)
{
    for (size_t k = 0; k < sizeof weight_kinds / sizeof *weight_kinds; k++) slices_check(d, weight_kinds[k], k % 2);
}

static void bits_run(struct bits_case b, const char *const *levels, int n_levels)
{
    size_t left = (size_t)(b.rows ? b.rows : 1) * (size_t)b.depth, right = (size_t)(b.cols + b.depth) * (size_t)b.depth;
    if (b.run == bits_sum) left = (size_t)b.cols * (size_t)b.depth;
    if (b.run == bits_lora) right = (size_t)(b.cols + b.depth) * 8;
    float *l = random_floats(left, 1), *r = random_floats(right, 1);
    b.left = l, b.right = r;
    bits_check(&b, levels, n_levels);
    for (int i = 0; b.by_rows && i < n_levels; i++) nan_check(&b, levels[i]);
    free(l), free(r);
}

void test_train_gemm(const char *const *levels, int n_levels)
{
    struct bits_case gemms[] = {{.name = "gemm dot tb", .rows = 39, .cols = 9, .depth = 77, .tb = true},
                                {.name = "gemm dot", .rows = 21, .cols = 31, .depth = 33},
                                {.name = "gemm wide", .rows = 57, .cols = 100, .depth = 8},
                                {.name = "gemm deep", .rows = 39, .cols = 70, .depth = 131},
                                {.name = "gemm deep tb", .rows = 39, .cols = 33, .depth = 90, .tb = true},
                                {.name = "gemm ta", .rows = 39, .cols = 50, .depth = 131, .ta = true},
                                {.name = "gemm ta narrow", .rows = 70, .cols = 8, .depth = 131, .ta = true},
                                {.name = "gemm ta flat", .rows = 8, .cols = 130, .depth = 97, .ta = true},
                                {.name = "gemm ta tb", .rows = 40, .cols = 20, .depth = 40, .ta = true, .tb = true}};
    for (size_t i = 0; i < sizeof gemms / sizeof *gemms; i++) {
        struct bits_case b = gemms[i];
        b.run = bits_gemm, b.half = i % 4 != 0, b.accumulate = i % 2, b.by_rows = !b.ta;
        bits_run(b, levels, n_levels);
    }
    for (size_t k = 0; k < sizeof weight_kinds / sizeof *weight_kinds; k++)
        for (int gate_up = 0; gate_up < 2; gate_up++) {
            struct weight_kind kind = weight_kinds[k];
            struct bits_case b = {"linear_back", 29, kind.t == DT_NF4 ? 128 : 97, bits_back, true, .depth = 66};
            b.weight = any_weight(kind, b.depth, b.cols, gate_up);
            bits_run(b, levels, n_levels);
            any_free(&b.weight);
        }
    for (int gate_up = 0; gate_up < 2; gate_up++) {
        /* other devices take more rows in other kernels */
        int rows = strncmp(levels[0], "cpu", 3) ? 8 : 100;
        struct bits_case b = {"linear", rows, 18, bits_linear, true, .depth = 1401};
        b.weight = any_weight((struct weight_kind){DT_BF16, 0}, b.cols, b.depth, gate_up);
        bits_run(b, levels, n_levels);
        any_free(&b.weight);
    }
    bits_run((struct bits_case){"lora", 37, 100, bits_lora, true, .depth = 77}, levels, n_levels);
    bits_run((struct bits_case){"col_sum", 1, 203, bits_sum, .depth = 50}, levels, n_levels);
    for (int i = with_bf16_x ? 0 : -1; i < n_levels; i++) {
        struct dev *d = open_checked(i < 0 ? "ref" : levels[i], 2);
        test_updates(d);
        test_slices(d);
        dev_close(d);
    }
}
