/* Directories of `tandem quantize` (docs/quantisation.md): their metadata, and stacks that are used in place in the
 * mapped file. */
#ifndef TANDEM_ENGINE_MODEL_WEIGHTS_PACKED_H
#define TANDEM_ENGINE_MODEL_WEIGHTS_PACKED_H

#include "engine/base/err.h"
#include "engine/model/tensors.h"
#include "kernels/ops.h"

/* The metadata of model.safetensors: format "tandem"; version "2" (written by this version of tandem) or "1"; layout
 * WEIGHTS_CANONICAL or the dev_ops.layout of its packed stacks; and for each packed stack, under its name, its
 * description by weights_describe. */
#define WEIGHTS_VERSION "2"
#define WEIGHTS_CANONICAL "canonical"
enum { DESCRIPTION_MAX = 64, PACKED_ALIGN = 64 };
void weights_describe(const struct stack *, enum dtype t, int group, char out[DESCRIPTION_MAX]);

/* *packed: whether the stacks of this source can be used in place.  dir: for messages. */
int weights_packed_check(const struct tensor_source *, const struct dev *, const char *dir, bool *packed, struct err *);

/* A weight that uses the mapped file in place, and what it was packed of. */
int weights_packed_open(const struct tensor_source *, struct dev *, const struct stack *, struct weight **out,
                        struct weight_src *shape, struct err *);

#endif
