#include "engine/model/model.h"

#include "engine/base/mem.h"
#include "engine/model/layer.h"
#include "engine/model/ranks_agree.h"
#include "engine/model/shard_lead.h"
#include "engine/model/stages.h"

#include <stdlib.h>
#include <string.h>

/* ---- the forward pass ------------------------------------------------------------------------------------------ */

static struct mat first(struct mat m, int rows)
{
    m.rows = rows;
    return m;
}

/* NULL: this rank has all outputs of what it computes. */
static struct shard *by_outputs(const struct model *m)
{
    return shard_by_outputs(m->shard) ? m->shard : NULL;
}

/* This rank's columns of a matrix that is exchanged after it was computed: `own`, or all of `whole` on the only rank.
 */
static struct mat own_columns(const struct model *m, struct mat whole, struct mat own)
{
    const struct shard *s = by_outputs(m);
    return s ? mat_f32(own.p, whole.rows, whole.cols / comm_ranks(s->group)) : whole;
}

static void join(const struct model *m, struct mat own, struct mat whole)
{
    if (by_outputs(m)) shard_join(m->shard, m->d, own, whole);
}

/* y += the output of the batch rows' adapters for x */
static void adapt(struct model *m, const struct step_batch *b, int layer, enum layer_gemm gemm, struct mat y,
                  struct mat x)
{
    int n = b->n_groups ? step_batch_lora(b, layer, gemm, 0, b->n_tokens) : 0;
    if (n) op_lora(m->d, (struct lora_args){y, x, b->lora, n});
}

static void cached_attention(struct model *m, const struct step_batch *b, const struct layer *l, struct mat qkv,
                             struct mat att)
{
    op_rope_kv(m->d, layer_rope_kv(l, qkv, b->pos, b->slot, m->kv));
    struct attn_args a = layer_attn(l);
    a.out = att;
    a.qkv = qkv;
    a.n_seqs = b->n_seqs;
    a.q_start = b->q_start;
    a.kv_len = b->kv_len;
    a.pages = b->pages;
    a.pages_ld = b->pages_ld;
    a.kv = m->kv;
    a.most_rows = b->most_rows;
    op_attn(m->d, a);
}

/* An encoder's texts are computed as a whole, so keys and values need no cache. */
static void whole_attention(struct model *m, const struct step_batch *b, const struct layer *l, struct mat qkv,
                            struct mat att)
{
    struct rope_args r = layer_rope(l, qkv, b->pos, false);
    struct attn_seq_args a = layer_attn_seq(l);
    if (r.rot) op_rope(m->d, r);
    a.out = att;
    a.lse = first(m->lse, b->n_tokens);
    a.qkv = qkv;
    a.n_seqs = b->n_seqs;
    a.q_start = b->q_start;
    op_attn_seq(m->d, a);
}

/* The norm of all heads of q, or of k; of a part, in memory that attention's output will have. */
static void norm_heads_together(const struct model *m, struct norm_args n, int heads)
{
    if (!by_outputs(m)) {
        op_norm(m->d, n);
        return;
    }
    struct mat part = n.x, whole = mat_f32(m->att.p, part.rows, heads * m->c.head_dim);
    shard_join(m->shard, m->d, part, whole);
    n.x = n.out = whole;
    op_norm(m->d, n);
    shard_take(m->shard, m->d, whole, part);
}

static void attention(struct model *m, const struct step_batch *b, const struct layer *l, struct mat h, struct mat y)
{
    struct mat qkv = first(m->qkv, b->n_tokens), whole = first(m->att, b->n_tokens);
    struct mat att = own_columns(m, whole, m->own_att), own_y = own_columns(m, y, m->own_y);

    op_linear(m->d, (struct linear_args){qkv, h, l->w->qkv, l->w->qkv_b});
    adapt(m, b, l->index, GEMM_QKV, qkv, h);
    if (block_norms_heads(l->b)) {
        op_head_norm(m->d, layer_q_norm(l, qkv));
        op_head_norm(m->d, layer_k_norm(l, qkv));
    } else if (l->b->qk_norm == QK_NORM_WHOLE) {
        norm_heads_together(m, layer_q_norm_whole(l, qkv), m->c.heads);
        norm_heads_together(m, layer_k_norm_whole(l, qkv), m->c.kv_heads);
    }
    if (l->b->both_sides)
        whole_attention(m, b, l, qkv, att);
    else
        cached_attention(m, b, l, qkv, att);
    join(m, att, whole);
    op_linear(m->d, (struct linear_args){own_y, whole, l->w->o, l->w->o_b});
    adapt(m, b, l->index, GEMM_O, own_y, whole);
    join(m, own_y, y);
}

static struct mat part(struct mat m, int row, int rows)
{
    m.p = (float *)m.p + (size_t)row * (size_t)m.ld;
    m.rows = rows;
    return m;
}

/* ff = act(gate) * up, in runs of rows.  Rows whose gate or up an adapter changes are computed in blocks, with the
 * activation as a separate op; the others use the fused op as without adapters, since their results must not depend on
 * the batch. */
static void gate_up(struct model *m, const struct step_batch *b, const struct layer *l, struct mat h, struct mat ff)
{
    const struct layer_weights *w = l->w;
    enum act_kind act = l->b->act;
    bool changed = false;
    for (int row = 0, end; row < b->n_tokens; row = end) {
        end = step_batch_run(b, l->index, GEMM_UP, row, &changed);
        if (changed && end > row + m->raw.rows) end = row + m->raw.rows;
        int n = end - row;
        struct mat x = part(h, row, n), y = part(ff, row, n), raw = mat_f32(m->raw.p, n, 2 * l->b->inter);
        if (!changed) {
            struct mat up = mat_f32(m->up.p, m->up.rows, 2 * l->b->inter);
            op_gate_up(m->d, (struct gate_up_args){y, x, w->up, w->up_b, act, up});
            continue;
        }
        op_linear(m->d, (struct linear_args){raw, x, w->up, w->up_b});
        op_lora(m->d, (struct lora_args){raw, x, b->lora, step_batch_lora(b, l->index, GEMM_UP, row, n)});
        op_act_mul(m->d, (struct act_mul_args){y, raw, act});
    }
}

static void dense(struct model *m, const struct step_batch *b, const struct layer *l, struct mat h, struct mat y)
{
    const struct layer_weights *w = l->w;
    struct mat whole = mat_f32(m->ff.p, b->n_tokens, model_block(&m->c, l->index)->inter);
    struct mat ff = own_columns(m, whole, m->own_ff);

    if (l->b->gated) {
        gate_up(m, b, l, h, ff);
    } else {
        op_linear(m->d, (struct linear_args){ff, h, w->up, w->up_b});
        adapt(m, b, l->index, GEMM_UP, ff, h);
        op_act(m->d, (struct act_args){ff, l->b->act});
    }
    join(m, ff, whole);
    op_linear(m->d, (struct linear_args){y, whole, w->down, w->down_b});
    adapt(m, b, l->index, GEMM_DOWN, y, whole);
}

static void feed_forward(struct model *m, const struct step_batch *b, const struct layer *l, struct mat h, struct mat y)
{
    struct mat own = own_columns(m, y, m->own_y);
    if (l->b->inter) dense(m, b, l, h, own);
    if (l->b->experts.count) experts_forward(m->d, &m->experts, l, by_outputs(m), m->own_ff, b, h, own);
    join(m, own, y);
}

/* Adds a branch's output y to x; y may be overwritten.  @return the input of the next branch: norm(x), in m->h, or x
 * when there is no norm. */
static struct mat add_branch(struct model *m, const struct layer *l, struct layer_norm post, struct layer_norm norm,
                             const struct weight *next, struct mat x, struct mat y)
{
    const struct model_config *c = &m->c;
    float scale = l->b->residual_scale;
    struct mat h = first(m->h, x.rows);
    if (post.w && (scale != 1 || !norm.w)) {
        op_norm(m->d, (struct norm_args){y, y, post.w, post.b, c->eps, c->norm, NULL});
        post.w = post.b = NULL;
    }
    if (scale != 1) op_axpby(m->d, (struct axpby_args){y.p, y.p, (size_t)y.rows * (size_t)y.cols, (double)scale, 0});
    if (norm.w)
        op_add_norm(m->d, (struct add_norm_args){h, x, y, norm.w, norm.b, c->eps, c->norm, next, post.w, post.b});
    else
        op_add(m->d, (struct add_args){x, y});
    return norm.w ? h : x;
}

/* x += the output of the batch rows' adapters of the embedding table, some rows at a time. */
static void adapt_embeddings(struct model *m, const struct step_batch *b, struct mat x)
{
    for (int i = 0; i < b->n_groups; i++) {
        const struct step_batch_group *g = &b->group[i];
        const struct lora_gemm *of = &g->lora->layer[0][GEMM_EMBEDDING];
        for (int at = g->row0, n; of->n && at < g->row0 + g->rows; at += n) {
            n = g->row0 + g->rows - at < m->picked.rows ? g->row0 + g->rows - at : m->picked.rows;
            struct mat rows = mat_f32(m->picked.p, n, g->lora->embedding.cols);
            op_embed(m->d, (struct embed_args){.out = rows,
                                               .table = g->lora->embedding,
                                               .id = b->id + at,
                                               .pos = b->pos + at,
                                               .scale = layer_embed_scale(&m->c, &m->w)});
            b->lora[0] = (struct lora_group){0, n, of->n, of->part};
            op_lora(m->d, (struct lora_args){part(x, at, n), rows, b->lora, 1});
        }
    }
}

/* The table of embeddings has this rank's part of the vocabulary alone. */
static bool has_part_of_table(const struct model *m)
{
    return by_outputs(m) && m->w.embed_w;
}

/* The tokens by their numbers in this rank's part of the vocabulary; 0 for those of others.  Before the step, which may
 * be replayed. */
static void send_own_ids(struct model *m, const struct step_batch *b)
{
    struct shard_piece p = shard_vocab(m->shard, comm_rank(m->shard->group));
    size_t n = (size_t)b->n_tokens;
    int32_t *id = mem_array(n, sizeof *id);
    for (size_t i = 0; i < n; i++)
        if (b->host[i] >= p.from && b->host[i] < p.from + p.n) id[i] = b->host[i] - p.from;
    m->d->ops->upload(m->d, m->own_id, id, n * sizeof *id);
    free(id);
    shard_send_ids(m->shard, m->d, b->host, b->n_tokens);
}

/* x = the embeddings of the batch's tokens. */
static void embed(struct model *m, const struct step_batch *b, struct mat x, struct mat y)
{
    const struct model_config *c = &m->c;
    const struct weights *w = &m->w;
    struct mat pos = w->pos;
    if (pos.p) pos.p = (char *)pos.p + dtype_bytes(pos.t, (size_t)c->first_pos * (size_t)pos.ld);
    pos.rows -= c->first_pos;
    const int32_t *id = has_part_of_table(m) ? m->own_id : b->id;
    op_embed(m->d, (struct embed_args){x, w->embed, pos, id, b->pos, w->embed_w, layer_embed_scale(c, w)});
    if (has_part_of_table(m)) shard_join_rows(m->shard, m->d, b->host, x);
    adapt_embeddings(m, b, x);
    if (w->types.p) {
        op_embed(m->d, (struct embed_args){.out = y, .table = w->types, .id = b->type, .pos = b->pos});
        op_add(m->d, (struct add_args){x, y});
    }
    if (w->embed_norm_w)
        op_norm(m->d, (struct norm_args){x, x, w->embed_norm_w, w->embed_norm_b, c->eps, c->norm, NULL});
}

/* A layer of NORMS_SUM: each norm's output is the residual stream of the next branch, in h and then in x again. */
static void sum_layer(struct model *m, const struct step_batch *b, const struct layer *l, const struct weight *next,
                      struct mat x)
{
    const struct model_config *c = &m->c;
    struct mat h = first(m->h, b->n_tokens), y = first(m->y, b->n_tokens);
    struct layer_norm norm = layer_post1(l);
    attention(m, b, l, x, y);
    op_add_norm(m->d, (struct add_norm_args){h, x, y, norm.w, norm.b, c->eps, c->norm, l->w->up, NULL, NULL});
    feed_forward(m, b, l, h, y);
    norm = layer_post2(l);
    op_add_norm(m->d, (struct add_norm_args){x, h, y, norm.w, norm.b, c->eps, c->norm, next, NULL, NULL});
}

static struct mat norm_into_h(struct model *m, struct mat x, struct layer_norm norm, const struct weight *next)
{
    struct mat h = first(m->h, x.rows);
    if (!norm.w) return x;
    op_norm(m->d, (struct norm_args){h, x, norm.w, norm.b, m->c.eps, m->c.norm, next});
    return h;
}

/* Layers from .. end - 1, whose keys and values are in the first layers of the cache.  x: the residual stream, which
 * they change.  @return it after the norm that follows, which is that of the layer above, or the last one; x where none
 * follows, or another rank has it */
static struct mat layers(struct model *m, const struct step_batch *b, int from, int end, struct mat x)
{
    const struct model_config *c = &m->own;
    const struct weights *w = &m->w;
    struct mat y = first(m->y, b->n_tokens);
    struct layer bottom = layer_at(c, w, m->rope, from);
    struct mat h = norm_into_h(m, x, layer_norm1(&bottom), bottom.w->qkv);
    for (int i = from; i < end; i++) {
        bool last = i + 1 == end;
        struct layer l = layer_at(c, w, m->rope, i), above = layer_at(c, w, m->rope, last ? i : i + 1);
        struct layer_norm norm = last ? (struct layer_norm){w->norm_w, w->norm_b} : layer_norm1(&above);
        if (end < c->layers && last) norm = (struct layer_norm){NULL, NULL};
        l.kv_layer = i - from;
        if (l.b->norms == NORMS_SUM) {
            sum_layer(m, b, &l, last ? NULL : above.w->qkv, x);
            continue;
        }
        attention(m, b, &l, h, y);
        struct layer_norm norm2 = layer_norm2(&l);
        if (block_parallel(l.b)) {
            norm_into_h(m, x, norm2, layer_up(&l));
            add_branch(m, &l, layer_post1(&l), (struct layer_norm){NULL, NULL}, NULL, x, y);
        } else {
            h = add_branch(m, &l, layer_post1(&l), norm2, layer_up(&l), x, y);
        }
        feed_forward(m, b, &l, h, y);
        h = add_branch(m, &l, layer_post2(&l), norm, last ? NULL : above.w->qkv, x, y);
    }
    return h;
}

/* The logits of the batch's rows, from the last norm's output. */
static void head(struct model *m, const struct step_batch *b, struct mat h)
{
    const struct model_config *c = &m->own;
    const struct weights *w = &m->w;
    if (b->n_rows == 0) return;
    struct mat hr = first(m->hr, b->n_rows);
    op_rows(m->d, (struct rows_args){hr, h, b->row});
    struct mat logits = first(m->logits, b->n_rows), own = first(by_outputs(m) ? m->own_logits : logits, b->n_rows);
    op_linear(m->d, (struct linear_args){own, hr, w->head, w->head_b});
    int adapted = b->n_groups ? step_batch_lora_head(b) : 0;
    if (adapted) op_lora(m->d, (struct lora_args){own, hr, b->lora, adapted});
    if (by_outputs(m)) shard_collect(m->shard, m->d, own, logits);
    if (!shard_leads(m->shard)) return;
    if (layer_changes_logits(c)) op_softcap(m->d, (struct softcap_args){logits, c->logit_scale, c->logit_softcap});
}

static void forward(struct model *m, const struct step_batch *b)
{
    struct mat x = first(m->x, b->n_tokens);
    embed(m, b, x, first(m->y, b->n_tokens));
    head(m, b, layers(m, b, 0, m->c.layers, x));
}

/* Rows [row, row + n) of the batch, as a batch of their own. */
static const struct step_batch *some_rows(struct model *m, const struct step_batch *b, int row, int n)
{
    struct step_batch *s = &m->some;
    if (n == b->n_tokens) return b;
    if (step_batch_sized(s, m->d, b->max_tokens, b->max_seqs, b->max_rows, b->max_pages)) {
        dev_fail(m->d, "step", "no memory for a part of a step");
        return NULL;
    }
    step_batch_rows(b, m->d, row, n, s);
    return s;
}

/* This rank's layers, of one micro-batch after the other; stage 0 gets the residual stream back for the last norm and
 * the head.  After a failure the exchanges go on, since the other ranks take part in them. */
static void forward_by_layers(struct model *m, const struct step_batch *b)
{
    struct shard *s = m->shard;
    const struct weights *w = &m->w;
    bool bottom = shard_has_ends(s), last = s->end == m->c.layers;
    int parts = stages_parts(s, b->n_tokens);
    for (int i = 0; i < parts; i++) {
        int row = stages_part(b->n_tokens, parts, i), n = stages_part(b->n_tokens, parts, i + 1) - row;
        struct mat x = part(m->x, row, n);
        const struct step_batch *some = some_rows(m, b, row, n);
        if (!some) {
            comm_fail(s->comm, m->d->error.msg); /* the others do not wait for it */
            return;
        }
        if (!bottom) stages_receive(s, m->d, x);
        if (bottom && has_part_of_table(m) && !s->dry) send_own_ids(m, some);
        if (bottom) embed(m, some, x, first(m->y, n));
        layers(m, some, s->first, s->end, x);
        if (!last) stages_send(s, m->d, x);
    }
    struct mat x = first(m->x, b->n_tokens);
    if (last) stages_send(s, m->d, x); /* all at once: stage 0 has sent its last rows before it waits for the first */
    if (!bottom) return;
    stages_receive(s, m->d, x);
    head(m, b, norm_into_h(m, x, (struct layer_norm){w->norm_w, w->norm_b}, NULL));
}

struct step {
    struct model *m;
    const struct step_batch *b;
};

static void forward_step(void *arg)
{
    struct step *s = arg;
    forward(s->m, s->b);
}

/* A step in which every sequence decodes without adapters issues the same ops with the same arguments whenever its
 * sizes are the same, so it can be replayed. */
void model_forward(struct model *m, const struct step_batch *b)
{
    struct shard *s = m->shard;
    bool replays = step_batch_decodes(b) && m->d->ops->replay && !m->c.encoder && shard_may_replay(s) &&
                   b->n_tokens < 1 << 18 && b->n_rows < 1 << 18 && b->pages_ld < 1 << 25;
    uint64_t key =
        (uint64_t)m->beside << 62 | (uint64_t)b->n_tokens << 43 | (uint64_t)b->n_rows << 25 | (uint64_t)b->pages_ld;
    if (s && !s->dry) {
        if (shard_leads(s)) s->replays = replays, shard_lead_step(s, b);
        replays = s->replays;
        if (has_part_of_table(m) && !shard_by_layers(s)) send_own_ids(m, b);
    }
    if (shard_by_layers(s))
        forward_by_layers(m, b);
    else if (replays)
        m->d->ops->replay(m->d, key, forward_step, &(struct step){m, b});
    else
        forward(m, b);
}

int model_hidden(const struct model *m, int row, int n, float *out)
{
    struct mat h = part(m->w.norm_w ? m->h : m->x, row, n);
    m->d->ops->download(m->d, out, h.p, (size_t)n * (size_t)h.cols * sizeof *out);
    return m->d->error.op ? -1 : 0;
}

/* ---- loading --------------------------------------------------------------------------------------------------- */

int model_load(struct model *m, const char *dir, const char *device, int threads, const struct quantize_how *quantize,
               bool verify, struct err *e)
{
    return model_open(m, dir, &(struct dev_config){.name = device, .threads = threads}, quantize, verify, NULL, 1, NULL,
                      e);
}

int model_open(struct model *m, const char *dir, const struct dev_config *dc, const struct quantize_how *quantize,
               bool verify, struct comm *comm, int stages, const struct weights_taker *taker, struct err *e)
{
    *m = (struct model){0};
    int rc = model_config_read(dir, &m->c, e);
    if (!rc && comm && !(m->shard = shard_open(comm, stages, &m->c, e))) rc = e->code;
    if (rc) return rc;
    shard_config(m->shard, &m->c, &m->own);
    if (!(m->d = dev_open(dc, m->note)))
        rc = err_set(e, ERR_UNSUPPORTED, "device %s: %s", dc->name ? dc->name : "cpu", m->note);
    if (!rc) rc = weights_load(&m->w, m->d, &m->c, dir, quantize, verify, m->d->threads, m->shard, taker, e);
    if (rc) {
        if (m->d) dev_close(m->d);
        m->d = NULL;
        shard_close(m->shard);
        m->shard = NULL;
    }
    return rc;
}

int model_open_on(struct model *m, const char *dir, struct dev *d, const struct quantize_how *quantize, bool verify,
                  struct err *e)
{
    *m = (struct model){.beside = true};
    int rc = model_config_read(dir, &m->c, e);
    if (rc) return rc;
    m->own = m->c;
    rc = weights_load(&m->w, d, &m->c, dir, quantize, verify, d->threads, NULL, NULL, e);
    m->d = rc ? NULL : d;
    return rc;
}

size_t model_page_bytes(const struct model *m, enum dtype kv_type)
{
    if (m->c.encoder) return 0;
    struct kv_shape s = {m->shard ? m->shard->most_layers : m->c.layers, 1, m->own.kv_heads, m->c.head_dim, kv_type};
    return m->d->ops->kv_page_bytes(&s);
}

static bool reserve_mat(struct model *m, struct mat *out, int rows, int cols)
{
    size_t bytes = (size_t)rows * (size_t)cols * sizeof(float);
    *out = mat_f32(m->d->ops->alloc(m->d, bytes), rows, cols);
    m->workspace_bytes += bytes;
    return out->p != NULL;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* What a part of a model needs beside. */
static bool reserve_part(struct model *m, const struct model_reserve *r)
{
    const struct model_config *c = &m->own;
    struct block_experts x = model_experts(c);
    int t = r->max_tokens, heads = c->heads * c->head_dim, y = c->hidden / comm_ranks(m->shard->group);
    int ff = c->inter > x.chosen * x.inter ? c->inter : x.chosen * x.inter;
    size_t most = larger(larger((size_t)ff, (size_t)heads), (size_t)c->hidden) * (size_t)t; /* of a step's exchanges */
    size_t logits =
        tensors_have_head(c) ? (size_t)r->max_rows * (size_t)(c->vocab + 1) : 0; /* another may have one more */
    if (!by_outputs(m)) return shard_reserve(m->shard, m->d, (size_t)t * (size_t)c->hidden, t, 0, &m->workspace_bytes);
    m->own_id = m->d->ops->alloc(m->d, (size_t)t * sizeof *m->own_id);
    return m->own_id && reserve_mat(m, &m->own_att, t, heads) && reserve_mat(m, &m->own_ff, t, ff) &&
           reserve_mat(m, &m->own_y, t, y) && (!logits || reserve_mat(m, &m->own_logits, r->max_rows, c->vocab)) &&
           shard_reserve(m->shard, m->d, larger(most, logits), t, m->w.embed_w ? c->hidden : 0, &m->workspace_bytes);
}

int model_reserve_work(struct model *m, const struct model_reserve *r, struct err *e)
{
    const struct model_config *c = &m->own, *whole = &m->c;
    int t = r->max_tokens, q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    m->max_len = r->max_len;
    bool ok =
        reserve_mat(m, &m->x, t, c->hidden) && reserve_mat(m, &m->h, t, c->hidden) &&
        reserve_mat(m, &m->y, t, c->hidden) && reserve_mat(m, &m->qkv, t, q + 2 * kv) &&
        reserve_mat(m, &m->att, t, whole->heads * c->head_dim) && reserve_mat(m, &m->ff, t, whole->inter) &&
        (!c->encoder || reserve_mat(m, &m->lse, t, c->heads)) &&
        (!model_gated(c) || m->d->ops->fused_gate_up || reserve_mat(m, &m->up, t, 2 * c->inter)) &&
        experts_open(&m->experts, m->d, whole, t, &m->workspace_bytes) && (!m->shard || reserve_part(m, r)) &&
        (!tensors_have_head(c) || (reserve_mat(m, &m->hr, r->max_rows, c->hidden) &&
                                   (!shard_leads(m->shard) || reserve_mat(m, &m->logits, r->max_rows, whole->vocab))));
    if (!ok) return err_set(e, ERR_NOMEM, "no memory for the activations of %d tokens a step", t);
    return rope_tables_open(c->rope, c->n_ropes, c->near_len, m->d, m->max_len, m->rope, e);
}

int model_reserve_kv(struct model *m, int pages, enum dtype kv_type, struct err *e)
{
    const struct model_config *c = &m->c;
    if (c->encoder) return 0;
    int layers = m->shard ? m->shard->end - m->shard->first : c->layers;
    struct kv_shape shape = {layers, pages, m->own.kv_heads, c->head_dim, kv_type};
    m->kv_type = kv_type;
    if ((m->kv = m->d->ops->kv_open(m->d, &shape))) return 0;
    return err_set(e, ERR_NOMEM, "no memory for %d KV pages of %zu bytes", pages, model_page_bytes(m, kv_type));
}

int model_reserve(struct model *m, const struct model_reserve *r, struct err *e)
{
    if (m->shard && shard_leads(m->shard)) shard_lead_reserve(m->shard, r);
    int rc = model_reserve_work(m, r, e);
    if (!rc) rc = model_reserve_kv(m, r->pages, r->kv_type, e);
    return m->shard ? ranks_agree(m->shard->comm, rc, e) : rc;
}

int model_upload_adapter(struct model *m, struct lora_weights *w, const struct adapter *a, struct err *e)
{
    if (m->shard && shard_leads(m->shard)) shard_lead_adapter(m->shard, w, a);
    int rc = m->shard ? model_reserve_adapters(m, e) : 0; /* of all ranks, or of none */
    if (!rc) rc = lora_weights_upload(w, m->d, a, m->shard, e);
    if (!m->shard || !(rc = ranks_agree(m->shard->comm, rc, e))) return rc;
    if (w->memory) lora_weights_free(w, m->d);
    return rc;
}

void model_free_adapter(struct model *m, struct lora_weights *w)
{
    if (m->shard && shard_leads(m->shard) && w->memory) shard_lead_free(m->shard, w);
    lora_weights_free(w, m->d);
}

/* A block of rows amortises reading the weights; a buffer for all rows of a step would be larger than most adapters. */
enum { RAW_ROWS = 128 };

int model_reserve_adapters(struct model *m, struct err *e)
{
    int rows = m->x.rows < RAW_ROWS ? m->x.rows : RAW_ROWS;
    int inter = m->own.inter;
    bool dense = !model_gated(&m->c) || !inter || m->raw.p || reserve_mat(m, &m->raw, rows, 2 * inter);
    dense = dense && (m->picked.p || reserve_mat(m, &m->picked, rows, LORA_RANK_MAX));
    if (dense && experts_open_adapters(&m->experts, m->d, &m->c, m->x.rows, &m->workspace_bytes)) return 0;
    return err_set(e, ERR_NOMEM, "no memory for the activations of adapters");
}

void model_close(struct model *m)
{
    if (m->d && m->shard && shard_leads(m->shard)) shard_lead_end(m->shard);
    model_drop(m);
}

void model_drop(struct model *m)
{
    if (!m->d) return;
    if (m->kv) m->d->ops->kv_close(m->d, m->kv);
    rope_tables_close(m->d, m->rope);
    void *buffers[] = {m->x.p,       m->h.p,      m->y.p,      m->qkv.p,        m->att.p, m->up.p,
                       m->ff.p,      m->hr.p,     m->logits.p, m->raw.p,        m->lse.p, m->picked.p,
                       m->own_att.p, m->own_ff.p, m->own_y.p,  m->own_logits.p, m->own_id};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        if (buffers[i]) m->d->ops->free(m->d, buffers[i]);
    if (m->some.id) step_batch_close(&m->some, m->d);
    experts_close(&m->experts, m->d);
    weights_free(&m->w, m->d, &m->c);
    if (m->shard) shard_release(m->shard, m->d);
    if (!m->beside) dev_close(m->d);
    shard_close(m->shard);
    *m = (struct model){0};
}
