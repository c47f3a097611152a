#include "engine/model/model.h"

#include "engine/base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the forward pass ------------------------------------------------------------------------------------------ */

static struct mat first(struct mat m, int rows)
{
    m.rows = rows;
    return m;
}

/* y += what the adapters of the batch's rows make of x */
static void adapt(struct model *m, const struct step_batch *b, int layer, enum product product, struct mat y,
                  struct mat x)
{
    int n = b->n_groups ? step_batch_lora(b, layer, product, 0, b->n_tokens) : 0;
    if (n) op_lora(m->d, (struct lora_args){y, x, b->lora, n});
}

static void attention(struct model *m, const struct step_batch *b, int layer, struct mat h, struct mat y)
{
    const struct model_config *c = &m->c;
    const struct layer_weights *w = &m->w.layer[layer];
    struct mat qkv = first(m->qkv, b->n_tokens), att = first(m->att, b->n_tokens);
    int window = layer >= c->window_from ? c->window : 0;

    op_linear(m->d, (struct linear_args){qkv, h, w->qkv, w->qkv_b});
    adapt(m, b, layer, PRODUCT_QKV, qkv, h);
    if (c->qk_norm) {
        op_head_norm(m->d, (struct head_norm_args){qkv, 0, c->heads, c->head_dim, w->q_norm, c->eps});
        op_head_norm(m->d,
                     (struct head_norm_args){qkv, c->heads * c->head_dim, c->kv_heads, c->head_dim, w->k_norm, c->eps});
    }
    op_rope_kv(m->d, (struct rope_kv_args){qkv, c->heads, c->kv_heads, c->head_dim, c->rot, m->cos, m->sin, b->pos,
                                           b->slot, m->kv, layer});
    op_attn(m->d,
            (struct attn_args){att, qkv, c->heads, c->kv_heads, c->head_dim, window, 1.0f / sqrtf((float)c->head_dim),
                               b->n_seqs, b->q_start, b->kv_len, b->pages, b->pages_ld, m->kv, layer, b->most_rows});
    op_linear(m->d, (struct linear_args){y, att, w->o, w->o_b});
    adapt(m, b, layer, PRODUCT_O, y, att);
}

static struct mat part(struct mat m, int row, int rows)
{
    m.p = (float *)m.p + (size_t)row * (size_t)m.ld;
    m.rows = rows;
    return m;
}

/* ff = act(gate) * up, in runs of rows: those whose gate and up an adapter changes are taken before the activation, a
 * block at a time; the others by the fused op, as without any adapter: their bits may not depend on the batch. */
static void gate_up(struct model *m, const struct step_batch *b, int layer, struct mat h, struct mat ff)
{
    const struct layer_weights *w = &m->w.layer[layer];
    enum act_kind act = m->c.act;
    bool changed = false;
    for (int row = 0, end; row < b->n_tokens; row = end) {
        end = step_batch_run(b, layer, PRODUCT_UP, row, &changed);
        if (changed && end > row + m->raw.rows) end = row + m->raw.rows;
        int n = end - row;
        struct mat x = part(h, row, n), y = part(ff, row, n), raw = first(m->raw, n);
        if (!changed) {
            op_gate_up(m->d, (struct gate_up_args){y, x, w->up, w->up_b, act, m->up});
            continue;
        }
        op_linear(m->d, (struct linear_args){raw, x, w->up, w->up_b});
        op_lora(m->d, (struct lora_args){raw, x, b->lora, step_batch_lora(b, layer, PRODUCT_UP, row, n)});
        op_act_mul(m->d, (struct act_mul_args){y, raw, act});
    }
}

static void feed_forward(struct model *m, const struct step_batch *b, int layer, struct mat h, struct mat y)
{
    const struct model_config *c = &m->c;
    const struct layer_weights *w = &m->w.layer[layer];
    struct mat ff = first(m->ff, b->n_tokens);

    if (c->gated) {
        gate_up(m, b, layer, h, ff);
    } else {
        op_linear(m->d, (struct linear_args){ff, h, w->up, w->up_b});
        adapt(m, b, layer, PRODUCT_UP, ff, h);
        op_act(m->d, (struct act_args){ff, c->act});
    }
    op_linear(m->d, (struct linear_args){y, ff, w->down, w->down_b});
    adapt(m, b, layer, PRODUCT_DOWN, y, ff);
}

static void forward(struct model *m, const struct step_batch *b)
{
    const struct model_config *c = &m->c;
    const struct weights *w = &m->w;
    struct dev *d = m->d;
    struct mat x = first(m->x, b->n_tokens), h = first(m->h, b->n_tokens), y = first(m->y, b->n_tokens);

    op_embed(d, (struct embed_args){x, w->embed, w->pos, b->id, b->pos, w->embed_w});
    op_norm(d, (struct norm_args){h, x, w->layer[0].norm1_w, w->layer[0].norm1_b, c->eps, c->norm, w->layer[0].qkv});
    for (int l = 0; l < c->layers; l++) {
        const struct layer_weights *lw = &w->layer[l];
        bool last = l + 1 == c->layers;
        const float *next_w = last ? w->norm_w : lw[1].norm1_w, *next_b = last ? w->norm_b : lw[1].norm1_b;

        attention(m, b, l, h, y);
        if (c->parallel) /* x += attention(h) + feed_forward(h) */
            op_add(d, (struct add_args){x, y});
        else
            op_add_norm(d, (struct add_norm_args){h, x, y, lw->norm2_w, lw->norm2_b, c->eps, c->norm, lw->up});
        feed_forward(m, b, l, h, y);
        op_add_norm(d, (struct add_norm_args){h, x, y, next_w, next_b, c->eps, c->norm, last ? NULL : lw[1].qkv});
    }
    if (b->n_rows == 0) return;
    struct mat hr = first(m->hr, b->n_rows);
    op_rows(d, (struct rows_args){hr, h, b->row});
    op_linear(d, (struct linear_args){first(m->logits, b->n_rows), hr, w->head, w->head_b});
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

/* A step in which every sequence decodes, without adapters, is the same ops with the same args for the same numbers. */
void model_forward(struct model *m, const struct step_batch *b)
{
    bool decodes = step_batch_decodes(b) && m->d->ops->replay;
    uint64_t key = (uint64_t)b->n_tokens << 43 | (uint64_t)b->n_rows << 25 | (uint64_t)b->pages_ld;
    if (decodes && b->n_tokens < 1 << 18 && b->n_rows < 1 << 18 && b->pages_ld < 1 << 25)
        m->d->ops->replay(m->d, key, forward_step, &(struct step){m, b});
    else
        forward(m, b);
}

int model_hidden(const struct model *m, int row, int n, float *out)
{
    struct mat h = part(m->h, row, n);
    m->d->ops->download(m->d, out, h.p, (size_t)n * (size_t)h.cols * sizeof *out);
    return m->d->error.op ? -1 : 0;
}

/* ---- loading --------------------------------------------------------------------------------------------------- */

int model_load(struct model *m, const char *dir, const char *device, int threads, const struct quantize_how *quantize,
               bool verify, struct err *e)
{
    return model_open(m, dir, &(struct dev_config){.name = device, .threads = threads}, quantize, verify, e);
}

int model_open(struct model *m, const char *dir, const struct dev_config *dc, const struct quantize_how *quantize,
               bool verify, struct err *e)
{
    *m = (struct model){0};
    int rc = model_config_read(dir, &m->c, e);
    if (rc) return rc;
    if (!(m->d = dev_open(dc, m->note)))
        return err_set(e, ERR_UNSUPPORTED, "device %s: %s", dc->name ? dc->name : "cpu", m->note);
    rc = weights_load(&m->w, m->d, &m->c, dir, quantize, verify, m->d->threads, e);
    if (rc) {
        dev_close(m->d);
        m->d = NULL;
    }
    return rc;
}

size_t model_page_bytes(const struct model *m, enum dtype kv_type)
{
    struct kv_shape s = {m->c.layers, 1, m->c.kv_heads, m->c.head_dim, kv_type};
    return m->d->ops->kv_page_bytes(&s);
}

/* The angle of feature pair i per position.  Llama 3's rule stretches long wavelengths by `factor`, keeps short ones,
 * and goes from one to the other in between (transformers, modeling_rope_utils.py). */
static float inv_freq(const struct model_config *c, int i)
{
    double f = 1.0 / pow(c->rope_theta, 2.0 * i / c->rot);
    if (c->rope == ROPE_LINEAR) return (float)(f / c->rope_factor);
    if (c->rope == ROPE_PLAIN) return (float)f;
    double wavelength = 2 * M_PI / f, old = c->rope_old_len;
    if (wavelength < old / c->rope_high) return (float)f;
    if (wavelength > old / c->rope_low) return (float)(f / c->rope_factor);
    double smooth = (old / wavelength - c->rope_low) / (c->rope_high - c->rope_low);
    return (float)((1 - smooth) * f / c->rope_factor + smooth * f);
}

int model_rope_tables(const struct model_config *c, struct dev *d, int positions, float **cos_out, float **sin_out,
                      struct err *e)
{
    size_t half = (size_t)c->rot / 2, n = half * (size_t)positions;
    if (!n) return 0;
    float *cos_host = mem_array(n, sizeof *cos_host), *sin_host = mem_array(n, sizeof *sin_host);
    for (size_t i = 0; i < half; i++) {
        float f = inv_freq(c, (int)i);
        for (size_t p = 0; p < (size_t)positions; p++) {
            float angle = (float)p * f; /* rounded to f32 as transformers does */
            cos_host[p * half + i] = (float)cos((double)angle);
            sin_host[p * half + i] = (float)sin((double)angle);
        }
    }
    *cos_out = d->ops->alloc(d, n * sizeof **cos_out);
    *sin_out = d->ops->alloc(d, n * sizeof **sin_out);
    if (*cos_out) d->ops->upload(d, *cos_out, cos_host, n * sizeof **cos_out);
    if (*sin_out) d->ops->upload(d, *sin_out, sin_host, n * sizeof **sin_out);
    free(cos_host);
    free(sin_host);
    return *cos_out && *sin_out ? 0
                                : err_set(e, ERR_NOMEM, "no memory for the rotary tables of %d positions", positions);
}

static bool reserve_mat(struct model *m, struct mat *out, int rows, int cols)
{
    size_t bytes = (size_t)rows * (size_t)cols * sizeof(float);
    *out = mat_f32(m->d->ops->alloc(m->d, bytes), rows, cols);
    m->workspace_bytes += bytes;
    return out->p != NULL;
}

int model_reserve_work(struct model *m, const struct model_reserve *r, struct err *e)
{
    const struct model_config *c = &m->c;
    int t = r->max_tokens, q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    m->max_len = r->max_len;
    bool ok = reserve_mat(m, &m->x, t, c->hidden) && reserve_mat(m, &m->h, t, c->hidden) &&
              reserve_mat(m, &m->y, t, c->hidden) && reserve_mat(m, &m->qkv, t, q + 2 * kv) &&
              reserve_mat(m, &m->att, t, q) && reserve_mat(m, &m->ff, t, c->inter) &&
              (!c->gated || m->d->ops->fused_gate_up || reserve_mat(m, &m->up, t, 2 * c->inter)) &&
              reserve_mat(m, &m->hr, r->max_rows, c->hidden) && reserve_mat(m, &m->logits, r->max_rows, c->vocab);
    if (!ok) return err_set(e, ERR_NOMEM, "no memory for the activations of %d tokens a step", t);
    return model_rope_tables(c, m->d, m->max_len, &m->cos, &m->sin, e);
}

int model_reserve_kv(struct model *m, int pages, enum dtype kv_type, struct err *e)
{
    const struct model_config *c = &m->c;
    struct kv_shape shape = {c->layers, pages, c->kv_heads, c->head_dim, kv_type};
    if ((m->kv = m->d->ops->kv_open(m->d, &shape))) return 0;
    return err_set(e, ERR_NOMEM, "no memory for %d KV pages of %zu bytes", pages, model_page_bytes(m, kv_type));
}

int model_reserve(struct model *m, const struct model_reserve *r, struct err *e)
{
    int rc = model_reserve_work(m, r, e);
    return rc ? rc : model_reserve_kv(m, r->pages, r->kv_type, e);
}

/* A block of rows is enough for the weights to be read seldom; all the rows of a step would take more memory than most
 * adapters. */
enum { RAW_ROWS = 128 };

int model_reserve_adapters(struct model *m, struct err *e)
{
    int rows = m->x.rows < RAW_ROWS ? m->x.rows : RAW_ROWS;
    if (!m->c.gated || m->raw.p || reserve_mat(m, &m->raw, rows, 2 * m->c.inter)) return 0;
    return err_set(e, ERR_NOMEM, "no memory for the activations of adapters");
}

void model_close(struct model *m)
{
    if (!m->d) return;
    if (m->kv) m->d->ops->kv_close(m->d, m->kv);
    void *buffers[] = {m->cos,   m->sin,  m->x.p,  m->h.p,  m->y.p,      m->qkv.p,
                       m->att.p, m->up.p, m->ff.p, m->hr.p, m->logits.p, m->raw.p};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        if (buffers[i]) m->d->ops->free(m->d, buffers[i]);
    weights_free(&m->w, m->d, &m->c);
    dev_close(m->d);
    *m = (struct model){0};
}
