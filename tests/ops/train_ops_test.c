/* Tests of the training ops of rows, attention, loss and optimizer: drivers over the runs of train_run.h, against ref,
 * against finite differences, over levels and threads bit for bit. */
#include "tests/ops/gradient.h"
#include "tests/ops/train_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- drivers ----------------------------------------------------------------------------------------------------- */

static size_t n_in(const struct train_op *op, const struct shape *s)
{
    return op->n_x(s) + op->n_y(s);
}

/* attn_seq gives no gradient, only results */
static size_t n_out(const struct train_op *op, const struct shape *s)
{
    return (op->forward ? op->n_x(s) : 0) + (op->n_more ? op->n_more(s) : 0);
}

static void shape_name(char label[LABEL], const struct train_op *op, const struct shape *s, const char *what)
{
    snprintf(label, LABEL, "%s T=%d C=%d H=%d/%d D=%d rot %d window %d softcap %g kind %d%s%s%s%s%s pad %d%s", op->name,
             s->T, s->C, s->H, s->G, s->D, s->rot, s->window, (double)s->softcap, s->kind, s->sinks ? " sinks" : "",
             s->both ? " both sides" : "", s->apart ? " apart" : "", s->accumulate ? " accumulates" : "", s->in_place ? " in place" : "", s->pad,
             what);
}

static float *run_on(struct dev *d, const struct train_op *op, const struct shape *s, const float *in)
{
    float *out = calloc(n_out(op, s) + 1, sizeof *out);
    if (!out) abort();
    op->run(d, s, in, out);
    return out;
}

/* What rounding operands to bf16 does to a result: share: its error beside its size, as a rule; size: of the terms of
 * its sum; squares: the mean of squared errors beside that of squared results, in squares of share.
 *
 * An error may be five times what it is as a rule: of the few 10^5 that are compared, the largest of normal ones would
 * be.  The mean of n squares spreads by sqrt(2 / n) of itself, four times which is allowed. */
struct rounding {
    double share, size, squares;
};

static void against_ref_rounded(struct dev *dev, struct dev *ref, const struct train_op *op, const struct shape *s,
                                float scale, struct tolerance tol, struct rounding by)
{
    if (case_left_out()) return;
    char label[LABEL];
    float *in = random_floats(n_in(op, s), scale);
    float *got = run_on(dev, op, s, in), *want = run_on(ref, op, s, in);
    bool rounds = by.share > 0 && dev->bf16_x && !dev->ops->host_memory;
    double spread = 1 + 4 * sqrt(2.0 / (double)n_out(op, s));
    if (rounds)
        tol = (struct tolerance){5 * by.share * by.size, 5 * by.share, by.squares * by.share * by.share * spread};
    shape_name(label, op, s, rounds ? " bf16" : "");
    compare(label, got, want, n_out(op, s), tol);
    free(in), free(got), free(want);
}

static void against_ref(struct dev *dev, struct dev *ref, const struct train_op *op, const struct shape *s, float scale,
                        struct tolerance tol)
{
    against_ref_rounded(dev, ref, op, s, scale, tol, (struct rounding){0});
}

struct differences {
    const struct train_op *op;
    const struct shape *s;
    struct dev *d;
    const float *x, *dy;
    float *y;
};

/* sum dy y */
static double differences_loss(void *ctx)
{
    const struct differences *f = ctx;
    double sum = 0;
    f->op->forward(f->d, f->s, f->x, f->y);
    for (size_t i = 0; i < f->op->n_y(f->s); i++) sum += (double)f->dy[i] * f->y[i];
    return sum;
}

/* of ref alone: the other devices are held to it */
static void against_differences(struct dev *ref, const struct train_op *op, const struct shape *s)
{
    char label[LABEL];
    size_t n = op->n_x(s);
    float *in = random_floats(n_in(op, s), 1), *dx = run_on(ref, op, s, in), *y = malloc(op->n_y(s) * sizeof *y);
    if (!y) abort();
    struct differences f = {op, s, ref, in, in + n, y};
    shape_name(label, op, s, " against differences");
    gradient_check((struct gradient_check){.label = label,
                                           .x = in,
                                           .dx = dx,
                                           .n = n,
                                           .most = (int)n,
                                           .loss = differences_loss,
                                           .ctx = &f,
                                           .step = 0x1p-7,
                                           .tolerance = 3e-4});
    free(in), free(dx), free(y);
}

/* ---- each op against ref ----------------------------------------------------------------------------------------- */

static const int row_counts[] = {1, 2, 7, 67}, col_counts[] = {1, 7, 16, 17, 48, 67, 257};
static const struct tolerance loose = {1e-5, 1e-5, 1e-10};
#define EACH(v, list)                                                                                                  \
    for (size_t v##_i = 0, v; v##_i < sizeof(list) / sizeof *(list) && (v = (size_t)(list)[v##_i], 1); v##_i++)

void test_norm_back(struct dev *dev, struct dev *ref)
{
    EACH(T, row_counts) EACH(C, col_counts) for (int k = 0; k < 6; k++)
    {
        struct shape s = {.T = (int)T, .C = (int)C, .kind = k % 2, .accumulate = k / 2 == 1, .in_place = k / 2 == 2};
        s.pad = k / 2;
        against_ref(dev, ref, &norm_back_op, &s, 2, (struct tolerance){5e-5, 2e-5, 1e-10});
    }
    struct shape wide = {.T = 2, .C = 2052, .kind = NORM_LAYER}, small = {.T = 3, .C = 7};
    against_ref(dev, ref, &norm_back_op, &wide, 2, (struct tolerance){5e-5, 2e-5, 1e-10});
    against_differences(ref, &norm_back_op, &small);
    small.kind = NORM_LAYER;
    against_differences(ref, &norm_back_op, &small);
}

void test_head_norm_back(struct dev *dev, struct dev *ref)
{
    static const int dims[] = {1, 8, 16, 20, 64, 128};
    EACH(T, row_counts) EACH(D, dims) for (int H = 1; H < 4; H++) for (int k = 0; k < 4; k++)
    {
        struct shape s = {.T = (int)T, .D = (int)D, .H = H, .pad = H - 1, .kind = k % 2, .apart = k / 2};
        against_ref(dev, ref, &head_norm_back_op, &s, 2, (struct tolerance){5e-5, 2e-5, 1e-10});
    }
    for (int k = 0; k < 4; k++) {
        struct shape wide = {.T = 3, .D = 300, .H = 2, .kind = k % 2, .apart = k / 2};
        against_ref(dev, ref, &head_norm_back_op, &wide, 2, (struct tolerance){5e-5, 2e-5, 1e-10});
        struct shape small = {.T = 2, .D = 5, .H = 2, .kind = k % 2, .apart = k / 2};
        against_differences(ref, &head_norm_back_op, &small);
    }
}

/* The rotation is rope_kv's, bit for bit; and back undoes it. */
static void rope_as_rope_kv(struct dev *d, const struct shape *s)
{
    struct bed b = {d, s->pad};
    int half = s->rot / 2;
    size_t n = size_qkv(s);
    float *x = random_floats(n, 1), *turned = malloc(n * sizeof *x), *want = malloc(n * sizeof *x);
    float *angles = random_floats((size_t)s->T * half * 2, 1);
    int32_t at[64];
    for (int i = 0; i < 64; i++) at[i] = i;
    if (!turned || !want) abort();
    struct kv *kv = d->ops->kv_open(d, &(struct kv_shape){1, 5, s->G, s->D, DT_F16});
    float *cosines = bed_put(&b, angles, (size_t)s->T * half * 8), *sines = cosines + s->T * half;
    int32_t *pos = bed_put(&b, at, sizeof at);
    struct mat one = bed_mat(&b, x, s->T, (s->H + 2 * s->G) * s->D), two = bed_mat(&b, x, s->T, one.cols);
    op_rope(d, (struct rope_args){one, s->H, s->G, s->D, s->rot, cosines, sines, pos, false});
    op_rope_kv(d, (struct rope_kv_args){two, s->H, s->G, s->D, s->rot, cosines, sines, pos, pos, kv, 0});
    bed_take(&b, &one, turned);
    bed_take(&b, &two, want);
    compare_bits("rope as rope_kv", turned, want, n);
    bed_end(&b, "rope as rope_kv");
    d->ops->kv_close(d, kv);
    float *there = malloc(n * sizeof *x);
    if (!there) abort();
    rope_at(d, s, x, there, false);
    rope_at(d, s, there, turned, true);
    compare("rope there and back", turned, x, n, loose);
    free(x), free(turned), free(want), free(angles), free(there);
}

void test_rope(struct dev *dev, struct dev *ref)
{
    EACH(T, row_counts) for (int k = 0; k < 4; k++)
    {
        struct shape s = {.T = (int)T, .H = 4, .G = 2, .D = k == 3 ? 64 : 20, .rot = k * 6 + (k == 3) * 46, .pad = k};
        if (k == 1) s.rot = 2;
        against_ref(dev, ref, &rope_op, &s, 1, loose);
        if (s.rot && s.T < 64) rope_as_rope_kv(dev, &s);
    }
    struct shape small = {.T = 3, .H = 2, .G = 1, .D = 6, .rot = 4};
    against_differences(ref, &rope_op, &small);
}

/* sequences of every kind of length; an empty one among them */
static const struct shape attn_shapes[] = {
    {.T = 1, .H = 1, .G = 1, .D = 1, .n_seqs = 1, .q_start = {0, 1}},
    {.T = 9, .H = 4, .G = 2, .D = 6, .n_seqs = 3, .q_start = {0, 3, 3, 9}},
    {.T = 33, .H = 3, .G = 1, .D = 17, .n_seqs = 2, .q_start = {0, 16, 33}, .pad = 3},
    {.T = 70, .H = 3, .G = 3, .D = 16, .n_seqs = 3, .q_start = {0, 1, 65, 70}},
    {.T = 133, .H = 2, .G = 1, .D = 64, .n_seqs = 1, .q_start = {0, 133}, .pad = 1},
    {.T = 150, .H = 3, .G = 1, .D = 40, .n_seqs = 2, .q_start = {0, 129, 150}},
    {.T = 67, .H = 7, .G = 1, .D = 128, .n_seqs = 1, .q_start = {0, 67}},
    {.T = 50, .H = 4, .G = 2, .D = 12, .n_seqs = 2, .q_start = {0, 40, 50}, .window = 7},
    {.T = 200, .H = 1, .G = 1, .D = 32, .n_seqs = 1, .q_start = {0, 200}, .window = 64},
    {.T = 130, .H = 2, .G = 2, .D = 80, .n_seqs = 2, .q_start = {0, 100, 130}, .window = 1},
    {.T = 34, .H = 8, .G = 1, .D = 96, .n_seqs = 2, .q_start = {0, 33, 34}, .pad = 2},
    {.T = 20, .H = 2, .G = 1, .D = 300, .n_seqs = 1, .q_start = {0, 20}, .window = 100},
    {.T = 35, .H = 2, .G = 1, .D = 132, .n_seqs = 2, .q_start = {0, 33, 35}, .window = 20},
    {.T = 66, .H = 2, .G = 1, .D = 112, .n_seqs = 1, .q_start = {0, 66}},
    {.T = 70, .H = 4, .G = 2, .D = 256, .n_seqs = 2, .q_start = {0, 67, 70}, .window = 30},
    /* scores below the cap, about it, above it */
    {.T = 9, .H = 4, .G = 2, .D = 6, .n_seqs = 3, .q_start = {0, 3, 3, 9}, .softcap = 1},
    {.T = 133, .H = 2, .G = 1, .D = 64, .n_seqs = 1, .q_start = {0, 133}, .pad = 1, .softcap = 50},
    {.T = 150, .H = 3, .G = 1, .D = 32, .n_seqs = 2, .q_start = {0, 129, 150}, .softcap = 0.5f},
    {.T = 50, .H = 4, .G = 2, .D = 12, .n_seqs = 2, .q_start = {0, 40, 50}, .window = 7, .softcap = 2},
    {.T = 67, .H = 3, .G = 1, .D = 96, .n_seqs = 1, .q_start = {0, 67}, .softcap = 3},
    {.T = 67, .H = 3, .G = 1, .D = 128, .n_seqs = 1, .q_start = {0, 67}, .softcap = 3},
    {.T = 70, .H = 4, .G = 2, .D = 256, .n_seqs = 2, .q_start = {0, 67, 70}, .window = 30, .softcap = 2},
    {.T = 20, .H = 2, .G = 1, .D = 300, .n_seqs = 1, .q_start = {0, 20}, .softcap = 1},
    {.T = 9, .H = 4, .G = 2, .D = 6, .n_seqs = 3, .q_start = {0, 3, 3, 9}, .sinks = true},
    {.T = 133, .H = 8, .G = 1, .D = 64, .n_seqs = 2, .q_start = {0, 131, 133}, .pad = 1, .sinks = true},
    {.T = 150, .H = 4, .G = 2, .D = 64, .n_seqs = 2, .q_start = {0, 129, 150}, .window = 33, .sinks = true},
    {.T = 67, .H = 4, .G = 2, .D = 128, .n_seqs = 1, .q_start = {0, 67}, .softcap = 3, .sinks = true},
    {.T = 70, .H = 4, .G = 2, .D = 256, .n_seqs = 2, .q_start = {0, 67, 70}, .window = 30, .sinks = true},
    {.T = 20, .H = 4, .G = 1, .D = 300, .n_seqs = 1, .q_start = {0, 20}, .sinks = true},
};
static const struct shape attn_none = {.T = 0, .H = 2, .G = 1, .D = 8, .n_seqs = 0};
enum { ATTN_SHAPES = sizeof attn_shapes / sizeof *attn_shapes };
#define ATTN_SCALE 1.5f

/* Of attention, of `factors` factors that are rounded: each is moved by up to 2^-9 of itself, and 2^-9 / sqrt(3) as a
 * rule.  The first two are q and k: a score is a sum of D products over sqrt(D), so of the size of one, and what moves
 * it moves the weight by that share.  Terms have so many inputs besides weights, and are summed over `heads`. */
static struct rounding attn_rounded(int factors, int inputs, int heads, double squares)
{
    double product = (double)ATTN_SCALE * ATTN_SCALE;
    return (struct rounding){0x1p-9 / sqrt(3) * sqrt(2 * product * product + factors - 2),
                             pow(ATTN_SCALE, inputs) * sqrt(heads), squares};
}

void test_attn_seq(struct dev *dev, struct dev *ref)
{
    for (int i = 0; i < 2 * ATTN_SHAPES; i++) {
        struct shape s = attn_shapes[i / 2];
        s.both = i % 2;
        against_ref_rounded(dev, ref, &attn_seq_op, &s, ATTN_SCALE, loose, attn_rounded(4, 1, 1, 1)); /* p v */
    }
    against_ref(dev, ref, &attn_seq_op, &attn_none, 1, loose);
}

/* A NaN shows in the row that has it, forward and backward, and never in another sequence. */
static void attn_poison(struct dev *d)
{
    struct shape s = {.T = 140, .H = 2, .G = 1, .D = 16, .n_seqs = 3, .q_start = {0, 40, 120, 140}};
    size_t x = (size_t)(s.H + 2 * s.G) * s.D, n = n_in(&attn_back_op, &s);
    float *in = random_floats(n, 1), *whole = run_on(d, &attn_back_op, &s, in);
    in[70 * x + 3] = NAN; /* q of row 70, head 0 */
    float *out = run_on(d, &attn_back_op, &s, in), *forward = run_on(d, &attn_seq_op, &s, in);
    CHECK(isnan(forward[70 * s.H * s.D]) && isnan(forward[s.T * s.H * s.D + 70 * s.H]), "attn_seq lost a NaN");
    CHECK(isnan(out[70 * x]), "attn_back lost a NaN");
    compare_bits("attn_back before a NaN's sequence", out, whole, 40 * x);
    compare_bits("attn_back after a NaN's sequence", out + 120 * x, whole + 120 * x, 20 * x);
    free(in), free(whole), free(out), free(forward);
}

void test_attn_back(struct dev *dev, struct dev *ref)
{
    attn_poison(dev);
    for (int i = 0; i < ATTN_SHAPES; i++) {
        const struct shape *s = &attn_shapes[i];
        /* (dout v) k, for dk of each head of a group; of dout v the row's mean is taken away, of few keys most of it:
         * its error stays, so that the squares are up to three times as large */
        against_ref_rounded(dev, ref, &attn_back_op, s, ATTN_SCALE, (struct tolerance){5e-5, 2e-5, 1e-10},
                            attn_rounded(6, 3, s->H / s->G, 3));
    }
    against_ref(dev, ref, &attn_back_op, &attn_none, 1, loose);
    struct shape small = attn_shapes[1];
    if (dev->bf16_x) return;
    against_differences(ref, &attn_back_op, &small);
    small.window = 2;
    against_differences(ref, &attn_back_op, &small);
    small.softcap = 1.5f;
    against_differences(ref, &attn_back_op, &small);
    small.sinks = true;
    against_differences(ref, &attn_back_op, &small);
    small.softcap = 0;
    against_differences(ref, &attn_back_op, &small);
}

/* ACT_SWIGLU_CLAMPED: a gate above its bound and an up beyond its bounds have no gradient, at the bound they have. */
static void clamped_back(struct dev *d)
{
    enum { N = 6 };
    static const float gate[N] = {7.5f, 7, -50, 1, 2, 3}, up[N] = {1, 7, 2, 7.25f, -8, -7};
    static const bool gate_moves[N] = {false, true, false, true, true, true};
    static const bool up_moves[N] = {true, true, false, false, false, true};
    struct shape s = {.T = 1, .C = N, .kind = ACT_SWIGLU_CLAMPED};
    float in[3 * N], out[2 * N];
    for (int i = 0; i < N; i++) in[i] = gate[i], in[N + i] = up[i], in[2 * N + i] = 1;
    act_mul_back_op.run(d, &s, in, out);
    for (int i = 0; i < N; i++) {
        CHECK((fabsf(out[i]) > 1e-6f) == gate_moves[i], "dgate %g of gate %g, up %g", (double)out[i], (double)gate[i],
              (double)up[i]);
        CHECK((fabsf(out[N + i]) > 1e-6f) == up_moves[i], "dup %g of gate %g, up %g", (double)out[N + i],
              (double)gate[i], (double)up[i]);
    }
}

void test_act_mul_back(struct dev *dev, struct dev *ref)
{
    EACH(T, row_counts) EACH(C, col_counts) for (int act = 0; act <= ACT_SWIGLU_CLAMPED; act++)
    {
        struct shape s = {.T = (int)T, .C = (int)C, .kind = act, .in_place = C % 2, .pad = act};
        against_ref(dev, ref, &act_mul_back_op, &s, act % 2 ? 3 : 20, (struct tolerance){5e-5, 1e-5, 1e-9});
    }
    for (int act = 0; act <= ACT_SWIGLU_CLAMPED; act++) {
        struct shape small = {.T = 2, .C = 9, .kind = act};
        if (act != ACT_RELU) against_differences(ref, &act_mul_back_op, &small);
    }
    clamped_back(dev);
}

void test_act_back(struct dev *dev, struct dev *ref)
{
    EACH(T, row_counts) EACH(C, col_counts) for (int act = 0; act <= ACT_RELU; act++)
    {
        struct shape s = {.T = (int)T, .C = (int)C, .kind = act, .in_place = C % 2, .pad = act};
        against_ref(dev, ref, &act_back_op, &s, act % 2 ? 3 : 20, (struct tolerance){5e-5, 1e-5, 1e-9});
    }
    for (int act = 0; act < ACT_RELU; act++) {
        struct shape small = {.T = 2, .C = 19, .kind = act};
        against_differences(ref, &act_back_op, &small);
    }
}

/* what has no tolerance: ties, rows that are not sound, targets of no probability */
static void cross_entropy_odd(struct dev *d)
{
    enum { R = 9, V = 20 };
    static const int32_t target[R] = {3, 4, -1, 2, 2, 2, 5, 6, 19};
    float z[R * V], scale[R];
    struct bed b = {d, 0};
    for (int i = 0; i < R * V; i++) z[i] = (float)(i % V == 3 || i % V == 4); /* the largest twice */
    for (int r = 0; r < R; r++) scale[r] = 2;
    z[2 * V] = NAN;                                       /* no target: nobody looks */
    z[3 * V + 17] = NAN;                                  /* loss NaN */
    z[4 * V + 1] = INFINITY;                              /* loss NaN */
    for (int i = 0; i < V; i++) z[5 * V + i] = -INFINITY; /* loss NaN */
    z[6 * V + 5] = -INFINITY;                             /* loss infinite, gradient as ever */
    z[7 * V + 6] = 3e38f;                                 /* loss 0 */
    z[8 * V + 19] = 1.5f;
    struct mat m = bed_mat(&b, z, R, V);
    float *loss = bed_put(&b, NULL, R * 4);
    int32_t *hit = bed_put(&b, NULL, R * 4);
    op_cross_entropy(d, (struct cross_entropy_args){m, bed_put(&b, target, sizeof target),
                                                    bed_put(&b, scale, sizeof scale), loss, hit, true});
    float *l = get(d, loss, R), *dz = get(d, m.p, R * V);
    int32_t *h = (int32_t *)get(d, hit, R);
    CHECK(h[0] == 1 && h[1] == 0, "cross_entropy: of a tie the lowest id is the largest: %d %d", h[0], h[1]);
    CHECK(l[0] == l[1] && l[0] > 1, "cross_entropy: a tie lost %g and %g", (double)l[0], (double)l[1]);
    CHECK(l[2] == 0 && h[2] == 0, "cross_entropy: no target, loss %g, hit %d", (double)l[2], h[2]);
    for (int i = 0; i < V; i++)
        CHECK(dz[2 * V + i] == 0, "cross_entropy: no target, gradient %g", (double)dz[2 * V + i]);
    for (int r = 3; r < 6; r++) {
        CHECK(isnan(l[r]) && h[r] == 0, "cross_entropy: row %d lost %g, hit %d", r, (double)l[r], h[r]);
        for (int i = 0; i < V; i++)
            CHECK(isnan(dz[r * V + i]), "cross_entropy: row %d, gradient %g", r, (double)dz[r * V + i]);
    }
    CHECK(l[6] == INFINITY && dz[6 * V + 5] == -2, "cross_entropy: impossible target, %g and %g", (double)l[6],
          (double)dz[6 * V + 5]);
    CHECK(l[7] == 0 && h[7] == 1 && dz[7 * V + 6] == 0 && dz[7 * V] == 0, "cross_entropy: certain target, %g, %d",
          (double)l[7], h[7]);
    CHECK(h[8] == 1 && l[8] > 0, "cross_entropy: last id, hit %d", h[8]);
    for (int r = 0; r < R; r += 8) {
        double sum = 0;
        for (int i = 0; i < V; i++) sum += dz[r * V + i];
        CHECK(fabs(sum) < 1e-5, "cross_entropy: row %d's gradient sums to %g", r, sum);
    }
    free(l), free(dz), free(h);
    bed_end(&b, "cross_entropy of odd rows");
}

void test_cross_entropy(struct dev *dev, struct dev *ref)
{
    static const int vocabs[] = {1, 15, 16, 17, 1000, 9001};
    EACH(T, row_counts) EACH(C, vocabs)
    {
        struct shape s = {.T = (int)T, .C = (int)C, .pad = (int)(T + C) % 3};
        against_ref(dev, ref, &cross_entropy_op, &s, 3, loose);
        s.T = s.T < 4 ? s.T : 4;
        against_ref(dev, ref, &cross_entropy_op, &s, 30, loose);
    }
    cross_entropy_odd(dev);
    cross_entropy_odd(ref);
    static const struct shape capped[] = {{.softcap = 30}, {.softcap = 2, .scale = 0.5f}, {.scale = 0.25f}};
    EACH(C, vocabs) for (int i = 0; i < 3; i++)
    {
        struct shape s = capped[i];
        s.T = 7, s.C = (int)C, s.pad = (int)C % 2;
        against_ref(dev, ref, &cross_entropy_op, &s, i ? 3 : 30, loose);
    }
    struct shape small = {.T = 6, .C = 5};
    against_differences(ref, &cross_entropy_op, &small);
    small.softcap = 2, small.scale = 0.7f;
    against_differences(ref, &cross_entropy_op, &small);
}

void test_dropout(struct dev *dev, struct dev *ref)
{
    EACH(T, row_counts) EACH(C, col_counts)
    {
        struct shape s = {.T = (int)T, .C = (int)C, .window = 1000, .pad = (int)C % 2}; /* window: row0 */
        against_ref(dev, ref, &dropout_op, &s, 1, (struct tolerance){0, 1e-6, 1e-12});
    }
    struct shape small = {.T = 4, .C = 5};
    against_differences(ref, &dropout_op, &small);
    /* ones: the mean stays about 1, about 0.3 of them go; a row by itself, and p = 0 */
    struct shape s = {.T = 50, .C = 400, .window = 3};
    size_t n = size_TC(&s);
    float *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y), *row = malloc((size_t)s.C * sizeof *row);
    if (!x || !y || !row) abort();
    double sum = 0, gone = 0;
    for (size_t i = 0; i < n; i++) x[i] = 1;
    dropout_at(dev, &s, x, y);
    for (size_t i = 0; i < n; i++) sum += y[i], gone += y[i] == 0;
    CHECK(fabs(sum / (double)n - 1) < 0.03 && fabs(gone / (double)n - 0.3) < 0.02, "dropout: mean %g, %g gone",
          sum / (double)n, gone / (double)n);
    struct shape one = {.T = 1, .C = s.C, .window = 3 + 20};
    dropout_at(dev, &one, x, row);
    compare_bits("dropout: a row alone", row, y + (size_t)20 * s.C, (size_t)s.C);
    struct bed b = {dev, 0};
    for (size_t i = 0; i < n; i++) x[i] = random_float();
    struct mat m = bed_mat(&b, x, s.T, s.C);
    op_dropout(dev, (struct dropout_args){m, 0, 5, 0});
    bed_take(&b, &m, y);
    compare_bits("dropout: p 0", y, x, n);
    bed_end(&b, "dropout: p 0");
    free(x), free(y), free(row);
}

void test_square_sum(struct dev *dev, struct dev *ref)
{
    static const int counts[] = {0, 1, 15, 16, 17, 1000, 16384, 16385, 100003};
    EACH(n, counts)
    {
        double start = 0.25, got, want = start, all = 0;
        float *x = random_floats(n, 100);
        struct bed b = {dev, 0};
        double *sum = bed_put(&b, &start, sizeof start);
        for (size_t i = 0; i < n; i++) all += (double)x[i] * x[i];
        want += all;
        op_square_sum(dev, (struct square_sum_args){bed_put(&b, x, n * 4), n, sum});
        dev->ops->finish(dev);
        dev->ops->download(dev, &got, sum, sizeof got);
        CHECK(fabs(got - want) <= 1e-13 * want, "square_sum of %zu: %.17g, wanted %.17g", n, got, want);
        bed_end(&b, "square_sum");
        free(x);
    }
    random_seed(5);
}

/* p, m, v, g (n) after `steps` of random gradients, by the op; the first gradient is `scale` large */
static void adamw_steps(struct dev *d, size_t n, int steps, const float *start, const float *g, float *out)
{
    struct bed b = {d, 0};
    float *p = bed_put(&b, start, n * 4), *m = bed_put(&b, NULL, n * 4), *v = bed_put(&b, NULL, n * 4);
    float *dg = bed_put(&b, NULL, n * 4);
    for (int t = 1; t <= steps; t++) {
        d->ops->upload(d, dg, g + (size_t)(t - 1) * n, n * 4);
        op_adamw(d, (struct adamw_args){.p = p,
                                        .m = m,
                                        .v = v,
                                        .g = dg,
                                        .n = n,
                                        .lr = 1e-2 / t,
                                        .beta1 = 0.9,
                                        .beta2 = 0.999,
                                        .eps = 1e-8,
                                        .decay = 0.1,
                                        .bias1 = 1 - pow(0.9, t),
                                        .bias2 = 1 - pow(0.999, t),
                                        .grad_scale = 0.5});
        d->ops->finish(d);
    }
    bed_take_floats(&b, v, n, bed_take_floats(&b, m, n, bed_take_floats(&b, p, n, out)));
    bed_end(&b, "adamw");
}

void test_adamw(struct dev *dev, struct dev *ref)
{
    enum { STEPS = 10 };
    static const int counts[] = {1, 15, 16, 17, 1000, 40003};
    EACH(n, counts)
    {
        char label[LABEL];
        float *start = random_floats(n, 1), *g = random_floats(n * STEPS, 0.1f);
        float *got = malloc(n * 12), *want = malloc(n * 12);
        if (!got || !want) abort();
        for (size_t i = 0; i < n; i++) { /* plainly, in double from the first step to the last */
            double p = start[i], m = 0, v = 0;
            for (int t = 1; t <= STEPS; t++) {
                double gi = g[(size_t)(t - 1) * n + i] * 0.5, lr = 1e-2 / t;
                p *= 1 - lr * 0.1;
                m = 0.9 * m + 0.1 * gi;
                v = 0.999 * v + 0.001 * gi * gi;
                p -= lr * m / (1 - pow(0.9, t)) / (sqrt(v / (1 - pow(0.999, t))) + 1e-8);
            }
            want[i] = (float)p, want[n + i] = (float)m, want[2 * n + i] = (float)v;
        }
        adamw_steps(dev, n, STEPS, start, g, got);
        snprintf(label, sizeof label, "adamw n=%zu", n);
        compare(label, got, want, n, (struct tolerance){1e-6, 1e-6, 1e-11});
        compare(label, got + n, want + n, n, (struct tolerance){1e-8, 1e-5, 1e-11});
        compare(label, got + 2 * n, want + 2 * n, n, (struct tolerance){1e-12, 1e-5, 1e-10});
        adamw_steps(ref, n, STEPS, start, g, got);
        compare("adamw of ref", got, want, 3 * n, (struct tolerance){1e-6, 1e-6, 1e-11});
        free(start), free(g), free(got), free(want);
    }
}

void test_axpby(struct dev *dev, struct dev *ref)
{
    static const int counts[] = {1, 15, 16, 17, 1000, 40003};
    static const double by[][2] = {{0.3, 0.7}, {-2.5, 1}, {1, 0}, {0, 0.5}};
    EACH(n, counts)
    for (size_t k = 0; k < sizeof by / sizeof *by; k++) {
        float *x = random_floats(n, 1), *y = random_floats(n, 1), *got = malloc(n * 4), *want = malloc(n * 4);
        if (!got || !want) abort();
        double alpha = by[k][0], beta = by[k][1];
        struct dev *devs[] = {dev, ref};
        for (size_t i = 0; i < n && beta == 0; i++) y[i] = NAN; /* not read */
        for (size_t i = 0; i < n; i++) want[i] = (float)(alpha * x[i] + (beta == 0 ? 0 : beta * y[i]));
        for (int i = 0; i < 3; i++) {
            struct bed b = {devs[i % 2], 0};
            float *dx = bed_put(&b, x, n * 4), *dy = i < 2 ? bed_put(&b, y, n * 4) : dx; /* at last x is y */
            for (size_t j = 0; j < n && i == 2; j++) want[j] = (float)(alpha * x[j] + beta * x[j]);
            op_axpby(devs[i % 2], (struct axpby_args){dy, dx, n, alpha, beta});
            devs[i % 2]->ops->finish(devs[i % 2]);
            bed_take_floats(&b, dy, n, got);
            bed_end(&b, "axpby");
            compare("axpby", got, want, n, (struct tolerance){3e-7, 1e-6, 1e-12});
            if (alpha == 1 && beta == 0) compare_bits("axpby copies", got, want, n);
        }
        free(x), free(y), free(got), free(want);
    }
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

/* large enough that all threads work */
static const struct {
    const struct train_op *op;
    struct shape s;
} big[] = {
    {&norm_back_op, {.T = 301, .C = 263, .kind = NORM_LAYER}},
    {&norm_back_op, {.T = 301, .C = 263, .kind = NORM_RMS, .accumulate = true}},
    {&head_norm_back_op, {.T = 301, .H = 5, .D = 48}},
    {&head_norm_back_op, {.T = 301, .H = 5, .D = 48, .kind = NORM_LAYER, .apart = true}},
    {&rope_op, {.T = 301, .H = 5, .G = 1, .D = 48, .rot = 32}},
    {&attn_seq_op, {.T = 150, .H = 4, .G = 2, .D = 17, .n_seqs = 3, .q_start = {0, 5, 134, 150}}},
    {&attn_back_op, {.T = 150, .H = 4, .G = 2, .D = 17, .n_seqs = 3, .q_start = {0, 5, 134, 150}}},
    {&attn_back_op, {.T = 140, .H = 2, .G = 2, .D = 16, .n_seqs = 2, .q_start = {0, 128, 140}, .window = 50}},
    {&attn_seq_op, {.T = 150, .H = 4, .G = 2, .D = 17, .n_seqs = 3, .q_start = {0, 5, 134, 150}, .softcap = 2}},
    {&attn_back_op, {.T = 150, .H = 4, .G = 2, .D = 17, .n_seqs = 3, .q_start = {0, 5, 134, 150}, .softcap = 2}},
    /* blocks enough without one for each head */
    {&attn_back_op, {.T = 40, .H = 6, .G = 3, .D = 8, .n_seqs = 7, .q_start = {0, 1, 9, 14, 20, 31, 36, 40}}},
    {&attn_seq_op, {.T = 303, .H = 6, .G = 2, .D = 33, .n_seqs = 3, .q_start = {0, 170, 211, 303}, .sinks = true}},
    {&attn_seq_op, {.T = 303, .H = 6, .G = 2, .D = 33, .n_seqs = 3, .q_start = {0, 170, 211, 303}, .both = true}},
    {&attn_seq_op,
     {.T = 303, .H = 4, .G = 4, .D = 16, .n_seqs = 2, .q_start = {0, 270, 303}, .window = 65, .both = true}},
    {&attn_back_op, {.T = 303, .H = 6, .G = 2, .D = 33, .n_seqs = 3, .q_start = {0, 170, 211, 303}}},
    {&attn_back_op, {.T = 303, .H = 4, .G = 4, .D = 16, .n_seqs = 2, .q_start = {0, 270, 303}, .window = 100}},
    /* more rows than sums are kept for at once */
    {&attn_back_op, {.T = 1500, .H = 2, .G = 1, .D = 16, .n_seqs = 4, .q_start = {0, 700, 1100, 1105, 1500}}},
    {&act_mul_back_op, {.T = 101, .C = 333, .kind = ACT_GELU_ERF}},
    {&act_mul_back_op, {.T = 101, .C = 333, .kind = ACT_SILU}},
    {&act_mul_back_op, {.T = 101, .C = 333, .kind = ACT_SWIGLU_CLAMPED}},
    {&act_back_op, {.T = 101, .C = 333, .kind = ACT_GELU_TANH}},
    {&cross_entropy_op, {.T = 21, .C = 5003}},
    {&cross_entropy_op, {.T = 21, .C = 5003, .softcap = 3, .scale = 2}},
    {&dropout_op, {.T = 301, .C = 263}},
};

/* all of square_sum, adamw, axpby and adamw_8bit */
static void flat_run(struct dev *d, float out[4 * 50001 + 2 + ADAMW_8BIT_FLOATS])
{
    enum { N = 50001 };
    random_seed(3);
    float *start = random_floats(N, 1), *g = random_floats(2 * N, 0.1f);
    struct bed b = {d, 0};
    double *sum = bed_put(&b, NULL, sizeof *sum);
    adamw_steps(d, N, 2, start, g, out);
    float *x = bed_put(&b, start, N * 4), *y = bed_put(&b, g, N * 4);
    op_axpby(d, (struct axpby_args){y, x, N, 0.3, 0.7});
    op_square_sum(d, (struct square_sum_args){bed_put(&b, g, 2 * N * 4), 2 * N, sum});
    d->ops->finish(d);
    d->ops->download(d, out + 3 * N, sum, sizeof *sum);
    d->ops->download(d, out + 3 * N + 2, y, N * 4);
    bed_end(&b, "flat");
    free(start), free(g);
    adamw_8bit_bits(d, out + 4 * N + 2);
}

/* the rows of sequence i of s as a case of its own */
static void sequence_alone(struct dev *d, const struct train_op *op, const struct shape *s, int i, const float *in,
                           const float *whole)
{
    char label[LABEL];
    int row0 = s->q_start[i], rows = s->q_start[i + 1] - row0;
    size_t x = (size_t)(s->H + 2 * s->G) * s->D, y = (size_t)s->H * s->D;
    struct shape one = *s;
    one.T = one.q_start[1] = rows;
    one.n_seqs = 1;
    float *part = malloc((n_in(op, &one) + 1) * sizeof *part);
    if (!part) abort();
    memcpy(part, in + row0 * x, rows * x * sizeof *part);
    if (op->forward) memcpy(part + rows * x, in + s->T * x + row0 * y, rows * y * sizeof *part);
    float *got = run_on(d, op, &one, part);
    shape_name(label, op, &one, " alone");
    if (op->forward) {
        compare_bits(label, got, whole + row0 * x, rows * x);
    } else {
        compare_bits(label, got, whole + row0 * y, rows * y);
        compare_bits(label, got + rows * y, whole + s->T * y + row0 * s->H, (size_t)rows * s->H);
    }
    free(part), free(got);
}

/* row `row` of an op of rows, n_x / T inputs and n_y / T dy's a row, `shared` inputs and results after all x */
static void row_alone(struct dev *d, const struct train_op *op, const struct shape *s, int row, const float *in,
                      const float *whole)
{
    char label[LABEL];
    struct shape one = *s;
    one.T = 1;
    bool norm = op == &norm_back_op;
    size_t shared = norm ? 2 * (size_t)s->C : op == &head_norm_back_op ? 2 * size_head_weight(s) : 0;
    size_t x = op->n_x(&one) - shared, y = op->n_y(&one), all = op->n_x(s);
    float *part = malloc((x + shared + y) * sizeof *part);
    if (!part) abort();
    memcpy(part, in + row * x, x * sizeof *part);
    memcpy(part + x, in + s->T * x, shared * sizeof *part);
    memcpy(part + x + shared, in + all + row * y, y * sizeof *part);
    float *got = run_on(d, op, &one, part);
    shape_name(label, op, s, " a row alone");
    compare_bits(label, got, whole + row * x, x);
    free(part), free(got);
}

static void alone(struct dev *d, const struct train_op *op, const struct shape *s, const float *in, const float *whole)
{
    if (s->n_seqs) {
        for (int i = 0; i < s->n_seqs; i++) sequence_alone(d, op, s, i, in, whole);
        return;
    }
    if (op == &rope_op || op == &cross_entropy_op || op == &dropout_op) return; /* they know the row's number */
    for (int row = 0; row < s->T; row += s->T / 3) row_alone(d, op, s, row, in, whole);
}

/* One result on all levels and threads; rows and sequences alone give what they give among others. */
void test_train_bits(const char *const *levels, int n_levels)
{
    enum { FLAT = 4 * 50001 + 2 + ADAMW_8BIT_FLOATS };
    static float flat[2][FLAT];
    char label[2 * LABEL];
    struct dev *first = open_checked(levels[0], 1);
    bool threads = first->ops->host_memory, with_flat = op_wanted("adamw");
    if (with_flat) flat_run(first, flat[0]);
    for (size_t c = 0; c < sizeof big / sizeof *big; c++) {
        const struct train_op *op = big[c].op;
        const struct shape *s = &big[c].s;
        if (!op_wanted(op->name) || (!threads && s->n_seqs && s->T > 200)) continue;
        random_seed(c);
        float *in = random_floats(n_in(op, s), 1), *want = run_on(first, op, s, in);
        for (int i = 0; i < (threads ? 3 : 2) * n_levels; i++) {
            char name[LABEL];
            struct dev *d = open_checked(levels[i / 3], 1 + i % 3);
            float *got = run_on(d, op, s, in);
            shape_name(name, op, s, "");
            snprintf(label, sizeof label, "%s: %s threads %d against %s threads 1", name, d->level, d->threads,
                     first->level);
            compare_bits(label, got, want, n_out(op, s));
            if (i % 3 != 1) alone(d, op, s, in, got);
            for (int by_head = 1; s->n_seqs && i % 3 == 1 && by_head < s->H; by_head += 2) {
                struct shape some = *s;
                some.by_head = by_head;
                float *parts = run_on(d, op, &some, in);
                snprintf(label, sizeof label, "%s: %s, %d heads a call", name, d->level, by_head);
                compare_bits(label, parts, want, n_out(op, s));
                free(parts);
            }
            if (c == 0 && with_flat) {
                flat_run(d, flat[1]);
                compare_bits("adamw, square_sum, axpby, adamw_8bit", flat[1], flat[0], FLAT);
            }
            dev_close(d);
            free(got);
        }
        free(in), free(want);
    }
    dev_close(first);
}
