/* The ops of experts. */
#include "tests/ops/gradient.h"
#include "tests/ops/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct tolerance exact = {1e-6, 1e-5, 1e-10}, close = {1e-3, 1e-3, 1e-8}, bf16 = {1e-2, 1e-2, 1e-4};

/* ---- route --------------------------------------------------------------------------------------------------- */

struct routed {
    float *weight;
    int32_t *expert, *place, *token, *start; /* host */
};

static struct routed route(struct dev *d, const float *logits, int ld, int T, int E, int k, bool normalise)
{
    struct routed r = {0};
    float *l = put(d, logits, (size_t)T * (size_t)ld * 4), *w = put(d, NULL, (size_t)(T * (k + 1)) * 4);
    int32_t *out[4];
    size_t n[4] = {(size_t)(T * k), (size_t)(T * k), (size_t)(T * k), (size_t)E + 1};
    for (int i = 0; i < 4; i++) out[i] = put(d, NULL, n[i] * 4);
    op_route(d, (struct route_args){.logits = {l, DT_F32, T, E, ld},
                                    .weight = {w, DT_F32, T, k, k + 1},
                                    .expert = out[0],
                                    .place = out[1],
                                    .token = out[2],
                                    .start = out[3],
                                    .normalise = normalise});
    r.weight = get(d, w, (size_t)(T * (k + 1)));
    int32_t **to[4] = {&r.expert, &r.place, &r.token, &r.start};
    for (int i = 0; i < 4; i++) *to[i] = (int32_t *)get(d, out[i], n[i]), d->ops->free(d, out[i]);
    d->ops->free(d, l), d->ops->free(d, w);
    return r;
}

static void routed_free(struct routed *r)
{
    free(r->weight), free(r->expert), free(r->place), free(r->token), free(r->start);
}

static void same_ints(const char *label, const char *what, const int32_t *got, const int32_t *want, int n)
{
    for (int i = 0; i < n; i++)
        if (got[i] != want[i]) {
            fail("%s: %s[%d] is %d, wanted %d", label, what, i, got[i], want[i]);
            return;
        }
    n_checks++;
}

/* kind 0: random; 1: ties; 2: all tokens to one set; 3: rows with NaN and infinities */
static void route_case(struct dev *dev, struct dev *ref, int T, int E, int k, int kind, bool normalise)
{
    char label[LABEL];
    int ld = E + 3;
    if (case_left_out()) return;
    float *logits = random_floats((size_t)T * (size_t)ld, 3);
    for (int t = 0; t < T; t++)
        for (int e = 0; e < E; e++) {
            float *l = &logits[t * ld + e];
            if (kind == 1) *l = floorf(*l);
            if (kind == 2) *l = (float)(e * 7 % E);
            if (kind == 3 && t % 2) *l = random_below(3) ? *l : random_below(2) ? NAN : -INFINITY;
            if (kind == 3 && t % 4 == 2) *l = e % 3 ? *l : INFINITY;
        }
    snprintf(label, sizeof label, "route T=%d E=%d k=%d kind %d normalise %d", T, E, k, kind, normalise);
    struct routed got = route(dev, logits, ld, T, E, k, normalise), want = route(ref, logits, ld, T, E, k, normalise);
    same_ints(label, "expert", got.expert, want.expert, T * k);
    same_ints(label, "place", got.place, want.place, T * k);
    same_ints(label, "token", got.token, want.token, T * k);
    same_ints(label, "start", got.start, want.start, E + 1);
    compare(label, got.weight, want.weight, (size_t)(T * (k + 1)), exact);
    check_device(label, dev);
    check_device(label, ref);
    routed_free(&got), routed_free(&want);
    free(logits);
}

void test_route(struct dev *dev, struct dev *ref)
{
    static const int tokens[] = {1, 2, 7, 33, 300}, experts[][2] = {{1, 1}, {2, 1}, {4, 4}, {8, 2}, {31, 5}, {128, 8}};
    for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++)
        for (size_t e = 0; e < sizeof experts / sizeof *experts; e++)
            for (int kind = 0; kind < 4; kind++)
                for (int normalise = 0; normalise < 2; normalise++)
                    route_case(dev, ref, tokens[t], experts[e][0], experts[e][1], kind, normalise);
    route_case(dev, ref, 3, EXPERTS_MAX, EXPERTS_CHOSEN_MAX, 0, true);
}

/* ---- the experts' GEMMs ---------------------------------------------------------------------------------------- */

struct kind {
    enum dtype t;
    int group;
};
static const struct kind kinds[] = {{DT_F32, 0}, {DT_BF16, 0}, {DT_F16, 0},   {DT_I8, 0},
                                    {DT_I4, 32}, {DT_NF4, 64}, {DT_BLOCK, 0}, {DT_F8, 128}};

static const struct shape {
    int E, R, N, K; /* experts, rows, outputs (of gate and of up), inputs */
    int rows;       /* see share */
} shapes[] = {{1, 1, 1, 64, 0},    {1, 5, 17, 192, 0}, {3, 3, 33, 64, 1},   {4, 1, 40, 128, 2},  {8, 40, 20, 64, 0},
              {8, 60, 49, 128, 3}, {5, 9, 16, 64, 1},  {130, 64, 8, 64, 0}, {2, 120, 64, 256, 2},
              {9, 230, 70, 64, 4}};

/* The rows of each expert: 0 at random, 1 all of the first, 2 all of the last, 3 every other expert none, 4 most
 * of one. */
static void share(int32_t *start, const struct shape *s)
{
    memset(start, 0, ((size_t)s->E + 1) * sizeof *start);
    for (int r = 0; r < s->R; r++) {
        int e = s->rows == 1   ? 0
                : s->rows == 2 ? s->E - 1
                : s->rows == 3 ? random_below(s->E) / 2 * 2
                : s->rows == 4 ? (random_below(4) ? s->E / 2 : random_below(s->E))
                               : random_below(s->E);
        start[e + 1]++;
    }
    for (int e = 0; e < s->E; e++) start[e + 1] += start[e];
}

struct experts_case {
    const struct shape *s;
    struct weight_case *gate, *up; /* [E] */
    float *x, *b;
    int32_t *start;
    bool gated;
    enum act_kind act;
    int ldx, ldy;
};

static struct experts_case case_make(const struct shape *s, struct kind k, bool gated)
{
    struct experts_case c = {.s = s, .gated = gated, .ldx = s->K + 4, .ldy = s->N + 3};
    c.gate = calloc((size_t)s->E, sizeof *c.gate);
    c.up = calloc((size_t)s->E, sizeof *c.up);
    c.start = calloc((size_t)s->E + 1, sizeof *c.start);
    if (!c.gate || !c.up || !c.start) abort();
    for (int e = 0; e < s->E; e++) {
        int group = k.t == DT_BLOCK ? (e * 5 + s->N) % BLOCK_KINDS : k.group; /* experts of different forms */
        c.gate[e] = weight_random(k.t, s->N, s->K, group);
        c.up[e] = weight_random(k.t, s->N, s->K, group);
        c.gate[e].src.gate_up = c.up[e].src.gate_up = gated;
    }
    c.x = random_floats((size_t)s->R * (size_t)c.ldx, 0.1f);
    for (int r = 0; r < s->R; r += 3) c.x[r * c.ldx + r % s->K] = 40; /* an outlier */
    c.b = random_floats((size_t)s->E * (size_t)s->N * 2, 1);
    share(c.start, s);
    return c;
}

static void case_free(struct experts_case *c)
{
    for (int e = 0; e < c->s->E; e++) weight_case_free(&c->gate[e]), weight_case_free(&c->up[e]);
    free(c->gate), free(c->up), free(c->start), free(c->x), free(c->b);
}

/* The op's result; `alone`: expert by expert and row by row, with linear or gate_up. */
static float *case_run(struct dev *d, const struct experts_case *c, bool bias, bool alone)
{
    const struct shape *s = c->s;
    struct weight **w = calloc((size_t)s->E, sizeof *w);
    if (!w) abort();
    for (int e = 0; e < s->E; e++) {
        struct weight_src part[2] = {c->gate[e].src, c->up[e].src};
        w[e] = d->ops->weight_pack(d, part, c->gated ? 2 : 1);
    }
    int ld_b = c->gated ? 2 * s->N : s->N;
    float *x = put(d, c->x, (size_t)s->R * (size_t)c->ldx * 4), *b = put(d, c->b, (size_t)(s->E * ld_b) * 4);
    float *y = put(d, NULL, (size_t)s->R * (size_t)c->ldy * 4), *tmp = put(d, NULL, (size_t)(s->R * s->N) * 8);
    int32_t *start = put(d, c->start, ((size_t)s->E + 1) * 4);
    struct mat mx = {x, DT_F32, s->R, s->K, c->ldx}, my = {y, DT_F32, s->R, s->N, c->ldy};
    struct mat mt = mat_f32(tmp, s->R, 2 * s->N);
    const struct weight *const *cw = (const struct weight *const *)w;
    if (!alone && c->gated)
        op_experts_gate_up(d, (struct experts_gate_up_args){my, mx, cw, bias ? b : NULL, start, s->E, c->act, mt});
    else if (!alone)
        op_experts_linear(d, (struct experts_linear_args){my, mx, cw, bias ? b : NULL, start, s->E});
    for (int e = 0; alone && e < s->E; e++)
        for (int r = c->start[e]; r < c->start[e + 1]; r++) {
            struct mat rx = {x + r * c->ldx, DT_F32, 1, s->K, c->ldx}, ry = {y + r * c->ldy, DT_F32, 1, s->N, c->ldy};
            const float *of = bias ? b + e * ld_b : NULL;
            if (c->gated)
                op_gate_up(d, (struct gate_up_args){ry, rx, w[e], of, c->act, mt});
            else
                op_linear(d, (struct linear_args){ry, rx, w[e], of, 0});
        }
    float *out = get(d, y, (size_t)s->R * (size_t)c->ldy);
    check_device("experts", d);
    for (int e = 0; e < s->E; e++) d->ops->weight_free(d, w[e]);
    d->ops->free(d, x), d->ops->free(d, b), d->ops->free(d, y), d->ops->free(d, tmp), d->ops->free(d, start);
    free(w);
    return out;
}

static void test_gemms(struct dev *dev, struct dev *ref, bool gated)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            char label[LABEL];
            if (case_left_out()) continue;
            const struct shape *s = &shapes[i];
            struct experts_case c = case_make(s, kinds[k], gated);
            bool bias = (i + k) % 2;
            c.act = (i + k) / 2 % 2 ? ACT_SWIGLU_CLAMPED : ACT_SILU;
            float *got = case_run(dev, &c, bias, false), *want = case_run(ref, &c, bias, false);
            snprintf(label, sizeof label, "experts gated %d %s E=%d R=%d N=%d K=%d rows %d bias %d act %d", gated,
                     dtype_name(kinds[k].t), s->E, s->R, s->N, s->K, s->rows, bias, (int)c.act);
            struct tolerance tol = with_bf16_x && kinds[k].t != DT_F32 ? bf16 : close;
            tol.atol *= kinds[k].t == DT_I8      ? 1e4
                        : kinds[k].t == DT_BLOCK ? 1e3
                                                 : 10; /* some random weights are large */
            compare(label, got, want, (size_t)s->R * (size_t)c.ldy, tol);
            if (dev->ops->host_memory) {
                float *alone = case_run(dev, &c, bias, true);
                compare_bits(label, got, alone, (size_t)s->R * (size_t)c.ldy);
                free(alone);
            }
            free(got), free(want);
            case_free(&c);
        }
}

void test_experts_linear(struct dev *dev, struct dev *ref)
{
    test_gemms(dev, ref, false);
}

void test_experts_gate_up(struct dev *dev, struct dev *ref)
{
    test_gemms(dev, ref, true);
}

/* ---- combine --------------------------------------------------------------------------------------------------- */

/* kind 0: weights; 1: no weights; 2: a shared expert; 3: one with a gate; 4: likewise in y */
static void combine_case(struct dev *dev, struct dev *ref, int T, int C, int k, int kind)
{
    char label[LABEL];
    if (case_left_out()) return;
    size_t n = (size_t)(T * k), ld = (size_t)C + 5;
    float *x = random_floats(n * (size_t)C, 1), *w = random_floats(n, 1), *out[2];
    float *shared = random_floats((size_t)T * ld, 1), *gate = random_floats((size_t)T * 3, 2);
    int32_t *place = malloc(n * sizeof *place);
    if (!place) abort();
    for (size_t i = 0; i < n; i++) place[i] = (int32_t)((i * 7 + 3) % n);
    struct dev *devs[2] = {dev, ref};
    for (int i = 0; i < 2; i++) {
        struct dev *d = devs[i];
        float *dx = put(d, x, n * (size_t)C * 4), *dw = put(d, w, n * 4), *dg = put(d, gate, (size_t)T * 12);
        float *ds = put(d, shared, (size_t)T * ld * 4), *dy = put(d, kind == 4 ? shared : NULL, (size_t)T * ld * 4);
        int32_t *dp = put(d, place, n * 4);
        struct combine_args a = {.y = {dy, DT_F32, T, C, (int)ld}, .x = mat_f32(dx, (int)n, C), .place = dp, .k = k};
        if (kind != 1) a.weight = mat_f32(dw, T, k);
        if (kind >= 2) a.shared = (struct mat){kind == 4 ? dy : ds, DT_F32, T, C, (int)ld};
        if (kind >= 3) a.gate = (struct mat){dg + 1, DT_F32, T, 1, 3};
        op_combine(d, a);
        out[i] = get(d, dy, (size_t)T * ld);
        d->ops->free(d, dx), d->ops->free(d, dw), d->ops->free(d, dg), d->ops->free(d, ds), d->ops->free(d, dy);
        d->ops->free(d, dp);
    }
    snprintf(label, sizeof label, "combine T=%d C=%d k=%d kind %d", T, C, k, kind);
    compare(label, out[0], out[1], (size_t)T * ld, exact);
    check_device(label, dev);
    check_device(label, ref);
    free(x), free(w), free(shared), free(gate), free(place), free(out[0]), free(out[1]);
}

void test_combine(struct dev *dev, struct dev *ref)
{
    static const int tokens[] = {1, 2, 13, 50}, cols[] = {1, 16, 67, 260, 1100}, chosen[] = {1, 2, 8};
    for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++)
        for (size_t c = 0; c < sizeof cols / sizeof *cols; c++)
            for (size_t k = 0; k < sizeof chosen / sizeof *chosen; k++)
                for (int kind = 0; kind < 5; kind++) combine_case(dev, ref, tokens[t], cols[c], chosen[k], kind);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* What combine reads, in one array: x, shared, weight, gate; and its results likewise. */
struct sum_case {
    struct dev *d;
    int T, C, k, kind; /* kind 0: no shared expert; 1: one; 2: one with a gate; 3: that, in place */
    float *x, *shared, *weight, *gate, *y;
    int32_t *place;
    const float *dy; /* host */
};

static size_t sum_floats(const struct sum_case *c)
{
    return (size_t)(c->T * c->k * (c->C + 1) + c->T * (c->C + 1));
}

static struct combine_args sum_args(const struct sum_case *c)
{
    struct combine_args a = {.y = mat_f32(c->y, c->T, c->C),
                             .x = mat_f32(c->x, c->T * c->k, c->C),
                             .weight = mat_f32(c->weight, c->T, c->k),
                             .place = c->place,
                             .k = c->k};
    if (c->kind) a.shared = mat_f32(c->shared, c->T, c->C);
    if (c->kind > 1) a.gate = mat_f32(c->gate, c->T, 1);
    return a;
}

static struct sum_case sum_open(struct dev *d, int T, int C, int k, int kind, const float *in, const float *dy)
{
    struct sum_case c = {.d = d, .T = T, .C = C, .k = k, .kind = kind, .dy = dy};
    size_t n = (size_t)(T * k);
    int32_t *place = malloc(n * sizeof *place);
    if (!place) abort();
    for (size_t i = 0; i < n; i++) place[i] = (int32_t)((i + 1) % n);
    c.place = put(d, place, n * 4);
    c.x = put(d, in, sum_floats(&c) * 4);
    c.shared = c.x + n * (size_t)C, c.weight = c.shared + T * C, c.gate = c.weight + n;
    c.y = put(d, NULL, (size_t)(T * C) * 4);
    free(place);
    return c;
}

static void sum_close(struct sum_case *c)
{
    check_device("combine_back", c->d);
    c->d->ops->free(c->d, c->x), c->d->ops->free(c->d, c->y), c->d->ops->free(c->d, c->place);
}

/* The gradients, in the order of what combine reads; zeros for what the kind does not have. */
static float *sum_back(struct sum_case *c)
{
    struct dev *d = c->d;
    int T = c->T, C = c->C, k = c->k;
    bool in_place = c->kind == 3;
    float *dy = put(d, c->dy, (size_t)(T * C) * 4), *out = put(d, NULL, sum_floats(c) * 4);
    struct combine_args f = sum_args(c);
    struct combine_back_args a = {.dx = in_place ? f.x : mat_f32(out, T * k, C),
                                  .dweight = mat_f32(out + T * k * C + T * C, T, k),
                                  .dy = mat_f32(dy, T, C),
                                  .x = f.x,
                                  .weight = f.weight,
                                  .place = c->place,
                                  .k = k,
                                  .shared = f.shared,
                                  .gate = f.gate};
    if (c->kind) a.dshared = in_place ? a.shared : mat_f32(out + T * k * C, T, C);
    if (c->kind > 1) a.dgate = mat_f32(out + T * k * C + T * C + T * k, T, 1);
    op_combine_back(d, a);
    float *got = get(d, out, sum_floats(c));
    if (in_place) {
        float *x = get(d, c->x, (size_t)(T * k * C + T * C)); /* dx and dshared, where x and shared were */
        memcpy(got, x, (size_t)(T * k * C + T * C) * sizeof *x);
        free(x);
    }
    d->ops->free(d, dy), d->ops->free(d, out);
    return got;
}

static double sum_loss(void *ctx)
{
    struct sum_case *c = ctx;
    struct combine_args a = sum_args(c);
    op_combine(c->d, a);
    return gradient_loss(&a.y, c->dy);
}

void test_combine_back(struct dev *dev, struct dev *ref)
{
    static const int sizes[][3] = {{1, 1, 1}, {2, 17, 2}, {13, 67, 3}, {9, 300, 8}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int kind = 0; kind < 4; kind++) {
            char label[LABEL];
            if (case_left_out()) continue;
            int T = sizes[i][0], C = sizes[i][1], k = sizes[i][2];
            struct sum_case like = {.T = T, .C = C, .k = k};
            float *in = random_floats(sum_floats(&like), 1), *dy = random_floats((size_t)(T * C), 1);
            struct sum_case c[2] = {sum_open(dev, T, C, k, kind, in, dy), sum_open(ref, T, C, k, kind, in, dy)};
            snprintf(label, sizeof label, "combine_back T=%d C=%d k=%d kind %d", T, C, k, kind);
            float *got = sum_back(&c[0]), *want = sum_back(&c[1]);
            compare(label, got, want, sum_floats(&like), (struct tolerance){1e-5, 1e-5, 1e-10});
            if (i == 1 && kind < 3)
                gradient_check((struct gradient_check){.label = label,
                                                       .x = c[1].x,
                                                       .dx = want,
                                                       .n = sum_floats(&like),
                                                       .most = 60,
                                                       .loss = sum_loss,
                                                       .ctx = &c[1],
                                                       .step = 0x1p-7,
                                                       .tolerance = 1e-3});
            sum_close(&c[0]), sum_close(&c[1]);
            free(in), free(dy), free(got), free(want);
        }
}

struct choice_case {
    struct dev *d;
    int T, E, k;
    bool normalise;
    float *logits, *weight;
    int32_t *expert, *place, *token, *start;
    const float *dw; /* host */
};

static void choose(struct choice_case *c)
{
    op_route(c->d, (struct route_args){mat_f32(c->logits, c->T, c->E), mat_f32(c->weight, c->T, c->k), c->expert,
                                       c->place, c->token, c->start, c->normalise});
}

static double choice_loss(void *ctx)
{
    struct choice_case *c = ctx;
    struct mat weight = mat_f32(c->weight, c->T, c->k);
    choose(c);
    return gradient_loss(&weight, c->dw);
}

static float *choice_back(struct choice_case *c, const float *logits)
{
    struct dev *d = c->d;
    size_t n = (size_t)(c->T * c->k), all = (size_t)(c->T * c->E);
    c->logits = put(d, logits, all * 4), c->weight = put(d, NULL, n * 4);
    c->expert = put(d, NULL, n * 4), c->place = put(d, NULL, n * 4), c->token = put(d, NULL, n * 4);
    c->start = put(d, NULL, ((size_t)c->E + 1) * 4);
    choose(c);
    float *dw = put(d, c->dw, n * 4), *out = put(d, NULL, all * 4);
    op_route_back(d, (struct route_back_args){mat_f32(out, c->T, c->E), mat_f32(c->logits, c->T, c->E),
                                              mat_f32(dw, c->T, c->k), mat_f32(c->weight, c->T, c->k), c->expert,
                                              c->normalise});
    float *got = get(d, out, all);
    d->ops->free(d, dw), d->ops->free(d, out);
    return got;
}

static void choice_close(struct choice_case *c)
{
    check_device("route_back", c->d);
    void *all[] = {c->logits, c->weight, c->expert, c->place, c->token, c->start};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) c->d->ops->free(c->d, all[i]);
}

void test_route_back(struct dev *dev, struct dev *ref)
{
    static const int sizes[][3] = {{1, 1, 1}, {2, 8, 3}, {13, 40, 5}, {7, 128, 8}, {3, 4, 4}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int normalise = 0; normalise < 2; normalise++) {
            char label[LABEL];
            if (case_left_out()) continue;
            int T = sizes[i][0], E = sizes[i][1], k = sizes[i][2];
            float *logits = random_floats((size_t)(T * E), 2), *dw = random_floats((size_t)(T * k), 1);
            struct choice_case c[2] = {{dev, T, E, k, normalise}, {ref, T, E, k, normalise}};
            c[0].dw = c[1].dw = dw;
            float *got = choice_back(&c[0], logits), *want = choice_back(&c[1], logits);
            snprintf(label, sizeof label, "route_back T=%d E=%d k=%d normalise %d", T, E, k, normalise);
            compare(label, got, want, (size_t)(T * E), exact);
            if (i == 1)
                gradient_check((struct gradient_check){.label = label,
                                                       .x = c[1].logits,
                                                       .dx = want,
                                                       .n = (size_t)(T * E),
                                                       .most = T * E,
                                                       .loss = choice_loss,
                                                       .ctx = &c[1],
                                                       .step = 0x1p-9,
                                                       .tolerance = 5e-3});
            choice_close(&c[0]), choice_close(&c[1]);
            free(logits), free(dw), free(got), free(want);
        }
}
