/* The model: configuration, weights, KV cache, activations; and the forward pass, written once over the ops.
 *
 * Opened by the owner, then used by one thread (the engine's, or an eval's caller). */
#ifndef TANDEM_ENGINE_MODEL_MODEL_H
#define TANDEM_ENGINE_MODEL_MODEL_H

#include "engine/base/err.h"
#include "engine/model/config.h"
#include "engine/model/rope.h"
#include "engine/model/step_batch.h"
#include "engine/model/weights.h"
#include "kernels/ops.h"

struct model {
    struct model_config c;
    struct dev *d;
    struct weights w;
    struct rope_table rope[ROPES_MAX]; /* of max_len positions */
    struct kv *kv;
    char note[160];         /* device "auto" became the cpu: why */
    size_t workspace_bytes; /* of the activations below */
    int max_len;            /* positions it was reserved for */
    /* activations, f32: T max tokens of a step, R max rows */
    struct mat x, h, y;    /* (T, C) residual stream, normed input, a block's output */
    struct mat qkv;        /* (T, (H + 2G) D) */
    struct mat att;        /* (T, H D) */
    struct mat ff, up;     /* (T, F), (T, 2F); up only for a device that takes gate and up in two steps */
    struct mat raw;        /* (some, 2F) gate and up before the activation, where an adapter changes them; see below */
    struct mat hr, logits; /* (R, C), (R, V) */
};

/* Configuration and weights.  quantize: NULL keeps the file's types. */
int model_open(struct model *, const char *dir, const struct dev_config *, const struct quantize_how *quantize,
               bool verify, struct err *);
/* The same on a device by name; NULL means cpu. */
int model_load(struct model *, const char *dir, const char *device, int threads, const struct quantize_how *quantize,
               bool verify, struct err *);

/* KV pages and activations; after it nothing large is allocated. */
struct model_reserve {
    int pages, max_len, max_tokens, max_rows;
    enum dtype kv_type;
};
int model_reserve(struct model *, const struct model_reserve *, struct err *);
/* Its two halves, for a device whose memory is its own: what is not the cache (`pages` is not looked at), then it. */
int model_reserve_work(struct model *, const struct model_reserve *, struct err *);
int model_reserve_kv(struct model *, int pages, enum dtype kv_type, struct err *);
/* What adapters need beside their weights; once, before the first is used. */
int model_reserve_adapters(struct model *, struct err *);
size_t model_page_bytes(const struct model *, enum dtype kv_type);
void model_close(struct model *);

/* Computes every token of the batch, each row through its adapter if it has one, writes its keys and values, and leaves
 * the logits of the batch's rows in m->logits.  Enqueues only: errors are the device's. */
void model_forward(struct model *, const struct step_batch *);
/* After a forward pass and the device's finish: what the final norm gave for tokens [row, row + n) of its batch, to
 * out (n, C) on the host.  @return 0, or -1 with the device's error set. */
int model_hidden(const struct model *, int row, int n, float *out);

#endif
