/* Finds where a model is, which may be a download of hours, on a thread of its own.  Loop thread, unless stated
 * otherwise. */
#ifndef TANDEM_SERVER_API_MODEL_FINDER_H
#define TANDEM_SERVER_API_MODEL_FINDER_H

#include "engine/base/err.h"

struct app;
struct served_model;

#define MODEL_NO_THREAD "no thread to load it: %s; see ulimit -u and pids.max"

/* @return where the model is, owned by the caller, or NULL and *e.  Any thread. */
typedef char *model_find_fn(struct app *, const struct served_model *, struct err *e);
/* dir: the callee's from now on; NULL: *e says why. */
typedef void model_found_fn(void *arg, struct served_model *, char *dir, const struct err *e);

/* found is called once, perhaps before this returns; then closed, when nothing is left in the loop. */
void model_finder_begin(struct app *, struct served_model *, model_find_fn *, model_found_fn *found,
                        void (*closed)(void *arg), void *arg);

#endif
