/* Reports on a job's data and plan, as JSON.  Any thread. */
#ifndef TANDEM_SERVER_JOBS_JOB_REPORT_H
#define TANDEM_SERVER_JOBS_JOB_REPORT_H

#include "engine/base/buf.h"
#include "engine/data/dataset.h"
#include "engine/train/train.h"

/* Appends the counts of rows and tokens and the problems found, as a JSON object. */
void job_put_report(struct buf *, const struct dataset_report *);
void job_put_plan(struct buf *, const struct train_plan *);

#endif
