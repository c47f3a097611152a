/* The small files of a model's directory besides its weights that a model derived from it needs in order to be loaded
 * and served.  Other files there (notes, logs, texts) are not copied. */
#ifndef TANDEM_ENGINE_MODEL_FILES_H
#define TANDEM_ENGINE_MODEL_FILES_H

#include "engine/base/err.h"

#include <stdbool.h>

/* Copies those that exist in `from` to the existing directory `to` and syncs each: tokenizer, vocabulary, chat
 * templates, generation_config.json, and with config also config.json. */
int model_files_copy(const char *from, const char *to, bool config, struct err *e);

#endif
