/* Hyperparameters among the arguments of a command: --learning-rate 1e-4 is learning_rate of POST /train.  Main thread.
 */
#ifndef TANDEM_SERVER_CLI_HYPERPARAMETERS_H
#define TANDEM_SERVER_CLI_HYPERPARAMETERS_H

#include "server/json/json.h"

/* Moves their flags out of argv into a JSON object; *argc: the remaining arguments.  NULL and *e. */
cJSON *hyperparameters_take(int *argc, char **argv, struct err *e);
/* Prints their list, with the defaults for lora. */
void hyperparameters_help(void);

#endif
