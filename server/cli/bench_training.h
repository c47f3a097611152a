/* `tandem bench --train`: runs it and writes both forms of its report.  Main thread. */
#ifndef TANDEM_SERVER_CLI_BENCH_TRAINING_H
#define TANDEM_SERVER_CLI_BENCH_TRAINING_H

#include "engine/base/buf.h"
#include "engine/train/train.h"
#include "server/config/settings.h"

struct bench_training_run {
    const struct settings *settings;
    const struct train_params *p;
    const int *batch, *length; /* of --batch and --lengths */
    int n_batches, n_lengths;
    bool (*progress)(void *arg, const char *what, int done, int total);
};

int bench_training_run(const struct bench_training_run *, struct buf *text, struct buf *json, struct err *e);

#endif
