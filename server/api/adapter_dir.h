/* Where adapters come from: the directories that --adapters names, and everything in --adapter-dir and in the data
 * directory's adapters/.  Reads the disk: not on the loop thread. */
#ifndef TANDEM_SERVER_API_ADAPTER_DIR_H
#define TANDEM_SERVER_API_ADAPTER_DIR_H

#include "engine/serve/engine.h"
#include "server/config/settings.h"

/* The real path of a directory that a client names: relative to one of the two, or absolute and inside one.  NULL and
 * *e when it is none (whatever else is there: a client cannot look around with this), or when its files are links that
 * lead out of it and of the directory it is in.  Owned by the caller. */
char *adapter_dir_find(const struct settings *, const char *path, struct err *e);

/* ERR_INVALID where the name is one of the base model's: requests for it would never reach the adapter. */
int adapter_dir_check_name(const struct settings *, const struct engine *, const char *name, struct err *e);

/* Whether --adapters has an adapter of this name. */
bool adapter_dir_names(const struct settings *, const char *name);

/* At start.  What --adapters names has to load; what is merely there and does not is reported and left out.  The first
 * of two equal names counts: --adapters, then what was trained here, then --adapter-dir. */
int adapter_dir_load_all(const struct settings *, struct engine *, struct err *e);

#endif
