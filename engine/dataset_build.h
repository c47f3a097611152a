/* Rows to ids: the caller's thread finds the rows and writes what becomes of them, in order; threads parse, render and
 * tokenise batches of them in between. */
#ifndef TANDEM_DATASET_BUILD_H
#define TANDEM_DATASET_BUILD_H

#include "engine/chat_template.h"
#include "engine/dataset_cache.h"
#include "engine/dataset_detect.h"

/* Fills the report (but for from_cache). */
int build(struct source *, const struct dataset_options *, const struct detected *, const struct tokenizer *,
          const struct chat_template *, int32_t eos, struct cache_writer *, struct dataset_report *, struct err *e);

#endif
