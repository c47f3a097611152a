#include "engine/model/layer.h"

struct layer layer_at(const struct model_config *c, const struct weights *w, const struct rope_table rope[ROPES_MAX],
                      int index)
{
    const struct block *b = model_block(c, index);
    return (struct layer){c, b, &w->layer[index], rope[b->rope], index, index};
}

static struct layer_norm norm_if(bool has, const float *w, const float *b)
{
    return has ? (struct layer_norm){w, b} : (struct layer_norm){NULL, NULL};
}

struct layer_norm layer_norm1(const struct layer *l)
{
    return norm_if(block_norm_before(l->b), l->w->norm1_w, l->w->norm1_b);
}

struct layer_norm layer_norm2(const struct layer *l)
{
    return norm_if(block_norm_before(l->b) && l->b->norms != NORMS_PARALLEL, l->w->norm2_w, l->w->norm2_b);
}

struct layer_norm layer_post1(const struct layer *l)
{
    return norm_if(block_norm_after(l->b), l->w->post1_w, l->w->post1_b);
}

struct layer_norm layer_post2(const struct layer *l)
{
    return norm_if(block_norm_after(l->b), l->w->post2_w, l->w->post2_b);
}

const struct weight *layer_up(const struct layer *l)
{
    return l->b->experts.count ? l->w->router : l->w->up;
}

static struct head_norm_args norm_of_heads(const struct layer *l, struct mat qkv, int col, int heads, struct layer_norm n)
{
    return (struct head_norm_args){.x = qkv,
                                   .col = col,
                                   .heads = heads,
                                   .head_dim = l->c->head_dim,
                                   .w = n.w,
                                   .eps = l->c->eps,
                                   .kind = l->c->norm,
                                   .b = n.b,
                                   .by_head = l->b->qk_norm == QK_NORM_APART};
}

struct head_norm_args layer_q_norm(const struct layer *l, struct mat qkv)
{
    return norm_of_heads(l, qkv, 0, l->c->heads, (struct layer_norm){l->w->q_norm, l->w->q_norm_b});
}

struct head_norm_args layer_k_norm(const struct layer *l, struct mat qkv)
{
    struct layer_norm n = {l->w->k_norm, l->w->k_norm_b};
    return norm_of_heads(l, qkv, l->c->heads * l->c->head_dim, l->c->kv_heads, n);
}

static struct norm_args norm_of_columns(const struct layer *l, struct mat qkv, int col, int n, const float *w)
{
    struct mat x = qkv;
    x.p = (float *)qkv.p + col;
    x.cols = n;
    return (struct norm_args){.out = x, .x = x, .w = w, .eps = l->c->eps, .kind = NORM_RMS};
}

struct norm_args layer_q_norm_whole(const struct layer *l, struct mat qkv)
{
    return norm_of_columns(l, qkv, 0, l->c->heads * l->c->head_dim, l->w->q_norm);
}

struct norm_args layer_k_norm_whole(const struct layer *l, struct mat qkv)
{
    int q = l->c->heads * l->c->head_dim;
    return norm_of_columns(l, qkv, q, l->c->kv_heads * l->c->head_dim, l->w->k_norm);
}

struct rope_args layer_rope(const struct layer *l, struct mat qkv, const int32_t *pos, bool back)
{
    const struct model_config *c = l->c;
    return (struct rope_args){qkv,         c->heads,    c->kv_heads, c->head_dim, c->rope[l->b->rope].rot,
                              l->rope.cos, l->rope.sin, pos,         back};
}

struct rope_kv_args layer_rope_kv(const struct layer *l, struct mat qkv, const int32_t *pos, const int32_t *slot,
                                  struct kv *kv)
{
    const struct model_config *c = l->c;
    return (struct rope_kv_args){qkv,         c->heads,    c->kv_heads, c->head_dim, c->rope[l->b->rope].rot,
                                 l->rope.cos, l->rope.sin, pos,         slot,        kv,
                                 l->kv_layer};
}

struct attn_args layer_attn(const struct layer *l)
{
    return (struct attn_args){.heads = l->c->heads,
                              .kv_heads = l->c->kv_heads,
                              .head_dim = l->c->head_dim,
                              .window = l->b->window,
                              .scale = l->b->scale,
                              .layer = l->kv_layer,
                              .softcap = l->b->softcap,
                              .sinks = l->w->sinks};
}

struct attn_seq_args layer_attn_seq(const struct layer *l)
{
    return (struct attn_seq_args){.heads = l->c->heads,
                                  .kv_heads = l->c->kv_heads,
                                  .head_dim = l->c->head_dim,
                                  .window = l->b->window,
                                  .scale = l->b->scale,
                                  .softcap = l->b->softcap,
                                  .both_sides = l->b->both_sides,
                                  .sinks = l->w->sinks};
}

struct attn_back_args layer_attn_back(const struct layer *l)
{
    return (struct attn_back_args){.heads = l->c->heads,
                                   .kv_heads = l->c->kv_heads,
                                   .head_dim = l->c->head_dim,
                                   .window = l->b->window,
                                   .scale = l->b->scale,
                                   .softcap = l->b->softcap};
}

float layer_embed_scale(const struct model_config *c, const struct weights *w)
{
    if (!c->embed_scale_rounded) return c->embed_scale;
    enum dtype type = c->dtype != DT_NONE ? c->dtype : w->float_type;
    return type == DT_BF16  ? bf16_to_f32(f32_to_bf16(c->embed_scale))
           : type == DT_F16 ? f16_to_f32(f32_to_f16(c->embed_scale))
                            : c->embed_scale;
}

bool layer_changes_logits(const struct model_config *c)
{
    return c->logit_scale != 1 || c->logit_softcap > 0;
}
