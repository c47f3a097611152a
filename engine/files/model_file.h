/* The files of a model besides its weights, for whoever reads one: those of its directory (Hugging Face's layout), or
 * their equivalents made from the keys of a GGUF file.
 *
 * A model is named by a directory, by a GGUF file, or by a directory without safetensors that holds one GGUF model. */
#ifndef TANDEM_ENGINE_FILES_MODEL_FILE_H
#define TANDEM_ENGINE_FILES_MODEL_FILE_H

#include "engine/base/err.h"

#include <stddef.h>

/* The path of the model's GGUF file, owned by the caller.  NULL: it has Hugging Face's layout, or does not exist, or
 * its directory holds several GGUF models, which model_file_read reports. */
char *model_file_gguf(const char *model);

/* The file's bytes with a NUL behind them; free() it.  ERR_NOT_FOUND: the model has no such file.  A GGUF model has
 * config.json, generation_config.json, tokenizer.json and tokenizer_config.json. */
int model_file_read(const char *model, const char *name, size_t limit, char **data, size_t *size, struct err *e);

#endif
