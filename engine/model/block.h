/* A kind of layer as data: everything that the forward passes of serving and training need to know about a layer
 * besides its weights. */
#ifndef TANDEM_ENGINE_MODEL_BLOCK_H
#define TANDEM_ENGINE_MODEL_BLOCK_H

#include "kernels/ops.h"

#include <stdbool.h>

/* The placement of the norms.  A branch is attention or the feed-forward; s is the residual scale. */
enum block_norms {
    NORMS_BEFORE,       /* x += s branch(norm(x)), for attention, then for the feed-forward */
    NORMS_AFTER,        /* x += s norm(branch(x)) */
    NORMS_BOTH,         /* x += s norm(branch(norm(x))) */
    NORMS_SUM,          /* x = norm(x + s branch(x)) */
    NORMS_PARALLEL,     /* x += s attention(h) + s feed_forward(h), h = norm(x): one norm for both */
    NORMS_PARALLEL_TWO, /* x += s attention(norm(x)) + s feed_forward(norm2(x)) */
};

/* Norms of q and k, before rope: of the model's kind. */
enum block_qk_norm {
    QK_NORM_NONE,
    QK_NORM_HEADS, /* of each head, with one weight for all heads */
    QK_NORM_APART, /* of each head, with a weight for each, in a module of its own */
    QK_NORM_WHOLE, /* of all heads together */
};

/* A feed-forward of which each token goes through some of many experts. */
struct block_experts {
    int count, chosen; /* experts, and experts per token; count 0: none */
    int inter;         /* the width of each */
    bool normalise;    /* the weights of the chosen sum to 1: route_args */
    bool gate;         /* the shared expert's output is multiplied by the sigmoid of a gate */
};

struct block {
    enum block_norms norms;
    float residual_scale;
    /* attention: causal, or to both sides */
    bool both_sides;
    int window;                 /* number of positions a token attends to on a side, itself included; 0: all */
    float scale;                /* of q . k */
    float softcap;              /* of scores, see attn_args; 0: none */
    int rope;                   /* index of model_config.rope */
    enum block_qk_norm qk_norm; /* the same in all layers of a model */
    /* feed-forward */
    int inter; /* its width; with experts that of the shared expert; 0: none */
    struct block_experts experts;
    bool gated; /* act(gate) * up, else act(fc1); the same in all layers of a model */
    enum act_kind act;
};

static inline bool block_norm_before(const struct block *b)
{
    return b->norms != NORMS_AFTER && b->norms != NORMS_SUM;
}

static inline bool block_norms_heads(const struct block *b)
{
    return b->qk_norm == QK_NORM_HEADS || b->qk_norm == QK_NORM_APART;
}

/* Whether attention and the feed-forward have the same input. */
static inline bool block_parallel(const struct block *b)
{
    return b->norms == NORMS_PARALLEL || b->norms == NORMS_PARALLEL_TWO;
}

static inline bool block_norm_after(const struct block *b)
{
    return b->norms == NORMS_AFTER || b->norms == NORMS_BOTH || b->norms == NORMS_SUM;
}

#endif
