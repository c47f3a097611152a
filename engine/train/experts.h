/* The experts of a layer in training: their weights and the router's are trained, or adapters of them, or nothing; the
 * gradient goes through them and the router to their input.  The choice of experts has no gradient.  Nothing is kept
 * between the passes; the backward pass computes the experts again.  Trainer thread. */
#ifndef TANDEM_ENGINE_TRAIN_EXPERTS_H
#define TANDEM_ENGINE_TRAIN_EXPERTS_H

#include "engine/model/layer.h"
#include "engine/train/grads.h"
#include "engine/train/op_chunks.h"
#include "engine/train/site.h"
#include "kernels/ops.h"

/* Device memory; T tokens, k experts for each, E experts of width Fe. */
struct train_experts {
    struct mat router, drouter;      /* (T, E), and with a gate of the shared expert one column more */
    struct mat weight, dweight;      /* (T, k) */
    struct mat x;                    /* (T k, C) */
    struct mat up, ff;               /* (T k, 2 Fe), (T k, Fe) */
    struct mat shared;               /* (T, C), with a gate: for the shared expert's output in the backward pass */
    const struct site *site;         /* as train_model's */
    const struct layer_grads *grads; /* (layers) of all weights; NULL: these are frozen */
    bool half;                       /* gemms of adapters and gradients may round to bf16 */
    bool exact;                      /* adapters by the op of serving (exact.h) */
    struct mat router_xa;            /* (T, r) of the router's site */
    struct mat up_xa, down_xa;       /* (T k, r) of those of the experts */
    struct mat du;                   /* (T k, most r) */
    int32_t *expert, *place, *token, *start;
    /* host: rows first[e] .. first[e + 1] - 1 are those of expert e, so that each expert's GEMMs are ops of their own,
     * which the gate can split */
    int32_t first[EXPERTS_MAX + 1];
};

/* Takes the memory for T tokens a micro-batch, n elements of `size` bytes at a time; none without experts.  site: of
 * all layers (layers, LORA_GEMMS), or NULL. */
void train_experts_take(struct train_experts *, const struct model_config *, const struct site *site, int tokens,
                        void *(*take)(void *arg, size_t n, size_t size), void *arg);

/* Whether the layer's router or experts have an adapter. */
bool train_experts_adapted(const struct train_experts *, const struct layer *);

/* y = the experts' output for h; with a shared expert y holds its output, and theirs is added. */
void train_experts_forward(struct op_chunks, struct train_experts *, const struct layer *, struct mat h, struct mat y);

/* The first half of the backward pass, from dy, the gradient with respect to the feed-forward's output.  shared: the
 * output of a shared expert with a gate, overwritten; p NULL: there is none.  @return the gradient with respect to the
 * shared expert's output. */
struct mat train_experts_back(struct op_chunks, struct train_experts *, const struct layer *, struct mat h,
                              struct mat shared, struct mat dy);
/* The second half: dh, the gradient with respect to h through the shared expert (if any), gets that through the experts
 * and the router, whose weights or adapters get theirs. */
void train_experts_input(struct op_chunks, const struct train_experts *, const struct layer *, struct mat h,
                         struct mat dh);

#endif
