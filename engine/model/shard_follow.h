/* A rank that follows rank 0 of a model which is divided over ranks: it does what rank 0 does, on its own part. */
#ifndef TANDEM_ENGINE_MODEL_SHARD_FOLLOW_H
#define TANDEM_ENGINE_MODEL_SHARD_FOLLOW_H

#include "engine/model/model.h"

/* Returns when rank 0 closes the model, or when this rank, or another, has failed (*e).  The model stays open; nothing
 * of it is used by rank 0 any more.  reserve_device: the rank's part of shard_lead_reserve_device. */
int shard_follow(struct model *, void (*reserve_device)(struct model *), struct err *e);

#endif
