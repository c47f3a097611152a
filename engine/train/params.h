/* A job's parameters: defaults, ranges, and the number that a checkpoint knows its job by. */
#ifndef TANDEM_ENGINE_TRAIN_PARAMS_H
#define TANDEM_ENGINE_TRAIN_PARAMS_H

#include "engine/model/config.h"
#include "engine/model/tensor_source.h"
#include "engine/train/train.h"

/* ERR_INVALID: "learning_rate must be ...".  What is left to a default that depends on others is set. */
int train_params_check(struct train_params *, const struct model_config *, struct err *);

/* Of everything the result's bytes depend on.  p: the first values of the parameters, n of them, on the host.  Of the
 * base weights names, shapes and samples of the values are looked at. */
uint64_t train_job_hash(const struct train_params *, uint64_t data, uint64_t eval, const struct tensor_source *base,
                        const float *p, size_t n);

#endif
