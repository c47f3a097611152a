/* A tensor of an adapter's file: untrusted, so its shape and its values are checked. */
#ifndef TANDEM_ENGINE_MODEL_ADAPTER_TENSOR_H
#define TANDEM_ENGINE_MODEL_ADAPTER_TENSOR_H

#include "engine/base/err.h"
#include "engine/model/tensor_source.h"

/* Checks that the tensor, NAME.WHICH.weight (NAME.WHICH of the embedding table), is there and is a (rows, cols) of
 * floats.  which: "lora_A", "lora_B", "lora_embedding_A" or "lora_embedding_B" */
int adapter_tensor_check(const struct tensor *, const char *name, const char *which, int rows, int cols, struct err *);
/* Reads a checked tensor as f32; a value that is not finite is refused. */
int adapter_tensor_read(const struct tensor_source *, const struct tensor *, float *out, struct err *);

#endif
