/* Opening a model according to its options. */
#ifndef TANDEM_ENGINE_MODEL_OPEN_H
#define TANDEM_ENGINE_MODEL_OPEN_H

#include "engine/base/cpus.h"
#include "engine/model/model.h"
#include "engine/model/options.h"

/* Loads configuration and weights and reserves nothing; *model is closed after an error.  cpus: only the number of
 * threads is derived from it; nothing is bound yet. */
int model_open_as(struct model *, const struct model_options *, const struct cpus *, struct err *e);
/* Loads a second model onto the device of one that is open (model_open_on).  quantize: as in the options; the weights
 * are rounded without calibration. */
int model_open_beside(struct model *, const char *dir, const char *quantize, struct dev *, struct err *e);
/* Called by the thread that will use the model: binds that thread and the device's other threads. */
int model_pin(const struct model *, const struct cpus *, struct err *e);

/* NULL or "auto": DT_NONE; "f16", "bf16", "f32", "int8" */
int kv_type_parse(const char *name, enum dtype *, struct err *e);

#endif
