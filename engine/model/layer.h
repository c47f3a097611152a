/* A layer for the forward passes of serving (model.c) and training (train/model.c), and the op arguments that both
 * share. */
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
    int kv_layer; /* its number in the KV cache; layer_at: index */
};

struct layer layer_at(const struct model_config *, const struct weights *, const struct rope_table[ROPES_MAX],
                      int index);

/* The weights of a norm; w NULL: no norm. */
struct layer_norm {
    const float *w, *b;
};
/* The norms before attention (in parallel layers also for the feed-forward), before the feed-forward, and after each.
 */
struct layer_norm layer_norm1(const struct layer *);
struct layer_norm layer_norm2(const struct layer *);
struct layer_norm layer_post1(const struct layer *);
struct layer_norm layer_post2(const struct layer *);

/* The first weight that the feed-forward multiplies by. */
const struct weight *layer_up(const struct layer *);

/* qkv (T, (H + 2G) D).  The norms of heads, and those of all heads together. */
struct head_norm_args layer_q_norm(const struct layer *, struct mat qkv);
struct head_norm_args layer_k_norm(const struct layer *, struct mat qkv);
struct norm_args layer_q_norm_whole(const struct layer *, struct mat qkv);
struct norm_args layer_k_norm_whole(const struct layer *, struct mat qkv);
struct rope_args layer_rope(const struct layer *, struct mat qkv, const int32_t *pos, bool back);
struct rope_kv_args layer_rope_kv(const struct layer *, struct mat qkv, const int32_t *pos, const int32_t *slot,
                                  struct kv *);
/* Arguments of attention with its constants set; the caller fills in the rest. */
struct attn_args layer_attn(const struct layer *);
struct attn_seq_args layer_attn_seq(const struct layer *);
struct attn_back_args layer_attn_back(const struct layer *);

/* The factor that embeddings are multiplied by. */
float layer_embed_scale(const struct model_config *, const struct weights *);
/* Whether the head's logits are scaled or capped. */
bool layer_changes_logits(const struct model_config *);

#endif
