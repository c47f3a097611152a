/* An adapter on a device, in the form of the lora op's arguments.
 *
 * Uploaded and freed by the thread that owns the device; immutable in between. */
#ifndef TANDEM_ENGINE_MODEL_LORA_WEIGHTS_H
#define TANDEM_ENGINE_MODEL_LORA_WEIGHTS_H

#include "engine/model/adapter.h"
#include "kernels/ops.h"

enum { GEMM_PARTS_MAX = 3 }; /* q, k and v */

struct lora_gemm {
    int n; /* 0: the adapter does not change this GEMM in this layer */
    struct lora_part part[GEMM_PARTS_MAX];
};

struct lora_weights {
    struct lora_gemm (*layer)[LORA_GEMMS]; /* [layers][LORA_GEMMS] */
    int layers;
    struct mat embedding; /* (V, r) row t is token t's column of a; p NULL: none.  The part of GEMM_EMBEDDING in layer 0
                             takes these rows as x: its a is the identity (r, r) */
    float *memory;        /* every matrix, on the device */
    size_t bytes;         /* of memory */
    bool up;              /* the adapter changes gate or up in some layer, experts' included */
};

struct shard;
/* Waits for the copies.  shard: NULL, or whose outputs are uploaded.  @return 0 on success; ERR_NOMEM, or ERR_IO when the
 * device failed, and nothing stays allocated. */
int lora_weights_upload(struct lora_weights *, struct dev *, const struct adapter *, const struct shard *,
                        struct err *);
void lora_weights_free(struct lora_weights *, struct dev *);
/* The a of the embedding table's pair, (r, V), into `to` on the device as a table of tokens, (V, r). */
void lora_table_upload(struct dev *, float *to, const struct lora_module *, const struct lora_pair *);

#endif
