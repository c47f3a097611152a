/* The frozen weights of the layers, divided over the ranks of a job that trains adapters (stage 3, shards.h).
 *
 * While the model is loaded each rank keeps its part of the bytes of every packed matrix of a layer, and gives up the
 * rest.  A layer is gathered when the model uses it (layer_gather.h), to one of two buffers, while that of the other is
 * computed with.  What belongs to no layer, and vectors, stay whole.  Bytes are gathered as the device packed them: the
 * ranks' devices are alike, and take packed bytes (dev_ops.weight_open).
 *
 * By the thread that uses the model. */
#ifndef TANDEM_ENGINE_TRAIN_BASE_LAYERS_H
#define TANDEM_ENGINE_TRAIN_BASE_LAYERS_H

#include "engine/model/model.h"
#include "engine/train/layer_gather.h"

struct base_layers;

/* comm is borrowed. */
struct base_layers *base_layers_open(struct comm *);
/* Takes the layers' matrices from a model that is being loaded.  ERR_UNSUPPORTED: of a type, or by a device, whose
 * bytes cannot be used so. */
struct weights_taker base_layers_taker(struct base_layers *);
size_t base_layers_bytes(const struct base_layers *);   /* of this rank's parts */
size_t base_layers_buffers(const struct base_layers *); /* bytes that base_layers_use takes */
/* From now on the model, which was loaded so, has the layer that was used last.  exchanger: NULL, or borrowed until
 * base_layers_end. */
int base_layers_use(struct base_layers *, struct model *, struct exchanger *, struct err *);
struct layer_gather *base_layers_gather(struct base_layers *);
void base_layers_end(struct base_layers *);   /* the model has no layers any more; before it is closed */
void base_layers_close(struct base_layers *); /* NULL is allowed */

#endif
