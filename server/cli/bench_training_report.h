/* The output of `tandem bench --train`: tables, or the JSON document of docs/bench.md.  Main thread. */
#ifndef TANDEM_SERVER_CLI_BENCH_TRAINING_REPORT_H
#define TANDEM_SERVER_CLI_BENCH_TRAINING_REPORT_H

#include "engine/bench/training.h"
#include "server/cli/bench_report.h"

/* system: of the machine, its device, threads and ceilings those of the training. */
void bench_training_json(struct buf *out, const struct bench_report *system, const char *method,
                         const struct bench_training *);
void bench_training_text(struct buf *out, const struct bench_report *system, const char *method,
                         const struct bench_training *);

#endif
