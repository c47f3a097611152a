/* Looks saved weights up for a request, off the loop.  Loop thread. */
#ifndef TANDEM_SERVER_TINKER_FINDING_H
#define TANDEM_SERVER_TINKER_FINDING_H

#include "server/tinker/checkpoints.h"

#include <stdbool.h>

struct http_req;
struct served_model;

/* On the loop, while the request is open.  m: the base model, loaded and in use until the function returns; NULL: not
 * asked for. */
typedef void checkpoint_found_fn(struct http_req *, struct checkpoint *, struct served_model *m, void *arg);
/* Calls fn with the weights that the path names, with_model: once their base model is loaded; or answers why not.  arg:
 * freed with free() when that is over. */
void checkpoint_find(struct http_req *, const char *path, bool with_model, checkpoint_found_fn *, void *arg);

#endif
