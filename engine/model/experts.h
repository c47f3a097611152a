/* The experts of a layer's feed-forward: their activations, and their part of the forward pass of serving. */
#ifndef TANDEM_ENGINE_MODEL_EXPERTS_H
#define TANDEM_ENGINE_MODEL_EXPERTS_H

#include "engine/model/layer.h"
#include "engine/model/step_batch.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shard;

/* T tokens of a step at most, k experts for each; E experts of width Fe.  Empty for a model without experts. */
struct experts_work {
    struct mat router; /* (T, E), and with a gate of the shared expert one column more */
    struct mat weight; /* (T, k) */
    struct mat x;      /* (T k, C) their inputs, then their outputs */
    struct mat ff,
        up; /* (T k, Fe), (T k, 2 Fe); up only for adapters, or a device that takes gate and up in two steps */
    int32_t *expert, *place, *token, *start;
    /* on the host, only for adapters of the experts: copies of token and start, and the groups of op lora (T k) */
    int32_t *host_token, *host_start;
    struct lora_group *group;
    struct lora_part *part;
};

/* *bytes grows by what was allocated.  @return false when out of memory; then, too, experts_close. */
bool experts_open(struct experts_work *, struct dev *, const struct model_config *, int tokens, size_t *bytes);
/* Memory for adapters of the experts, where serving without them needs none.  @return false: out of memory */
bool experts_open_adapters(struct experts_work *, struct dev *, const struct model_config *, int tokens, size_t *bytes);
void experts_close(struct experts_work *, struct dev *);

/* y = the experts' output for the rows of h, all of the batch's, with their adapters; where the layer has a shared
 * expert, y holds its output, and theirs is added.  shard: NULL, or the layer and y are a rank's part, and own_ff is
 * memory for its columns of ff. */
void experts_forward(struct dev *, struct experts_work *, const struct layer *, struct shard *, struct mat own_ff,
                     const struct step_batch *, struct mat h, struct mat y);

#endif
