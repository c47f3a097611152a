/* Jobs of a daemon that several ranks train: processes that mpirun started, each with the whole model, of which rank 0
 * serves and the others follow it from job to job.  A job's data go to them from rank 0; what else it names (an adapter
 * to go on from, a teacher) they read by the same paths.  Rank 0 alone writes. */
#ifndef TANDEM_ENGINE_SERVE_JOB_RANKS_H
#define TANDEM_ENGINE_SERVE_JOB_RANKS_H

#include "engine/model/model.h"
#include "engine/serve/engine.h"
#include "engine/train/train.h"

/* Every rank, with its model open: whether they are of one version and compute alike.  @return 0, or the same error on
 * every rank */
int job_ranks_check(struct comm *, const struct model *, struct err *e);
/* Whether so many ranks train the job, or the first one alone: texts that a job samples come from its engine, and a job
 * that began with fewer slots than there are ranks goes on with them. */
bool job_ranks_take(const struct train_job *, int ranks);

#endif
