/* The end of the model in training: from the last layer's output to the losses, and back.  Internals of model.c. */
#ifndef TANDEM_ENGINE_TRAIN_MODEL_HEAD_H
#define TANDEM_ENGINE_TRAIN_MODEL_HEAD_H

#include "engine/train/model.h"

/* The losses of all targets of the present micro-batch, on the device; with back, adds the gradient with respect to the
 * last layer's output to dx. */
void train_heads(struct train_model *, bool back, struct mat dx);

#endif
