/* How a job could be divided over GPUs, as text and JSON: of tandem plan and POST /train/validate.  Any thread. */
#ifndef TANDEM_SERVER_JOBS_SPLIT_REPORT_H
#define TANDEM_SERVER_JOBS_SPLIT_REPORT_H

#include "engine/base/buf.h"
#include "engine/train/split.h"

/* "8x80G", "4x24GiB": sizes in units of 1024.  ERR_INVALID says what is wrong. */
int split_gpus_parse(const char *text, int *gpus, double *memory, struct err *e);
/* The floating-point operations a second of the fastest row of a report of tandem bench --train --json; 0 and *e. */
double split_bench_rate(const char *file, struct err *e);

void split_text(struct buf *, const struct train_split_question *, const struct train_split_answer *);
void split_json(struct buf *, const struct train_split_question *, const struct train_split_answer *);
/* In place of an answer. */
void split_json_error(struct buf *, const struct err *);

#endif
