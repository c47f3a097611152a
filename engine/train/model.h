/* The model in training: the forward pass (model.c) over whole sequences, which keeps the activations that the backward
 * pass needs, the loss, and the backward pass.  The backward pass is written out op by op; there is no tape.
 *
 * A micro-batch is T tokens: sequences end to end, each starting at position 0; attention does not cross sequences.
 * Either adapters on the layers' GEMMs (sites) or all weights (grads) are trained.  Frozen weights get no gradient, and
 * the backward pass ends at the lowest trained layer.  Each layer's input is kept.  The activations inside a layer are
 * kept as well or, with `recompute`, computed again in the backward pass, with the same bits.
 *
 * Memory is on the device, all allocated by train_model_open.  Used by the trainer's thread, which passes the gate
 * before each op. */
#ifndef TANDEM_ENGINE_TRAIN_MODEL_H
#define TANDEM_ENGINE_TRAIN_MODEL_H

#include "engine/base/err.h"
#include "engine/model/adapter.h"
#include "engine/model/config.h"
#include "engine/model/rope.h"
#include "engine/model/weights.h"
#include "engine/train/distill.h"
#include "engine/train/exact.h"
#include "engine/train/experts.h"
#include "engine/train/grads.h"
#include "engine/train/op_watch.h"
#include "engine/train/scheduler_gate.h"
#include "engine/train/site.h"
#include "engine/train/step_clock.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- a micro-batch --------------------------------------------------------------------------------------------- */

/* Host memory. */
struct micro_seq {
    int32_t target;   /* the first of its targets */
    uint32_t row;     /* of the job's rows; of a pair both sequences are of one, the chosen one first */
    bool undesirable; /* its label */
};

struct micro {
    int n_tokens, n_seqs, n_targets;
    int near_len;          /* of the model */
    int32_t *id, *pos;     /* (T) pos: rows of the tables of positions */
    int32_t *q_start;      /* (n_seqs + 1) */
    int32_t *row;          /* (n_targets) tokens whose successor is a target */
    int32_t *target;       /* (n_targets) ids of those successors */
    struct micro_seq *seq; /* (n_seqs + 1) */
    uint8_t *answer;       /* (n_targets) whether it is part of an answer; 0: of the prompt before a chosen one */
    float *weight;         /* (n_targets) of each target's gradient, any sign; NULL: all 1 */
    int n_units; /* sums over tokens are made unit by unit, so that they do not depend on how many are in a micro-batch
                  */
    int32_t *unit, *unit_target; /* (n_units + 1) the first token, the first target of each */
    float *sampled;              /* (n_targets) the log-probabilities that sampling gave the targets; NAN: unknown */
    int n_sampled;               /* of them known; 0: sampled is not read */
    uint64_t first;              /* number of tokens of this step before this micro-batch, for dropout */
};

/* ---- the model ------------------------------------------------------------------------------------------------- */

/* Activations inside a layer.  (T, ...) */
struct kept {
    struct mat qkv;             /* (H + 2G) D, after rope */
    struct mat bare;            /* (H + G) D: q and k before their norms, if any */
    struct mat att, lse;        /* H D; H */
    struct mat x2;              /* C, after attention; not in parallel layers */
    struct mat o, down;         /* C, output of attention and of the feed-forward, when a norm follows */
    struct mat up;              /* 2F gated, else F, before the activation */
    struct mat xa[LAYER_GEMMS]; /* r of the site */
};

struct train_model {
    const struct model_config *c;
    const struct weights *w;
    struct dev *d;
    struct scheduler_gate *gate;
    const struct site *site;         /* (layers, LORA_GEMMS), or NULL */
    const struct model_grads *grads; /* or NULL */
    const float *score; /* (1, C) a head of scores instead of the LM head: a target's loss is minus its score; NULL */
    float *dscore;      /* its gradient */
    struct distill *distill;  /* a target's loss is a divergence from a teacher (distill.h); NULL */
    float dropout;            /* on the sites' inputs, one mask for all parts of a site */
    float residual_dropout;   /* on the outputs of attention and feed-forward and on embeddings; only without sites */
    uint64_t dropout_seed;    /* of this step */
    struct step_clock *clock; /* measures the passes; NULL: none */
    struct op_watch *watch;   /* sees what each op wrote; NULL: none */
    bool half;                /* gemms may round to bf16 */
    bool recompute;
    int max_tokens;
    /* Sets each target's factor of the gradient of its loss (-log p) from that, after the forward pass; NULL: it is
     * `scale`. */
    void (*weigh)(void *arg, const struct micro *, const float *loss, float *factor);
    void *weigh_arg;
    /* Before a layer is computed, forward or back, whose weights the device has until the next call; next: the layer
     * that is computed after it in this pass, -1: none.  NULL: the weights of all are there. */
    void (*layer_begins)(void *arg, int layer, int next, bool back);
    void *begins_arg;
    /* After the backward pass of a layer, whose gradients are complete then; NULL: nothing. */
    void (*layer_done)(void *arg, int layer);
    void *layer_arg;
    struct train_exact exact; /* with kv_type set: the forward pass is serving's, and there is no dropout */

    /* set by open */
    struct rope_table rope[ROPES_MAX];
    int lowest;    /* lowest trained layer; -1: the embeddings */
    int head_rows; /* number of tokens whose logits are computed at once */
    float *x;      /* (L + 1, T, C): inputs of the layers, and the last one's output */
    struct kept *kept;
    int n_kept;
    struct mat h, dx, dh; /* (T, C) normed input; gradients */
    float *area;          /* (T, 2F or 2 (H + G) D): ff and dff, or dqkv and datt */
    struct mat dropped;   /* (T, widest input of a site) */
    struct mat branch;    /* (T, C) gradient with respect to a branch's output, when it differs from that of the sum */
    struct mat du;        /* (T, most r of a site) */
    struct mat embed_xa, head_xa; /* (T, r), (head_rows, r) of the sites of the embedding table and of the head */
    struct train_experts experts;
    struct mat hx, hh, hd, logits; /* of head_rows tokens: (., C) final input, normed, gradient; (., V) */
    float *loss, *scale;           /* (T) loss of each target; factor of its gradient */
    int32_t *hit, *iota;           /* (T); (T) 0 1 2... */
    int32_t *id, *pos, *q_start, *row, *target, *some; /* (T), (T + 1): the micro-batch, on the device */
    float *host_loss;                                  /* (T) */
    int32_t *host_hit;
    const struct micro *b; /* the current micro-batch */
    void **owned;          /* device memory allocated by open */
    size_t n_owned, cap_owned;
};

/* The adapters of a GEMM of a layer; r 0: none. */
static inline const struct site *train_site(const struct train_model *m, int layer, enum layer_gemm gemm)
{
    static const struct site none;
    return m->site ? &m->site[layer * LORA_GEMMS + (int)gemm] : &none;
}

/* model_memory.c.  Bytes that train_model_open would allocate; *largest: the largest single allocation.  Reads only c,
 * d, site, grads, the dropouts, recompute, exact and max_tokens. */
size_t train_model_bytes(const struct train_model *, size_t *largest);
/* An estimate of the scratch memory of ops for so many tokens, mostly attention's: packed keys; gradients of the
 * longest sequence, or of about a thousand rows. */
size_t train_model_scratch(const struct model_config *, int tokens, int max_length);
/* positions: size of the rotary tables. */
int train_model_open(struct train_model *, int positions, struct err *);
/* Closes it and opens it for another number of tokens; after an error it is to be closed. */
int train_model_reopen(struct train_model *, int max_tokens, int positions, struct err *);
void train_model_close(struct train_model *);

/* model.c */
struct train_loss {
    double sum; /* of -log p over the targets; NAN when one is not finite */
    int64_t hits;
};

/* Computes the loss.  With back, adds `scale` times its gradient to the gradients of the trained parameters. */
struct train_loss train_model_run(struct train_model *, const struct micro *, bool back, float scale);
/* Calls layer_begins and layer_done as a run does, and computes nothing. */
void train_model_skim(struct train_model *, bool back);

#endif
