/* Two reports of `tandem bench --json` compared, and one held against targets.  Pure; main thread. */
#ifndef TANDEM_SERVER_CLI_BENCH_COMPARE_H
#define TANDEM_SERVER_CLI_BENCH_COMPARE_H

#include "server/json/json.h"

/* Appends a line for each figure that changed beyond the noise from `before` to `now`: speeds whose ranges do not
 * overlap, memory by more than a few percent; and for what only one report has.  @return how many changed. */
int bench_compare(struct buf *out, const cJSON *before, const cJSON *now);

/* targets: {"decode 8": {"tokens_per_s": {"min": 500}, "step_ms.p99": {"max": 20}}, ...}.  Appends a line for each.
 * @return how many are missed, -1: *e says what is wrong with the targets (a row or field that the report lacks is
 * missed). */
int bench_check(struct buf *out, const cJSON *targets, const cJSON *report, struct err *e);

#endif
