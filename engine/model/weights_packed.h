/* Directories of `tandem quantize` (docs/quantisation.md): what their metadata states, and stacks that are used where
 * the file is mapped. */
#ifndef TANDEM_ENGINE_MODEL_WEIGHTS_PACKED_H
#define TANDEM_ENGINE_MODEL_WEIGHTS_PACKED_H

#include "engine/base/err.h"
#include "engine/model/tensors.h"
#include "kernels/ops.h"

/* The metadata of model.safetensors: format "tandem"; version "2" (what this tandem writes) or "1"; layout
 * WEIGHTS_CANONICAL or the dev_ops.layout that its packed stacks have; and for each of those, under its name, what
 * weights_describe says of it. */
#define WEIGHTS_VERSION "2"
#define WEIGHTS_CANONICAL "canonical"
enum { DESCRIPTION_MAX = 64, PACKED_ALIGN = 64 };
void weights_describe(const struct stack *, enum dtype t, int group, char out[DESCRIPTION_MAX]);

/* *packed: the stacks of this source can be used where it is mapped.  dir: for messages. */
int weights_packed_check(const struct tensor_source *, const struct dev *, const char *dir, bool *packed, struct err *);

/* A weight over the mapped file, and its type. */
int weights_packed_open(const struct tensor_source *, struct dev *, const struct stack *, struct weight **out,
                        enum dtype *type, struct err *);

#endif
