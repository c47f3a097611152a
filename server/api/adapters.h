/* Publishing of adapters from other rooms. */
#ifndef TANDEM_SERVER_API_ADAPTERS_H
#define TANDEM_SERVER_API_ADAPTERS_H

#include "engine/base/err.h"

struct app;
struct served_model;

/* Serves the adapter in dir under its name, from the next request on.  Pool thread; waits for the engine. */
int adapters_publish_dir(const struct served_model *, const char *name, const char *dir, struct err *);

/* The adapter was published for this model: others that have one of its name forget theirs.  Loop thread. */
void adapters_supersede(struct app *, const struct served_model *, const char *name);

#endif
