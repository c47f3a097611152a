/* The forward pass of a step of training with the ops and types of serving, so that the log-probabilities of a sampled
 * text are, bit for bit, those that sampling gave (docs/training.md, "Exactly on policy").
 *
 * Most ops are the same in both passes.  Two are not: attention, which in serving reads keys and values from pages of
 * the KV cache, in the cache's type and in splits of the context; and adapters, of which training computes x a^T for
 * all modules of a GEMM at once.  Here are those of serving, with what the backward pass needs: attention's
 * log-sum-exp, and q, k and v as attention read them.  Gradients pass the rounding unchanged (straight-through).
 *
 * On a device whose results depend on the number of rows (docs/cuda.md) the last bits may differ all the same.
 * Trainer thread. */
#ifndef TANDEM_ENGINE_TRAIN_EXACT_H
#define TANDEM_ENGINE_TRAIN_EXACT_H

#include "engine/model/config.h"
#include "engine/model/layer.h"
#include "engine/train/op_chunks.h"
#include "engine/train/site.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct micro;
struct model;

struct train_exact {
    enum dtype kv_type; /* of serving's KV cache; DT_NONE: off, and the rest is unused */
    /* set by open */
    struct kv *kv;   /* of one layer: each layer of a step overwrites what the one before left */
    int pages;       /* of kv */
    int embed_r;     /* of the site of the embedding table; 0: none */
    float *identity; /* (embed_r, embed_r): the a of that site's part, whose x are rows of a table (lora_weights.h) */
    /* Of the sequences whose keys and values are in kv: see sequence_group in exact.c. */
    int32_t *slot, *kv_len, *start, *table, *some; /* (T), (T), (T + 1), (table_ints), (T + 2); on the device */
    int32_t *host;                                 /* the longest of these */
    const struct micro *at;                        /* their micro-batch; NULL: none are */
    int first;                                     /* its first sequence there */
};

/* Of the cache that is served from; where none is, of the one that would be by default. */
enum dtype train_exact_kv_type(const struct model *);

/* Sets `pages`, takes the arrays with `take(arg, n, size)`, which returns device memory or NULL, as train_experts_take
 * does.  @return the bytes that train_exact_open will take besides. */
size_t train_exact_take(struct train_exact *, const struct model_config *, struct dev *, int tokens, int embed_r,
                        void *(*take)(void *arg, size_t n, size_t size), void *arg);
/* @return false: no memory.  Close it also then. */
bool train_exact_open(struct train_exact *, const struct model_config *, struct dev *, int tokens);
void train_exact_close(struct train_exact *, struct dev *);

/* Counts for train_sampled (train.h) the targets whose log-probability in sampling is known.  loss (n_targets): -log p
 * of the targets. */
void train_exact_count(const struct micro *, const float *loss);

/* A new micro-batch: nothing of the one before is used. */
void train_exact_begin(struct train_exact *);

/* out, lse = attention over qkv (T, (H + 2G) D), whose q and k are not yet rotated.  On return qkv holds what attention
 * computed with.  pos: on the device. */
void train_exact_attention(struct op_chunks, struct train_exact *, const struct layer *, const struct micro *,
                           const int32_t *pos, struct mat qkv, struct mat out, struct mat lse);

/* y += the output of the embedding table's adapter, from the rows of its a, xa. */
void train_exact_embed(struct op_chunks, const struct train_exact *, const struct site *, struct mat y, struct mat xa);

/* y += the output of the site's adapters for x; of experts: of expert `expert`, else 0. */
void train_exact_adapt(struct op_chunks, const struct site *, int expert, struct mat y, struct mat x);

#endif
