/* The store: one thread that owns the database and the files of inline data beside it.
 *
 * Any thread may queue works; they run in order.  All queued works are committed together: one transaction, one fsync.
 * When `done` runs on the loop, the commit is durable or work->e has the error.  No other thread uses SQLite.  Large
 * files (uploads, data sets, results) are accessed on the pool; the loop itself only looks for jobs.sqlite, and opens,
 * closes or unlinks files. */
#ifndef TANDEM_SERVER_STORE_STORE_H
#define TANDEM_SERVER_STORE_STORE_H

#include "engine/base/err.h"
#include "engine/base/mailbox.h"
#include "server/store/db.h"

#include <stdatomic.h>
#include <stdbool.h>

struct uv_loop_s;
struct store;

/* Owned by the sender, and must stay valid until done has run; embed it. */
struct store_work {
    struct mail mail; /* first */
    /* Store thread, inside the transaction.  @return not 0 to roll back what it wrote; e stays clear. */
    int (*run)(struct store_work *, struct db *);
    /* Store thread, after the commit or its failure (e): for files that are kept or removed with the row.  NULL:
     * none. */
    void (*settle)(struct store_work *, struct db *);
    /* Loop thread.  NULL: the store frees the work with free(). */
    void (*done)(struct store_work *);
    struct err e; /* the database failed: nothing was written */
    bool undone;  /* rolled back: run returned not 0, or e is set */
};

enum job_state { JOB_QUEUED, JOB_RUNNING, JOB_PAUSED, JOB_SUCCEEDED, JOB_FAILED, JOB_CANCELLED, JOB_STATES };
extern const char *const job_state_names[JOB_STATES];

/* dir is copied.  The first work opens the database; if the directory cannot be used, the work fails with the reason
 * and the next one tries again. */
struct store *store_open(struct uv_loop_s *, const char *dir);
const char *store_dir(const struct store *);
/* @return whether a database exists; before the first work only. */
bool store_exists(const struct store *);
/* @return false when the directory was deleted or replaced while open, so that all works fail.  Loop thread; does not
 * block: returns the result of the check that the previous call started, and starts another. */
bool store_intact(struct store *);
void store_send(struct store *, struct store_work *);
/* Any thread: the number of works sent but not yet run. */
int store_waiting(const struct store *);
/* Any thread: the number of jobs in each state, as of the last commit. */
void store_job_counts(const struct store *, int counts[JOB_STATES]);
/* Runs the queued works, then closes; done(arg) runs on the loop when the store is freed. */
void store_close(struct store *, void (*done)(void *), void *arg);

#endif
