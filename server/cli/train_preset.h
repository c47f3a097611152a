/* --preset of tandem train: names for sets of options. */
#ifndef TANDEM_SERVER_CLI_TRAIN_PRESET_H
#define TANDEM_SERVER_CLI_TRAIN_PRESET_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

/* Takes --preset NAME[,NAME...] out of argv and puts the options of the presets in its place, less those that argv
 * names itself: `out` becomes the new arguments, freed by the caller, their texts those of argv or constants.  said:
 * gets a line for each preset that says what it stands for; freed by the caller.  -> their number, or -1 and *e. */
int train_preset_expand(int argc, char **argv, char ***out, struct buf *said, struct err *e);

/* Prints help for each preset. */
void train_preset_help(void);

#endif
