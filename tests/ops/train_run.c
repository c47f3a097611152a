/* See train_run.h. */
#include "tests/ops/train_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- device memory of one run ---------------------------------------------------------------------------------- */

void *bed_put(struct bed *b, const void *host, size_t bytes)
{
    return b->p[b->n++] = put(b->d, host, bytes);
}

enum { GAP = 7 }; /* between rows */

struct mat bed_mat(struct bed *b, const float *host, int rows, int cols)
{
    int ld = cols + b->pad;
    float *p = malloc(((size_t)rows * ld + 1) * sizeof *p);
    if (!p) abort();
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < ld; c++) p[(size_t)r * ld + c] = c >= cols ? GAP : host ? host[(size_t)r * cols + c] : NAN;
    struct mat m = {bed_put(b, p, (size_t)rows * ld * sizeof *p), DT_F32, rows, cols, ld};
    free(p);
    return m;
}

float *bed_take(struct bed *b, const struct mat *m, float *out)
{
    float *p = get(b->d, m->p, (size_t)m->rows * m->ld);
    for (int r = 0; r < m->rows; r++) {
        memcpy(out + (size_t)r * m->cols, p + (size_t)r * m->ld, (size_t)m->cols * sizeof *p);
        for (int c = m->cols; c < m->ld; c++)
            CHECK(p[(size_t)r * m->ld + c] == GAP, "wrote past the end of row %d of %d", r, m->rows);
    }
    free(p);
    return out + (size_t)m->rows * m->cols;
}

float *bed_take_floats(struct bed *b, const void *from, size_t n, float *out)
{
    float *p = get(b->d, from, n);
    memcpy(out, p, n * sizeof *p);
    free(p);
    return out + n;
}

void bed_end(struct bed *b, const char *label)
{
    check_device(label, b->d);
    for (int i = 0; i < b->n; i++) b->d->ops->free(b->d, b->p[i]);
}

/* ---- the ops ----------------------------------------------------------------------------------------------------- */

size_t size_TC(const struct shape *s)
{
    return (size_t)s->T * s->C;
}
static size_t size_T(const struct shape *s)
{
    return (size_t)s->T;
}
static size_t size_2T(const struct shape *s)
{
    return 2 * (size_t)s->T;
}
static size_t size_2TC(const struct shape *s)
{
    return 2 * (size_t)s->T * s->C;
}
static size_t size_norm(const struct shape *s)
{
    return size_TC(s) + 2 * (size_t)s->C;
}
size_t size_qkv(const struct shape *s)
{
    return (size_t)s->T * (s->H + 2 * s->G) * s->D;
}
static size_t size_heads(const struct shape *s)
{
    return (size_t)s->T * s->H * s->D;
}
static size_t size_attn(const struct shape *s)
{
    return (size_t)s->T * s->H * (s->D + 1);
}
static size_t size_none(const struct shape *s)
{
    return 0;
}

/* x (T, C), w, b (C) */
static void norm_forward(struct dev *d, const struct shape *s, const float *x, float *y)
{
    struct bed b = {d, s->pad};
    struct mat mx = bed_mat(&b, x, s->T, s->C), my = bed_mat(&b, NULL, s->T, s->C);
    float *w = bed_put(&b, x + size_TC(s), (size_t)s->C * 8);
    op_norm(d, (struct norm_args){my, mx, w, w + s->C, 1e-3f, (enum norm_kind)s->kind});
    bed_take(&b, &my, y);
    bed_end(&b, "norm");
}

/* Accumulating, dx, dw and db begin at 0.5, which is then taken away again: what was there must count once. */
static void norm_back_run(struct dev *d, const struct shape *s, const float *in, float *out)
{
    struct bed b = {d, s->pad};
    size_t n = size_TC(s), C = (size_t)s->C;
    float *half = malloc((n + 2 * C) * sizeof *half);
    for (size_t i = 0; half && i < n + 2 * C; i++) half[i] = 0.5f;
    struct mat x = bed_mat(&b, in, s->T, s->C), dy = bed_mat(&b, in + n + 2 * C, s->T, s->C);
    struct mat dx = s->in_place ? dy : bed_mat(&b, s->accumulate ? half : NULL, s->T, s->C);
    float *w = bed_put(&b, in + n, C * 4), *dw = bed_put(&b, half, C * 4), *db = bed_put(&b, half, C * 4);
    op_norm_back(d, (struct norm_back_args){.dx = dx,
                                            .x = x,
                                            .dy = dy,
                                            .w = w,
                                            .eps = 1e-3f,
                                            .kind = (enum norm_kind)s->kind,
                                            .accumulate = s->accumulate,
                                            .dw = dw,
                                            .db = db});
    float *end = bed_take(&b, &dx, out);
    for (size_t i = 0; i < n && s->accumulate; i++) out[i] -= 0.5f;
    float *sums = end;
    end = bed_take_floats(&b, dw, C, end);
    bed_take_floats(&b, db, C, end);
    for (size_t i = 0; i < 2 * C; i++) sums[i] -= 0.5f;
    free(half);
    bed_end(&b, "norm_back");
}

/* x (T, 3 + H D + 1), w, b (D) or (H, D): the columns beside the heads stay */
static size_t size_head_cols(const struct shape *s)
{
    return (size_t)s->T * (s->H * s->D + 4);
}
size_t size_head_weight(const struct shape *s)
{
    return (size_t)s->D * (s->apart ? s->H : 1);
}
static size_t size_head_norm(const struct shape *s)
{
    return size_head_cols(s) + 2 * size_head_weight(s);
}

static void head_norm_forward(struct dev *d, const struct shape *s, const float *x, float *y)
{
    struct bed b = {d, s->pad};
    struct mat mx = bed_mat(&b, x, s->T, s->H * s->D + 4);
    size_t n = size_head_weight(s);
    float *w = bed_put(&b, x + size_head_cols(s), 2 * n * 4);
    op_head_norm(d,
                 (struct head_norm_args){mx, 3, s->H, s->D, w, 1e-3f, (enum norm_kind)s->kind, w + n, s->apart});
    bed_take(&b, &mx, y);
    bed_end(&b, "head_norm");
}

static void head_norm_back_run(struct dev *d, const struct shape *s, const float *in, float *out)
{
    struct bed b = {d, s->pad};
    size_t n = size_head_cols(s), W = size_head_weight(s);
    struct mat x = bed_mat(&b, in, s->T, s->H * s->D + 4), dx = bed_mat(&b, in + n + 2 * W, s->T, s->H * s->D + 4);
    float *w = bed_put(&b, in + n, W * 4), *dw = bed_put(&b, NULL, W * 4), *db = bed_put(&b, NULL, W * 4);
    op_head_norm_back(d, (struct head_norm_back_args){dx, x, 3, s->H, s->D, w, 1e-3f, dw, (enum norm_kind)s->kind, db,
                                                      s->apart});
    float *end = bed_take_floats(&b, dw, W, bed_take(&b, &dx, out));
    bed_take_floats(&b, db, W, end);
    bed_end(&b, "head_norm_back");
}

void rope_at(struct dev *d, const struct shape *s, const float *x, float *y, bool back)
{
    struct bed b = {d, s->pad};
    int half = s->rot / 2, positions = 2 * s->T;
    float *angles = malloc(((size_t)positions * half + 1) * 2 * sizeof *angles);
    int32_t *pos = malloc((size_t)s->T * sizeof *pos);
    if (!angles || !pos) abort();
    for (int i = 0; i < positions * half; i++) {
        angles[i] = cosf((float)(i / half) * powf(10, -(float)(i % half)));
        angles[positions * half + i] = sinf((float)(i / half) * powf(10, -(float)(i % half)));
    }
    for (int t = 0; t < s->T; t++) pos[t] = (t * 7 + 1) % positions;
    struct mat qkv = bed_mat(&b, x, s->T, (s->H + 2 * s->G) * s->D);
    float *cosines = bed_put(&b, angles, ((size_t)positions * half + 1) * 8);
    op_rope(d, (struct rope_args){.qkv = qkv,
                                  .heads = s->H,
                                  .kv_heads = s->G,
                                  .head_dim = s->D,
                                  .rot = s->rot,
                                  .cos = cosines,
                                  .sin = cosines + (size_t)positions * half,
                                  .pos = bed_put(&b, pos, (size_t)s->T * sizeof *pos),
                                  .back = back});
    bed_take(&b, &qkv, y);
    bed_end(&b, "rope");
    free(angles), free(pos);
}

static void rope_forward(struct dev *d, const struct shape *s, const float *x, float *y)
{
    rope_at(d, s, x, y, false);
}

static void rope_run(struct dev *d, const struct shape *s, const float *in, float *out)
{
    rope_at(d, s, in + size_qkv(s), out, true);
}

/* About the scores, below and above them all, below what counts. */
static const float sinks[8] = {0.7f, -3, 5, -200, -0.3f, 1, -80, 2};

static struct attn_seq_args attn_args(struct bed *b, const struct shape *s, const float *x)
{
    return (struct attn_seq_args){.out = bed_mat(b, NULL, s->T, s->H * s->D),
                                  .lse = bed_mat(b, NULL, s->T, s->H),
                                  .qkv = bed_mat(b, x, s->T, (s->H + 2 * s->G) * s->D),
                                  .heads = s->H,
                                  .kv_heads = s->G,
                                  .head_dim = s->D,
                                  .window = s->window,
                                  .scale = 1 / sqrtf((float)s->D),
                                  .n_seqs = s->n_seqs,
                                  .q_start = bed_put(b, s->q_start, sizeof s->q_start),
                                  .softcap = s->softcap,
                                  .both_sides = s->both,
                                  .sinks = s->sinks ? bed_put(b, sinks, (size_t)s->H * sizeof *sinks) : NULL};
}

/* The next heads, in the calls that the shape wants; false: they were all.  heads[0] and [1]: first, and how many. */
static bool next_heads(const struct shape *s, int heads[2])
{
    heads[0] = heads[1] < 0 ? 0 : heads[0] + heads[1];
    heads[1] = !s->by_head || s->H - heads[0] < s->by_head ? s->H - heads[0] : s->by_head;
    return heads[1] > 0;
}

static void attn_seq_run(struct dev *d, const struct shape *s, const float *in, float *out)
{
    struct bed b = {d, s->pad};
    struct attn_seq_args a = attn_args(&b, s, in);
    for (int h[2] = {0, -1}; next_heads(s, h);) {
        a.head0 = h[0], a.n_heads = s->by_head ? h[1] : 0;
        op_attn_seq(d, a);
    }
    bed_take(&b, &a.lse, bed_take(&b, &a.out, out));
    bed_end(&b, "attn_seq");
}

static void attn_forward(struct dev *d, const struct shape *s, const float *x, float *y)
{
    struct bed b = {d, s->pad};
    struct attn_seq_args a = attn_args(&b, s, x);
    op_attn_seq(d, a);
    bed_take(&b, &a.out, y);
    bed_end(&b, "attn_seq");
}

static void attn_back_run(struct dev *d, const struct shape *s, const float *in, float *out)
{
    struct bed b = {d, s->pad};
    struct attn_seq_args a = attn_args(&b, s, in);
    struct mat dout = bed_mat(&b, in + size_qkv(s), s->T, s->H * s->D), dqkv = bed_mat(&b, NULL, s->T, a.qkv.cols);
    op_attn_seq(d, a);
    for (int h[2] = {0, -1}; next_heads(s, h);)
        op_attn_back(d, (struct attn_back_args){.dqkv = dqkv,
                                                .dout = dout,
                                                .out = a.out,
                                                .lse = a.lse,
                                                .qkv = a.qkv,
                                                .heads = s->H,
                                                .kv_heads = s->G,
                                                .head_dim = s->D,
                                                .window = s->window,
                                                .scale = a.scale,
                                                .n_seqs = s->n_seqs,
                                                .q_start = a.q_start,
                                                .head0 = h[0],
                                                .n_heads = s->by_head ? h[1] : 0,
                                                .softcap = s->softcap});
    bed_take(&b, &dqkv, out);
    bed_end(&b, "attn_back");
}

static void act_mul_forward(struct dev *d, const struct shape *s, const float *x, float *y)
{
    struct bed b = {d, s->pad};
    struct mat gu = bed_mat(&b, x, s->T, 2 * s->C), out = bed_mat(&b, NULL, s->T, s->C);
    op_act_mul(d, (struct act_mul_args){out, gu, (enum act_kind)s->kind});
    bed_take(&b, &out, y);
    bed_end(&b, "act_mul");
}

static void act_mul_back_run(struct dev *d, const struct shape *s, const float *in, float *out)
{
    struct bed b = {d, s->pad};
    struct mat gu = bed_mat(&b, in, s->T, 2 * s->C), dy = bed_mat(&b, in + size_2TC(s), s->T, s->C);
    struct mat dgu = s->in_place ? gu : bed_mat(&b, NULL, s->T, 2 * s->C);
    op_act_mul_back(d, (struct act_mul_back_args){dgu, gu, dy, (enum act_kind)s->kind});
    bed_take(&b, &dgu, out);
    bed_end(&b, "act_mul_back");
}

static void act_forward(struct dev *d, const struct shape *s, const float *x, float *y)
{
    struct bed b = {d, s->pad};
    struct mat mx = bed_mat(&b, x, s->T, s->C);
    op_act(d, (struct act_args){mx, (enum act_kind)s->kind});
    bed_take(&b, &mx, y);
    bed_end(&b, "act");
}

static void act_back_run(struct dev *d, const struct shape *s, const float *in, float *out)
{
    struct bed b = {d, s->pad};
    struct mat x = bed_mat(&b, in, s->T, s->C), dy = bed_mat(&b, in + size_TC(s), s->T, s->C);
    struct mat dx = s->in_place ? dy : bed_mat(&b, NULL, s->T, s->C);
    op_act_back(d, (struct act_back_args){dx, x, dy, (enum act_kind)s->kind});
    bed_take(&b, &dx, out);
    bed_end(&b, "act_back");
}

/* dy is the scale of each row; every fifth row has no target.  With softcap or scale, x is what op softcap reads. */
static void cross_entropy_at(struct dev *d, const struct shape *s, const float *x, const float *scale, float *z,
                             float *more)
{
    struct bed b = {d, s->pad};
    struct mat logits = bed_mat(&b, x, s->T, s->C);
    int32_t *target = malloc((size_t)s->T * sizeof *target);
    if (!target) abort();
    for (int t = 0; t < s->T; t++) target[t] = t % 5 == 4 ? -1 : t * 31 % s->C;
    float *loss = bed_put(&b, NULL, (size_t)s->T * 4);
    int32_t *hit = bed_put(&b, NULL, (size_t)s->T * 4);
    float *row_scale = scale ? bed_put(&b, scale, (size_t)s->T * 4) : NULL;
    if (s->softcap > 0 || s->scale > 0)
        op_softcap(d, (struct softcap_args){logits, s->scale > 0 ? s->scale : 1, s->softcap});
    op_cross_entropy(d, (struct cross_entropy_args){logits, bed_put(&b, target, (size_t)s->T * 4), row_scale, loss, hit,
                                                    scale != NULL, s->scale, s->softcap});
    bed_take_floats(&b, loss, (size_t)s->T, more);
    if (scale) {
        int32_t *hits = (int32_t *)get(d, hit, (size_t)s->T);
        for (int t = 0; t < s->T; t++) more[s->T + t] = (float)hits[t];
        bed_take(&b, &logits, z);
        free(hits);
    }
    bed_end(&b, "cross_entropy");
    free(target);
}

static void cross_entropy_forward(struct dev *d, const struct shape *s, const float *x, float *y)
{
    cross_entropy_at(d, s, x, NULL, NULL, y);
}

static void cross_entropy_run(struct dev *d, const struct shape *s, const float *in, float *out)
{
    cross_entropy_at(d, s, in, in + size_TC(s), out, out + size_TC(s));
}

void dropout_at(struct dev *d, const struct shape *s, const float *x, float *y)
{
    struct bed b = {d, s->pad};
    struct mat mx = bed_mat(&b, x, s->T, s->C);
    op_dropout(d, (struct dropout_args){mx, 0.3f, 99, (uint64_t)s->window});
    bed_take(&b, &mx, y);
    bed_end(&b, "dropout");
}

static void dropout_run(struct dev *d, const struct shape *s, const float *in, float *out)
{
    dropout_at(d, s, in + size_TC(s), out);
}

const struct train_op norm_back_op = {"norm_back", norm_back_run, norm_forward, size_norm, size_TC, NULL},
                      head_norm_back_op = {"head_norm_back", head_norm_back_run, head_norm_forward,
                                           size_head_norm,   size_head_cols,     NULL},
                      rope_op = {"rope", rope_run, rope_forward, size_qkv, size_qkv, NULL},
                      attn_seq_op = {"attn_seq", attn_seq_run, NULL, size_qkv, size_none, size_attn},
                      attn_back_op = {"attn_back", attn_back_run, attn_forward, size_qkv, size_heads, NULL},
                      act_mul_back_op = {"act_mul_back", act_mul_back_run, act_mul_forward, size_2TC, size_TC, NULL},
                      act_back_op = {"act_back", act_back_run, act_forward, size_TC, size_TC, NULL},
                      cross_entropy_op = {"cross_entropy", cross_entropy_run, cross_entropy_forward, size_TC, size_T,
                                          size_2T},
                      dropout_op = {"dropout", dropout_run, dropout_at, size_TC, size_TC, NULL};
