/* Hyperparameters by name: JSON to struct train_params (engine/train/train.h) and back.  Pure; any thread. */
#ifndef TANDEM_SERVER_JOBS_TRAIN_PARAMS_H
#define TANDEM_SERVER_JOBS_TRAIN_PARAMS_H

#include "engine/train/train.h"
#include "server/json/json.h"

extern const char *const train_method_names[]; /* "lora", "qlora", "full" */
bool train_method_parse(const char *name, enum train_method *out);

/* Reads the fields of `at` over what *p holds (train_params_default first).  False and *at->e, which names the field:
 * unknown (with the nearest known name), of a wrong type, out of its range, or at odds with another one. */
bool train_params_read(struct json_at *at, struct train_params *p);
/* Whether there is a field of that name; *is_bool: of true and false. */
bool train_params_known(const char *name, bool *is_bool);
/* Every field: {"epochs":3,...}, so that reading it over any defaults gives the same again. */
void train_params_put(struct buf *, const struct train_params *p);

#endif
