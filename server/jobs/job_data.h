/* Where a job's files are, and opening its data.  Any thread. */
#ifndef TANDEM_SERVER_JOBS_JOB_DATA_H
#define TANDEM_SERVER_JOBS_JOB_DATA_H

#include "engine/data/dataset.h"
#include "server/jobs/train_spec.h"

#include <stdatomic.h>
#include <stdbool.h>

struct app;
struct served_model;

/* Writes inline data to its file. */
int job_data_save(const char *dir, const char *job_id, const struct data_spec *, bool eval, struct err *e);
void job_data_remove(const char *dir, const char *job_id);
/* Opens the data set of a spec, through the cache of prepared sets.  Pool threads. */
struct job_data_hooks {
    void (*progress)(void *arg, double fraction);
    bool (*cancelled)(void *arg);
    const atomic_bool *stop; /* becomes true: a download from the hub ends */
    void *arg;
};
int job_data_open(const struct app *, const struct served_model *, const char *job_id, const struct data_spec *,
                  bool eval, const struct train_params *, const struct job_data_hooks *, const char *dir,
                  struct dataset **, struct dataset_report *, struct err *e);
/* The same of the texts of a draft (job_texts.h), in the file `path`. */
int job_data_open_texts(const struct served_model *, const char *path, const struct train_params *,
                        const struct job_data_hooks *, const char *dir, struct dataset **, struct dataset_report *,
                        struct err *e);

#endif
