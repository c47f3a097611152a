/* Tests of the ops without a cache: embed, norms, add, activations, rows, linear; and that a row's result depends on
 * that row alone. */
#include "tests/ops/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct tolerance tight = {1e-6, 2e-6, 1e-11}, loose = {1e-5, 1e-5, 1e-10};

static const int row_counts[] = {1, 2, 7, 33};
static const int col_counts[] = {1, 7, 15, 16, 17, 32, 67, 257, 1031};
#define EACH(v, list)                                                                                                  \
    for (size_t v##_i = 0, v; v##_i < sizeof(list) / sizeof *(list) && (v = (size_t)(list)[v##_i], 1); v##_i++)

/* a matrix on both devices with the same contents, rows ld apart; the gap between rows is checked to stay as it was */
struct pair {
    struct mat dev, ref;
    float *host;
    size_t n;
};

static struct pair pair_make(struct dev *dev, struct dev *ref, int rows, int cols, int ld, float scale)
{
    struct pair p = {.n = (size_t)rows * ld, .host = random_floats((size_t)rows * ld, scale)};
    p.dev = (struct mat){put(dev, p.host, p.n * 4), DT_F32, rows, cols, ld};
    p.ref = (struct mat){put(ref, p.host, p.n * 4), DT_F32, rows, cols, ld};
    return p;
}

static void pair_compare(const char *label, struct dev *dev, struct dev *ref, const struct pair *p,
                         struct tolerance tol)
{
    float *got = get(dev, p->dev.p, p->n), *want = get(ref, p->ref.p, p->n);
    compare(label, got, want, p->n, tol);
    for (int r = 0; r < p->dev.rows; r++)
        for (int c = p->dev.cols; c < p->dev.ld; c++) {
            size_t i = (size_t)r * p->dev.ld + c;
            CHECK(got[i] == p->host[i], "%s: wrote past the end of row %d", label, r);
        }
    check_device(label, dev);
    check_device(label, ref);
    free(got);
    free(want);
}

static void pair_free(struct dev *dev, struct dev *ref, struct pair *p)
{
    dev->ops->free(dev, p->dev.p);
    ref->ops->free(ref, p->ref.p);
    free(p->host);
}

/* rows looked up in a packed weight, bit for bit: there is nothing to round but the product with the scale */
static void embed_packed_case(struct dev *dev, struct dev *ref, int T, int C, enum dtype t, bool positions)
{
    enum { V = 37, P = 5 };
    char label[LABEL];
    if (case_left_out()) return;
    struct weight_case table = weight_random(t, V, C,
                                             t == DT_I4                ? 32
                                             : t == DT_F8 && positions ? 16
                                                                       : 0),
                       pos = weight_random(DT_F16, P, C, 0);
    int32_t id[64], at[64];
    float scale = T % 2 ? 33.5f : 0;
    for (int i = 0; i < T; i++) id[i] = random_below(V), at[i] = random_below(P);
    struct pair out = pair_make(dev, ref, T, C, C + 1, 1);
    struct dev *devs[2] = {dev, ref};
    snprintf(label, sizeof label, "embed T=%d C=%d packed %s pos %d", T, C, dtype_name(t), positions);
    for (int i = 0; i < 2; i++) {
        struct dev *d = devs[i];
        struct weight *w = weight_put(d, &table);
        void *q = put(d, pos.data, dtype_bytes(DT_F16, (size_t)P * (size_t)C));
        int32_t *ids = put(d, id, (size_t)T * 4), *ats = put(d, at, (size_t)T * 4);
        op_embed(d, (struct embed_args){.out = i ? out.ref : out.dev,
                                        .pos_table = {positions ? q : NULL, DT_F16, P, C, C},
                                        .id = ids,
                                        .pos = ats,
                                        .w = w,
                                        .scale = scale});
        d->ops->finish(d);
        d->ops->free(d, q), d->ops->free(d, ids), d->ops->free(d, ats), d->ops->weight_free(d, w);
    }
    float *got = get(dev, out.dev.p, out.n), *want = get(ref, out.ref.p, out.n);
    compare_bits(label, got, want, out.n);
    free(got);
    free(want);
    pair_compare(label, dev, ref, &out, tight);
    pair_free(dev, ref, &out);
    weight_case_free(&table);
    weight_case_free(&pos);
}

void test_embed(struct dev *dev, struct dev *ref)
{
    static const enum dtype packed[] = {DT_F32, DT_BF16, DT_F16, DT_I8, DT_I4, DT_F8};
    EACH(T, row_counts)
    EACH(C, col_counts)
    for (int k = 0; k < 12; k++)
        embed_packed_case(dev, ref, (int)T, (int)C, packed[k % 6], k >= 6);
    EACH(T, row_counts) for (int C = 64; C <= 192; C += 64) embed_packed_case(dev, ref, (int)T, C, DT_NF4, C == 64);
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    EACH(T, row_counts) EACH(C, col_counts) for (int k = 0; k < 6; k++)
    {
        enum { V = 11, P = 5 };
        char label[LABEL];
        int ld = (int)C + k;
        struct weight_case table = weight_random(types[k % 3], V, ld, 0),
                           pos = weight_random(types[k / 2], P, (int)C, 0);
        int32_t id[64], at[64];
        for (size_t t = 0; t < T; t++) id[t] = random_below(V), at[t] = random_below(P);
        struct pair out = pair_make(dev, ref, (int)T, (int)C, ld, 1);
        struct dev *devs[2] = {dev, ref};
        snprintf(label, sizeof label, "embed T=%zu C=%zu %s pos %s", T, C, dtype_name(types[k % 3]),
                 k % 2 ? dtype_name(types[k / 2]) : "none");
        for (int i = 0; i < 2; i++) {
            struct dev *d = devs[i];
            size_t table_bytes = dtype_bytes(table.src.t, (size_t)V * ld);
            size_t pos_bytes = dtype_bytes(pos.src.t, (size_t)P * C);
            void *p = put(d, table.data, table_bytes), *q = put(d, pos.data, pos_bytes);
            int32_t *ids = put(d, id, T * 4), *ats = put(d, at, T * 4);
            op_embed(d, (struct embed_args){.out = i ? out.ref : out.dev,
                                            .table = {p, table.src.t, V, (int)C, ld},
                                            .pos_table = {k % 2 ? q : NULL, pos.src.t, P, (int)C, (int)C},
                                            .id = ids,
                                            .pos = ats,
                                            .scale = T % 2 ? 0 : 0.7f});
            d->ops->finish(d);
            d->ops->free(d, p), d->ops->free(d, q), d->ops->free(d, ids), d->ops->free(d, ats);
        }
        pair_compare(label, dev, ref, &out, tight);
        pair_free(dev, ref, &out);
        weight_case_free(&table);
        weight_case_free(&pos);
    }
}

/* Between rows: with an even number of rows one that leaves them aligned, where a device takes several elements at
 * once.
 */
static int gap(size_t rows)
{
    return rows % 2 ? 3 : 4;
}

/* norm and add_norm; fused == composed on the device itself */
static void norm_case(struct dev *dev, struct dev *ref, int T, int C, enum norm_kind kind, bool bias, bool fused)
{
    char label[LABEL];
    if (case_left_out()) return;
    float *w = random_floats((size_t)C, 1), *b = random_floats((size_t)C, 1);
    int ld = C + gap(T);
    struct pair x = pair_make(dev, ref, T, C, C + gap(T), 3), y = pair_make(dev, ref, T, C, C, 1);
    struct pair out = pair_make(dev, ref, T, C, ld, 1), again = pair_make(dev, ref, T, C, C, 1);
    struct dev *devs[2] = {dev, ref};
    snprintf(label, sizeof label, "%s T=%d C=%d kind %d bias %d", fused ? "add_norm" : "norm", T, C, kind, bias);
    for (int i = 0; i < 2; i++) {
        struct dev *d = devs[i];
        float *dw = put(d, w, (size_t)C * 4), *db = put(d, b, (size_t)C * 4);
        struct mat mx = i ? x.ref : x.dev, my = i ? y.ref : y.dev, mo = i ? out.ref : out.dev;
        struct mat ma = i ? again.ref : again.dev;
        if (fused) {
            op_add_norm(d, (struct add_norm_args){mo, mx, my, dw, bias ? db : NULL, 1e-5f, kind});
            op_norm(d, (struct norm_args){ma, mx, dw, bias ? db : NULL, 1e-5f, kind}); /* x is the sum now */
        } else {
            op_norm(d, (struct norm_args){mo, mx, dw, bias ? db : NULL, 1e-5f, kind});
            op_norm(d, (struct norm_args){mx, mx, dw, bias ? db : NULL, 1e-5f, kind}); /* in place */
        }
        d->ops->finish(d);
        d->ops->free(d, dw), d->ops->free(d, db);
    }
    pair_compare(label, dev, ref, &out, loose);
    pair_compare(label, dev, ref, &x, loose);
    if (fused) {
        float *one = get(dev, out.dev.p, out.n), *two = get(dev, again.dev.p, again.n);
        for (int t = 0; t < T; t++) compare_bits(label, one + (size_t)t * ld, two + (size_t)t * C, (size_t)C);
        free(one), free(two);
    }
    pair_free(dev, ref, &x), pair_free(dev, ref, &y), pair_free(dev, ref, &out), pair_free(dev, ref, &again);
    free(w), free(b);
}

/* Rows of any length, and the same bits wherever a row lies. */
static void norm_wide(struct dev *d, struct dev *ref, int C)
{
    struct pair x = pair_make(d, ref, 1, C, C, 2), w = pair_make(d, ref, 1, C, C, 1);
    float *moved = put(d, NULL, (size_t)(C + 1) * 4), *out = put(d, NULL, (size_t)C * 8);
    d->ops->upload(d, moved + 1, x.host, (size_t)C * 4);
    struct mat a = mat_f32(out, 1, C), b = mat_f32(out + C, 1, C);
    op_norm(d, (struct norm_args){a, x.dev, w.dev.p, w.dev.p, 1e-5f, NORM_LAYER});
    op_norm(d, (struct norm_args){b, mat_f32(moved + 1, 1, C), w.dev.p, w.dev.p, 1e-5f, NORM_LAYER});
    op_norm(ref, (struct norm_args){x.ref, x.ref, w.ref.p, w.ref.p, 1e-5f, NORM_LAYER});
    float *got = get(d, out, (size_t)C * 2), *want = get(ref, x.ref.p, (size_t)C);
    compare("norm of a wide row", got, want, (size_t)C, loose);
    compare_bits("norm of a wide row elsewhere", got + C, got, (size_t)C);
    check_device("norm of a wide row", d);
    free(got), free(want);
    d->ops->free(d, moved), d->ops->free(d, out);
    pair_free(d, ref, &x), pair_free(d, ref, &w);
}

void test_norm(struct dev *dev, struct dev *ref)
{
    EACH(T, row_counts)
    EACH(C, col_counts)
    for (int k = 0; k < 4; k++) norm_case(dev, ref, (int)T, (int)C, k & 1 ? NORM_LAYER : NORM_RMS, k & 2, false);
    static const int wide[] = {4, 128, 1024, 1028, 4096, 4100, 8192, 8196};
    EACH(C, wide) norm_wide(dev, ref, (int)C);
    norms_prequantise(dev, ref, false);
}

void test_add_norm(struct dev *dev, struct dev *ref)
{
    EACH(T, row_counts)
    EACH(C, col_counts)
    for (int k = 0; k < 4; k++) norm_case(dev, ref, (int)T, (int)C, k & 1 ? NORM_LAYER : NORM_RMS, k & 2, true);
    post_norms(dev, ref);
    norms_prequantise(dev, ref, true);
}

void test_add(struct dev *dev, struct dev *ref)
{
    EACH(T, row_counts) EACH(C, col_counts)
    {
        char label[LABEL];
        struct pair x = pair_make(dev, ref, (int)T, (int)C, (int)C + gap(T), 1);
        struct pair y = pair_make(dev, ref, (int)T, (int)C, (int)C, 1);
        snprintf(label, sizeof label, "add T=%zu C=%zu", T, C);
        op_add(dev, (struct add_args){x.dev, y.dev});
        op_add(ref, (struct add_args){x.ref, y.ref});
        pair_compare(label, dev, ref, &x, (struct tolerance){0, 0, 0});
        pair_free(dev, ref, &x), pair_free(dev, ref, &y);
    }
}

void test_head_norm(struct dev *dev, struct dev *ref)
{
    static const int dims[] = {1, 8, 16, 20, 64, 128};
    EACH(T, row_counts) EACH(D, dims) for (int heads = 1; heads < 4; heads++) for (int k = 0; k < 6; k++)
    {
        char label[LABEL];
        int col = 5, cols = col + heads * (int)D + 2;
        enum norm_kind kind = k % 2 ? NORM_LAYER : NORM_RMS;
        bool by_head = k / 2 == 1, bias = k > 3;
        size_t n = (size_t)heads * D;
        float *w = random_floats(2 * n, 1);
        struct pair x = pair_make(dev, ref, (int)T, cols, cols, 2);
        float *dw = put(dev, w, 2 * n * 4), *rw = put(ref, w, 2 * n * 4);
        float *db = bias ? dw + n : NULL, *rb = bias ? rw + n : NULL;
        snprintf(label, sizeof label, "head_norm T=%zu heads=%d dim=%zu case %d", T, heads, D, k);
        op_head_norm(dev, (struct head_norm_args){x.dev, col, heads, (int)D, dw, 1e-3f, kind, db, by_head});
        op_head_norm(ref, (struct head_norm_args){x.ref, col, heads, (int)D, rw, 1e-3f, kind, rb, by_head});
        pair_compare(label, dev, ref, &x, loose);
        pair_free(dev, ref, &x);
        dev->ops->free(dev, dw), ref->ops->free(ref, rw), free(w);
    }
}

void test_act_mul(struct dev *dev, struct dev *ref)
{
    EACH(T, row_counts) EACH(C, col_counts) for (int act = 0; act <= ACT_SWIGLU_CLAMPED; act++)
    {
        char label[LABEL];
        struct pair gu = pair_make(dev, ref, (int)T, 2 * (int)C, 2 * (int)C + gap(T), act % 2 ? 3 : 30);
        struct pair out = pair_make(dev, ref, (int)T, (int)C, (int)C + gap(T), 1);
        snprintf(label, sizeof label, "act_mul T=%zu F=%zu act %d", T, C, act);
        op_act_mul(dev, (struct act_mul_args){out.dev, gu.dev, (enum act_kind)act});
        op_act_mul(ref, (struct act_mul_args){out.ref, gu.ref, (enum act_kind)act});
        pair_compare(label, dev, ref, &out, loose);
        pair_free(dev, ref, &gu), pair_free(dev, ref, &out);
    }
}

void test_act(struct dev *dev, struct dev *ref)
{
    EACH(T, row_counts) EACH(C, col_counts) for (int act = 0; act <= ACT_RELU; act++)
    {
        char label[LABEL];
        struct pair x = pair_make(dev, ref, (int)T, (int)C, (int)C + gap(T), act % 2 ? 3 : 200);
        snprintf(label, sizeof label, "act T=%zu C=%zu act %d", T, C, act);
        op_act(dev, (struct act_args){x.dev, (enum act_kind)act});
        op_act(ref, (struct act_args){x.ref, (enum act_kind)act});
        pair_compare(label, dev, ref, &x, loose);
        pair_free(dev, ref, &x);
    }
}

void test_softcap(struct dev *dev, struct dev *ref)
{
    static const float caps[] = {0, 0.5f, 30};
    EACH(T, row_counts) EACH(C, col_counts) for (int k = 0; k < 3; k++)
    {
        char label[LABEL];
        float scale = C % 2 ? 1 : 0.3f;
        struct pair x = pair_make(dev, ref, (int)T, (int)C, (int)C + gap(T), T % 2 ? 3 : 40);
        snprintf(label, sizeof label, "softcap T=%zu C=%zu scale %g cap %g", T, C, (double)scale, (double)caps[k]);
        op_softcap(dev, (struct softcap_args){x.dev, scale, caps[k]});
        op_softcap(ref, (struct softcap_args){x.ref, scale, caps[k]});
        pair_compare(label, dev, ref, &x, (struct tolerance){1e-7, 1e-6, 1e-12});
        pair_free(dev, ref, &x);
    }
}

void test_rows(struct dev *dev, struct dev *ref)
{
    EACH(T, row_counts) EACH(C, col_counts) EACH(R, row_counts)
    {
        char label[LABEL];
        int32_t row[64];
        for (size_t r = 0; r < R; r++) row[r] = random_below((int)T);
        struct pair x = pair_make(dev, ref, (int)T, (int)C, (int)C + gap(R), 1);
        struct pair out = pair_make(dev, ref, (int)R, (int)C, (int)C + gap(R), 1);
        int32_t *di = put(dev, row, R * 4), *ri = put(ref, row, R * 4);
        snprintf(label, sizeof label, "rows T=%zu C=%zu R=%zu", T, C, R);
        op_rows(dev, (struct rows_args){out.dev, x.dev, di});
        op_rows(ref, (struct rows_args){out.ref, x.ref, ri});
        pair_compare(label, dev, ref, &out, (struct tolerance){0, 0, 0});
        pair_free(dev, ref, &x), pair_free(dev, ref, &out);
        dev->ops->free(dev, di), ref->ops->free(ref, ri);
    }
}

/* ---- linear -------------------------------------------------------------------------------------------------- */

struct weight_kind {
    enum dtype t;
    int group;
};

static const struct weight_kind weight_kinds[] = {
    {DT_F32, 0},   {DT_BF16, 0},  {DT_F16, 0},    {DT_I8, 0},     {DT_I4, 32},    {DT_I4, 64},
    {DT_I4, 128},  {DT_NF4, 64},  {DT_BLOCK, 0},  {DT_BLOCK, 1},  {DT_BLOCK, 2},  {DT_BLOCK, 3},
    {DT_BLOCK, 6}, {DT_BLOCK, 8}, {DT_BLOCK, 10}, {DT_BLOCK, 12}, {DT_BLOCK, 14}, {DT_BLOCK, 15},
    {DT_F8, 0},    {DT_F8, 16},   {DT_F8, 48},    {DT_F8, 128},   {DT_F8, 512}};

static const struct linear_shape {
    int M, N, K;
} linear_shapes[] = {{1, 1, 1},      {1, 16, 4},    {2, 17, 3},    {3, 15, 31},   {1, 33, 32},   {5, 31, 33},
                     {11, 32, 64},   {12, 47, 63},  {13, 64, 65},  {14, 65, 97},  {24, 70, 127}, {25, 100, 128},
                     {33, 129, 129}, {1, 300, 200}, {2, 130, 300}, {4, 49, 1000}, {50, 20, 40},  {100, 16, 37},
                     {2, 15, 64},    {7, 17, 192},  {8, 40, 4864}, {9, 47, 896},  {10, 49, 128}, {1, 97, 896},
                     {16, 33, 160},  {17, 31, 256}, {32, 63, 130}, {64, 65, 64},  {65, 127, 31}, {129, 129, 257},
                     {40, 260, 70},  {1, 19, 4300}, {20, 9, 4900}, {1, 6, 8500}};

/* Rows that try the quantiser: outliers, zeros, one value, ties of rounding, far apart magnitudes. */
static void linear_rows(float *x, int M, int K)
{
    for (int m = 0; m < M; m++)
        for (int k = 0; k < K; k++) {
            float *v = x + (size_t)m * K + k;
            if ((m % 7 == 1 || m % 13 == 0) && (k == K / 2 || k == K - 1)) *v = m % 2 ? 3e3f : -7e5f;
            if (m % 7 == 3) *v = 0;
            if (m % 7 == 4) *v = k == 0 ? 127.0f : (float)(random_below(400) - 200) * 0.5f; /* ties at .5 */
            if (m % 7 == 5) *v *= 1e-20f;
            if (m % 7 == 6) *v *= 1e6f;
        }
}

/* Of all kinds those of type `only`: DT_BLOCK or DT_F8; DT_NONE: all others. */
static void linear_cases(struct dev *dev, struct dev *ref, enum dtype only)
{
    for (size_t s = 0; s < sizeof linear_shapes / sizeof *linear_shapes; s++)
        for (size_t k = 0; k < sizeof weight_kinds / sizeof *weight_kinds; k++) {
            struct linear_shape sh = linear_shapes[s];
            struct weight_kind kind = weight_kinds[k];
            if (with_bf16_x && !dev->ops->host_memory && kind.t != DT_BF16) continue; /* the same as without */
            bool apart = kind.t == DT_BLOCK || kind.t == DT_F8;
            if ((apart ? kind.t : DT_NONE) != only) continue;
            if (sh.K > 8000 && kind.t != DT_I8 && kind.t != DT_I4 && kind.t != DT_BLOCK)
                continue; /* more sums than the limits allow for */
            if ((kind.t == DT_NF4 && sh.K % kind.group) || case_left_out()) continue;
            char label[LABEL];
            struct weight_case c = weight_random(kind.t, sh.N, sh.K, kind.group);
            struct weight *dw = weight_put(dev, &c), *rw = weight_put(ref, &c);
            struct pair x = pair_make(dev, ref, sh.M, sh.K, sh.K, 1), y = pair_make(dev, ref, sh.M, sh.N, sh.N + 3, 1);
            float *b = random_floats((size_t)sh.N, 1);
            float *db = put(dev, b, (size_t)sh.N * 4), *rb = put(ref, b, (size_t)sh.N * 4);
            bool bias = (s + k) % 2;
            linear_rows(x.host, sh.M, sh.K);
            dev->ops->upload(dev, x.dev.p, x.host, x.n * 4);
            ref->ops->upload(ref, x.ref.p, x.host, x.n * 4);
            snprintf(label, sizeof label, "linear %s/%d M=%d N=%d K=%d bias %d", dtype_name(kind.t), kind.group, sh.M,
                     sh.N, sh.K, bias);
            op_linear(dev, (struct linear_args){y.dev, x.dev, dw, bias ? db : NULL});
            op_linear(ref, (struct linear_args){y.ref, x.ref, rw, bias ? rb : NULL});
            /* rows of 1e6 among the others: compare row by row, in units of the row's largest */
            float *got = get(dev, y.dev.p, y.n), *want = get(ref, y.ref.p, y.n);
            for (int m = 0; m < sh.M; m++) {
                float *g = got + (size_t)m * y.dev.ld, *w = want + (size_t)m * y.dev.ld;
                double most = 1e-30;
                for (int n = 0; n < sh.N; n++) most = fmax(most, fabs((double)w[n]));
                /* the squares of a float sum's errors grow with its terms */
                compare(label, g, w, (size_t)sh.N, (struct tolerance){most * 4e-6, 4e-6, fmax(1e-11, 4e-15 * sh.K)});
            }
            check_device(label, dev);
            free(got), free(want), free(b);
            dev->ops->free(dev, db), ref->ops->free(ref, rb);
            dev->ops->weight_free(dev, dw), ref->ops->weight_free(ref, rw);
            pair_free(dev, ref, &x), pair_free(dev, ref, &y);
            weight_case_free(&c);
        }
}

void test_linear(struct dev *dev, struct dev *ref)
{
    linear_cases(dev, ref, DT_NONE);
    linear_cases(dev, ref, DT_BLOCK);
    linear_cases(dev, ref, DT_F8);
}

/* gate_up of ref over the same weights; got (M, y.ld) of the device is held to it, in units of what multiplies up to it
 */
static void gate_up_ref(const char *label, struct dev *ref, const struct weight_src parts[2], struct gate_up_args a,
                        const float *got, int ld)
{
    struct weight *w = ref->ops->weight_pack(ref, parts, 2);
    int F = a.y.cols;
    a.w = w;
    op_gate_up(ref, a);
    check_device(label, ref);
    float *want = get(ref, a.y.p, (size_t)a.y.rows * (size_t)a.y.ld);
    float *both = get(ref, a.tmp.p, (size_t)a.tmp.rows * (size_t)a.tmp.ld);
    for (int m = 0; m < a.y.rows; m++) {
        double gate = 1e-30, up = 1e-30;
        for (int f = 0; f < F; f++) {
            gate = fmax(gate, fabs((double)both[(size_t)m * (size_t)a.tmp.ld + f]));
            up = fmax(up, fabs((double)both[(size_t)m * (size_t)a.tmp.ld + F + f]));
        }
        compare(label, got + (size_t)m * ld, want + (size_t)m * (size_t)a.y.ld, (size_t)F,
                (struct tolerance){gate * up * 1e-5, 1e-5, 1e-9});
    }
    free(want), free(both);
    ref->ops->weight_free(ref, w);
}

/* Against linear and act_mul of the same device, bit for bit, and against ref. */
void test_gate_up(struct dev *dev, struct dev *ref)
{
    static const struct linear_shape all[] = {{1, 1, 1},    {2, 15, 33},  {3, 16, 64},
                                              {5, 17, 128}, {13, 47, 96}, {40, 32, 31}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (size_t k = 0; k < sizeof weight_kinds / sizeof *weight_kinds; k++) {
            struct linear_shape sh = all[i];
            if ((weight_kinds[k].t == DT_NF4 && sh.K % 64) || case_left_out()) continue;
            int F = sh.N, act = (int)(i + k) % (ACT_SWIGLU_CLAMPED + 1);
            char label[LABEL];
            struct weight_case g = weight_random(weight_kinds[k].t, F, sh.K, weight_kinds[k].group);
            struct weight_case u = weight_random(weight_kinds[k].t, F, sh.K, weight_kinds[k].group);
            struct weight_src parts[2] = {g.src, u.src};
            struct weight *plain = dev->ops->weight_pack(dev, parts, 2);
            parts[0].gate_up = parts[1].gate_up = true;
            struct weight *fused = dev->ops->weight_pack(dev, parts, 2);
            struct pair x = pair_make(dev, ref, sh.M, sh.K, sh.K + 1, 1), y = pair_make(dev, ref, sh.M, F, F + 3, 1);
            struct pair both = pair_make(dev, ref, sh.M, 2 * F, 2 * F, 1), want = pair_make(dev, ref, sh.M, F, F, 1);
            float *b = random_floats((size_t)F * 2, 1), *db = put(dev, b, (size_t)F * 8);
            float *rb = put(ref, b, (size_t)F * 8);
            const float *bias = k % 2 ? db : NULL;
            for (int m = 1; m < sh.M; m += 3)
                x.host[(size_t)m * (size_t)(sh.K + 1) + (size_t)(sh.K / 3)] = 200; /* outliers */
            dev->ops->upload(dev, x.dev.p, x.host, x.n * 4);
            ref->ops->upload(ref, x.ref.p, x.host, x.n * 4);
            snprintf(label, sizeof label, "gate_up %s/%d M=%d F=%d K=%d act %d", dtype_name(weight_kinds[k].t),
                     weight_kinds[k].group, sh.M, F, sh.K, act);
            op_gate_up(dev, (struct gate_up_args){y.dev, x.dev, fused, bias, (enum act_kind)act, both.dev});
            op_linear(dev, (struct linear_args){both.dev, x.dev, plain, bias});
            op_act_mul(dev, (struct act_mul_args){want.dev, both.dev, (enum act_kind)act});
            check_device(label, dev);
            float *got = get(dev, y.dev.p, y.n), *right = get(dev, want.dev.p, want.n);
            for (int m = 0; m < sh.M; m++)
                compare_bits(label, got + (size_t)m * y.dev.ld, right + (size_t)m * F, (size_t)F);
            struct gate_up_args a = {y.ref, x.ref, NULL, k % 2 ? rb : NULL, (enum act_kind)act, both.ref};
            enum dtype t = weight_kinds[k].t;
            bool rounds =
                with_bf16_x && dev->ops->rounds_more && (t == DT_F16 || t == DT_NF4 || t == DT_F8); /* rounds_test.c */
            if (!rounds) gate_up_ref(label, ref, parts, a, got, y.dev.ld);
            free(got), free(right), free(b);
            dev->ops->free(dev, db), ref->ops->free(ref, rb);
            dev->ops->weight_free(dev, plain), dev->ops->weight_free(dev, fused);
            pair_free(dev, ref, &x), pair_free(dev, ref, &y), pair_free(dev, ref, &both), pair_free(dev, ref, &want);
            weight_case_free(&g), weight_case_free(&u);
        }
}

/* An outlier row keeps its other values: its product is much nearer to the exact one than when quantised once. */
void test_outliers(struct dev *dev)
{
    enum { N = 64, K = 896 };
    struct weight_case c = weight_random(DT_I8, N, K, 0);
    float *x = random_floats(K, 1);
    for (int i = 0; i < 3; i++) x[i * 300 + 7] = i % 2 ? -2000.0f : 1700.0f + (float)i;
    struct weight *w = weight_put(dev, &c);
    float *dx = put(dev, x, K * 4), *dy = put(dev, NULL, N * 4);
    op_linear(dev, (struct linear_args){mat_f32(dy, 1, N), mat_f32(dx, 1, K), w, NULL});
    check_device("outliers", dev);
    float *y = get(dev, dy, N);
    double once = 0, twice = 0, step = 2000.0 / 127;
    for (int n = 0; n < N; n++) {
        double exact = 0, rounded = 0;
        for (int k = 0; k < K; k++) {
            double wk = (double)((const int8_t *)c.data)[n * K + k] * ((const float *)c.scale)[n];
            exact += (double)x[k] * wk;
            rounded += nearbyint((double)x[k] / step) * step * wk;
        }
        once += (exact - rounded) * (exact - rounded);
        twice += (exact - (double)y[n]) * (exact - (double)y[n]);
    }
    CHECK(twice * 50 * 50 < once, "an outlier row: error %g, %g when quantised once", sqrt(twice / N), sqrt(once / N));
    free(x), free(y);
    dev->ops->free(dev, dx), dev->ops->free(dev, dy);
    dev->ops->weight_free(dev, w);
    weight_case_free(&c);
}

/* ---- a row alone --------------------------------------------------------------------------------------------- */

/* nf4 takes whole blocks of 64: it sees the first ALONE_NF4 columns */
enum { ALONE_M = 33, ALONE_N = 150, ALONE_K = 333, ALONE_NF4 = 320, ALONE_OUT = ALONE_N + 3 * ALONE_K };

/* Every dense op on `count` rows of x from row `first` on; out (count, ALONE_OUT): linear, norm, act, act_mul. */
static void alone_run(struct dev *d, const struct weight_case *c, const float *x, int first, int count, float *out)
{
    enum { N = ALONE_N, K = ALONE_K };
    struct weight *w = weight_put(d, c);
    float *dx = put(d, x + (size_t)first * K, (size_t)count * K * 4), *y = put(d, NULL, (size_t)count * N * 4);
    float *n = put(d, NULL, (size_t)count * K * 4), *a = put(d, NULL, (size_t)count * K * 4);
    float *m = put(d, NULL, (size_t)count * (K / 2) * 4), *wn = put(d, x, K * 4);
    struct mat mx = mat_f32(dx, count, K), half = {dx, DT_F32, count, K / 2 * 2, K};
    struct mat lx = {dx, DT_F32, count, c->src.cols, K};
    op_linear(d, (struct linear_args){mat_f32(y, count, N), lx, w, NULL});
    op_norm(d, (struct norm_args){mat_f32(n, count, K), mx, wn, NULL, 1e-5f, NORM_LAYER});
    op_act_mul(d, (struct act_mul_args){mat_f32(m, count, K / 2), half, ACT_GELU_ERF});
    op_rows(d, (struct rows_args){mat_f32(a, 0, K), mx, NULL});
    d->ops->upload(d, a, x + (size_t)first * K, (size_t)count * K * 4);
    op_act(d, (struct act_args){mat_f32(a, count, K), ACT_SILU});
    check_device("rows alone", d);
    float *hy = get(d, y, (size_t)count * N), *hn = get(d, n, (size_t)count * K), *ha = get(d, a, (size_t)count * K);
    float *hm = get(d, m, (size_t)count * (K / 2));
    memset(out, 0, (size_t)count * ALONE_OUT * 4);
    for (int r = 0; r < count; r++) {
        float *o = out + (size_t)r * ALONE_OUT;
        memcpy(o, hy + (size_t)r * N, N * 4);
        memcpy(o + N, hn + (size_t)r * K, K * 4);
        memcpy(o + N + K, ha + (size_t)r * K, K * 4);
        memcpy(o + N + 2 * K, hm + (size_t)r * (K / 2), K / 2 * 4);
    }
    free(hy), free(hn), free(ha), free(hm);
    void *all[] = {dx, y, n, a, m, wn};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) d->ops->free(d, all[i]);
    d->ops->weight_free(d, w);
}

void test_rows_alone(const char *const *levels, int n_levels)
{
    static const int counts[] = {1, 2, 3, 5, 11, 12, 13, 25};
    static float want[ALONE_M * ALONE_OUT], got[ALONE_M * ALONE_OUT];
    float *x = random_floats((size_t)ALONE_M * ALONE_K, 1);
    for (int m = 0; m < ALONE_M; m += m % 2 ? 1 : 4) x[m * ALONE_K + m * 3] = 600; /* rows that are quantised twice */
    for (size_t k = 0; k < sizeof weight_kinds / sizeof *weight_kinds; k++) {
        int K = weight_kinds[k].t == DT_NF4 ? ALONE_NF4 : ALONE_K;
        struct weight_case c = weight_random(weight_kinds[k].t, ALONE_N, K, weight_kinds[k].group);
        for (int i = 0; i < 2 * n_levels; i++) {
            char label[LABEL];
            struct dev *d = open_checked(levels[i / 2], i % 2 ? 3 : 1);
            bool own = c.src.t == DT_BF16 && own_bf16_sums(levels[i / 2]) && i % 2 == 0;
            if (i == 0 || own) alone_run(d, &c, x, 0, ALONE_M, want);
            alone_run(d, &c, x, 0, ALONE_M, got);
            snprintf(label, sizeof label, "%s: level %s threads %d against %s threads 1", dtype_name(c.src.t), d->level,
                     d->threads, levels[0]);
            compare_bits(label, got, want, (size_t)ALONE_M * ALONE_OUT);
            EACH(n, counts)
            {
                int first = random_below(ALONE_M - (int)n + 1);
                alone_run(d, &c, x, first, (int)n, got);
                snprintf(label, sizeof label, "%s %s: %zu rows from %d of 33", d->level, dtype_name(c.src.t), n, first);
                compare_bits(label, got, want + (size_t)first * ALONE_OUT, n * ALONE_OUT);
            }
            dev_close(d);
        }
        weight_case_free(&c);
    }
    free(x);
}

/* A device that takes few and many rows in different kernels: rows first .. of `total` have the bits that they have
 * among all of them, where their number is in the same class. */
static void rows_in_class(struct dev *d, const struct weight_case *c, const float *x, int total, const int *counts)
{
    int N = c->src.rows, K = c->src.cols;
    struct weight *w = weight_put(d, c);
    float *dx = put(d, x, (size_t)total * (size_t)K * 4), *y = put(d, NULL, (size_t)total * (size_t)N * 4);
    op_linear(d, (struct linear_args){mat_f32(y, total, N), mat_f32(dx, total, K), w, NULL});
    float *want = get(d, y, (size_t)total * (size_t)N);
    for (; *counts; counts++) {
        char label[LABEL];
        int n = *counts, first = random_below(total - n + 1);
        struct mat some = mat_f32(dx + (size_t)first * (size_t)K, n, K);
        op_linear(d, (struct linear_args){mat_f32(y, n, N), some, w, NULL});
        snprintf(label, sizeof label, "%s/%d: rows %d to %d of %d", dtype_name(c->src.t), c->src.group, first,
                 first + n - 1, total);
        check_device(label, d);
        float *got = get(d, y, (size_t)n * (size_t)N);
        compare_bits(label, got, want + (size_t)first * (size_t)N, (size_t)n * (size_t)N);
        free(got);
    }
    free(want);
    d->ops->free(d, dx), d->ops->free(d, y), d->ops->weight_free(d, w);
}

void test_row_classes(const char *name)
{
    enum { M = 140, N = 70, K = 320 };
    /* floats to 16 rows, bf16 over rounded rows to 8, nf4 in bf16 from 17; int8 as many as there are; int4 and block
     * to 8 rows, and more */
    static const int rounded[] = {1, 2, 3, 4, 7, 8, 0}, floats[] = {1, 2, 3, 4, 7, 8, 9, 15, 16, 0},
                     int8[] = {1, 3, 8, 9, 16, 17, 33, 64, 65, 129, 0}, int4[] = {1, 2, 3, 5, 8, 0},
                     int4_many[] = {9, 16, 17, 32, 33, 64, 65, 100, 129, 0},
                     nf4_many[] = {17, 31, 32, 33, 64, 65, 100, 129, 0};
    float *x = random_floats((size_t)M * K, 1);
    for (int m = 0; m < M; m += m % 2 ? 3 : 14) x[m * K + m] = 600; /* outliers */
    for (int bf16 = 0; bf16 < 2; bf16++) {
        with_bf16_x = bf16;
        struct dev *d = open_checked(name, 1);
        for (size_t k = 0; k < sizeof weight_kinds / sizeof *weight_kinds; k++) {
            enum dtype t = weight_kinds[k].t;
            if (bf16 && t != DT_BF16 && t != DT_F8 && (t != DT_NF4 || !d->ops->rounds_more)) continue;
            struct weight_case c = weight_random(t, N, K, weight_kinds[k].group);
            if (t == DT_I4 || t == DT_BLOCK) {
                rows_in_class(d, &c, x, 8, int4);
                rows_in_class(d, &c, x, M, int4_many);
            } else if (t == DT_I8) {
                rows_in_class(d, &c, x, M, int8);
            } else if (bf16 && t == DT_NF4) {
                rows_in_class(d, &c, x, 16, floats);
                rows_in_class(d, &c, x, M, nf4_many);
                struct weight_case deep = weight_random(t, 9, 1088, 64); /* of several splits */
                float *wide = random_floats((size_t)M * 1088, 1);
                rows_in_class(d, &deep, wide, M, nf4_many);
                free(wide);
                weight_case_free(&deep);
            } else {
                rows_in_class(d, &c, x, bf16 ? 8 : 16, bf16 ? rounded : floats);
            }
            weight_case_free(&c);
        }
        dev_close(d);
    }
    with_bf16_x = false;
    free(x);
}

/* Where the number of rows of a product changes the bits of its rows: after end[0] and end[1], and nowhere else (0: no
 * such place).  docs/cuda.md says so to users. */
static const struct row_bounds {
    enum dtype t;
    int group;
    bool bf16_x;
    int end[2];
} row_bounds[] = {
    {DT_F32, 0, false, {16}},   {DT_F16, 0, false, {16}},  {DT_F16, 0, true, {16}},       {DT_BF16, 0, false, {16}},
    {DT_BF16, 0, true, {8}},    {DT_NF4, 64, false, {16}}, {DT_NF4, 64, true, {16, 256}}, {DT_I8, 0, false, {0}},
    {DT_I4, 32, false, {8}},    {DT_I4, 128, false, {8}},  {DT_BLOCK, 1, false, {8}},     {DT_BLOCK, 2, false, {8}},
    {DT_BLOCK, 14, false, {8}}, {DT_F8, 128, false, {16}}, {DT_F8, 128, true, {8}},
};

/* Only for simt, where products of many rows, which are cuBLASLt's, have one order. */
void test_row_bounds(const char *name)
{
    enum { M = 300, N = 70, K = 320, ALL = 11 };
    static const int counts[ALL] = {1, 2, 7, 8, 9, 16, 17, 128, 256, 257, M};
    float *x = random_floats((size_t)M * K, 1);
    for (size_t k = 0; k < sizeof row_bounds / sizeof *row_bounds; k++) {
        const struct row_bounds *b = row_bounds + k;
        with_bf16_x = b->bf16_x;
        struct dev *d = open_checked(name, 1);
        struct weight_case c = weight_random(b->t, N, K, b->group);
        struct weight *w = weight_put(d, &c);
        float *dx = put(d, x, (size_t)M * K * 4), *y = put(d, NULL, (size_t)M * N * 4), *last = NULL;
        for (int i = 0; i < ALL; i++) {
            int n = counts[i], before = i ? counts[i - 1] : 0;
            op_linear(d, (struct linear_args){mat_f32(y, n, N), mat_f32(dx, n, K), w, NULL});
            check_device("row bounds", d);
            float *got = get(d, y, (size_t)n * N);
            bool other = false;
            for (int e = 0; e < 2; e++) other |= b->end[e] && before <= b->end[e] && n > b->end[e];
            bool same = !i || memcmp(got, last, (size_t)before * N * 4) == 0;
            CHECK(same != (other && i), "%s/%d%s: rows among %d and among %d have %s bits", dtype_name(b->t), b->group,
                  b->bf16_x ? ", x rounded" : "", before, n, same ? "the same" : "other");
            free(last);
            last = got;
        }
        free(last);
        d->ops->free(d, dx), d->ops->free(d, y), d->ops->weight_free(d, w);
        weight_case_free(&c);
        dev_close(d);
    }
    with_bf16_x = false;
    free(x);
}

struct int8_case {
    int N, K, first, gap; /* gap: between lines of y */
    bool bias, gate_up;
};

/* y (rows, N + gap) of rows of x from row `from` on, by linear or gate_up, into out */
static void int8_rows(struct dev *d, const struct int8_case *c, const struct weight *w, const float *x, const float *b,
                      int from, int rows, float *out)
{
    int ld = c->N + c->gap, up = c->gate_up ? 2 * c->N : 0;
    float *y = put(d, NULL, (size_t)rows * (size_t)ld * 4), *tmp = put(d, NULL, (size_t)rows * (size_t)up * 4 + 4);
    struct mat my = {y, DT_F32, rows, c->N, ld}, mx = mat_f32((float *)x + (size_t)from * (size_t)c->K, rows, c->K);
    if (c->gate_up)
        op_gate_up(d, (struct gate_up_args){my, mx, w, b, ACT_SILU, mat_f32(tmp, rows, up)});
    else
        op_linear(d, (struct linear_args){my, mx, w, b, c->first});
    float *got = get(d, y, (size_t)rows * (size_t)ld);
    memcpy(out, got, (size_t)rows * (size_t)ld * 4);
    free(got);
    d->ops->free(d, y), d->ops->free(d, tmp);
}

/* Products with int8 weights have the same bits whichever of a device's kernels makes them: many rows at once, and the
 * same ones a few at a time.  With rows that are quantised twice, of zeros, of NaN; with outputs in odd numbers. */
void test_int8_many(struct dev *d)
{
    enum { M = 300, FEW = 40 };
    static const struct int8_case all[] = {{128, 144, 0, 0, true, false},
                                           {301, 77, 0, 3, false, false},
                                           {66, 144, WEIGHT_SLICE, 2, true, false},
                                           {257, 48, WEIGHT_SLICE, 0, false, false},
                                           {70, 80, 0, 1, true, true},
                                           {64, 16, 3 * WEIGHT_SLICE, 0, true, false}};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        const struct int8_case *c = &all[k];
        char label[LABEL];
        int rows = c->gate_up ? c->N : c->N + c->first, ld = c->N + c->gap;
        struct weight_case parts[2] = {weight_random(DT_I8, rows, c->K, 0), weight_random(DT_I8, rows, c->K, 0)};
        struct weight_src src[2] = {parts[0].src, parts[1].src};
        src[0].gate_up = src[1].gate_up = c->gate_up;
        struct weight *w = d->ops->weight_pack(d, src, c->gate_up ? 2 : 1);
        float *x = random_floats((size_t)M * (size_t)c->K, 1), *b = random_floats((size_t)c->N * 2, 1);
        float *want = random_floats((size_t)M * (size_t)ld, 0), *got = random_floats((size_t)M * (size_t)ld, 0);
        linear_rows(x, M, c->K);
        for (int m = 0; m < 140; m++) /* a block of a hundred rows without outliers, one with one */
            for (int i = 0; i < c->K; i++) x[(size_t)m * (size_t)c->K + i] = (float)((m * 7 + i * 3) % 11 - 5);
        x[9 * c->K + 3] = (float)NAN, x[131 * c->K] = (float)INFINITY;
        if (k % 2) x[135 * c->K + c->K / 2] = 4e4f;
        float *dx = put(d, x, (size_t)M * (size_t)c->K * 4), *db = put(d, b, (size_t)c->N * 8);
        const float *bias = c->bias ? db : NULL;
        for (int m = 0; m < M; m += FEW)
            int8_rows(d, c, w, dx, bias, m, M - m < FEW ? M - m : FEW, want + (size_t)m * (size_t)ld);
        int8_rows(d, c, w, dx, bias, 0, M, got);
        snprintf(label, sizeof label, "%d rows of int8 at once, N=%d K=%d first %d gate_up %d", M, c->N, c->K, c->first,
                 c->gate_up);
        check_device(label, d);
        CHECK(isnan(got[(size_t)9 * (size_t)ld]), "%s: a row of NaN", label);
        compare_bits(label, got, want, (size_t)M * (size_t)ld);
        free(x), free(b), free(want), free(got);
        d->ops->free(d, dx), d->ops->free(d, db), d->ops->weight_free(d, w);
        weight_case_free(&parts[0]), weight_case_free(&parts[1]);
    }
}

/* nf4 is float weights written shorter: the same bits come out as with f32 weights of the same values */
void test_nf4_values(const char *const *levels, int n_levels)
{
    enum { M = 13, N = 45, K = 192 };
    struct weight_case c = weight_random(DT_NF4, N, K, 64), f = weight_random(DT_F32, N, K, 0);
    const uint8_t *q = c.data;
    for (int i = 0; i < N * K; i++)
        ((float *)f.data)[i] = nf4_code[i % 2 ? q[i / 2] & 15 : q[i / 2] >> 4] * ((const float *)c.scale)[i / 64];
    float *x = random_floats((size_t)M * K, 1);
    for (int i = 0; i < n_levels; i++)
        for (int rows = 1; rows <= M; rows++) {
            char label[LABEL];
            struct dev *d = open_checked(levels[i], 1);
            struct weight *w4 = weight_put(d, &c), *w32 = weight_put(d, &f);
            float *dx = put(d, x, sizeof(float) * M * K), *b = put(d, x, sizeof(float) * N);
            float *y4 = put(d, NULL, sizeof(float) * M * N), *y32 = put(d, NULL, sizeof(float) * M * N);
            op_linear(d, (struct linear_args){mat_f32(y4, rows, N), mat_f32(dx, rows, K), w4, b});
            op_linear(d, (struct linear_args){mat_f32(y32, rows, N), mat_f32(dx, rows, K), w32, b});
            snprintf(label, sizeof label, "%s: nf4 against f32 of the same values, %d rows", levels[i], rows);
            check_device(label, d);
            float *got = get(d, y4, (size_t)rows * N), *want = get(d, y32, (size_t)rows * N);
            compare_bits(label, got, want, (size_t)rows * N);
            free(got), free(want);
            void *all[] = {dx, b, y4, y32};
            for (size_t k = 0; k < sizeof all / sizeof *all; k++) d->ops->free(d, all[k]);
            d->ops->weight_free(d, w4), d->ops->weight_free(d, w32);
            dev_close(d);
        }
    free(x);
    weight_case_free(&c), weight_case_free(&f);
}
