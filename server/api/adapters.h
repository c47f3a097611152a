/* Adapters that others publish. */
#ifndef TANDEM_SERVER_API_ADAPTERS_H
#define TANDEM_SERVER_API_ADAPTERS_H

#include "engine/base/err.h"

struct app;

/* Makes the adapter in dir servable under its name, from the next request on.  Pool thread; waits for the engine. */
int adapters_publish_dir(struct app *, const char *name, const char *dir, struct err *);

#endif
