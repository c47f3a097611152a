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
/* Inserts a job in state queued; @return its seq, 0 with db->e. */
int64_t job_insert(struct db *, const struct job_new *);
/* Appends the answer to GET /train/{id}. */
void job_put(struct db *, struct buf *out, int64_t seq);
/* {"data":[...],"has_more":...}: newest first. */
void job_put_list(struct db *, struct buf *out, const char *status, int64_t before, int limit);

/* Sets the job's state and adds an event, whose message includes error if not NULL.  Final states set the finish time,
 * others clear it. */
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
/* Appends the history of a job's metrics by name: {"train_loss":[{"step","value","timestamp"}...]}. */
void job_put_metrics(struct db *, struct buf *out, int64_t seq);
void job_put_checkpoints(struct db *, struct buf *out, int64_t seq);

/* Stores the metrics of every step as a file of purpose fine-tune-results, as OpenAI does, and sets its id in the job's
 * row.  @return false and *e: no file was stored.  After true, the caller removes the file if the transaction fails. */
bool job_add_result_file(struct db *, int64_t seq, char id[static DATA_ID_MAX], struct err *e);

/* Removes the checkpoints of finished jobs, except the few that finished last. */
void job_sweep_checkpoints(struct db *);

/* Bounds the number of step events of a job: when there are too many, every other one is deleted. */
void job_thin_events(struct db *, int64_t seq);

#endif
