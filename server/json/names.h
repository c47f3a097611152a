/* Unknown fields, and the nearest known name.  Pure; any thread. */
#ifndef TANDEM_SERVER_JSON_NAMES_H
#define TANDEM_SERVER_JSON_NAMES_H

#include "server/json/json.h"

/* @return the one of `n` names nearest to a mistyped one; NULL when none is near. */
const char *name_nearest(const char *name, const char *const *names, int n);
/* Fails (false, *at->e) on the first field of at->obj that is not among the names. */
bool json_only(struct json_at *at, const char *const *names, int n);

#endif
