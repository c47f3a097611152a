/* A tuner on the disk: a directory with PEFT's two files, files that the caller adds, and `manifest`, which has the
 * size and the CRC-32C of each.
 *
 * It is written under another name, each file and the directory are synced, and it is renamed: after a crash at any
 * instant the path has the old directory or the new one, whole.  Any thread; of one directory one writer at a time. */
#ifndef TANDEM_ENGINE_TRAIN_TUNER_FILES_H
#define TANDEM_ENGINE_TRAIN_TUNER_FILES_H

#include "engine/base/err.h"

#include <stddef.h>
#include <stdint.h>

struct adapter;
struct model_config;

struct tuner_file {
    const char *name; /* of less than 64 bytes, without spaces and slashes */
    const void *data;
    size_t bytes;
};

/* Replaces dir, if there is one; its parents are created.  base_name: see adapter_write.  @return 0 when it is durable;
 * ERR_IO, and dir is as it was. */
int tuner_files_write(const char *dir, const struct adapter *, const struct model_config *, const char *base_name,
                      int64_t steps, const struct tuner_file *, int n, struct err *e);
/* Makes `to`, which there is not, of the directory dir: its files are shared, where the file system can, not copied,
 * but for file->name, which is written anew.  Errors as of tuner_files_check and tuner_files_write. */
int tuner_files_share(const char *dir, const char *to, const struct tuner_file *, struct err *e);
/* Compares every file with the manifest; *steps: as written.  ERR_NOT_FOUND: there is no such directory; ERR_INVALID:
 * it is damaged, and *e names the file. */
int tuner_files_check(const char *dir, int64_t *steps, struct err *e);
/* The bytes of one file, compared with the manifest, with a NUL behind them; to be freed.  *total, if not NULL: the
 * bytes of all files.  Errors likewise; ERR_NOT_FOUND also where the manifest has no such file. */
int tuner_files_read(const char *dir, const char *name, char **data, size_t *bytes, int64_t *total, struct err *e);

#endif
