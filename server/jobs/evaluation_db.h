/* Evaluations as rows and as JSON.  Store thread, inside a work. */
#ifndef TANDEM_SERVER_JOBS_EVALUATION_DB_H
#define TANDEM_SERVER_JOBS_EVALUATION_DB_H

#include "engine/base/buf.h"
#include "server/store/data_dir.h"
#include "server/store/db.h"

/* The states that are not final, as an SQL list. */
#define EVALUATION_ACTIVE "('queued', 'running')"

struct evaluation_new {
    const char *id, *spec;            /* spec: as evaluation_spec_put writes it */
    const char *file;                 /* the upload that it reads; NULL: none */
    const char *idem_key, *idem_hash; /* key NULL: none */
};
/* Inserts an evaluation in state queued.  @return its seq; 0 with db->e. */
int64_t evaluation_insert(struct db *, const struct evaluation_new *);

struct evaluation_key {
    int64_t seq;
    char id[DATA_ID_MAX], status[16];
};
/* @return false: there is none, or db->e is set. */
bool evaluation_find(struct db *, const char *id, struct evaluation_key *);

/* The one that runs. */
struct evaluation_live {
    int64_t seq;      /* 0: none */
    const char *json; /* members of a JSON object: how far it is */
};
void evaluation_put(struct db *, struct buf *out, int64_t seq, const struct evaluation_live *);
/* {"object":"list","data":[...],"has_more":false}: newest first, those before `before`, without their results. */
void evaluation_put_list(struct db *, struct buf *out, int64_t before, int64_t limit, const struct evaluation_live *);

/* What the runner needs of a row. */
struct evaluation_claimed {
    int64_t seq;
    char id[DATA_ID_MAX];
    char *spec;     /* owned by the caller */
    char *filename; /* of its upload; NULL; likewise */
};
/* Takes up the next one, which becomes running, and counts that it was.  One that was taken up several times without an
 * end fails, one that was cancelled before ends.  @return false: there is none, or db->e is set. */
bool evaluation_claim(struct db *, struct evaluation_claimed *out);
/* It was put back without an end of the daemon: that it was taken up last does not count. */
void evaluation_put_back(struct db *, int64_t seq);
/* One that is queued is cancelled, one that runs will be: *runs.  @return false: it is over. */
bool evaluation_cancel(struct db *, const struct evaluation_key *, bool *runs);

struct evaluation_last {
    const char *results;   /* a JSON object; NULL: it failed */
    const char *rows_file; /* id of a file in files/ */
    int64_t rows_bytes;
    const char *error_code, *error;
};
/* Writes the last state; one that was cancelled meanwhile is cancelled.  @return whether the rows' file is kept. */
bool evaluation_finish(struct db *, const struct evaluation_key *, const struct evaluation_last *);

#endif
