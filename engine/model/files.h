/* The small files of a model's directory that are not its weights: what a model made from it needs to be served and
 * loaded elsewhere.  Anything else there (notes, logs, texts) belongs to that model alone. */
#ifndef TANDEM_ENGINE_MODEL_FILES_H
#define TANDEM_ENGINE_MODEL_FILES_H

#include "engine/base/err.h"

#include <stdbool.h>

/* Copies those that `from` has into `to`, which exists, and syncs each: tokenizer, vocabulary, chat templates,
 * generation_config.json, and with config also config.json. */
int model_files_copy(const char *from, const char *to, bool config, struct err *e);

#endif
