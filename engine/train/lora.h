/* Adapters in training: their parameters in the optimizer's arrays, as sites of the model's GEMMs (model.h). */
#ifndef TANDEM_ENGINE_TRAIN_LORA_H
#define TANDEM_ENGINE_TRAIN_LORA_H

#include "engine/model/adapter.h"
#include "engine/train/model.h"
#include "engine/train/optim.h"
#include "engine/train/train.h"

struct train_lora {
    const struct model_config *c;
    struct adapter *adapter; /* shapes, scales and initial values */
    struct site *site;       /* (layers, LORA_GEMMS) */
    size_t *a, *b;           /* (layers, modules) offsets of a pair's matrices in the optimizer's arrays */
    size_t score;            /* offset of the adapter's head of scores, if it has one */
};

/* A new adapter according to the parameters, with a uniform in +-1 / sqrt(k) and b zero (PEFT's default), or the one in
 * `from`; of method reward with a head of scores, normal with a deviation of 0.02 (transformers' default), unless
 * `from` has one.  Adds its parameters to the optimizer. */
int train_lora_open(struct train_lora *, const struct model_config *, const struct train_params *, const char *from,
                    struct optim *, struct err *);
/* After the optimizer's arrays were allocated: points the sites there and writes the initial values. */
void train_lora_bind(struct train_lora *, struct optim *);
/* After that: the head of scores, if there is one, becomes the model's. */
void train_lora_bind_score(const struct train_lora *, const struct optim *, struct train_model *);
/* The adapter with the values in p, a host array laid out as the optimizer's; it stays the trainer's. */
struct adapter *train_lora_adapter(struct train_lora *, const float *p);
/* Writes the values in p, a host array laid out as the optimizer's, as a PEFT directory. */
int train_lora_write(struct train_lora *, const float *p, const char *base_name, const char *dir, struct err *);
void train_lora_close(struct train_lora *);

#endif
