/* An adapter on a device, in the form that op lora takes.
 *
 * Uploaded and freed by the thread that has the device; immutable in between. */
#ifndef TANDEM_ENGINE_MODEL_LORA_WEIGHTS_H
#define TANDEM_ENGINE_MODEL_LORA_WEIGHTS_H

#include "engine/model/adapter.h"
#include "kernels/ops.h"

enum { PRODUCT_PARTS_MAX = 3 }; /* q, k and v */

struct lora_product {
    int n; /* 0: the product is left alone in this layer */
    struct lora_part part[PRODUCT_PARTS_MAX];
};

struct lora_weights {
    struct lora_product (*layer)[PRODUCTS]; /* [layers][PRODUCTS] */
    int layers;
    float *memory; /* every matrix, on the device */
    size_t bytes;  /* of memory */
    bool up;       /* some layer's gate or up product is changed */
};

/* Waits for the copies.  @return 0; ERR_NOMEM, or ERR_IO when the device failed: then nothing is held. */
int lora_weights_upload(struct lora_weights *, struct dev *, const struct adapter *, struct err *);
void lora_weights_free(struct lora_weights *, struct dev *);

#endif
