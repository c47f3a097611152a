/* The store: one thread that owns the database and the rows that came inline beside it.
 *
 * Work is handed over from any thread and done in order.  What waits together is committed together: one transaction,
 * one fsync.  A work is over for its owner when `done` runs on the loop, and by then its commit is on the disk, or
 * work->e says why it is not.  Nothing of SQLite is touched by another thread.  Large files (uploads, data sets,
 * results) are the pool's; the loop itself does no more than to look for jobs.sqlite, and to open, close or unlink. */
#ifndef TANDEM_SERVER_STORE_STORE_H
#define TANDEM_SERVER_STORE_STORE_H

#include "engine/base/err.h"
#include "engine/base/mailbox.h"
#include "server/store/db.h"

#include <stdatomic.h>
#include <stdbool.h>

struct uv_loop_s;
struct store;

/* Owned by whoever sends it, until done has run; embed it. */
struct store_work {
    struct mail mail; /* first */
    /* Store thread, inside the transaction.  Not 0: what it wrote is undone (its own decision: e stays clear). */
    int (*run)(struct store_work *, struct db *);
    /* Store thread, after the commit or its failure (e): for files whose fate follows the row's.  NULL: nothing. */
    void (*settle)(struct store_work *, struct db *);
    /* Loop thread.  NULL: the store frees the work with free(). */
    void (*done)(struct store_work *);
    struct err e; /* the database failed: nothing was written */
    bool undone;  /* run said so, or e is set */
};

enum job_state { JOB_QUEUED, JOB_RUNNING, JOB_PAUSED, JOB_SUCCEEDED, JOB_FAILED, JOB_CANCELLED, JOB_STATES };
extern const char *const job_state_names[JOB_STATES];

/* dir is copied.  The database is opened with the first work; a directory that cannot be used makes works fail, with
 * the reason, and is tried again by the next one. */
struct store *store_open(struct uv_loop_s *, const char *dir);
const char *store_dir(const struct store *);
/* There is a database to look into: before the first work only. */
bool store_exists(const struct store *);
/* False: the directory was deleted or replaced under the daemon, and all works fail.  Loop thread; does not wait: what
 * it says is a call old, and the call looks again. */
bool store_intact(struct store *);
void store_send(struct store *, struct store_work *);
/* Any thread: works that were sent and have not run. */
int store_waiting(const struct store *);
/* Any thread: how many jobs are in each state, as of the last commit. */
void store_job_counts(const struct store *, int counts[JOB_STATES]);
/* Carries out what was sent, closes; done(arg) from the loop, when the store is freed. */
void store_close(struct store *, void (*done)(void *), void *arg);

#endif
