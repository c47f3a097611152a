/* The weights of a model on a device, quantised while loading if requested.
 *
 * Built once at load by the owner, read-only afterwards (engine thread).  The files stay mapped if the embedding table
 * is used in place. */
#ifndef TANDEM_ENGINE_MODEL_WEIGHTS_H
#define TANDEM_ENGINE_MODEL_WEIGHTS_H

#include "engine/base/err.h"
#include "engine/model/config.h"
#include "engine/model/quantize.h"
#include "engine/model/tensors.h"
#include "kernels/ops.h"

#include <stddef.h>
#include <stdint.h>

/* C hidden, H heads, G kv_heads, D head_dim, F inter, V vocab.  Vectors f32 on the device; NULL where the family has
 * none. */
struct layer_weights {
    float *norm1_w, *norm1_b; /* (C) before attention */
    float *norm2_w, *norm2_b; /* (C) before the feed-forward; NULL when parallel */
    float *post1_w, *post1_b; /* (C) after attention */
    float *post2_w, *post2_b; /* (C) after the feed-forward */
    struct weight *qkv, *o;   /* ((H + 2G) D, C), (C, H D) */
    float *qkv_b, *o_b;
    float *q_norm, *q_norm_b; /* (D), (H, D) or (H D): block.qk_norm */
    float *k_norm, *k_norm_b; /* (D), (G, D) or (G D) */
    float *sinks;             /* (H) see attn_args */
    struct weight *up, *down; /* gated: gate stacked on up (2F, C); else (F, C).  down (C, F) */
    float *up_b, *down_b;
    /* with experts: up and down are the shared expert's, or NULL */
    struct weight *router;                    /* (E, C), stacked on it the gate of the shared expert (1, C) */
    float *router_b;                          /* (E) */
    struct weight **expert_up, **expert_down; /* [E] (2 Fe, C), (C, Fe); Fe the width of an expert */
    float *expert_up_b, *expert_down_b;       /* (E, 2 Fe) gate first, (E, C) */
};

struct shard;

struct weights {
    struct mat embed, pos;  /* (V, C), (first_pos + max_len, C): file's type; embed.p NULL when embed_w is set */
    struct mat types;       /* (types, C) in the file's type; p NULL: none */
    struct weight *embed_w; /* (V, C) quantised embedding table; the same as head when tied */
    bool embed_mapped, pos_mapped, types_mapped; /* they point into the mapped file, not into device memory */
    struct layer_weights *layer;
    float *norm_w, *norm_b;             /* (C) */
    float *embed_norm_w, *embed_norm_b; /* (C) */
    struct weight *head;                /* (V, C); NULL: an encoder or a classifier */
    float *head_b;                      /* (V) */
    struct tensor_source *file;
    enum dtype type;       /* of the layers' matrices */
    enum dtype float_type; /* of the final norm in the file: quantising keeps the type that the model was saved in */
    uint64_t parameters;
    size_t bytes; /* packed matrices and tables */
};

/* Who takes packed matrices away while a model is loaded. */
struct weights_taken {
    int stack, layer;        /* tensors.h; layer -1: of none */
    struct weight_src shape; /* as dev_ops.weight_open takes it; data and scale are not there */
};
struct weights_taker {
    /* Takes *w and sets it to NULL, which it then stays in struct weights, or leaves it. */
    int (*take)(void *arg, struct dev *, const struct weights_taken *, struct weight **w, struct err *);
    void *arg;
};

/* quantize: NULL keeps the file's types.  verify: first reads every byte and verifies the file's checksums.  shard:
 * NULL, or whose part is loaded of the model that c describes.  taker: NULL, or who takes matrices away. */
int weights_load(struct weights *w, struct dev *d, const struct model_config *c, const char *dir,
                 const struct quantize_how *quantize, bool verify, int threads, const struct shard *shard,
                 const struct weights_taker *taker, struct err *e);
void weights_free(struct weights *w, struct dev *d, const struct model_config *c);

/* ---- destinations of slots (tensors.h) ---- */

/* The field for the packed form of stack i; NULL for a layer's experts where it has none, and for an embedding table
 * that is separate from the head and not quantised. */
struct weight **weights_stack_field(struct weights *, const struct model_config *, int i);
/* The field for the vector's array. */
float **weights_vector_field(struct weights *, const struct vector_slot *);

#endif
