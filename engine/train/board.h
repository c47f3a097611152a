/* The events of a job as scalars of TensorBoard: "train/loss", "grad_norm/layer.0", ... */
#ifndef TANDEM_ENGINE_TRAIN_BOARD_H
#define TANDEM_ENGINE_TRAIN_BOARD_H

#include "engine/train/tfevents.h"
#include "engine/train/train.h"

/* Writes the scalars of a step or of an evaluation; nothing for other events.  Errors as of tfevents_add.  Used by one
 * thread at a time. */
int train_board_add(struct tfevents *, const struct train_event *, struct err *e);
/* Whether that would write the norms by group: of long jobs they are written for about every thousandth part of the
 * steps, since there are many. */
bool train_board_wants_groups(const struct train_event *);

#endif
