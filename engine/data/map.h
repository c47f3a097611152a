/* Renames the fields of rows as dataset_options.map says.  Pure. */
#ifndef TANDEM_ENGINE_DATA_MAP_H
#define TANDEM_ENGINE_DATA_MAP_H

#include "engine/base/sha256.h"
#include "engine/data/dataset.h"

#include <cjson/cJSON.h>

/* A row without a field `from` keeps its own field `to`; NULL, and rows that are no objects, stay as they are. */
void map_row(cJSON *row, const struct dataset_options *);
void map_hash(struct sha256 *, const struct dataset_options *);

#endif
