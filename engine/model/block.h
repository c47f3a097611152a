/* A kind of layer as data: everything that the forward pass, in serving and in training, asks about a layer beside its
 * weights. */
#ifndef TANDEM_ENGINE_MODEL_BLOCK_H
#define TANDEM_ENGINE_MODEL_BLOCK_H

#include "kernels/ops.h"

#include <stdbool.h>

/* Where the norms stand.  A branch is attention or the feed-forward; s is the residual scale. */
enum block_norms {
    NORMS_BEFORE,   /* x += s branch(norm(x)), for attention, then for the feed-forward */
    NORMS_AFTER,    /* x += s norm(branch(x)) */
    NORMS_BOTH,     /* x += s norm(branch(norm(x))) */
    NORMS_PARALLEL, /* x += s attention(h) + s feed_forward(h), h = norm(x): one norm for both */
};

struct block {
    enum block_norms norms;
    float residual_scale;
    /* attention; every family's is causal so far */
    int window;    /* a token sees so many positions, itself included; 0: all */
    float scale;   /* of q . k */
    float softcap; /* of scores, see attn_args; 0: none */
    int rope;      /* index of model_config.rope */
    bool qk_norm;  /* q and k of each head are normed before they are rotated; alike in all layers of a model */
    /* feed-forward */
    bool gated; /* act(gate) * up, else act(fc1); alike in all layers of a model */
    enum act_kind act;
};

static inline bool block_norm_before(const struct block *b)
{
    return b->norms != NORMS_AFTER;
}

static inline bool block_norm_after(const struct block *b)
{
    return b->norms == NORMS_AFTER || b->norms == NORMS_BOTH;
}

#endif
