/* What is said of a job's data and plan, as JSON.  Any thread. */
#ifndef TANDEM_SERVER_JOBS_JOB_REPORT_H
#define TANDEM_SERVER_JOBS_JOB_REPORT_H

#include "engine/base/buf.h"
#include "engine/data/dataset.h"
#include "engine/train/train.h"

/* What became of the rows; the inside of an object with the plan. */
void job_put_report(struct buf *, const struct dataset_report *);
void job_put_plan(struct buf *, const struct train_plan *);

#endif
