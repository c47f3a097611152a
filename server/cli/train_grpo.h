/* Training on texts that the model samples itself (method grpo), without a daemon: an engine that only the job uses.
 * Main thread. */
#ifndef TANDEM_SERVER_CLI_TRAIN_GRPO_H
#define TANDEM_SERVER_CLI_TRAIN_GRPO_H

#include "engine/train/offline.h"

struct train_grpo_config {
    const struct train_offline_config *job; /* its eval: none */
    const char *rewards;                    /* a file: a JSON list of checks (rewards.h) */
    void (*opened)(void *arg, const struct dataset_report *);
    train_event_fn *event; /* on the trainer's thread */
    void *arg;             /* of both */
};

/* Runs the job until its last event; SIGINT and SIGTERM pause it.  @return 0; or *e: it did not begin. */
int train_grpo(const struct train_grpo_config *, struct err *e);

#endif
