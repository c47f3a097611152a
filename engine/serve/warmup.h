/* Warm-up: the last phase of opening an engine, after the model was loaded and device memory reserved (reserve.h). */
#ifndef TANDEM_ENGINE_SERVE_WARMUP_H
#define TANDEM_ENGINE_SERVE_WARMUP_H

#include "engine/model/step_batch.h"
#include "engine/serve/setup.h"

/* Opens the batch, which the engine owns from then on; with record_steps, runs warmup_steps; then has the device
 * reserve the rest of its memory budget, for adapters and training.  @return 0 on success; on failure a negative code,
 * and *e is set. */
int warmup_device(struct step_batch *, struct setup *, struct err *e);

/* Runs every decode batch size up to the batch's max_seqs twice with dummy tokens, so that the device captures its CUDA
 * graphs before the first request.  Short contexts come first; ends after about `ms`, or with as many graphs as the
 * device keeps.  No sequence may have pages.  A device error ends the warm-up and is cleared, since the first request
 * would report it again. */
void warmup_steps(struct step_batch *, struct model *, int ms);

#endif
