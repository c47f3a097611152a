#include "engine/train/model.h"

#include "engine/base/mem.h"
#include "engine/model/layer.h"
#include "engine/train/model_head.h"
#include "engine/train/op_chunks.h"
#include "kernels/rng.h"

#include <math.h>
#include <stdlib.h>

/* ---- ops --------------------------------------------------------------------------------------------------------- */

static struct op_chunks chunks_of(const struct train_model *m)
{
    return (struct op_chunks){m->d, m->gate, m->watch};
}

static bool is_exact(const struct train_model *m)
{
    return m->exact.kv_type != DT_NONE;
}

static struct mat first(struct mat m, int rows)
{
    m.rows = rows;
    return m;
}

/* The layer whose ops follow; target: their rows are targets from there on, -1: tokens. */
static void watch_from(const struct train_model *m, int layer, int target)
{
    if (!m->watch) return;
    m->watch->layer = layer;
    m->watch->target = target;
}

static struct layer layer_of(const struct train_model *m, int index)
{
    watch_from(m, index, -1);
    return layer_at(m->c, m->w, m->rope, index);
}

/* Gate and up are packed together. */
static bool slices(const struct layer *l, const struct weight *w)
{
    return !l || !l->b->gated || w != l->w->up;
}

/* y = x w^T + b; l NULL: w belongs to no layer */
static void linear(struct train_model *m, const struct layer *l, struct mat y, struct mat x, const struct weight *w,
                   const float *b)
{
    chunked_linear(chunks_of(m), (struct linear_args){y, x, w, b}, slices(l, w));
}

static void linear_back(struct train_model *m, const struct layer *l, struct mat dx, struct mat dy,
                        const struct weight *w, bool accumulate)
{
    chunked_linear_back(chunks_of(m), (struct linear_back_args){dx, dy, w, accumulate}, slices(l, w));
}

/* c (+)= alpha a b, or a b^T */
static void gemm(struct train_model *m, struct mat c, struct mat a, struct mat b, bool tb, float alpha, bool accumulate)
{
    chunked_gemm(chunks_of(m),
                 (struct gemm_args){
                     .c = c, .a = a, .b = b, .tb = tb, .accumulate = accumulate, .half = m->half, .alpha = alpha});
}

/* The rows of a matrix that are tokens of unit i. */
static struct mat unit_rows(const struct train_model *m, struct mat x, int i)
{
    const int32_t *unit = m->b->unit;
    return x.p ? mat_rows(x, unit[i], unit[i + 1] - unit[i]) : x;
}

/* dw (n, k) += alpha dy^T x */
static void weight_grad(struct train_model *m, float *dw, struct mat dy, struct mat x, float alpha)
{
    for (int i = 0; i < m->b->n_units; i++)
        chunked_weight_grad(chunks_of(m), dw, unit_rows(m, dy, i), unit_rows(m, x, i), alpha, m->half);
}

static void bias_grad(struct train_model *m, float *db, struct mat dy)
{
    for (int i = 0; i < m->b->n_units; i++)
        chunked_col_sum(chunks_of(m), (struct col_sum_args){unit_rows(m, dy, i), db});
}

static void norm_back(struct train_model *m, struct norm_back_args a)
{
    for (int i = 0; i < m->b->n_units; i++) {
        struct norm_back_args part = a;
        part.dx = unit_rows(m, a.dx, i);
        part.x = unit_rows(m, a.x, i);
        part.dy = unit_rows(m, a.dy, i);
        chunked_norm_back(chunks_of(m), part);
    }
}

static void norm(struct train_model *m, struct mat out, struct mat x, struct layer_norm n)
{
    chunked_norm(chunks_of(m), (struct norm_args){out, x, n.w, n.b, m->c->eps, m->c->norm});
}

/* norm(x), in h; x when there is no norm */
static struct mat norm_if(struct train_model *m, struct mat x, struct layer_norm n)
{
    struct mat h = {m->h.p, DT_F32, x.rows, x.cols, x.cols};
    if (!n.w) return x;
    norm(m, h, x, n);
    return h;
}

static void add(struct train_model *m, struct mat x, struct mat y)
{
    chunked_add(chunks_of(m), (struct add_args){x, y});
}

/* dx += the gradient with respect to x, from dh, that with respect to norm_if(x) */
static void norm_if_back(struct train_model *m, struct mat dx, struct mat x, struct mat dh, struct layer_norm n,
                         float *dw, float *db)
{
    if (n.w)
        norm_back(m, (struct norm_back_args){dx, x, dh, n.w, m->c->eps, m->c->norm, true, dw, db});
    else
        add(m, dx, dh);
}

static void copy(struct train_model *m, struct mat to, struct mat from)
{
    chunked_rows(chunks_of(m), (struct rows_args){to, from, m->iota});
}

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

/* Random streams of a step: one per site, then one per branch, then one for the embeddings. */
static void drop(struct train_model *m, float p, int stream, struct mat x)
{
    chunked_dropout(chunks_of(m), (struct dropout_args){x, p, rng_at(m->dropout_seed, (uint64_t)stream), m->b->first});
}

/* The contributions to the residual stream: a layer's attention and feed-forward, and the embeddings, which count as a
 * layer after the last. */
enum branch { ATTENTION, FEED_FORWARD };

static void drop_branch(struct train_model *m, int layer, enum branch b, struct mat x)
{
    int L = m->c->layers;
    if (m->residual_dropout > 0) drop(m, m->residual_dropout, L * LAYER_GEMMS + 2 * layer + (int)b, x);
}

/* ---- adapters ---------------------------------------------------------------------------------------------------- */

static void drop_input(struct train_model *m, int layer, enum layer_gemm p, struct mat x)
{
    drop(m, m->dropout, layer * LAYER_GEMMS + (int)p, x);
}

/* x after the adapters' dropout */
static struct mat site_input(struct train_model *m, int layer, enum layer_gemm p, struct mat x)
{
    if (m->dropout <= 0) return x;
    struct mat to = {m->dropped.p, DT_F32, x.rows, x.cols, x.cols};
    copy(m, to, x);
    drop_input(m, layer, p, to);
    return to;
}

/* x a^T with the site's rank as width, which may be less than the buffer's */
static struct mat xa_of(const struct site *s, enum layer_gemm p, const struct kept *k, int rows)
{
    struct mat xa = first(k->xa[p], rows);
    xa.cols = s->r;
    return xa;
}

/* xa = x a^T */
static void site_down(struct train_model *m, int layer, enum layer_gemm p, struct mat x, const struct kept *k)
{
    const struct site *s = train_site(m, layer, p);
    if (!s->r) return;
    x = site_input(m, layer, p, x);
    gemm(m, xa_of(s, p, k, x.rows), x, mat_f32(s->a, s->r, s->k), true, 1, false);
}

/* y += scale xa b^T; x: the site's input */
static void site_up(struct train_model *m, int layer, enum layer_gemm p, struct mat y, struct mat x,
                    const struct kept *k)
{
    const struct site *s = train_site(m, layer, p);
    if (is_exact(m)) {
        if (s->r) train_exact_adapt(chunks_of(m), s, 0, y, x);
        return;
    }
    struct mat xa = xa_of(s, p, k, y.rows);
    for (int i = 0; i < s->n_parts; i++) {
        const struct site_part *t = &s->part[i];
        gemm(m, mat_cols(y, t->col, t->n), mat_cols(xa, t->at, t->r), mat_f32(t->b, t->n, t->r), true, t->scale, true);
    }
}

/* With du = scale dy b:  db += scale dy^T xa, da += du^T x, and dx += du a unless dx.p is NULL.  (x is the input after
 * dropout, dx the gradient before it.) */
static void site_back(struct train_model *m, int layer, enum layer_gemm p, const struct kept *k, struct mat x,
                      struct mat dy, struct mat dx)
{
    const struct site *s = train_site(m, layer, p);
    if (!s->r) return;
    struct mat du = {m->du.p, DT_F32, dy.rows, s->r, s->r}, xa = xa_of(s, p, k, dy.rows);
    for (int i = 0; i < s->n_parts; i++) {
        const struct site_part *t = &s->part[i];
        struct mat part = mat_cols(dy, t->col, t->n);
        gemm(m, mat_cols(du, t->at, t->r), part, mat_f32(t->b, t->n, t->r), false, t->scale, false);
        weight_grad(m, t->db, part, mat_cols(xa, t->at, t->r), t->scale);
    }
    weight_grad(m, s->da, du, site_input(m, layer, p, x), 1);
    if (!dx.p) return;
    bool drops = m->dropout > 0;
    struct mat back = drops ? (struct mat){m->dropped.p, DT_F32, dy.rows, s->k, s->k} : dx;
    gemm(m, back, du, mat_f32(s->a, s->r, s->k), false, 1, !drops);
    if (drops) {
        drop_input(m, layer, p, back);
        add(m, dx, back);
    }
}

/* The site of the embedding table, whose a is a table (V, r): x += scale a[id] b^T. */
static void embed_site(struct train_model *m, struct mat x)
{
    const struct site *s = train_site(m, 0, GEMM_EMBEDDING);
    if (!s->r) return;
    struct mat xa = first(m->embed_xa, x.rows);
    chunked_embed(chunks_of(m), (struct embed_args){.out = xa,
                                                    .table = mat_f32(s->a, s->k, s->r),
                                                    .id = m->id,
                                                    .pos = m->pos,
                                                    .scale = layer_embed_scale(m->c, m->w)});
    if (is_exact(m))
        train_exact_embed(chunks_of(m), &m->exact, s, x, xa);
    else
        gemm(m, x, xa, mat_f32(s->part->b, s->part->n, s->r), true, s->part->scale, true);
}

static void embed_site_back(struct train_model *m, struct mat dx)
{
    const struct site *s = train_site(m, 0, GEMM_EMBEDDING);
    if (!s->r) return;
    struct mat du = {m->du.p, DT_F32, dx.rows, s->r, s->r};
    gemm(m, du, dx, mat_f32(s->part->b, s->part->n, s->r), false, s->part->scale, false);
    weight_grad(m, s->part->db, dx, first(m->embed_xa, dx.rows), s->part->scale);
    chunked_embed_back(chunks_of(m), (struct embed_back_args){.dtable = mat_f32(s->da, s->k, s->r),
                                                              .dx = du,
                                                              .id = m->id,
                                                              .pos = m->pos,
                                                              .scale = layer_embed_scale(m->c, m->w)});
}

/* ---- a layer forward --------------------------------------------------------------------------------------------- */

/* a matrix in the scratch area, after `before` columns */
static struct mat area_mat(const struct train_model *m, int before, int cols)
{
    return mat_f32(m->area + (size_t)before * (size_t)m->max_tokens, m->b->n_tokens, cols);
}

/* the matrix with one row per token of the micro-batch */
static struct mat here(const struct train_model *m, struct mat x)
{
    x.rows = m->b->n_tokens;
    return x;
}

static struct mat layer_input(const struct train_model *m, int layer)
{
    size_t each = (size_t)m->max_tokens * (size_t)m->c->hidden;
    return mat_f32(m->x + (size_t)layer * each, m->b->n_tokens, m->c->hidden);
}

static struct attn_seq_args attn_args(const struct train_model *m, const struct layer *l, const struct kept *k)
{
    struct attn_seq_args a = layer_attn_seq(l);
    a.out = here(m, k->att);
    a.lse = here(m, k->lse);
    a.qkv = here(m, k->qkv);
    a.n_seqs = m->b->n_seqs;
    a.q_start = m->q_start;
    return a;
}

/* Rotates q and k as well. */
static void attn_forward(struct train_model *m, const struct layer *l, const struct kept *k)
{
    struct attn_seq_args all = attn_args(m, l, k);
    if (is_exact(m)) {
        train_exact_attention(chunks_of(m), &m->exact, l, m->b, m->pos, all.qkv, all.out, all.lse);
        return;
    }
    chunked_rope(chunks_of(m), layer_rope(l, all.qkv, m->pos, false));
    for (struct chunk_seqs s = {0}; chunked_attention(chunks_of(m), WORK_ATTN, &all, m->b->q_start, m->some, &s);) {
        struct attn_seq_args a = all;
        a.out = mat_rows(all.out, s.row, s.rows);
        a.lse = mat_rows(all.lse, s.row, s.rows);
        a.qkv = mat_rows(all.qkv, s.row, s.rows);
        a.n_seqs = s.n, a.q_start = s.q_start;
        a.head0 = s.head0, a.n_heads = s.n_heads;
        op_attn_seq(m->d, a);
    }
    op_watch_wrote(m->watch, OP_attn_seq, NULL, all.out, false);
}

/* Turns a branch's output y into its contribution to the residual stream, in place.  bare: keeps the output when a norm
 * follows. */
static void after_branch(struct train_model *m, const struct layer *l, enum branch b, struct mat bare, struct mat y)
{
    struct layer_norm post = b == ATTENTION ? layer_post1(l) : layer_post2(l);
    if (post.w) norm(m, y, bare, post);
    if (l->b->residual_scale != 1) chunked_scale(chunks_of(m), y, (double)l->b->residual_scale);
    drop_branch(m, l->index, b, y);
}

/* y = x + attention(norm(x)), without x in parallel models; y.p NULL: computes only the kept activations */
static void attention(struct train_model *m, const struct layer *l, const struct kept *k, struct mat h, struct mat x,
                      struct mat y)
{
    const struct layer_weights *w = l->w;
    struct mat qkv = here(m, k->qkv), att = here(m, k->att), out = layer_post1(l).w ? here(m, k->o) : y;
    linear(m, l, qkv, h, w->qkv, w->qkv_b);
    site_down(m, l->index, GEMM_QKV, h, k);
    site_up(m, l->index, GEMM_QKV, qkv, h, k);
    if (l->b->qk_norm) {
        struct mat bare = here(m, k->bare);
        copy(m, bare, mat_cols(qkv, 0, bare.cols));
    }
    if (block_norms_heads(l->b)) {
        chunked_head_norm(chunks_of(m), layer_q_norm(l, qkv));
        chunked_head_norm(chunks_of(m), layer_k_norm(l, qkv));
    } else if (l->b->qk_norm == QK_NORM_WHOLE) {
        chunked_norm(chunks_of(m), layer_q_norm_whole(l, qkv));
        chunked_norm(chunks_of(m), layer_k_norm_whole(l, qkv));
    }
    attn_forward(m, l, k);
    site_down(m, l->index, GEMM_O, att, k);
    if (!y.p) return;
    linear(m, l, out, att, w->o, w->o_b);
    site_up(m, l->index, GEMM_O, out, att, k);
    after_branch(m, l, ATTENTION, out, y);
    add(m, y, x);
}

/* the feed-forward before its activation */
static struct mat up_of(const struct train_model *m, const struct layer *l, const struct kept *k)
{
    return mat_f32(k->up.p, m->b->n_tokens, l->b->gated ? 2 * l->b->inter : l->b->inter);
}

/* out = act(up), or act(gate) * up */
static void activate(struct train_model *m, const struct block *b, struct mat out, struct mat up)
{
    if (b->gated) {
        chunked_act_mul(chunks_of(m), (struct act_mul_args){out, up, b->act});
    } else {
        copy(m, out, up);
        chunked_act(chunks_of(m), (struct act_args){out, b->act});
    }
}

/* The feed-forward, or the shared expert: out.p NULL: computes only the kept activations and the input of the last
 * GEMM, in the area. */
static void dense(struct train_model *m, const struct layer *l, const struct kept *k, struct mat h, struct mat out)
{
    const struct layer_weights *w = l->w;
    struct mat up = up_of(m, l, k), ff = area_mat(m, 0, l->b->inter);
    linear(m, l, up, h, w->up, w->up_b);
    site_down(m, l->index, GEMM_UP, h, k);
    site_up(m, l->index, GEMM_UP, up, h, k);
    activate(m, l->b, ff, up);
    site_down(m, l->index, GEMM_DOWN, ff, k);
    if (!out.p) return;
    linear(m, l, out, ff, w->down, w->down_b);
    site_up(m, l->index, GEMM_DOWN, out, ff, k);
}

/* y = feed_forward(h); y.p NULL: computes only what the backward pass needs. */
static void feed_forward(struct train_model *m, const struct layer *l, const struct kept *k, struct mat h, struct mat y)
{
    struct mat out = layer_post2(l).w ? here(m, k->down) : y;
    if (l->b->inter) dense(m, l, k, h, out);
    if (l->b->experts.count && out.p) train_experts_forward(chunks_of(m), &m->experts, l, h, out);
    if (y.p) after_branch(m, l, FEED_FORWARD, out, y);
}

/* y: the layer's output; y.p NULL: computes only the kept activations. */
static void layer_forward(struct train_model *m, int layer, const struct kept *k, struct mat x, struct mat y)
{
    struct layer l = layer_of(m, layer);
    struct mat h = norm_if(m, x, layer_norm1(&l));
    if (block_parallel(l.b)) { /* y = x + attention(h) + feed_forward(h), which may have a norm of its own */
        struct mat ff = y.p ? here(m, m->dh) : y;
        attention(m, &l, k, h, x, y);
        if (layer_norm2(&l).w) h = norm_if(m, x, layer_norm2(&l));
        feed_forward(m, &l, k, h, ff);
        if (y.p) add(m, y, ff);
    } else {
        struct mat x2 = here(m, k->x2);
        attention(m, &l, k, h, x, x2);
        feed_forward(m, &l, k, norm_if(m, x2, layer_norm2(&l)), y);
        if (y.p) add(m, y, x2);
    }
}

/* ---- a layer backward -------------------------------------------------------------------------------------------- */

static const struct layer_grads no_grads;

/* Which gradients of a layer the backward pass needs. */
struct reach {
    bool below;            /* with respect to the layer's input */
    bool attention, inner; /* with respect to attention's output; to the feed-forward's values before its activation */
    bool ff_input;         /* with respect to the feed-forward's input */
};

static struct reach reach_of(const struct train_model *m, const struct layer *l)
{
    int layer = l->index;
    struct reach r = {.below = layer > m->lowest || m->grads};
    r.attention = r.below || train_site(m, layer, GEMM_QKV)->r || train_site(m, layer, GEMM_O)->r;
    r.ff_input = (block_parallel(l->b) ? r.below : r.attention) || train_experts_adapted(&m->experts, l);
    r.inner = r.ff_input || train_site(m, layer, GEMM_UP)->r;
    return r;
}

static struct mat if_wanted(struct mat x, bool wanted)
{
    if (!wanted) x.p = NULL;
    return x;
}

/* The gradient with respect to a branch's output, from dx, that with respect to the residual stream; bare: the output,
 * when a norm follows. */
static struct mat branch_grad(struct train_model *m, const struct layer *l, enum branch b, struct mat bare,
                              struct mat dx)
{
    const struct layer_grads *g = m->grads ? &m->grads->layer[l->index] : &no_grads;
    struct layer_norm post = b == ATTENTION ? layer_post1(l) : layer_post2(l);
    bool own = b == ATTENTION && l->b->norms == NORMS_PARALLEL_TWO; /* dx gets the feed-forward's part first */
    if (m->residual_dropout <= 0 && l->b->residual_scale == 1 && !post.w && !own) return dx;
    struct mat to = here(m, m->branch);
    copy(m, to, dx);
    drop_branch(m, l->index, b, to);
    if (l->b->residual_scale != 1) chunked_scale(chunks_of(m), to, (double)l->b->residual_scale);
    if (post.w)
        norm_back(m, (struct norm_back_args){.dx = to,
                                             .x = bare,
                                             .dy = to,
                                             .w = post.w,
                                             .eps = m->c->eps,
                                             .kind = m->c->norm,
                                             .dw = b == ATTENTION ? g->post1_w : g->post2_w,
                                             .db = b == ATTENTION ? g->post1_b : g->post2_b});
    return to;
}

static void dense_back(struct train_model *m, const struct layer *l, const struct kept *k, struct mat h, struct mat dx,
                       struct mat dh, const struct reach *r)
{
    const struct layer_weights *w = l->w;
    const struct layer_grads *g = m->grads ? &m->grads->layer[l->index] : NULL;
    int inter = l->b->inter;
    struct mat ff = area_mat(m, 0, inter), dff = area_mat(m, inter, inter), up = up_of(m, l, k), dup = dff;

    if (g) {
        weight_grad(m, g->down, dx, ff, 1);
        bias_grad(m, g->down_b, dx);
    }
    if (r->inner) linear_back(m, l, dff, dx, w->down, false);
    site_back(m, l->index, GEMM_DOWN, k, ff, dx, if_wanted(dff, r->inner));
    if (!r->inner) return;
    if (l->b->gated) { /* the gradient overwrites the kept activation */
        chunked_act_mul_back(chunks_of(m), (struct act_mul_back_args){up, up, dff, l->b->act});
        dup = up;
    } else {
        chunked_act_back(chunks_of(m), (struct act_back_args){dff, up, dff, l->b->act});
    }
    if (g) {
        weight_grad(m, g->up, dup, h, 1);
        bias_grad(m, g->up_b, dup);
    }
    if (r->ff_input) linear_back(m, l, dh, dup, w->up, false);
    site_back(m, l->index, GEMM_UP, k, h, dup, if_wanted(dh, r->ff_input));
}

/* dx by the branch's output.  Leaves in dh the gradient by the feed-forward's input h, where that is reached. */
static void feed_forward_back(struct train_model *m, const struct layer *l, const struct kept *k, struct mat h,
                              struct mat dx, struct mat dh, const struct reach *r)
{
    bool experts = l->b->experts.count && r->ff_input;
    struct mat shared = here(m, m->experts.shared);
    if (!l->b->inter || !l->b->experts.gate) shared.p = NULL;
    if (experts && shared.p) {
        linear(m, l, shared, area_mat(m, 0, l->b->inter), l->w->down, l->w->down_b);
        site_up(m, l->index, GEMM_DOWN, shared, area_mat(m, 0, l->b->inter), k);
    }
    if (experts) dx = train_experts_back(chunks_of(m), &m->experts, l, h, shared, dx);
    if (l->b->inter) dense_back(m, l, k, h, dx, dh, r);
    if (experts) train_experts_input(chunks_of(m), &m->experts, l, h, dh);
}

/* dx: on entry the gradient by the norm's output, on return by its input */
static void whole_norm_back(struct train_model *m, struct norm_args n, struct mat dx, float *dw)
{
    norm_back(m,
              (struct norm_back_args){.dx = dx, .x = n.x, .dy = dx, .w = n.w, .eps = n.eps, .kind = n.kind, .dw = dw});
}

static void head_norm_back(struct train_model *m, struct head_norm_args n, struct mat dx, float *dw, float *db)
{
    for (int i = 0; i < m->b->n_units; i++)
        chunked_head_norm_back(chunks_of(m),
                               (struct head_norm_back_args){unit_rows(m, dx, i), unit_rows(m, n.x, i), n.col, n.heads,
                                                            n.head_dim, n.w, n.eps, dw, n.kind, db, n.by_head});
}

static void rotate_back(struct train_model *m, const struct layer *l, const struct kept *k, struct mat dqkv)
{
    const struct layer_grads *g = m->grads ? &m->grads->layer[l->index] : &no_grads;
    chunked_rope(chunks_of(m), layer_rope(l, dqkv, m->pos, true));
    if (!l->b->qk_norm) return;
    struct mat bare = here(m, k->bare), dbare = mat_cols(dqkv, 0, bare.cols);
    if (l->b->qk_norm == QK_NORM_WHOLE) {
        whole_norm_back(m, layer_q_norm_whole(l, bare), layer_q_norm_whole(l, dbare).x, g->q_norm);
        whole_norm_back(m, layer_k_norm_whole(l, bare), layer_k_norm_whole(l, dbare).x, g->k_norm);
        return;
    }
    head_norm_back(m, layer_q_norm(l, bare), dbare, g->q_norm, g->q_norm_b);
    head_norm_back(m, layer_k_norm(l, bare), dbare, g->k_norm, g->k_norm_b);
}

static void attn_backward(struct train_model *m, const struct layer *l, const struct kept *k, struct mat dqkv,
                          struct mat datt)
{
    struct attn_seq_args all = attn_args(m, l, k);
    for (struct chunk_seqs s = {0};
         chunked_attention(chunks_of(m), WORK_ATTN_BACK, &all, m->b->q_start, m->some, &s);) {
        struct attn_back_args a = layer_attn_back(l);
        a.dqkv = mat_rows(dqkv, s.row, s.rows);
        a.dout = mat_rows(datt, s.row, s.rows);
        a.out = mat_rows(all.out, s.row, s.rows);
        a.lse = mat_rows(all.lse, s.row, s.rows);
        a.qkv = mat_rows(all.qkv, s.row, s.rows);
        a.n_seqs = s.n, a.q_start = s.q_start;
        a.head0 = s.head0, a.n_heads = s.n_heads;
        op_attn_back(m->d, a);
    }
    op_watch_wrote(m->watch, OP_attn_back, NULL, dqkv, false);
}

/* dx by the branch's output; h: norm(x).  dh (+)= the gradient by h. */
static void attention_back(struct train_model *m, const struct layer *l, const struct kept *k, struct mat h,
                           struct mat dx, struct mat dh, const struct reach *r)
{
    const struct layer_weights *w = l->w;
    const struct layer_grads *g = m->grads ? &m->grads->layer[l->index] : NULL;
    struct mat qkv = here(m, k->qkv), att = here(m, k->att);
    struct mat dqkv = area_mat(m, 0, qkv.cols), datt = area_mat(m, qkv.cols, att.cols);
    bool further = r->below || train_site(m, l->index, GEMM_QKV)->r;

    if (g) {
        weight_grad(m, g->o, dx, att, 1);
        bias_grad(m, g->o_b, dx);
    }
    if (further) linear_back(m, l, datt, dx, w->o, false);
    site_back(m, l->index, GEMM_O, k, att, dx, if_wanted(datt, further));
    if (!further) return;
    attn_backward(m, l, k, dqkv, datt);
    rotate_back(m, l, k, dqkv);
    if (g) {
        weight_grad(m, g->qkv, dqkv, h, 1);
        bias_grad(m, g->qkv_b, dqkv);
    }
    if (r->below) linear_back(m, l, dh, dqkv, w->qkv, l->b->norms == NORMS_PARALLEL);
    site_back(m, l->index, GEMM_QKV, k, h, dqkv, if_wanted(dh, r->below));
}

/* dx: on entry the gradient by the layer's output, on return, where that is reached, by its input x. fresh: the area
 * still holds the feed-forward's activation, and h its input. */
static void layer_back(struct train_model *m, int layer, const struct kept *k, struct mat x, struct mat dx, bool fresh)
{
    struct layer l = layer_of(m, layer);
    struct layer_norm norm1 = layer_norm1(&l), norm2 = layer_norm2(&l);
    const struct layer_grads *g = m->grads ? &m->grads->layer[layer] : &no_grads;
    struct reach r = reach_of(m, &l);
    bool parallel = block_parallel(l.b), shared = l.b->norms == NORMS_PARALLEL, experts = l.b->experts.count > 0;
    bool ff_site = m->grads || experts || train_site(m, layer, GEMM_UP)->r;
    struct mat dh = here(m, m->dh), x2 = here(m, k->x2), in = parallel ? x : x2;
    struct layer_norm before = shared ? norm1 : norm2;
    struct mat h = before.w ? here(m, m->h) : in;

    if (!fresh && l.b->inter && (m->grads || experts || train_site(m, layer, GEMM_DOWN)->r))
        activate(m, l.b, area_mat(m, 0, l.b->inter), up_of(m, &l, k));
    if (!fresh && ff_site) norm_if(m, in, before);
    feed_forward_back(m, &l, k, h, branch_grad(m, &l, FEED_FORWARD, here(m, k->down), dx), dh, &r);
    if (!r.attention) return;
    struct mat dy = dx;
    if (parallel) dy = branch_grad(m, &l, ATTENTION, here(m, k->o), dx);
    if (!shared && r.ff_input) norm_if_back(m, dx, in, dh, norm2, g->norm2_w, g->norm2_b);
    if (!parallel) dy = branch_grad(m, &l, ATTENTION, here(m, k->o), dx);
    bool has_h = shared && (fresh || ff_site);
    h = norm1.w ? here(m, m->h) : x;
    if (!has_h && (m->grads || train_site(m, layer, GEMM_QKV)->r)) norm_if(m, x, norm1);
    attention_back(m, &l, k, h, dy, dh, &r);
    if (r.below) norm_if_back(m, dx, x, dh, norm1, g->norm1_w, g->norm1_b);
}

/* ---- the loss ---------------------------------------------------------------------------------------------------- */

static struct train_loss read_loss(struct train_model *m, bool back)
{
    size_t n = (size_t)m->b->n_targets;
    struct train_loss out = {0};
    scheduler_gate_pass(m->gate); /* an exchange with other ranks may have left it */
    if (m->d->ops->finish(m->d)) return (struct train_loss){NAN, 0};
    m->d->ops->download(m->d, m->host_loss, m->loss, n * sizeof *m->loss);
    if (!m->score) m->d->ops->download(m->d, m->host_hit, m->hit, n * sizeof *m->hit);
    for (size_t i = 0; i < n; i++) {
        out.sum += (double)m->host_loss[i];
        out.hits += m->score ? 0 : m->host_hit[i];
    }
    if (back) train_exact_count(m->b, m->host_loss);
    return out;
}

static void upload(struct train_model *m, const struct micro *b, float scale)
{
    struct dev *d = m->d;
    size_t T = (size_t)b->n_tokens, R = (size_t)b->n_targets;
    d->ops->upload(d, m->id, b->id, T * sizeof *b->id);
    d->ops->upload(d, m->pos, b->pos, T * sizeof *b->pos);
    d->ops->upload(d, m->q_start, b->q_start, ((size_t)b->n_seqs + 1) * sizeof *b->q_start);
    d->ops->upload(d, m->row, b->row, R * sizeof *b->row);
    d->ops->upload(d, m->target, b->target, R * sizeof *b->target);
    for (size_t i = 0; i < R; i++) m->host_loss[i] = b->weight ? scale * b->weight[i] : scale;
    d->ops->upload(d, m->scale, m->host_loss, R * sizeof *m->scale);
}

/* The factors of the gradients are functions of all losses: the heads run once more for them, the layers do not. */
static void weigh(struct train_model *m)
{
    size_t n = (size_t)m->b->n_targets;
    train_heads(m, false, here(m, m->dx));
    if (m->d->ops->finish(m->d)) return;
    m->d->ops->download(m->d, m->host_loss, m->loss, n * sizeof *m->loss);
    float *factor = mem_array(n, sizeof *factor);
    m->weigh(m->weigh_arg, m->b, m->host_loss, factor);
    m->d->ops->upload(m->d, m->scale, factor, n * sizeof *factor);
    free(factor);
}

/* The lowest layer that gradients are passed back through. */
static int lowest_of(const struct train_model *m)
{
    return m->lowest > 0 ? m->lowest : 0;
}

static void begin_forward(struct train_model *m, int layer)
{
    if (m->layer_begins) m->layer_begins(m->begins_arg, layer, layer + 1 < m->c->layers ? layer + 1 : -1, false);
}

static void begin_backward(struct train_model *m, int layer)
{
    if (m->layer_begins) m->layer_begins(m->begins_arg, layer, layer > lowest_of(m) ? layer - 1 : -1, true);
}

static void backward(struct train_model *m, struct mat dx)
{
    int last = m->c->layers - 1;
    if (m->watch) m->watch->back = true;
    for (int l = last; l >= lowest_of(m); l--) {
        const struct kept *k = &m->kept[m->recompute ? 0 : l];
        struct mat x = layer_input(m, l);
        begin_backward(m, l);
        if (m->recompute && l < last) layer_forward(m, l, k, x, (struct mat){0});
        layer_back(m, l, k, x, dx, m->recompute);
        if (m->layer_done) m->layer_done(m->layer_arg, l);
    }
    watch_from(m, WATCH_EMBEDDINGS, -1);
    embed_site_back(m, dx);
    if (!m->grads) return;
    struct mat table = mat_f32(m->grads->embed, m->c->vocab, m->c->hidden), pos = {0};
    if (m->grads->pos) pos = mat_f32(m->grads->pos, m->c->max_len, m->c->hidden);
    drop_branch(m, m->c->layers, ATTENTION, dx);
    chunked_embed_back(chunks_of(m),
                       (struct embed_back_args){table, pos, dx, m->id, m->pos, layer_embed_scale(m->c, m->w)});
    op_watch_wrote(m->watch, OP_embed_back, table.p, table, true);
}

struct train_loss train_model_run(struct train_model *m, const struct micro *b, bool back, float scale)
{
    m->b = b;
    if (m->distill) m->distill->scale = scale;
    train_exact_begin(&m->exact);
    scheduler_gate_pass(m->gate); /* a job that resumes with an evaluation does not have the device yet */
    upload(m, b, scale);
    watch_from(m, WATCH_EMBEDDINGS, -1);
    if (m->watch) m->watch->back = false;
    chunked_embed(chunks_of(m), (struct embed_args){layer_input(m, 0), m->w->embed, m->w->pos, m->id, m->pos,
                                                    m->w->embed_w, layer_embed_scale(m->c, m->w)});
    embed_site(m, layer_input(m, 0));
    drop_branch(m, m->c->layers, ATTENTION, layer_input(m, 0));
    for (int l = 0; l < m->c->layers; l++) {
        begin_forward(m, l);
        layer_forward(m, l, &m->kept[m->recompute ? 0 : l], layer_input(m, l), layer_input(m, l + 1));
    }
    step_clock_read(m->clock, TRAIN_FORWARD);
    struct mat dx = here(m, m->dx);
    if (back && m->weigh) weigh(m);
    if (back) chunked_zero(chunks_of(m), dx);
    train_heads(m, back, dx);
    step_clock_divide(m->clock, TRAIN_FORWARD, !back ? 1 : m->grads ? 1.0 / 3 : 0.5, TRAIN_BACKWARD);
    if (back) backward(m, dx);
    return read_loss(m, back);
}

void train_model_skim(struct train_model *m, bool back)
{
    for (int l = 0; l < m->c->layers; l++) begin_forward(m, l);
    for (int l = m->c->layers - 1; back && l >= lowest_of(m); l--) {
        begin_backward(m, l);
        if (m->layer_done) m->layer_done(m->layer_arg, l);
    }
}
