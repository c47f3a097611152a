/* config.json and generation_config.json, reduced to the values that the forward pass needs.
 *
 * `model_type` picks a row of data (family.h), the rest are fields.  Both spellings of transformers 4 (rope_theta,
 * rope_scaling) and 5 (rope_parameters) are read.  The files are untrusted: every number is checked against a range
 * before it is used in arithmetic. */
#ifndef TANDEM_ENGINE_MODEL_CONFIG_H
#define TANDEM_ENGINE_MODEL_CONFIG_H

#include "engine/base/err.h"
#include "engine/model/block.h"
#include "engine/model/family.h"
#include "engine/model/quant_config.h"
#include "engine/model/rope.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <stdint.h>

enum { MAX_EOS = 16, MAX_LAYERS = 1024, BLOCKS_MAX = 8 };

struct model_config {
    const struct model_family *family; /* static */
    int layers, hidden, heads, kv_heads, head_dim, vocab, max_len;
    int inter; /* the widest of the layers' feed-forwards, experts not counted; 0: none */
    enum norm_kind norm;
    float eps;
    bool tied; /* the head is the embedding table */
    bool qkv_bias, o_bias, mlp_bias, norm_bias;
    bool encoder;                   /* as the family's */
    bool classifier;                /* *ForSequenceClassification: a head of labels, no LM head */
    bool with_images;               /* the text model of one that also takes images: text_config */
    int types;                      /* token types; 0: no table of them */
    int first_pos;                  /* row of the position table that the first position has */
    struct block block[BLOCKS_MAX]; /* the kinds of layers */
    uint8_t kind[MAX_LAYERS];       /* the kind of each layer, an index of block */
    struct rope rope[ROPES_MAX];
    int n_ropes;
    int near_len;             /* texts of more tokens use other rows of the rope tables (rope.h); 0: none do */
    float embed_scale;        /* 1: none */
    bool embed_scale_rounded; /* round embed_scale before use, to dtype, or to the file's float type when dtype is
                                 DT_NONE */
    float logit_scale, logit_softcap; /* see softcap_args; defaults 1 and 0: no effect */
    enum dtype dtype;                 /* float type that the file names for the weights; DT_NONE: not named */
    struct quant_config quant;        /* how the directory is quantised */
    int32_t eos[MAX_EOS];
    int n_eos;
    int32_t pad; /* the token that fills up batches elsewhere: no score is read at it; -1: none */
    /* generation_config.json; NAN or -1: not given */
    float temperature, top_p, repetition_penalty;
    int top_k, do_sample;
};

int model_config_read(const char *dir, struct model_config *c, struct err *e);
/* the same from the files' texts; generation may be NULL */
int model_config_parse(const char *config, const char *generation, struct model_config *c, struct err *e);

/* @return 0, or ERR_UNSUPPORTED for an encoder or a classifier: for work that needs an LM head. */
int model_config_generates(const struct model_config *c, struct err *e);

static inline const struct block *model_block(const struct model_config *c, int layer)
{
    return &c->block[c->kind[layer]];
}

/* The experts of the layers that have them, the same in all; count 0: no layer has any. */
static inline struct block_experts model_experts(const struct model_config *c)
{
    struct block_experts e = {0};
    for (int l = 0; l < c->layers; l++)
        if (model_block(c, l)->experts.count) e = model_block(c, l)->experts;
    return e;
}

/* Whether the feed-forward of any layer is gated. */
static inline bool model_gated(const struct model_config *c)
{
    bool gated = false;
    for (int l = 0; l < c->layers; l++) gated |= model_block(c, l)->gated;
    return gated;
}

#endif
