/* Where adapters come from: the directories that --adapters names, and everything in --adapter-dir and in the data
 * directory's adapters/.  Reads the disk: not on the loop thread. */
#ifndef TANDEM_SERVER_API_ADAPTER_DIR_H
#define TANDEM_SERVER_API_ADAPTER_DIR_H

#include "engine/serve/engine.h"
#include "server/config/settings.h"
#include "server/hub/hub.h"

/* @return the real path, owned by the caller, of a directory that a client names: relative to one of the two
 * directories, or absolute and inside one.  NULL and *e when it is not one (the same error for all other paths, so that
 * a client cannot probe the file system), or when its files are links that lead outside both the adapter and that
 * directory. */
char *adapter_dir_find(const struct settings *, const char *path, struct err *e);

/* @return ERR_INVALID when the name is one of the base model's: requests for it would never reach the adapter. */
int adapter_dir_check_name(const struct settings *, const struct engine *, const char *name, struct err *e);

/* Whether --adapters has an adapter of this name. */
bool adapter_dir_names(const struct settings *, const char *name);

/* Whether a directory is an adapter of the model that is being loaded. */
typedef bool adapter_wanted_fn(void *arg, const char *dir);

/* When a model is loaded; wanted NULL: all directories are its own.  --adapters may name adapters of the hub.  An error
 * in an adapter named by --adapters is fatal; others that fail to load are logged and skipped.  Of equal names the
 * first wins: --adapters, then the data directory's adapters/, then --adapter-dir. */
int adapter_dir_load_all(const struct settings *, const struct hub *, struct engine *, adapter_wanted_fn *wanted,
                         void *arg, struct err *e);

#endif
