/* The tensors of a GGUF file as a tensor_source, under the names and in the orientation of Hugging Face's files.
 *
 * Vectors are converted at opening; a matrix that needs more than another name has a tensor_form, and is converted when
 * weights_matrix reads it. */
#ifndef TANDEM_ENGINE_MODEL_GGUF_SOURCE_H
#define TANDEM_ENGINE_MODEL_GGUF_SOURCE_H

#include "engine/files/gguf.h"
#include "engine/model/config.h"
#include "engine/model/tensor_source.h"

/* The source closes the file, also after an error. */
struct tensor_source *gguf_source(struct gguf *, struct err *e);

/* The weights of a model as --model names it: its safetensors, or its GGUF file; experts one by one. */
struct tensor_source *model_source_open(const char *model, const struct model_config *, struct err *e);

#endif
