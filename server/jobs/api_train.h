/* What the three APIs over jobs share: native /train, OpenAI's files and fine-tuning. */
#ifndef TANDEM_SERVER_JOBS_API_TRAIN_H
#define TANDEM_SERVER_JOBS_API_TRAIN_H

#include "engine/data/dataset.h"
#include "server/api/store_request.h"
#include "server/jobs/job_db.h"
#include "server/jobs/train_spec.h"

/* 503 while the model is loading: jobs are checked against it; 429 while too many bodies wait for the store. */
bool train_refuses(struct http_req *, bool openai);

/* Stores a job that was read from a request: a new one, or the one that this Idempotency-Key made before.  Sets c->job,
 * or an error answer and returns false.  serve_as may be NULL. */
struct train_create {
    struct train_spec *spec;
    const char *openai; /* JSON of what only the OpenAI view knows; NULL */
    const char *id;     /* NULL: a new one */
};
bool train_create(struct store_request *, struct db *, const struct train_create *);
/* What only the store knows: whether the data is there, the name free, the adapter to go on from; else an error answer.
 */
bool train_check(struct store_request *, struct db *, const struct train_spec *);
struct train_limits train_limits_of(const struct app *);
/* The job of this key, when the same request was made before: true and c->job, or an error answer. */
bool train_replay(struct store_request *, struct db *);
void train_after_create(struct store_request *);

enum job_action { ACTION_CANCEL, ACTION_PAUSE, ACTION_RESUME };

/* How one of the APIs finds the job that a request names (or answers that there is none), and shows it. */
struct train_view {
    bool openai;
    bool (*find)(struct store_request *, struct db *, struct job_key *);
    void (*put)(struct store_request *, struct db *, int64_t seq);
};
/* Loop thread: a request to cancel, pause or resume.  The state changes, or a command is left for the runner. */
void train_start_act(struct http_req *, const struct train_view *, enum job_action);

#endif
