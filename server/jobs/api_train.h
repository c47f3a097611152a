/* Shared by the three APIs for jobs: native /train, OpenAI's files and fine-tuning. */
#ifndef TANDEM_SERVER_JOBS_API_TRAIN_H
#define TANDEM_SERVER_JOBS_API_TRAIN_H

#include "engine/data/dataset.h"
#include "server/api/store_request.h"
#include "server/jobs/job_db.h"
#include "server/jobs/train_spec.h"

/* Answers 503 while loading (jobs are checked against the model) or draining, or 429 while too many bodies wait for the
 * store.  @return whether it has answered. */
bool train_refuses(struct http_req *, bool openai);

/* Stores a job read from a request, or finds the one that this Idempotency-Key created before.  @return true with
 * c->job set, or false with an error answer.  serve_as may be NULL. */
struct train_create {
    struct train_spec *spec;
    const char *openai; /* JSON of the fields that only the OpenAI view has; NULL */
    const char *id;     /* NULL: a new one */
};
bool train_create(struct store_request *, struct db *, const struct train_create *);
/* Checks that need the store: the data exists, the name is free, the adapter to continue from exists.  Patterns of data
 * files become the files that match; of feedback those that there are, while train_create gives the newest rows one.
 * @return false with an error answer. */
bool train_check(struct store_request *, struct db *, struct train_spec *);
/* Whether the data directory has a published adapter of this name. */
bool train_adapter_exists(const char *data_dir, const char *name);
struct train_limits train_limits_of(const struct store_request *);
/* Looks for a job that the same request with this key created before.  @return true with c->job set or an error
 * answer. */
bool train_replay(struct store_request *, struct db *);
void train_after_create(struct store_request *);

enum job_action { ACTION_CANCEL, ACTION_PAUSE, ACTION_RESUME };

/* How one of the APIs finds the job named in a request (or answers that none exists), and formats it. */
struct train_view {
    bool openai;
    bool (*find)(struct store_request *, struct db *, struct job_key *);
    void (*put)(struct store_request *, struct db *, int64_t seq);
};
/* Loop thread: cancels, pauses or resumes a job.  Changes its state, or stores a command for the runner. */
void train_start_act(struct http_req *, const struct train_view *, enum job_action);

#endif
