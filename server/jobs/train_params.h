/* Hyperparameters by name: JSON to struct train_params (engine/train/train.h) and back.  Pure; any thread. */
#ifndef TANDEM_SERVER_JOBS_TRAIN_PARAMS_H
#define TANDEM_SERVER_JOBS_TRAIN_PARAMS_H

#include "engine/train/train.h"
#include "server/json/json.h"

extern const char *const train_method_names[]; /* by enum train_method */
bool train_method_parse(const char *name, enum train_method *out);

/* Overwrites *p (initialised by train_params_default) with the fields of `at`.  @return false and *at->e, which names
 * the field: unknown (with the nearest known name), wrong type, out of range, or in conflict with another field. */
bool train_params_read(struct json_at *at, struct train_params *p);
/* @return whether a field of that name exists; *is_bool: whether it is a boolean. */
bool train_params_known(const char *name, bool *is_bool);
/* The shortest decimal that reads back as the same double. */
void train_params_put_number(struct buf *, double v);
/* Appends every field of the method's: {"epochs":3,...}, so that reading it back gives the same values whatever the
 * defaults. */
void train_params_put(struct buf *, const struct train_params *p);

#endif
