/* What rank 0 tells the ranks that follow it (shard_follow.h): messages that are broadcast before rank 0 does the same.
 * Called by model.c, on rank 0. */
#ifndef TANDEM_ENGINE_MODEL_SHARD_LEAD_H
#define TANDEM_ENGINE_MODEL_SHARD_LEAD_H

#include "engine/model/shard.h"
#include "engine/model/step_batch.h"

#include <stdint.h>

struct adapter;
struct model_reserve;

/* The sizes of a step are those of its batch; adapters are named by where rank 0 has them. */
enum shard_order_kind { SHARD_RESERVE, SHARD_RESERVE_DEVICE, SHARD_STEP, SHARD_ADAPTER, SHARD_FREE, SHARD_END };
struct shard_order {
    int32_t kind;
    int32_t n_tokens, n_seqs, n_rows, pages_ld, most_rows, n_groups, ints;
    int32_t max_tokens, max_seqs, max_rows, max_pages;
    int32_t pages, max_len, kv_type, pairs, replays;
    uint64_t adapter;
};
struct shard_group {
    uint64_t adapter;
    int32_t row0, rows, out0, outs;
};
struct shard_pair {
    int32_t r;
    float scale;
};

void shard_lead_reserve(struct shard *, const struct model_reserve *);
/* Begins what all ranks do together for the memory of devices that have their own (serve/reserve.h). */
void shard_lead_reserve_device(struct shard *);
/* The batch as it was built; it is on the host, too. */
void shard_lead_step(struct shard *, const struct step_batch *);
void shard_lead_adapter(struct shard *, const struct lora_weights *, const struct adapter *);
void shard_lead_free(struct shard *, const struct lora_weights *);
void shard_lead_end(struct shard *);

#endif
