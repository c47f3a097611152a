/* A layer as both forward passes see it, serving's (model.c) and training's (train/model.c), and the arguments that
 * their ops have in common. */
#ifndef TANDEM_ENGINE_MODEL_LAYER_H
#define TANDEM_ENGINE_MODEL_LAYER_H

#include "engine/model/config.h"
#include "engine/model/rope.h"
#include "engine/model/weights.h"
#include "kernels/ops.h"

struct layer {
    const struct model_config *c;
    const struct block *b;
    const struct layer_weights *w;
    struct rope_table rope;
    int index;
};

struct layer layer_at(const struct model_config *, const struct weights *, const struct rope_table[ROPES_MAX],
                      int index);

/* The weights of a norm; w NULL: there is none. */
struct layer_norm {
    const float *w, *b;
};
/* Before attention (in parallel layers also the feed-forward's), before the feed-forward; after each of them. */
struct layer_norm layer_norm1(const struct layer *);
struct layer_norm layer_norm2(const struct layer *);
struct layer_norm layer_post1(const struct layer *);
struct layer_norm layer_post2(const struct layer *);

/* qkv (T, (H + 2G) D) */
struct head_norm_args layer_q_norm(const struct layer *, struct mat qkv);
struct head_norm_args layer_k_norm(const struct layer *, struct mat qkv);
struct rope_args layer_rope(const struct layer *, struct mat qkv, const int32_t *pos, bool back);
struct rope_kv_args layer_rope_kv(const struct layer *, struct mat qkv, const int32_t *pos, const int32_t *slot,
                                  struct kv *);
/* Attention's constants; the rest is the caller's to fill in. */
struct attn_args layer_attn(const struct layer *);
struct attn_seq_args layer_attn_seq(const struct layer *);
struct attn_back_args layer_attn_back(const struct layer *);

/* What embeddings are multiplied by. */
float layer_embed_scale(const struct model_config *, const struct weights *);
/* The head's product is scaled or capped. */
bool layer_changes_logits(const struct model_config *);

#endif
