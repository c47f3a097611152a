/* Hyperparameters under the names that transformers' TrainingArguments, TRL's SFTConfig and PEFT's LoraConfig give
 * them.  Pure; any thread. */
#ifndef TANDEM_SERVER_JOBS_TRAIN_ALIASES_H
#define TANDEM_SERVER_JOBS_TRAIN_ALIASES_H

#include "server/jobs/train_params.h"

/* train_params_read of fields under tandem's names or those.  *batch_rows: rows of an optimizer step, when they are
 * given in rows; else unchanged.  @return false and *at->e, which names the field; both, when two fields say the same.
 */
bool train_hyperparameters_read(struct json_at *at, struct train_params *, int *batch_rows);
/* @return whether a field of that name exists, under any of its names; *is_bool: whether it is a boolean. */
bool train_hyperparameter_known(const char *name, bool *is_bool);

#endif
