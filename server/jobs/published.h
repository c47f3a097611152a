/* Where results are served from, DIR/adapters/NAME and DIR/models/NAME, and the way back: an adapter that a job replaced
 * stays in DIR/adapters-before/NAME.  Every change is a rename, so a crash leaves one version or the other, whole.
 *
 * Pool threads; one change at a time, whoever makes it. */
#ifndef TANDEM_SERVER_JOBS_PUBLISHED_H
#define TANDEM_SERVER_JOBS_PUBLISHED_H

#include "engine/base/err.h"

struct served_model;

/* Moves the directory `out` to `target`, and what was there before to `before`; before NULL: removes it.  m: the model
 * that serves the adapter under the name from then on; NULL: the result is none. */
int published_put(const struct served_model *m, const char *name, const char *out, const char *target,
                  const char *before, struct err *);
/* After a crash between the two halves of published_put: ends it.  No `out`: nothing is left to do. */
void published_end(const char *out, const char *before);

/* Serves the version in `before` under the name, and exchanges the two directories, so that a second call undoes the
 * first.  ERR_NOT_FOUND: there is none. */
int published_back(const struct served_model *, const char *name, const char *target, const char *before, struct err *);

#endif
