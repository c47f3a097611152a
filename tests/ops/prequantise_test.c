/* norm and add_norm that are told which product comes next: the product has the bits that it has without, and a device
 * that began it with the norm (cuda, simt) uses that only while the rows are what they were. */
#include "tests/ops/harness.h"

#include "kernels/dev.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* kernels launched so far; 0 where they are not counted */
static uint64_t launches(void)
{
#ifdef TANDEM_SIMT
    return simt_counts().launches;
#else
    return 0;
#endif
}

static bool counts_launches(const struct dev *d)
{
    return !strcmp(d->ops->name, "simt");
}

struct ahead_case {
    int T, C, N;
    enum dtype t; /* of the next weight */
    int group;
    enum norm_kind kind;
    int gap;      /* between rows of x and of the norm's output */
    bool fused;   /* cuda and simt do both in one kernel */
    bool gate_up; /* the product, with F = N */
};

/* Rows of many sorts: a few outliers, zeros (which a norm keeps, or makes its bias), one value, a NaN, an infinity. */
static void ahead_rows(float *x, int T, int C, int ld)
{
    for (int t = 0; t < T; t++)
        for (int c = 0; c < C; c++) {
            float *v = x + (size_t)t * (size_t)ld + c;
            if (t % 7 == 1 && c == C / 3) *v = 4e4f;
            if (t % 7 == 2) *v = 0;
            if (t % 7 == 3) *v = 0.25f;
            if (t % 7 == 5 && c == C - 1) *v = t % 2 ? NAN : INFINITY;
            if (t % 7 == 6) *v *= 1e-12f;
        }
}

/* One device's side of a case. */
struct side {
    struct dev *d;
    struct weight *w;
    float *x, *y, *h, *scale, *out, *both;
    size_t n; /* of h */
};

static struct side side_make(struct dev *d, const struct ahead_case *c, const struct weight_case *w, const float *x,
                             const float *scale)
{
    size_t ld = (size_t)(c->C + c->gap), n = (size_t)c->T * ld;
    struct weight_src parts[2] = {w->src, w->src};
    parts[0].gate_up = parts[1].gate_up = c->gate_up;
    return (struct side){d,
                         d->ops->weight_pack(d, parts, c->gate_up ? 2 : 1),
                         put(d, x, n * 4),
                         put(d, x + n, (size_t)c->T * (size_t)c->C * 4),
                         put(d, NULL, n * 4),
                         put(d, scale, (size_t)c->C * 8),
                         put(d, NULL, (size_t)c->T * (size_t)c->N * 4),
                         put(d, NULL, (size_t)c->T * (size_t)c->N * 8),
                         n};
}

static void side_free(struct side *s)
{
    void *all[] = {s->x, s->y, s->h, s->scale, s->out, s->both};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) s->d->ops->free(s->d, all[i]);
    s->d->ops->weight_free(s->d, s->w);
}

static void side_norm(struct side *s, const struct ahead_case *c, bool add, const struct weight *next)
{
    int ld = c->C + c->gap;
    struct mat x = {s->x, DT_F32, c->T, c->C, ld}, h = {s->h, DT_F32, c->T, c->C, ld};
    const float *bias = c->kind == NORM_LAYER ? s->scale + c->C : NULL;
    if (add)
        op_add_norm(s->d,
                    (struct add_norm_args){h, x, mat_f32(s->y, c->T, c->C), s->scale, bias, 1e-5f, c->kind, next});
    else
        op_norm(s->d, (struct norm_args){h, x, s->scale, bias, 1e-5f, c->kind, next});
}

/* the product of `rows` rows from `first` on */
static void side_product(struct side *s, const struct ahead_case *c, int first, int rows)
{
    size_t ld = (size_t)(c->C + c->gap);
    struct mat h = {s->h + (size_t)first * ld, DT_F32, rows, c->C, (int)ld};
    struct mat out = mat_f32(s->out + (size_t)first * (size_t)c->N, rows, c->N);
    if (c->gate_up)
        op_gate_up(s->d, (struct gate_up_args){out, h, s->w, NULL, ACT_SILU, mat_f32(s->both, rows, 2 * c->N)});
    else
        op_linear(s->d, (struct linear_args){out, h, s->w, NULL});
}

/* With and without `next` on the device, bit for bit; its norm, and the product of what it made, against ref. */
static void ahead_one(struct dev *dev, struct dev *ref, const struct ahead_case *c, bool add)
{
    char label[LABEL];
    if (case_left_out()) return;
    int ld = c->C + c->gap;
    size_t n = (size_t)c->T * (size_t)ld, m = (size_t)c->T * (size_t)c->N;
    struct weight_case w = weight_random(c->t, c->N, c->C, c->group);
    float *x = random_floats(n + (size_t)c->T * (size_t)c->C, 1), *scale = random_floats((size_t)c->C * 2, 1);
    ahead_rows(x, c->T, c->C, ld);
    memset(x + n, 0, (size_t)c->T * (size_t)c->C * 4); /* y: the rows stay what they are */
    struct side a = side_make(dev, c, &w, x, scale), b = side_make(ref, c, &w, x, scale);
    snprintf(label, sizeof label, "%s ahead of %s %s/%d T=%d C=%d+%d N=%d kind %d", add ? "add_norm" : "norm",
             c->gate_up ? "gate_up" : "linear", dtype_name(c->t), c->group, c->T, c->C, c->gap, c->N, c->kind);
    side_norm(&a, c, add, NULL);
    uint64_t start = launches();
    side_product(&a, c, 0, c->T);
    uint64_t without = launches() - start;
    float *h = get(dev, a.h, n), *y = get(dev, a.out, m);
    side_norm(&a, c, add, a.w);
    start = launches();
    side_product(&a, c, 0, c->T);
    uint64_t with = launches() - start;
    check_device(label, dev);
    if (counts_launches(dev))
        CHECK(with + c->fused == without, "%s: %d launches, %d without next", label, (int)with, (int)without);
    float *h2 = get(dev, a.h, n), *y2 = get(dev, a.out, m);
    compare_bits(label, h2, h, n);
    compare_bits(label, y2, y, m);

    side_norm(&b, c, add, b.w);
    float *want = get(ref, b.h, n);
    compare(label, h, want, n, (struct tolerance){1e-5, 1e-5, 1e-10});
    ref->ops->upload(ref, b.h, h, n * 4);
    side_product(&b, c, 0, c->T);
    check_device(label, ref);
    float *right = get(ref, b.out, m);
    for (int t = 0; t < c->T; t++) { /* some sixty roundings of the row's largest value */
        double most = 1e-30;
        for (int i = 0; i < c->N; i++) most = fmax(most, fabs((double)right[(size_t)t * (size_t)c->N + (size_t)i]));
        compare(label, y + (size_t)t * (size_t)c->N, right + (size_t)t * (size_t)c->N, (size_t)c->N,
                (struct tolerance){most * 4e-6, 1e-5, 1e-9});
    }
    free(x), free(scale), free(h), free(y), free(h2), free(y2), free(want), free(right);
    side_free(&a), side_free(&b);
    weight_case_free(&w);
}

void norms_prequantise(struct dev *dev, struct dev *ref, bool add)
{
    static const struct ahead_case all[] = {
        {1, 128, 17, DT_I8, 0, NORM_RMS, 0, true, false},      {7, 260, 33, DT_I8, 0, NORM_LAYER, 4, true, false},
        {9, 132, 40, DT_I4, 32, NORM_RMS, 0, true, false},     {2, 640, 5, DT_I4, 128, NORM_LAYER, 0, true, true},
        {3, 1028, 9, DT_I4, 64, NORM_RMS, 0, true, false},     {33, 128, 31, DT_I8, 0, NORM_RMS, 0, true, true},
        {2, 4096, 3, DT_I8, 0, NORM_RMS, 0, true, false},      {2, 4100, 3, DT_I4, 32, NORM_LAYER, 0, true, false},
        {2, 8192, 2, DT_I8, 0, NORM_LAYER, 0, true, false},    {2, 8196, 2, DT_I8, 0, NORM_RMS, 0, false, false},
        {7, 131, 17, DT_I8, 0, NORM_RMS, 0, false, false},     {7, 128, 17, DT_I4, 32, NORM_RMS, 3, false, false},
        {7, 128, 17, DT_F32, 0, NORM_RMS, 0, false, false},    {7, 4, 3, DT_I8, 0, NORM_RMS, 0, true, false},
        {7, 192, 17, DT_NF4, 64, NORM_RMS, 0, false, false},   {17, 20, 3, DT_I4, 32, NORM_LAYER, 0, true, false},
        {9, 132, 40, DT_BLOCK, 1, NORM_RMS, 0, true, false},   {3, 640, 17, DT_BLOCK, 2, NORM_LAYER, 0, true, true},
        {5, 132, 40, DT_BLOCK, 14, NORM_RMS, 0, false, false},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) ahead_one(dev, ref, &all[i], add);
}

/* ---- what ends it --------------------------------------------------------------------------------------------------
 */

enum { ROWS = 6, COLS = 128, OUTS = 24, HEADS = 2, DIM = 32, GAP_ROWS = 2 }; /* (HEADS + 2) * DIM: COLS */

struct meddling {
    struct dev *d;
    struct mat h, x, wide; /* h: what the norm wrote; x: (ROWS, COLS); wide: (ROWS, 2 COLS) */
    float *ones, *other;   /* other: (2 ROWS, COLS), host */
    struct weight *w, *w4, *square;
    int32_t *index; /* 0 .. */
    struct kv *kv;
};

static void by_nothing(struct meddling *m)
{
    (void)m;
}
static void by_upload(struct meddling *m)
{
    m->d->ops->upload(m->d, (float *)m->h.p + 3 * COLS, m->other, COLS * 4);
}
static void by_zero(struct meddling *m)
{
    if (m->d->ops->zero) m->d->ops->zero(m->d, m->h.p, COLS * 4);
}
static void by_add(struct meddling *m)
{
    op_add(m->d, (struct add_args){m->h, m->x});
}
static void by_act(struct meddling *m)
{
    op_act(m->d, (struct act_args){m->h, ACT_RELU});
}
static void by_act_mul(struct meddling *m)
{
    op_act_mul(m->d, (struct act_mul_args){m->h, m->wide, ACT_SILU});
}
static void by_last_row(struct meddling *m)
{
    struct mat last = mat_f32((float *)m->h.p + (ROWS - 1) * COLS, 1, COLS);
    op_act(m->d, (struct act_args){last, ACT_RELU});
}
static void by_before(struct meddling *m) /* it begins before the rows and reaches into them */
{
    struct mat some = mat_f32((float *)m->h.p - COLS, 2, COLS);
    op_act(m->d, (struct act_args){some, ACT_RELU});
}
static void by_norm(struct meddling *m)
{
    op_norm(m->d, (struct norm_args){m->h, m->x, m->ones, NULL, 1e-5f, NORM_LAYER});
}
static void by_other_form(struct meddling *m)
{
    op_norm(m->d, (struct norm_args){m->h, m->x, m->ones, NULL, 1e-5f, NORM_LAYER, m->w4});
}
static void by_norm_elsewhere(struct meddling *m) /* the place of what was done is another's */
{
    op_norm(m->d, (struct norm_args){m->x, m->x, m->ones, NULL, 1e-5f, NORM_LAYER, m->w});
}
static void by_head_norm(struct meddling *m)
{
    op_head_norm(m->d, (struct head_norm_args){m->h, DIM, HEADS, DIM, m->ones, 1e-5f});
}
static void by_rows(struct meddling *m)
{
    op_rows(m->d, (struct rows_args){m->h, m->x, m->index});
}
static void by_embed(struct meddling *m)
{
    op_embed(m->d, (struct embed_args){.out = m->h, .table = m->x, .id = m->index});
}
static void by_linear(struct meddling *m)
{
    op_linear(m->d, (struct linear_args){m->h, m->x, m->square, NULL});
}
static void by_lora(struct meddling *m)
{
    struct lora_part part = {m->ones, m->ones, 1, 0, COLS, 0.5f};
    struct lora_group group = {0, ROWS, 1, &part};
    op_lora(m->d, (struct lora_args){m->h, m->x, &group, 1});
}
static void by_rope_kv(struct meddling *m)
{
    op_rope_kv(m->d, (struct rope_kv_args){m->h, HEADS, 1, DIM, DIM, m->ones, m->ones, m->index, m->index, m->kv, 0});
}
static void by_attn(struct meddling *m)
{
    struct mat out = {m->h.p, DT_F32, ROWS, HEADS * DIM, COLS};
    op_attn(m->d, (struct attn_args){out, m->x, HEADS, 1, DIM, 0, 1, 1, m->index + ROWS, m->index + ROWS + 1, m->index,
                                     1, m->kv, 0, ROWS});
}
static void by_training(struct meddling *m)
{
    op_axpby(m->d, (struct axpby_args){m->h.p, m->x.p, COLS, 1, 1});
}
static void by_memory(struct meddling *m) /* the same place, mostly, with zeros */
{
    void *place = (float *)m->h.p - COLS;
    m->d->ops->free(m->d, place);
    m->h.p = (float *)put(m->d, NULL, (ROWS + GAP_ROWS) * COLS * 4) + COLS;
}
static void by_error(struct meddling *m) /* a norm that was not done */
{
    dev_fail(m->d, "test", "on purpose");
    op_norm(m->d, (struct norm_args){m->h, m->x, m->ones, NULL, 1e-5f, NORM_LAYER, m->w});
    m->d->ops->finish(m->d);
    dev_clear_error(m->d);
}

/* A step that begins with a product, which the rows at its end depend on. */
static void step(void *arg)
{
    struct meddling *m = arg;
    struct mat y = mat_f32(m->wide.p, ROWS, OUTS), part = {m->h.p, DT_F32, ROWS, OUTS, COLS};
    op_linear(m->d, (struct linear_args){y, m->h, m->w, NULL});
    op_add(m->d, (struct add_args){part, y});
    op_norm(m->d, (struct norm_args){m->h, m->h, m->ones, NULL, 1e-5f, NORM_LAYER, m->w});
    op_linear(m->d, (struct linear_args){y, m->h, m->w, NULL});
    op_add(m->d, (struct add_args){part, y});
}
/* It is recorded when its first product could use what was done before, which later it cannot. */
static void by_replay(struct meddling *m)
{
    static uint64_t key;
    key++;
    for (int i = 0; i < 5; i++) {
        float *h[2];
        for (int again = 0; again < 2; again++) {
            m->d->ops->upload(m->d, m->h.p, m->other + i * COLS, ROWS * COLS * 4);
            if (i == 1)
                op_norm(m->d, (struct norm_args){m->h, m->x, m->ones, NULL, 1e-5f, NORM_LAYER, again ? NULL : m->w});
            if (again || !m->d->ops->replay)
                step(m);
            else
                m->d->ops->replay(m->d, key, step, m);
            h[again] = get(m->d, m->h.p, ROWS * COLS);
        }
        compare_bits("a norm's work ahead in replay", h[0], h[1], ROWS * COLS);
        free(h[0]), free(h[1]);
    }
}
static void product(void *arg)
{
    struct meddling *m = arg;
    op_linear(m->d, (struct linear_args){mat_f32(m->wide.p, ROWS, OUTS), m->h, m->w, NULL});
}
/* On a fresh device: scratch is reserved for a product that begins from nothing, */
static void by_reserve(struct meddling *m)
{
    op_norm(m->d, (struct norm_args){m->h, m->x, m->ones, NULL, 1e-5f, NORM_LAYER, m->w});
    if (m->d->ops->reserve) m->d->ops->reserve(m->d, product, m);
    op_act(m->d, (struct act_args){m->h, ACT_RELU});
}
static void norm_product(void *arg)
{
    struct meddling *m = arg;
    op_norm(m->d, (struct norm_args){m->h, m->x, m->ones, NULL, 1e-5f, NORM_LAYER, m->w});
    product(m);
}
static void by_reserve_norm(struct meddling *m)
{
    if (m->d->ops->reserve) m->d->ops->reserve(m->d, norm_product, m);
    norm_product(m);
    op_act(m->d, (struct act_args){m->h, ACT_RELU});
}
/* and for a norm that begins one. */
static void by_reserve_step(struct meddling *m)
{
    if (m->d->ops->reserve) m->d->ops->reserve(m->d, step, m);
    step(m);
}

/* what leaves the rows alone leaves what was done for them */
static void by_others(struct meddling *m)
{
    op_linear(m->d, (struct linear_args){mat_f32(m->wide.p, ROWS, OUTS), m->x, m->w, NULL});
    op_act(m->d, (struct act_args){m->x, ACT_RELU});
    op_act_mul(m->d, (struct act_mul_args){m->x, m->wide, ACT_SILU});
    op_add(m->d, (struct add_args){m->x, m->h});
    struct lora_part part = {m->ones, m->ones, 1, 0, COLS, 0.5f};
    struct lora_group group = {0, ROWS, 1, &part};
    op_lora(m->d, (struct lora_args){m->x, m->h, &group, 1});
    struct mat before = mat_f32((float *)m->h.p - COLS, 1, COLS);
    op_act(m->d, (struct act_args){before, ACT_RELU});
}

static const struct {
    const char *name;
    void (*run)(struct meddling *);
    bool kept; /* a norm's work is still used */
} meddlings[] = {
    {"nothing", by_nothing, true},
    {"other ops", by_others, true},
    {"upload", by_upload, false},
    {"zero", by_zero, false},
    {"add", by_add, false},
    {"act", by_act, false},
    {"act_mul", by_act_mul, false},
    {"act of the last row", by_last_row, false},
    {"act from before", by_before, false},
    {"norm", by_norm, false},
    {"a norm for int4", by_other_form, false},
    {"a norm elsewhere", by_norm_elsewhere, false},
    {"head_norm", by_head_norm, false},
    {"rows", by_rows, false},
    {"embed", by_embed, false},
    {"linear", by_linear, false},
    {"lora", by_lora, false},
    {"rope_kv", by_rope_kv, false},
    {"attn", by_attn, false},
    {"axpby", by_training, false},
    {"free and alloc", by_memory, false},
    {"an error", by_error, false},
    {"replay", by_replay, false},
    {"reserve", by_reserve, false},
    {"reserve of both", by_reserve_norm, false},
    {"reserve of a step", by_reserve_step, false},
};

static bool on_fresh_device(size_t which)
{
    return meddlings[which].run == by_reserve || meddlings[which].run == by_reserve_norm ||
           meddlings[which].run == by_reserve_step;
}

/* norm, something, the product: of what is in h then, bit for bit.  Of all rows, or of three from the third on. */
static void meddle(struct dev *d, const struct weight_case *c, size_t which, bool some)
{
    enum { PAGES = 1 };
    char label[LABEL];
    struct weight_case square = weight_random(DT_F32, COLS, COLS, 0), int4 = weight_random(DT_I4, OUTS, COLS, 32);
    float *floats = random_floats(ROWS * COLS * 3, 1), *ones = random_floats(COLS * COLS, 1);
    int32_t index[ROWS + 3] = {0, 1, 2, 3, 4, 5, 0, ROWS, ROWS};
    float *h = put(d, NULL, (ROWS + GAP_ROWS) * COLS * 4);
    struct meddling m = {.d = d,
                         .h = mat_f32(h + COLS, ROWS, COLS),
                         .x = mat_f32(put(d, floats, ROWS * COLS * 4), ROWS, COLS),
                         .wide = mat_f32(put(d, floats, ROWS * COLS * 8), ROWS, 2 * COLS),
                         .ones = put(d, ones, COLS * COLS * 4),
                         .other = floats + ROWS * COLS,
                         .w = weight_put(d, c),
                         .w4 = weight_put(d, &int4),
                         .square = weight_put(d, &square),
                         .index = put(d, index, sizeof index),
                         .kv = d->ops->kv_open(d, &(struct kv_shape){1, PAGES, 1, DIM, DT_F32})};
    float *y = put(d, NULL, ROWS * OUTS * 4), *copy = put(d, NULL, ROWS * COLS * 4);
    struct mat products = mat_f32(m.wide.p, ROWS, OUTS);
    int first = some ? 2 : 0, rows = some ? 3 : ROWS;
    snprintf(label, sizeof label, "%s: norm, %s, linear %s of %d rows", d->ops->name, meddlings[which].name,
             dtype_name(c->src.t), rows);
    if (!on_fresh_device(which)) {
        op_linear(d, (struct linear_args){products, m.x, m.w, NULL}); /* has its scratch from here on, */
        if (meddlings[which].kept) meddlings[which].run(&m);          /* and so have these: to take some ends it, too */
        op_norm(d, (struct norm_args){m.h, m.x, m.ones, NULL, 1e-5f, NORM_RMS, m.w});
    }
    meddlings[which].run(&m);
    uint64_t start = launches();
    struct mat hm = mat_f32((float *)m.h.p + first * COLS, rows, COLS), ym = mat_f32(y, rows, OUTS);
    op_linear(d, (struct linear_args){ym, hm, m.w, NULL});
    uint64_t took = launches() - start;
    check_device(label, d);
    if (counts_launches(d)) CHECK((took == 1) == meddlings[which].kept, "%s: %d launches", label, (int)took);
    float *got = get(d, y, (size_t)(rows * OUTS)), *now = get(d, hm.p, (size_t)(rows * COLS));
    d->ops->upload(d, copy, now, (size_t)(rows * COLS) * 4);
    op_linear(d, (struct linear_args){ym, mat_f32(copy, rows, COLS), m.w, NULL});
    float *want = get(d, y, (size_t)(rows * OUTS));
    compare_bits(label, got, want, (size_t)(rows * OUTS));
    check_device(label, d);
    free(got), free(want), free(now), free(floats), free(ones);
    d->ops->weight_free(d, m.w), d->ops->weight_free(d, m.w4), d->ops->weight_free(d, m.square);
    void *all[] = {(float *)m.h.p - COLS, m.x.p, m.wide.p, m.ones, m.index, y, copy};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) d->ops->free(d, all[i]);
    d->ops->kv_close(d, m.kv);
    weight_case_free(&square), weight_case_free(&int4);
}

/* Rows that begin within those of the norm, or end after them, are others. */
static void shifted(struct dev *d, const struct weight_case *c)
{
    float *floats = random_floats(ROWS * COLS, 1);
    float *x = put(d, floats, ROWS * COLS * 4), *h = put(d, floats, ROWS * COLS * 4), *ones = put(d, floats, COLS * 4);
    float *y = put(d, NULL, ROWS * OUTS * 8);
    struct weight *w = weight_put(d, c);
    for (int more = 0; more < 2; more++) {
        int by = more ? 0 : 4, normed = more ? 2 : ROWS, rows = ROWS - 1;
        op_norm(d,
                (struct norm_args){mat_f32(h, normed, COLS), mat_f32(x, normed, COLS), ones, NULL, 1e-5f, NORM_RMS, w});
        op_linear(d, (struct linear_args){mat_f32(y, rows, OUTS), mat_f32(h + by, rows, COLS), w, NULL});
        float *now = get(d, h, ROWS * COLS);
        d->ops->upload(d, x, now + by, (size_t)rows * COLS * 4);
        op_linear(d, (struct linear_args){mat_f32(y + ROWS * OUTS, rows, OUTS), mat_f32(x, rows, COLS), w, NULL});
        float *got = get(d, y, ROWS * OUTS * 2);
        compare_bits("not a norm's rows", got, got + ROWS * OUTS, (size_t)rows * OUTS);
        free(now), free(got);
    }
    free(floats);
    d->ops->free(d, x), d->ops->free(d, h), d->ops->free(d, ones), d->ops->free(d, y), d->ops->weight_free(d, w);
}

static struct dev *open_plain(const char *name)
{
    char why[160];
    struct dev *d = dev_open(&(struct dev_config){.name = name, .threads = 1}, why);
    if (!d) fail("%s does not open: %s", name, why);
    return d;
}

/* Without dev_checked, which leaves out what is no op. */
void test_prequantise(const char *name)
{
    struct weight_case weights[] = {weight_random(DT_I8, OUTS, COLS, 0), weight_random(DT_I4, OUTS, COLS, 64)};
    struct dev *d = open_plain(name);
    for (size_t i = 0; d && i < 4 * sizeof meddlings / sizeof *meddlings; i++) {
        bool int4 = i & 1, fresh = on_fresh_device(i / 4);
        if (int4 && meddlings[i / 4].run == by_other_form) continue; /* it is the same */
        struct dev *own = fresh ? open_plain(name) : d;
        if (own) meddle(own, &weights[int4], i / 4, i & 2);
        if (fresh) dev_close(own);
    }
    if (d) shifted(d, weights);
    dev_close(d);
    weight_case_free(&weights[0]), weight_case_free(&weights[1]);
}
