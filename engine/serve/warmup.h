/* The last of the start, on a device whose memory is its own, after the model is there and its memory reserved. */
#ifndef TANDEM_ENGINE_SERVE_WARMUP_H
#define TANDEM_ENGINE_SERVE_WARMUP_H

#include "engine/model/step_batch.h"
#include "engine/serve/setup.h"

/* Opens the engine's batch, which it owns then; where the configuration says record_steps, does the steps that will
 * come twice with texts of nobody, so that the device has noted them down before the first request; and has the device
 * hold what is left of its memory, for adapters and training.  0 or ERR_NOMEM. */
int warmup_device(struct step_batch *, struct setup *, struct err *e);

/* Does decode steps of every size up to the batch's max_seqs, the shortest contexts first, for about `ms` and at most
 * as many as the device keeps.  No sequence may have pages.  An error of the device ends it and is forgotten: the first
 * request meets it again. */
void warmup_steps(struct step_batch *, struct model *, int ms);

#endif
