/* The files that --data and --eval-data name: on the disk, or of a data set of the Hugging Face hub.  Main thread. */
#ifndef TANDEM_SERVER_CLI_FIND_DATA_H
#define TANDEM_SERVER_CLI_FIND_DATA_H

#include "engine/data/sources.h"
#include "server/config/settings.h"
#include "server/hub/hub.h"

/* Adds what each of the names means, one set each; a data set of the hub is downloaded where it is missing. */
int cmd_find_data(struct dataset_sources *, const struct string_list *names, const struct hub *, struct err *e);

#endif
