/* Two jobs' records side by side: the settings that differ, and figures.  Pure; main thread.
 *
 * A record is what `tandem train` writes as training_record.json, or the answer to GET /train/{id}: the same fields
 * have the same names. */
#ifndef TANDEM_SERVER_CLI_TRAIN_COMPARE_H
#define TANDEM_SERVER_CLI_TRAIN_COMPARE_H

#include "server/json/json.h"

#define TRAIN_RECORD_FILE "training_record.json"

enum { TRAIN_RECORD_BYTES = 1 << 20 }; /* a record has at most so many */

struct train_compared {
    const char *name; /* as it was given: a path */
    cJSON *record;
};

/* @return 0, or *e: not a record. */
int train_compare_check(const struct train_compared *, struct err *e);
/* Appends a table.  cost_per_hour: of both; 0: what each record says, if it does. */
void train_compare_text(struct buf *out, const struct train_compared two[2], double cost_per_hour);
/* Appends {"a": NAME, "b": NAME, "settings": [{"name", "a", "b"}], "figures": [{"name", "a", "b", "change"}]}; null for
 * what a record does not have; change: (b - a) / a. */
void train_compare_json(struct buf *out, const struct train_compared two[2], double cost_per_hour);

#endif
