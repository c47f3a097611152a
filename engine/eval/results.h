/* What the files of this room know of a finished evaluation. */
#ifndef TANDEM_ENGINE_EVAL_RESULTS_H
#define TANDEM_ENGINE_EVAL_RESULTS_H

#include "engine/eval/evaluation.h"

const double *evaluation_sums(const struct evaluation *, size_t row); /* (metrics_sums of its kind) */
const struct evaluation_rows *evaluation_rows_of(const struct evaluation *);

#endif
