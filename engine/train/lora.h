/* Adapters in training: their parameters as sites of the model's products (model.h), in the optimizer's arrays.
 */
#ifndef TANDEM_ENGINE_TRAIN_LORA_H
#define TANDEM_ENGINE_TRAIN_LORA_H

#include "engine/model/adapter.h"
#include "engine/train/model.h"
#include "engine/train/optim.h"
#include "engine/train/train.h"

struct train_lora {
    const struct model_config *c;
    struct adapter *adapter; /* shapes, scales, and the values it begins with */
    struct site *site;       /* (layers, PRODUCTS) */
    size_t *a, *b;           /* (layers, modules) where a pair's matrices are in the optimizer's arrays */
};

/* A new adapter as the parameters say, a uniform in +-1 / sqrt(k) and b zero (PEFT's default), or the one in `from`.
 * Adds its parameters to the optimizer. */
int train_lora_open(struct train_lora *, const struct model_config *, const struct train_params *, const char *from,
                    struct optim *, struct err *);
/* The optimizer's arrays exist now: points the sites there, writes the first values. */
void train_lora_bind(struct train_lora *, struct optim *);
/* Writes the values in p, an array like the optimizer's on the host, as a PEFT directory. */
int train_lora_write(struct train_lora *, const float *p, const char *base_name, const char *dir, struct err *);
void train_lora_close(struct train_lora *);

#endif
