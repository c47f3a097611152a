/* A smaller model of the first layers of another, with its embeddings, norm and head: a start for a draft model. */
#ifndef TANDEM_ENGINE_MODEL_TRUNCATE_H
#define TANDEM_ENGINE_MODEL_TRUNCATE_H

#include "engine/base/err.h"

/* Writes it to the directory `out` (created), with tokenizer and configuration; model.safetensors is written last and
 * complete.  Its tensors must be floats.  @return 0; ERR_INVALID: the model does not have so many layers;
 * ERR_UNSUPPORTED: what cannot be truncated. */
int model_truncate(const char *dir, const char *out, int layers, struct err *e);

#endif
