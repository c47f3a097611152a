/* The directory of --kv-disk: a folder for each model (store.h), a secret, and the lock of each folder.  Everything in
 * it is readable by its owner alone.  Paths come from the operator, contents are untrusted. */
#ifndef TANDEM_ENGINE_KVSTORE_DIR_H
#define TANDEM_ENGINE_KVSTORE_DIR_H

#include "engine/base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { KV_SECRET_BYTES = 32, KV_FOLDER_NAME = 33 };

/* The secret that names and numbers of clients are made with: they tell nothing without it, and stay the same when the
 * process is restarted.  Created with the directory when missing. */
int kv_dir_secret(const char *dir, unsigned char secret[KV_SECRET_BYTES], struct err *e);

struct kv_folder {
    char *path;
    int lock, index, pages; /* descriptors */
};

/* Opens the files of the folder `name` (32 hexadecimal digits), creating what is missing.  ERR_FULL: it is locked. */
int kv_folder_open(struct kv_folder *, const char *dir, const char *name, struct err *e);
void kv_folder_close(struct kv_folder *);

/* How many bytes the folder `own` may take of `limit`, when `want` are wished.  Removes other models' folders, the
 * longest unused first, while the total is above the limit and they are not open. */
uint64_t kv_dir_room(const char *dir, const char *own, uint64_t limit, uint64_t want);

#endif
