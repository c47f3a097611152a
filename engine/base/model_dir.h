/* Error messages for --model: why a path is not a model directory that tandem can load, and what to do.
 *
 * Called only after a file was not found; not needed to load a valid directory. */
#ifndef TANDEM_ENGINE_BASE_MODEL_DIR_H
#define TANDEM_ENGINE_BASE_MODEL_DIR_H

#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>

/* Each replaces the message in *e (the file could not be read) when it can give a more specific one.  @return e->code
 */
int model_dir_no_config(const char *dir, struct err *e);
int model_dir_no_weights(const char *dir, struct err *e);
int model_dir_no_tokenizer(const char *dir, struct err *e);

/* Whether a file's bytes are a git-lfs pointer, which git checks out instead of a large file when git-lfs is not
 * installed. */
bool model_dir_lfs_pointer(const char *data, size_t n);
/* For such a file: sets *e.  @return ERR_INVALID */
int model_dir_lfs_error(struct err *e);

#endif
