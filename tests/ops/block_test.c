/* Tests of DT_BLOCK weights beyond the tables of dense_test.c: their values, products that are exact, stacks of parts
 * of different forms, what is refused. */
#include "kernels/block.h"
#include "tests/ops/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Row r by the formula of ops.h. */
static void formula(const struct weight_src *s, int r, float *out)
{
    const struct weight_block *b = s->block;
    int groups = (s->cols + b->group - 1) / b->group, supers = (s->cols + b->super - 1) / b->super;
    for (int k = 0; k < s->cols; k++) {
        size_t g = (size_t)(r * groups + k / b->group), u = (size_t)(r * supers + k / b->super);
        float scale = b->super_scale[u], w, minimum;
        if (b->sub_scale) scale *= (float)b->sub_scale[g];
        w = (float)b->value[((const uint8_t *)s->data)[(size_t)r * (size_t)s->cols + (size_t)k]] * scale;
        minimum = b->super_min ? b->super_min[u] : 0;
        if (b->sub_min) minimum *= (float)b->sub_min[g];
        out[b->order ? b->order[k] : (uint32_t)k] = b->super_min ? w - minimum : w;
    }
}

/* The rows of a weight, read as an embedding table and by block_row. */
static void values_case(struct dev *d, int kind, int rows, int cols)
{
    char label[LABEL];
    struct weight_case c = weight_random(DT_BLOCK, rows, cols, kind);
    struct weight *w = weight_put(d, &c);
    size_t n = (size_t)rows * (size_t)cols;
    float *want = random_floats(n, 0), *row = random_floats(n, 0), *out = put(d, NULL, n * 4);
    int32_t id[100];
    for (int r = 0; r < rows; r++) {
        id[r] = r;
        formula(&c.src, r, want + (size_t)r * (size_t)cols);
        block_row(&c.src, r, row + (size_t)r * (size_t)cols);
    }
    int32_t *ids = put(d, id, (size_t)rows * 4);
    op_embed(d, (struct embed_args){.out = mat_f32(out, rows, cols), .id = ids, .w = w});
    float *got = get(d, out, n);
    snprintf(label, sizeof label, "values of %s %d x %d", block_kinds[kind].name, rows, cols);
    check_device(label, d);
    compare_bits(label, row, want, n);
    compare_bits(label, got, want, n);
    free(want), free(row), free(got);
    d->ops->free(d, out), d->ops->free(d, ids), d->ops->weight_free(d, w);
    weight_case_free(&c);
}

/* x of integers up to 127 is quantised exactly: y is the product with the values. */
static void exact_case(struct dev *d, int kind, int M, int N, int K)
{
    char label[LABEL];
    struct weight_case c = weight_random(DT_BLOCK, N, K, kind);
    struct weight *w = weight_put(d, &c);
    float *x = random_floats((size_t)M * (size_t)K, 1), *row = random_floats((size_t)K, 0), want;
    for (int m = 0; m < M; m++)
        for (int k = 0; k < K; k++) x[m * K + k] = (float)(k == m % K ? 127 : random_below(255) - 127);
    float *dx = put(d, x, (size_t)M * (size_t)K * 4), *dy = put(d, NULL, (size_t)M * (size_t)N * 4);
    op_linear(d, (struct linear_args){mat_f32(dy, M, N), mat_f32(dx, M, K), w, NULL});
    float *y = get(d, dy, (size_t)M * (size_t)N);
    snprintf(label, sizeof label, "exact product of %s M=%d N=%d K=%d", block_kinds[kind].name, M, N, K);
    check_device(label, d);
    for (int n = 0; n < N; n++) {
        formula(&c.src, n, row);
        for (int m = 0; m < M; m++) {
            double sum = 0, size = 1e-30;
            for (int k = 0; k < K; k++) {
                double term = (double)x[m * K + k] * (double)row[k];
                sum += term;
                size += fabs(term);
            }
            want = (float)sum;
            compare(label, y + (size_t)m * (size_t)N + n, &want, 1, (struct tolerance){size * 1e-6, 0, 1});
        }
    }
    free(x), free(y), free(row);
    d->ops->free(d, dx), d->ops->free(d, dy), d->ops->weight_free(d, w);
    weight_case_free(&c);
}

enum { PARTS = 3, STACK_M = 29 };

/* Rows: of zeros, with outliers, not finite, small. */
static float *stack_x(int K)
{
    float *x = random_floats((size_t)STACK_M * (size_t)K, 1);
    for (int k = 0; k < K; k++) x[3 * K + k] = 0, x[5 * K + k] *= 1e-20f;
    for (int m = 7; m < STACK_M; m += 6) x[m * K + K / 2] = 4e4f;
    x[9 * K + 1] = (float)NAN, x[10 * K] = (float)INFINITY;
    return x;
}

/* Parts of different forms in one weight: against ref, in slices, and each row alone. */
static void stack_case(struct dev *d, struct dev *ref, const int rows[PARTS], const int kinds[PARTS], int K)
{
    char label[LABEL];
    struct weight_case c[PARTS];
    struct weight_src src[PARTS];
    int N = 0;
    for (int i = 0; i < PARTS; i++) {
        c[i] = weight_random(DT_BLOCK, rows[i], K, kinds[i]);
        src[i] = c[i].src;
        N += rows[i];
    }
    snprintf(label, sizeof label, "stack of %s, %s, %s K=%d", block_kinds[kinds[0]].name, block_kinds[kinds[1]].name,
             block_kinds[kinds[2]].name, K);
    struct weight *w = d->ops->weight_pack(d, src, PARTS), *rw = ref->ops->weight_pack(ref, src, PARTS);
    CHECK(w && rw, "%s: not packed", label);
    if (!w || !rw) return;
    float *x = stack_x(K), *b = random_floats((size_t)N, 1);
    size_t n = (size_t)STACK_M * (size_t)N;
    float *dx = put(d, x, (size_t)STACK_M * (size_t)K * 4), *rx = put(ref, x, (size_t)STACK_M * (size_t)K * 4);
    float *db = put(d, b, (size_t)N * 4), *rb = put(ref, b, (size_t)N * 4);
    float *dy = put(d, NULL, n * 4), *ry = put(ref, NULL, n * 4);
    op_linear(d, (struct linear_args){mat_f32(dy, STACK_M, N), mat_f32(dx, STACK_M, K), w, db});
    op_linear(ref, (struct linear_args){mat_f32(ry, STACK_M, N), mat_f32(rx, STACK_M, K), rw, rb});
    check_device(label, d);
    float *got = get(d, dy, n), *want = get(ref, ry, n);
    for (int m = 0; m < STACK_M; m++) {
        double most = 1e-30;
        for (int i = 0; i < N; i++) most = fmax(most, fabs((double)want[m * N + i]));
        compare(label, got + m * N, want + m * N, (size_t)N, (struct tolerance){most * 4e-6, 4e-6, 1e-11});
    }
    for (int first = 0; first < N; first += WEIGHT_SLICE) {
        int some = N - first < 2 * WEIGHT_SLICE ? N - first : 2 * WEIGHT_SLICE;
        op_linear(d, (struct linear_args){mat_f32(dy, STACK_M, some), mat_f32(dx, STACK_M, K), w, db + first, first});
        float *slice = get(d, dy, (size_t)STACK_M * (size_t)some);
        for (int m = 0; m < STACK_M; m++)
            compare_bits(label, slice + (size_t)m * (size_t)some, got + m * N + first, (size_t)some);
        free(slice);
    }
    check_device(label, d);
    free(x), free(b), free(got), free(want);
    void *all[] = {dx, db, dy}, *refs[] = {rx, rb, ry};
    for (int i = 0; i < 3; i++) d->ops->free(d, all[i]), ref->ops->free(ref, refs[i]);
    d->ops->weight_free(d, w), ref->ops->weight_free(ref, rw);
    for (int i = 0; i < PARTS; i++) weight_case_free(&c[i]);
}

/* Gate and up of different forms: the bits of linear, then act_mul. */
static void gate_case(struct dev *d, int gate, int up, int M, int F, int K)
{
    char label[LABEL];
    struct weight_case g = weight_random(DT_BLOCK, F, K, gate), u = weight_random(DT_BLOCK, F, K, up);
    struct weight_src src[2] = {g.src, u.src};
    struct weight *plain = d->ops->weight_pack(d, src, 2);
    src[0].gate_up = src[1].gate_up = true;
    struct weight *fused = d->ops->weight_pack(d, src, 2);
    snprintf(label, sizeof label, "gate %s, up %s", block_kinds[gate].name, block_kinds[up].name);
    CHECK(plain && fused, "%s: not packed", label);
    if (!plain || !fused) return;
    float *x = random_floats((size_t)M * (size_t)K, 1), *dx = put(d, x, (size_t)M * (size_t)K * 4);
    struct mat mx = mat_f32(dx, M, K), both = mat_f32(put(d, NULL, (size_t)M * (size_t)F * 8), M, 2 * F);
    struct mat y = mat_f32(put(d, NULL, (size_t)M * (size_t)F * 4), M, F), z = y;
    z.p = put(d, NULL, (size_t)M * (size_t)F * 4);
    op_linear(d, (struct linear_args){both, mx, plain, NULL});
    op_act_mul(d, (struct act_mul_args){z, both, ACT_SILU});
    op_gate_up(d, (struct gate_up_args){y, mx, fused, NULL, ACT_SILU, both});
    check_device(label, d);
    float *got = get(d, y.p, (size_t)M * (size_t)F), *want = get(d, z.p, (size_t)M * (size_t)F);
    double most = 1e-30;
    for (int i = 0; i < M * F; i++) most = fmax(most, fabs((double)want[i]));
    compare(label, got, want, (size_t)M * (size_t)F, (struct tolerance){most * 1e-5, 1e-5, 1e-9});
    free(x), free(got), free(want);
    d->ops->free(d, dx), d->ops->free(d, both.p), d->ops->free(d, y.p), d->ops->free(d, z.p);
    d->ops->weight_free(d, plain), d->ops->weight_free(d, fused);
    weight_case_free(&g), weight_case_free(&u);
}

/* Codes stay at about their width, and scales on two levels. */
static void sizes(struct dev *d)
{
    enum { N = 128, K = 1024 };
    static const struct {
        int kind;
        double bits;
    } most[] = {{0, 8.75}, {1, 4.75}, {2, 6.75}, {8, 4.75}, {9, 4.75}, {14, 5.75}}; /* 14: an order is 32 / N bits */
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
        struct weight_case c = weight_random(DT_BLOCK, N, K, most[i].kind);
        struct weight *w = weight_put(d, &c);
        double bits = 8.0 * (double)d->ops->weight_bytes(w) / N / K;
        CHECK(bits <= most[i].bits, "%s takes %.2f bits a weight", block_kinds[most[i].kind].name, bits);
        d->ops->weight_free(d, w);
        weight_case_free(&c);
    }
}

static void refused(struct dev *d, const char *what, const struct weight_src *s)
{
    struct weight *w = d->ops->weight_pack(d, s, 1);
    CHECK(!w, "%s was packed", what);
    d->ops->weight_free(d, w);
    dev_clear_error(d);
}

static void refusals(struct dev *d)
{
    struct weight_case c = weight_random(DT_BLOCK, 3, 64, 1);
    const struct weight_block good = *c.block;
#define BROKEN(what, change)                                                                                           \
    *c.block = good;                                                                                                   \
    c.block->change;                                                                                                   \
    refused(d, what, &c.src)
    BROKEN("groups of 48", group = 48);
    BROKEN("groups of 0", group = 0);
    BROKEN("super groups of 16", super = 16);
    BROKEN("super groups of 48", super = 48);
    BROKEN("one bit", bits = 1);
    BROKEN("nine bits", bits = 9);
    BROKEN("codes of four bits as three", bits = 3);
    BROKEN("no values", value = NULL);
    BROKEN("no scales", super_scale = NULL);
    BROKEN("sub_min without super_min", super_min = NULL);
#undef BROKEN
    *c.block = good;
    struct weight_src none = c.src;
    none.block = NULL;
    refused(d, "no form", &none);
    weight_case_free(&c);
}

/* Orders that are no permutation, parts of different orders, and experts' weights with one. */
static void order_refusals(struct dev *d)
{
    enum { N = 32, K = 64 };
    struct weight_case c = weight_random(DT_BLOCK, N, K, 14), other = weight_random(DT_BLOCK, N, K, 14);
    uint32_t order[K], *was = (uint32_t *)(uintptr_t)c.block->order;
    memcpy(order, was, sizeof order);
    other.block->order = order;
    struct weight_src parts[2] = {c.src, other.src};
    struct weight *w = d->ops->weight_pack(d, parts, 2);
    CHECK(w, "two parts of equal orders were not packed");
    d->ops->weight_free(d, w);
    order[0] = was[1], order[1] = was[0];
    CHECK(!d->ops->weight_pack(d, parts, 2), "parts of different orders were packed");
    dev_clear_error(d);
    other.block->order = NULL;
    CHECK(!d->ops->weight_pack(d, parts, 2), "parts with an order and without were packed");
    dev_clear_error(d);
    other.block->order = order;
    order[0] = K;
    refused(d, "an order with an input that is not there", &other.src);
    order[0] = order[2];
    refused(d, "an order with an input twice", &other.src);
    w = weight_put(d, &c);
    int32_t *start = put(d, (const int32_t[2]){0, 1}, 2 * sizeof *start);
    float *x = put(d, NULL, K * 4), *y = put(d, NULL, N * 4);
    const struct weight *const all[1] = {w};
    op_experts_linear(d, (struct experts_linear_args){mat_f32(y, 1, N), mat_f32(x, 1, K), all, NULL, start, 1});
    CHECK(d->error.op && strstr(d->error.msg, "w[0] has an order"), "an expert's weight with an order was taken");
    dev_clear_error(d);
    d->ops->free(d, start), d->ops->free(d, x), d->ops->free(d, y), d->ops->weight_free(d, w);
    weight_case_free(&c), weight_case_free(&other);
}

/* int4 as block: the same values. */
static void from_i4(struct dev *d)
{
    enum { N = 5, K = 70 };
    struct weight_case c = weight_random(DT_I4, N, K, 32);
    struct block_of_i4 b;
    int32_t id[N] = {0, 1, 2, 3, 4}, *ids = put(d, id, sizeof id);
    float *out = put(d, NULL, sizeof(float) * N * K), row[N * K];
    struct weight *w = weight_put(d, &c);
    CHECK(block_from_i4(&b, &c.src), "no memory");
    for (int r = 0; r < N; r++) block_row(&b.src, r, row + (size_t)r * K);
    op_embed(d, (struct embed_args){.out = mat_f32(out, N, K), .id = ids, .w = w});
    float *got = get(d, out, N * K);
    compare_bits("int4 as block", row, got, N * K);
    check_device("int4 as block", d);
    free(got);
    block_of_i4_free(&b);
    d->ops->free(d, out), d->ops->free(d, ids), d->ops->weight_free(d, w);
    weight_case_free(&c);
}

void test_blocks(const char *name)
{
    static const int shapes[][2] = {{1, 1}, {2, 16}, {33, 65}, {7, 300}, {70, 512}};
    static const int exact[][3] = {{1, 1, 32}, {3, 35, 256}, {13, 66, 97}, {30, 40, 520}};
    static const int rows[][PARTS] = {{64, 32, 32}, {96, 16, 16}, {33, 1, 70}, {1, 1, 1}};
    static const int kinds[][PARTS] = {{1, 1, 2}, {0, 9, 3}, {8, 12, 10}, {13, 7, 11}, {4, 5, 6}, {14, 14, 15}};
    struct dev *d = open_checked(name, 1), *ref = open_checked("ref", 1);
    for (int kind = 0; kind < BLOCK_ALL; kind++) {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) values_case(d, kind, shapes[i][0], shapes[i][1]);
        for (size_t i = 0; i < sizeof exact / sizeof *exact; i++)
            exact_case(d, kind, exact[i][0], exact[i][1], exact[i][2]);
        int other = kind < BLOCK_KINDS ? (kind + 1) % BLOCK_KINDS : BLOCK_KINDS + (kind + 1) % 2;
        gate_case(d, kind, other, kind % 7 + 1, 37, 200);
        gate_case(d, kind, kind, 30, 64, 256);
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
            stack_case(d, ref, rows[k], kinds[i], k % 2 ? 256 : 333);
    refusals(d);
    order_refusals(d);
    if (strcmp(name, "ref")) sizes(d);
    from_i4(d);
    dev_close(d);
    dev_close(ref);
}
