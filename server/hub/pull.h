/* A repository of the hub into the cache: which files it has, which of them are wanted, their download. */
#ifndef TANDEM_SERVER_HUB_PULL_H
#define TANDEM_SERVER_HUB_PULL_H

#include "server/hub/hub.h"
#include "server/hub/repo.h"

/* Sets f->path and f->name. */
int pull(const struct hub *, const struct repo_name *, struct hub_found *f, struct err *e);

#endif
