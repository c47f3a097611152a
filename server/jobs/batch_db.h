/* Batches as rows and as OpenAI's objects.  Store thread, inside a work. */
#ifndef TANDEM_SERVER_JOBS_BATCH_DB_H
#define TANDEM_SERVER_JOBS_BATCH_DB_H

#include "engine/base/buf.h"
#include "server/jobs/batch_run.h"
#include "server/store/data_dir.h"
#include "server/store/db.h"

/* The states that are not final, as an SQL list. */
#define BATCH_ACTIVE "('validating', 'in_progress', 'finalizing', 'cancelling')"

/* Batches of different clients run at the same time, up to so many; those of one after each other. */
enum { BATCH_RUNS_MAX = 4, BATCH_CLIENT = 80 };

struct batch_new {
    const char *client;                               /* the name of the API key; "": none */
    const char *idem_key, *idem_hash;                 /* of Idempotency-Key; key NULL: none */
    const char *endpoint, *input, *window, *metadata; /* metadata: a JSON object; NULL: none */
    int64_t seconds;                                  /* of the window */
    int64_t lifetime;                                 /* of the output files, seconds; 0: for ever */
};
/* Inserts a batch in state validating.  @return its seq; 0 with db->e. */
int64_t batch_insert(struct db *, const struct batch_new *);
/* @return the seq of the batch; -1: there is none, or db->e is set. */
int64_t batch_find(struct db *, const char *id);
void batch_put(struct db *, struct buf *out, int64_t seq);
/* {"object":"list","data":[...]...}: newest first, those before `before`. */
void batch_put_list(struct db *, struct buf *out, int64_t before, int64_t limit);

/* What the runner needs of a row; ids are safe as file names. */
struct batch_row {
    int64_t seq;
    char id[DATA_ID_MAX], input[DATA_ID_MAX], output[DATA_ID_MAX], errors[DATA_ID_MAX];
    char client[BATCH_CLIENT];
    int endpoint;
    struct batch_progress progress;
    int64_t expires; /* seconds since the epoch */
    bool cancelling;
};
/* Clients whose batches run. */
struct batch_clients {
    int n;
    char name[BATCH_RUNS_MAX][BATCH_CLIENT];
};
/* Takes up the next batch to validate (validating), or the next of other clients than these to run or to end, and
 * counts that it was.  One that was taken up several times without a stored answer ends as crashed.  @return false:
 * there is none, or db->e is set. */
bool batch_next(struct db *, bool validating, const struct batch_clients *but, struct batch_row *out);
/* The batch was put back without an end of the daemon: that it was taken up last does not count. */
void batch_put_back(struct db *, int64_t seq);

/* Ends the validation: lines > 0, or the elements of the list of errors.  Without effect if it was cancelled. */
void batch_validated(struct db *, int64_t seq, int lines, const char *errors);
/* Stores the progress; when that is all lines, the state becomes finalizing. */
void batch_advance(struct db *, int64_t seq, const struct batch_progress *);
/* The state becomes cancelling.  @return false: the batch is over. */
bool batch_cancel(struct db *, int64_t seq);
/* Writes the last state, with the output files as rows of /v1/files, up to what was committed.  One that is cancelling
 * becomes cancelled whatever `end` is; one whose files have less than was committed becomes failed.  message: of
 * BATCH_FAILED and BATCH_CRASHED. */
void batch_finish(struct db *, int64_t seq, enum batch_end end, const char *message);

#endif
