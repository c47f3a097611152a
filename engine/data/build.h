/* Rows to ids: the caller's thread scans the rows and writes the results in order; worker threads parse, render and
 * tokenise them in batches. */
#ifndef TANDEM_ENGINE_DATA_BUILD_H
#define TANDEM_ENGINE_DATA_BUILD_H

#include "engine/data/cache.h"
#include "engine/data/detect.h"
#include "engine/template/chat_template.h"

/* Fills the report, except from_cache. */
int build(struct source *, const struct dataset_options *, const struct detected *, const struct tokenizer *,
          const struct chat_template *, int32_t eos, struct cache_writer *, struct dataset_report *, struct err *e);

#endif
