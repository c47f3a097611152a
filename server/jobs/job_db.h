/* Jobs, their events and checkpoints as rows.  Store thread, inside a work. */
#ifndef TANDEM_SERVER_JOBS_JOB_DB_H
#define TANDEM_SERVER_JOBS_JOB_DB_H

#include "server/store/data_dir.h"
#include "server/store/db.h"
#include "server/store/store.h"

/* "job-x" and "ftjob-x" name the same job. */
struct job_key {
    int64_t seq;
    enum job_state state;
    char id[48];
};
bool job_find(struct db *, const char *id, struct job_key *out);

struct job_new {
    const char *id, *method, *serve_as, *spec, *openai, *idem_key, *idem_hash;
};
/* The row, queued; returns its seq, 0 with db->e. */
int64_t job_insert(struct db *, const struct job_new *);
/* The answer to GET /train/{id}. */
void job_put(struct db *, struct buf *out, int64_t seq);
/* {"data":[...],"has_more":...}: newest first. */
void job_put_list(struct db *, struct buf *out, const char *status, int64_t before, int limit);

/* Moves the job to a state, with an event (message NULL: a standing one); finished states get their time. */
void job_set_state(struct db *, int64_t seq, enum job_state, const char *error_code, const char *error);

struct job_event {
    const char *kind, *level, *message;
    int64_t step;     /* -1: none */
    const char *data; /* the inside of a JSON object, without braces; NULL */
};
/* Returns the event's id. */
int64_t job_event(struct db *, int64_t seq, const struct job_event *);
/* Appends events after `after`, oldest first, as SSE (sse) or as elements of a JSON list; returns how many, and the
 * last id in *last. */
int job_put_events(struct db *, struct buf *out, int64_t seq, int64_t after, int limit, bool sse, int64_t *last);
/* The history of one job's numbers by name: {"train_loss":[{"step","value","timestamp"}...]}. */
void job_put_metrics(struct db *, struct buf *out, int64_t seq);
void job_put_checkpoints(struct db *, struct buf *out, int64_t seq);

/* The numbers of every step as a file of purpose fine-tune-results, as OpenAI gives; its id becomes the job's.  False
 * and *e: there is none.  After true the file is to be removed if the transaction fails. */
bool job_add_result_file(struct db *, int64_t seq, char id[static DATA_ID_MAX], struct err *e);

/* Removes the checkpoints of finished jobs but for the few that finished last. */
void job_sweep_checkpoints(struct db *);

/* Keeps the number of step events of a job bounded: every other one goes when there are too many. */
void job_thin_events(struct db *, int64_t seq);

#endif
