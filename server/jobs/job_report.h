/* Reports on a job's data and plan, as JSON.  Any thread. */
#ifndef TANDEM_SERVER_JOBS_JOB_REPORT_H
#define TANDEM_SERVER_JOBS_JOB_REPORT_H

#include "engine/base/buf.h"
#include "engine/data/dataset.h"
#include "engine/train/train.h"
#include "server/jobs/train_spec.h"

/* Appends the counts of rows and tokens and the problems found, as a JSON object; of several files with the file. */
void job_put_report(struct buf *, const struct dataset_report *, const struct data_spec *);
void job_put_plan(struct buf *, const struct train_plan *);
/* Appends {"data":0.01, ...}: seconds by part of a step. */
void job_put_parts(struct buf *, const double part[TRAIN_PARTS]);
/* Appends {"layer.0":0.01, ...}: norms of a step's gradients by group. */
void job_put_norms(struct buf *, const struct train_event *);
/* Appends what the job's run used, with advice, as a JSON object; null without a step. */
void job_put_usage(struct buf *, const struct train_event *);

#endif
