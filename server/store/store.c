/* The store thread: runs all queued works in one transaction and sends completions back to the loop. */
#include "server/store/store.h"

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

const char *const job_state_names[JOB_STATES] = {"queued", "running", "paused", "succeeded", "failed", "cancelled"};

struct store {
    char *dir;
    struct mailbox inbox, outbox;
    pthread_t thread;
    uv_async_t async;
    struct db db; /* used by the store thread only */
    struct store_work stop;
    atomic_int waiting;
    atomic_int counts[JOB_STATES];
    atomic_bool opened, lost; /* the directory is open; it was deleted or replaced */
    void (*closed)(void *);
    void *closed_arg;
};

/* ---- the thread ------------------------------------------------------------------------------------------------ */

static int exec(struct db *db, const char *sql)
{
    if (sqlite3_exec(db->h, sql, NULL, NULL, NULL) == SQLITE_OK) return 0;
    return err_set(&db->e, ERR_IO, "%s/jobs.sqlite: %s", db->dir, sqlite3_errmsg(db->h));
}

/* Runs one work within a savepoint, so that it is applied as a whole or not at all. */
static void run_one(struct db *db, struct store_work *w)
{
    db->e.code = 0;
    exec(db, "SAVEPOINT work");
    int rc = db->e.code ? db->e.code : w->run(w, db);
    w->e = db->e;
    w->undone = rc || db->e.code;
    if (w->undone) sqlite3_exec(db->h, "ROLLBACK TO work", NULL, NULL, NULL);
    sqlite3_exec(db->h, "RELEASE work", NULL, NULL, NULL);
    db->e.code = 0;
}

static void read_counts(struct store *s)
{
    struct db *db = &s->db;
    if (!db->jobs_changed || !db->h) return;
    db->jobs_changed = false;
    int counts[JOB_STATES] = {0};
    sqlite3_stmt *q = db_query(db, "SELECT status, count(*) FROM jobs GROUP BY status", "");
    while (db_step(db, q))
        for (int i = 0; i < JOB_STATES; i++)
            if (strcmp(db_text(q, 0), job_state_names[i]) == 0) counts[i] = (int)db_int(q, 1);
    for (int i = 0; i < JOB_STATES; i++) atomic_store(&s->counts[i], counts[i]);
}

static struct store_work *work_of(struct mail *m)
{
    return (struct store_work *)m;
}

/* Fails if the files were deleted: writes to them would be lost with the process. */
static int check_present(struct store *s, struct err *e)
{
    int rc = db_present(&s->db, e);
    atomic_store(&s->opened, true);
    if (atomic_exchange(&s->lost, rc != 0) == (rc != 0)) return rc;
    if (rc)
        log_error("%s", e->msg);
    else
        log_info("the data directory is back dir=%s", s->dir);
    return rc;
}

/* Runs the list up to `end` in one transaction.  @return 0, or an error in *failed with nothing written. */
static int commit_works(struct store *s, struct mail *list, const struct mail *end, struct err *failed)
{
    struct db *db = &s->db;
    failed->code = 0;
    db->e.code = 0;
    if (!db->h && db_open(db, s->dir, failed)) return failed->code;
    if (check_present(s, failed)) return failed->code;
    if (exec(db, "BEGIN IMMEDIATE")) *failed = db->e;
    for (struct mail *m = list; m != end && !failed->code; m = m->next) {
        if (work_of(m) == &s->stop) continue;
        run_one(db, work_of(m));
        /* on a full disk SQLite rolls back the whole transaction, not only the statement */
        if (sqlite3_get_autocommit(db->h)) *failed = work_of(m)->e;
    }
    db->e.code = 0;
    if (!failed->code && exec(db, "COMMIT")) *failed = db->e;
    if (failed->code && !sqlite3_get_autocommit(db->h)) sqlite3_exec(db->h, "ROLLBACK", NULL, NULL, NULL);
    db->e.code = 0;
    read_counts(s);
    db->e.code = 0;
    return failed->code;
}

/* Runs all together; if that fails, each alone, so that a read does not fail because of another work's write. */
static void run_batch(struct store *s, struct mail *list)
{
    struct err failed = {0};
    bool together = commit_works(s, list, NULL, &failed) == 0;
    for (struct mail *m = list; m; m = m->next) {
        struct store_work *w = work_of(m);
        if (w == &s->stop) continue;
        if (!together && (!s->db.h || list->next)) commit_works(s, m, m->next, &failed);
        if (!together && failed.code) {
            w->e = failed;
            w->undone = true;
            log_warn("the job store failed: %s", failed.msg);
        }
        if (w->settle) w->settle(w, &s->db);
    }
}

static void *store_main(void *arg)
{
    struct store *s = arg;
    for (bool stop = false; !stop;) {
        struct mail *list = mailbox_take(&s->inbox, true);
        int n = 0;
        for (struct mail *m = list; m; m = m->next) n++, stop |= work_of(m) == &s->stop;
        if (list != &s->stop.mail || list->next) run_batch(s, list);
        for (struct mail *m = list, *next; m; m = next) {
            next = m->next;
            if (work_of(m)->done)
                mailbox_send(&s->outbox, m);
            else if (work_of(m) != &s->stop)
                free(m);
        }
        atomic_fetch_sub(&s->waiting, n);
        uv_async_send(&s->async);
    }
    if (s->db.h) db_close(&s->db);
    return NULL;
}

/* ---- functions of the loop
 * ------------------------------------------------------------------------------------------- */

static void on_async(uv_async_t *a)
{
    struct store *s = a->data;
    for (struct mail *m = mailbox_take(&s->outbox, false), *next; m; m = next) {
        next = m->next;
        work_of(m)->done(work_of(m));
    }
}

struct store *store_open(uv_loop_t *loop, const char *dir)
{
    struct store *s = mem_zalloc(sizeof *s);
    s->dir = mem_strdup(dir);
    s->db.lock_fd = s->db.dir_fd = -1;
    mailbox_init(&s->inbox);
    mailbox_init(&s->outbox);
    CHECK(uv_async_init(loop, &s->async, on_async) == 0);
    s->async.data = s;
    CHECK(pthread_create(&s->thread, NULL, store_main, s) == 0);
    return s;
}

const char *store_dir(const struct store *s)
{
    return s->dir;
}

bool store_exists(const struct store *s)
{
    struct buf path = {0};
    buf_printf(&path, "%s/jobs.sqlite", s->dir);
    bool there = access(path.data, F_OK) == 0;
    buf_free(&path);
    return there;
}

static int run_nothing(struct store_work *w, struct db *db)
{
    (void)w, (void)db;
    return 0;
}

bool store_intact(struct store *s)
{
    if (atomic_load(&s->opened) && !store_waiting(s)) {
        struct store_work *look = mem_zalloc(sizeof *look);
        look->run = run_nothing;
        store_send(s, look);
    }
    return !atomic_load(&s->lost);
}

void store_send(struct store *s, struct store_work *w)
{
    w->e.code = 0;
    w->undone = false;
    atomic_fetch_add(&s->waiting, 1);
    mailbox_send(&s->inbox, &w->mail);
}

int store_waiting(const struct store *s)
{
    return atomic_load(&s->waiting);
}

void store_job_counts(const struct store *s, int counts[JOB_STATES])
{
    for (int i = 0; i < JOB_STATES; i++) counts[i] = atomic_load(&s->counts[i]);
}

static void on_closed(uv_handle_t *h)
{
    struct store *s = h->data;
    void (*done)(void *) = s->closed;
    void *arg = s->closed_arg;
    mailbox_destroy(&s->inbox);
    mailbox_destroy(&s->outbox);
    free(s->dir);
    free(s);
    done(arg);
}

void store_close(struct store *s, void (*done)(void *), void *arg)
{
    s->closed = done;
    s->closed_arg = arg;
    store_send(s, &s->stop);
    pthread_join(s->thread, NULL);
    on_async(&s->async); /* the last completions */
    uv_close((uv_handle_t *)&s->async, on_closed);
}
