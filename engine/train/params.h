/* A job's parameters: defaults, ranges, and the hash by which a checkpoint identifies its job. */
#ifndef TANDEM_ENGINE_TRAIN_PARAMS_H
#define TANDEM_ENGINE_TRAIN_PARAMS_H

#include "engine/model/config.h"
#include "engine/model/tensor_source.h"
#include "engine/train/train.h"

/* ERR_INVALID: "learning_rate must be ...".  Resolves defaults that depend on other parameters. */
int train_params_check(struct train_params *, const struct model_config *, struct err *);

/* Hash of everything that determines the bytes of the result.  first: the CRC-32C of the initial values of the
 * parameters, which have so many bytes.  Of the base weights, it covers names, shapes and samples of the values. */
uint64_t train_job_hash(const struct train_params *, uint64_t data, uint64_t eval, const struct tensor_source *base,
                        uint32_t first, size_t bytes);

/* Most tokens of a unit: sums over tokens are made unit by unit.  With MICRO_TOKENS_AUTO a micro-batch is as many units
 * as fit into memory; else each micro-batch is one.  p must have been checked. */
int train_unit_tokens(const struct train_params *p);

#endif
