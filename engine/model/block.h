/* A kind of layer as data: everything that the forward passes of serving and training need to know about a layer
 * besides its weights. */
#ifndef TANDEM_ENGINE_MODEL_BLOCK_H
#define TANDEM_ENGINE_MODEL_BLOCK_H

#include "kernels/ops.h"

#include <stdbool.h>

/* The placement of the norms.  A branch is attention or the feed-forward; s is the residual scale. */
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
    int window;    /* number of positions a token attends to, itself included; 0: all */
    float scale;   /* of q . k */
    float softcap; /* of scores, see attn_args; 0: none */
    int rope;      /* index of model_config.rope */
    bool qk_norm;  /* q and k of each head are normalised before rope; the same in all layers of a model */
    /* feed-forward */
    bool gated; /* act(gate) * up, else act(fc1); the same in all layers of a model */
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
