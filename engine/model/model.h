/* The model: configuration, weights, KV cache, activations, and the forward pass, which is written in terms of device
 * ops.
 *
 * Opened by the owner, then used by one thread (the engine's, or an eval's caller). */
#ifndef TANDEM_ENGINE_MODEL_MODEL_H
#define TANDEM_ENGINE_MODEL_MODEL_H

#include "engine/base/err.h"
#include "engine/model/config.h"
#include "engine/model/experts.h"
#include "engine/model/rope.h"
#include "engine/model/shard.h"
#include "engine/model/step_batch.h"
#include "engine/model/weights.h"
#include "kernels/ops.h"

struct model {
    struct model_config c;
    struct model_config own; /* c; of a model that is divided over ranks, the sizes of this one's part */
    struct shard *shard;     /* NULL: it is not divided */
    struct dev *d;
    bool beside; /* another model's device, which stays open */
    struct weights w;
    struct rope_table rope[ROPES_MAX]; /* each of max_len positions */
    struct kv *kv;
    enum dtype kv_type;     /* of kv; DT_NONE: there is none yet */
    char note[160];         /* why device "auto" chose the cpu, or "" */
    size_t workspace_bytes; /* of the activations below */
    int max_len;            /* positions that memory was reserved for */
    /* activations, f32: T max tokens of a step, R max rows */
    struct mat x, h, y; /* (T, C) residual stream, normed input, a block's output */
    struct mat qkv;     /* (T, (H + 2G) D) */
    struct mat att;     /* (T, H D) */
    struct mat lse;     /* (T, H), an encoder's alone: see attn_seq_args */
    struct mat ff, up;  /* (T, F), (T, 2F); up only for a device that takes gate and up in two steps */
    struct mat picked;  /* (some, LORA_RANK_MAX) rows of an adapter of the embedding table */
    struct mat raw; /* (some, 2F) gate and up before the activation, for rows whose adapter changes them; see below */
    struct mat hr, logits; /* (R, C), (R, V) */
    struct experts_work experts;
    /* of a part: this rank's columns of att, of ff (experts' too), of y and of logits, until they are exchanged */
    struct mat own_att, own_ff, own_y, own_logits;
    int32_t *own_id;        /* (T) of tokens, in this rank's part of the vocabulary */
    struct step_batch some; /* of a model that is divided by layers: some rows of a step; id NULL: not open yet */
};

/* Configuration and weights.  quantize: NULL keeps the file's types.  comm: NULL, or the ranks that the model is
 * divided over (shard_open), each of which calls this; borrowed until model_close.  taker: as weights_load's. */
int model_open(struct model *, const char *dir, const struct dev_config *, const struct quantize_how *quantize,
               bool verify, struct comm *comm, int stages, const struct weights_taker *taker, struct err *);
/* The same on the device of another model, whose thread uses both; that model is closed last. */
int model_open_on(struct model *, const char *dir, struct dev *, const struct quantize_how *quantize, bool verify,
                  struct err *);
/* model_open, and opens the device by name; NULL: cpu. */
int model_load(struct model *, const char *dir, const char *device, int threads, const struct quantize_how *quantize,
               bool verify, struct err *);

/* Of a model that is divided over ranks, everything below is called on rank 0 alone: the others follow (shard_follow.h),
 * and fail as rank 0 does. */

/* Allocates KV pages and activations; nothing large is allocated afterwards. */
struct model_reserve {
    int pages, max_len, max_tokens, max_rows;
    enum dtype kv_type;
};
int model_reserve(struct model *, const struct model_reserve *, struct err *);
/* Its two halves, for a device with its own memory: everything but the KV cache (`pages` is ignored), then the KV
 * cache. */
int model_reserve_work(struct model *, const struct model_reserve *, struct err *);
int model_reserve_kv(struct model *, int pages, enum dtype kv_type, struct err *);
/* Allocates what adapters need besides their weights; call once, before the first is used. */
int model_reserve_adapters(struct model *, struct err *);
/* Of a model that is divided by layers those of the rank with the most.  0: an encoder, which has no KV cache */
size_t model_page_bytes(const struct model *, enum dtype kv_type);
/* Uploads an adapter: lora_weights_upload and lora_weights_free, on every rank. */
int model_upload_adapter(struct model *, struct lora_weights *, const struct adapter *, struct err *);
void model_free_adapter(struct model *, struct lora_weights *);
void model_close(struct model *);
/* model_close where the other ranks do not wait for orders of this one. */
void model_drop(struct model *);

/* Computes every token of the batch with its sequence's adapter, if any, writes the keys and values to the cache, and
 * the logits of the batch's rows to m->logits.  Only enqueues; errors are reported by the device. */
void model_forward(struct model *, const struct step_batch *);
/* After a forward pass and the device's finish: copies the final norm's output for tokens [row, row + n) of the batch
 * to out (n, C) on the host.  @return 0, or -1 with the device's error set. */
int model_hidden(const struct model *, int row, int n, float *out);

#endif
