/* Publishing of adapters from other rooms. */
#ifndef TANDEM_SERVER_API_ADAPTERS_H
#define TANDEM_SERVER_API_ADAPTERS_H

#include "engine/base/err.h"

struct app;

/* Serves the adapter in dir under its name, from the next request on.  Pool thread; waits for the engine. */
int adapters_publish_dir(struct app *, const char *name, const char *dir, struct err *);

#endif
