/* What files contain, as a hash: the identity of a model does not depend on where its files are or when they were
 * copied.  Hashing reads every byte, on several threads, so the results are remembered in the directory of --kv-disk,
 * by device, inode, size, and times of modification and of status change.  The last one changes with every write and
 * cannot be set; a file that changed less than two seconds before it was read is not remembered. */
#ifndef TANDEM_ENGINE_KVSTORE_CONTENT_H
#define TANDEM_ENGINE_KVSTORE_CONTENT_H

#include "engine/base/err.h"
#include "engine/base/sha256.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct content_files {
    char **path; /* (n) owned, sorted */
    size_t n;
};

/* The files that determine a model's weights: `model` is a directory or a GGUF file.  all_json: every *.json, since
 * quantising looks at the tokenizer too. */
int content_files_find(struct content_files *, const char *model, bool all_json, struct err *e);
void content_files_free(struct content_files *);

/* A number of their inodes, sizes and times, which changes when one does. */
uint64_t content_stamp(const struct content_files *);
/* Adds their last names and the hashes of their contents. */
int content_add(struct sha256 *, const struct content_files *, const char *dir, int threads, struct err *e);

#endif
