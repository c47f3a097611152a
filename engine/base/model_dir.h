/* What --model should be, for messages: why a path is no model directory that tandem can load, and what to do next.
 *
 * Called after something was not found; nothing here is needed to load a good directory. */
#ifndef TANDEM_ENGINE_BASE_MODEL_DIR_H
#define TANDEM_ENGINE_BASE_MODEL_DIR_H

#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>

/* Each replaces the message in *e, which says that the file could not be read, where it knows more.  @return e->code */
int model_dir_no_config(const char *dir, struct err *e);
int model_dir_no_weights(const char *dir, struct err *e);
int model_dir_no_tokenizer(const char *dir, struct err *e);

/* Whether a file's bytes are what git checks out in place of a large file when git-lfs is not there. */
bool model_dir_lfs_pointer(const char *data, size_t n);
/* For such a file: sets *e.  @return ERR_INVALID */
int model_dir_lfs_error(struct err *e);

#endif
