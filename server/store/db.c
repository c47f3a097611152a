/* The connection, its schema, and its statements (https://sqlite.org/c3ref/).  Store thread only.
 *
 * WAL with synchronous=FULL: a commit is durable when COMMIT returns.  The schema's version is user_version; each step
 * of `migrations` brings it up by one, in one transaction. */
#include "server/store/db.h"

#include "engine/base/check.h"
#include "server/store/data_dir.h"
#include "server/store/db_views.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const migrations[] = {
    /* 1.  Times are milliseconds since the epoch.  jobs.spec: the resolved request (train_spec.h), as JSON; jobs.last:
     * the data of the last step event; jobs.wanted: a pending command for the trainer. events.id is the id in SSE;
     * events.step is set for kind 'step' only, the kind that is thinned out. */
    "CREATE TABLE jobs("
    " seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, status TEXT NOT NULL, wanted TEXT,"
    " created INTEGER NOT NULL, started INTEGER, finished INTEGER,"
    " method TEXT NOT NULL, serve_as TEXT NOT NULL, spec TEXT NOT NULL, openai TEXT,"
    " phase TEXT, prepared REAL, step INTEGER, steps INTEGER, last TEXT, plan TEXT, report TEXT, eval TEXT,"
    " stride INTEGER NOT NULL DEFAULT 1, error TEXT, error_code TEXT, adapter_dir TEXT, result_file TEXT,"
    " idem_key TEXT UNIQUE, idem_hash TEXT) STRICT;"
    "CREATE INDEX jobs_status ON jobs(status, seq);"
    "CREATE TABLE events("
    " id INTEGER PRIMARY KEY AUTOINCREMENT, job INTEGER NOT NULL REFERENCES jobs(seq) ON DELETE CASCADE,"
    " created INTEGER NOT NULL, kind TEXT NOT NULL, level TEXT NOT NULL, message TEXT NOT NULL, step INTEGER,"
    " data TEXT) STRICT;"
    "CREATE INDEX events_job ON events(job, id);"
    "CREATE TABLE checkpoints("
    " id INTEGER PRIMARY KEY AUTOINCREMENT, job INTEGER NOT NULL REFERENCES jobs(seq) ON DELETE CASCADE,"
    " created INTEGER NOT NULL, step INTEGER NOT NULL, dir TEXT NOT NULL, data TEXT, UNIQUE(job, step)) STRICT;"
    "CREATE TABLE files("
    " seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, created INTEGER NOT NULL,"
    " bytes INTEGER NOT NULL, filename TEXT NOT NULL, purpose TEXT NOT NULL, expires INTEGER) STRICT;",
    /* 2.  Number of starts that found the job running, since its last new step. */
    "ALTER TABLE jobs ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;",
    /* 3.  Batches.  Times are seconds.  output_id, errors_id: files that are written while the batch runs, good up to
     * output_bytes and errors_bytes; output_file, error_file: the same once they are rows of `files`.  errors: the
     * inside of a JSON list. */
    "CREATE TABLE batches("
    " seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, status TEXT NOT NULL, endpoint TEXT NOT NULL,"
    " input_file TEXT NOT NULL, window TEXT NOT NULL, metadata TEXT, lifetime INTEGER NOT NULL,"
    " created INTEGER NOT NULL, started INTEGER, expires INTEGER NOT NULL, finalizing INTEGER, completed INTEGER,"
    " failed_at INTEGER, expired INTEGER, cancelling INTEGER, cancelled INTEGER,"
    " total INTEGER NOT NULL DEFAULT 0, good INTEGER NOT NULL DEFAULT 0, bad INTEGER NOT NULL DEFAULT 0,"
    " output_id TEXT NOT NULL, errors_id TEXT NOT NULL, output_bytes INTEGER NOT NULL DEFAULT 0,"
    " errors_bytes INTEGER NOT NULL DEFAULT 0, output_file TEXT, error_file TEXT, errors TEXT) STRICT;"
    "CREATE INDEX batches_status ON batches(status, seq);",
    /* 4.  Number of times the batch was taken up, since its last stored answers. */
    "ALTER TABLE batches ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;",
    /* 5.  Evaluations.  Times are milliseconds.  spec: the request (evaluation_spec.h), as JSON; file: the upload that
     * it reads; results: a JSON object; rows_file: results of rows, one of `files`; attempts: as in batches. */
    "CREATE TABLE evaluations("
    " seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, status TEXT NOT NULL, spec TEXT NOT NULL,"
    " file TEXT, created INTEGER NOT NULL, started INTEGER, finished INTEGER, cancelling INTEGER NOT NULL DEFAULT 0,"
    " results TEXT, rows_file TEXT, error TEXT, error_code TEXT, attempts INTEGER NOT NULL DEFAULT 0,"
    " idem_key TEXT UNIQUE, idem_hash TEXT) STRICT;"
    "CREATE INDEX evaluations_status ON evaluations(status, seq);",
    /* 6.  client: the name of the API key that made the batch, or ''. */
    "ALTER TABLE batches ADD COLUMN client TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE batches ADD COLUMN idem_key TEXT; ALTER TABLE batches ADD COLUMN idem_hash TEXT;"
    "CREATE UNIQUE INDEX batches_idem ON batches(idem_key);",
};
enum { SCHEMA = sizeof migrations / sizeof *migrations };

static int fail(struct db *db, struct err *e)
{
    return err_set(e, ERR_IO, "%s/jobs.sqlite: %s", db->dir, db->h ? sqlite3_errmsg(db->h) : "out of memory");
}

static int migrate(struct db *db, struct err *e)
{
    db->e.code = 0;
    int64_t version = db_number(db, 0, "PRAGMA user_version", "");
    if (db->e.code) return *e = db->e, e->code;
    if (version > SCHEMA)
        return err_set(e, ERR_UNSUPPORTED, "%s/jobs.sqlite was written by a newer tandem (schema %lld, known: %d)",
                       db->dir, (long long)version, SCHEMA);
    for (; version < SCHEMA; version++) {
        struct buf sql = {0};
        buf_printf(&sql, "BEGIN IMMEDIATE; %s PRAGMA user_version=%lld; COMMIT", migrations[version],
                   (long long)version + 1);
        int rc = sqlite3_exec(db->h, sql.data, NULL, NULL, NULL);
        buf_free(&sql);
        if (rc == SQLITE_OK) continue;
        fail(db, e);
        sqlite3_exec(db->h, "ROLLBACK", NULL, NULL, NULL);
        return e->code;
    }
    return 0;
}

/* @return true when locked, or when the file system cannot lock directories (NFS); false when another process has the
 * lock. */
static bool hold(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

/* Locks the directory for one process: two would both run its jobs.  Earlier versions lock only the file; the lock on
 * the directory remains even if the file is deleted. */
static int lock_dir(struct db *db, struct err *e)
{
    char path[4200];
    struct err none = {0}; /* the parent may not be readable */
    if (mkdir(db->dir, 0750) == 0)
        data_sync_parent(db->dir, &none);
    else if (errno != EEXIST)
        return err_set(e, ERR_IO, "%s: %s", db->dir, strerror(errno));
    snprintf(path, sizeof path, "%s/lock", db->dir);
    db->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0640);
    if (db->lock_fd < 0) return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    db->dir_fd = open(db->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (db->dir_fd < 0) return err_set(e, ERR_IO, "%s: %s", db->dir, strerror(errno));
    if (hold(db->dir_fd) && flock(db->lock_fd, LOCK_EX | LOCK_NB) == 0) return 0;
    return err_set(e, ERR_IO, "%s: in use by another tandem (give each its own --data-dir)", db->dir);
}

int db_open(struct db *db, const char *dir, struct err *e)
{
    char path[4200];
    db->h = NULL;
    db->dir = dir;
    db->lock_fd = db->dir_fd = -1;
    db->n_cached = 0;
    db->e.code = 0;
    if (lock_dir(db, e)) return db_close(db), e->code;
    snprintf(path, sizeof path, "%s/jobs.sqlite", dir);
    if (sqlite3_open_v2(path, &db->h, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL) ||
        sqlite3_busy_timeout(db->h, 5000) ||
        sqlite3_exec(db->h,
                     "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;"
                     "PRAGMA journal_size_limit=16777216; PRAGMA temp_store=MEMORY; PRAGMA trusted_schema=OFF",
                     NULL, NULL, NULL)) {
        fail(db, e);
    } else if (migrate(db, e) == 0 && db_views_open(db, e) == 0) {
        db->jobs_changed = true;
        return 0;
    }
    db_close(db);
    return e->code;
}

void db_close(struct db *db)
{
    for (int i = 0; i < db->n_cached; i++) sqlite3_finalize(db->cache[i].stmt);
    db->n_cached = 0;
    sqlite3_close(db->h);
    db->h = NULL;
    if (db->lock_fd >= 0) close(db->lock_fd);
    if (db->dir_fd >= 0) close(db->dir_fd);
    db->lock_fd = db->dir_fd = -1;
}

int db_present(const struct db *db, struct err *e)
{
    char path[4200];
    struct stat held, there;
    int moved = 0;
    snprintf(path, sizeof path, "%s/lock", db->dir);
    bool same = fstat(db->lock_fd, &held) == 0 && stat(path, &there) == 0 && held.st_dev == there.st_dev &&
                held.st_ino == there.st_ino;
    if (same && sqlite3_file_control(db->h, "main", SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK && !moved) return 0;
    return err_set(e, ERR_IO,
                   "%s: the data directory, or its %s, was deleted or replaced while this daemon used it; what is sent "
                   "now would be lost: put it back, or start the daemon again",
                   db->dir, same ? "jobs.sqlite" : "lock");
}

/* ---- statements ------------------------------------------------------------------------------------------------ */

static sqlite3_stmt *prepare(struct db *db, const char *sql)
{
    for (int i = 0; i < db->n_cached; i++)
        if (db->cache[i].sql == sql) return db->cache[i].stmt;
    CHECK(db->n_cached < DB_STATEMENTS);
    sqlite3_stmt *stmt;
    if (sqlite3_prepare_v3(db->h, sql, -1, SQLITE_PREPARE_PERSISTENT, &stmt, NULL)) {
        fail(db, &db->e);
        return NULL;
    }
    db->cache[db->n_cached].sql = sql;
    db->cache[db->n_cached++].stmt = stmt;
    return stmt;
}

static sqlite3_stmt *query(struct db *db, const char *sql, const char *fmt, va_list ap)
{
    sqlite3_stmt *s = db->e.code ? NULL : prepare(db, sql);
    if (!s) return NULL;
    CHECK((int)strlen(fmt) == sqlite3_bind_parameter_count(s));
    sqlite3_reset(s);
    for (int i = 1; *fmt; fmt++, i++) {
        int rc = SQLITE_OK;
        if (*fmt == 'i') rc = sqlite3_bind_int64(s, i, va_arg(ap, int64_t));
        if (*fmt == 'n') rc = sqlite3_bind_int(s, i, va_arg(ap, int));
        if (*fmt == 't') rc = sqlite3_bind_text(s, i, va_arg(ap, const char *), -1, SQLITE_TRANSIENT);
        if (*fmt == '-') rc = sqlite3_bind_null(s, i);
        if (*fmt == 'd') {
            double v = va_arg(ap, double);
            rc = isfinite(v) ? sqlite3_bind_double(s, i, v) : sqlite3_bind_null(s, i);
        }
        if (rc != SQLITE_OK) {
            fail(db, &db->e);
            return NULL;
        }
    }
    return s;
}

sqlite3_stmt *db_query(struct db *db, const char *sql, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    sqlite3_stmt *s = query(db, sql, fmt, ap);
    va_end(ap);
    return s;
}

bool db_step(struct db *db, sqlite3_stmt *s)
{
    if (!s || db->e.code) return false;
    int rc = sqlite3_step(s);
    if (rc == SQLITE_ROW) return true;
    if (rc != SQLITE_DONE) fail(db, &db->e);
    sqlite3_reset(s);
    return false;
}

void db_done(sqlite3_stmt *s)
{
    if (s) sqlite3_reset(s);
}

int db_run(struct db *db, const char *sql, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    sqlite3_stmt *s = query(db, sql, fmt, ap);
    va_end(ap);
    while (db_step(db, s)) continue;
    return db->e.code ? -1 : sqlite3_changes(db->h);
}

void db_optional_begin(struct db *db)
{
    db_run(db, "SAVEPOINT optional", "");
}

bool db_optional_end(struct db *db, struct err *e)
{
    bool good = !db->e.code;
    if (!good) *e = db->e;
    if (!good && sqlite3_get_autocommit(db->h)) return false;
    db->e.code = 0;
    if (!good) db_run(db, "ROLLBACK TO optional", "");
    db_run(db, "RELEASE optional", "");
    return good;
}

int64_t db_number(struct db *db, int64_t otherwise, const char *sql, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    sqlite3_stmt *s = query(db, sql, fmt, ap);
    va_end(ap);
    if (!db_step(db, s)) return otherwise;
    if (!db_null(s, 0)) otherwise = db_int(s, 0);
    db_done(s);
    return otherwise;
}

int64_t db_int(sqlite3_stmt *s, int column)
{
    return sqlite3_column_int64(s, column);
}

double db_double(sqlite3_stmt *s, int column)
{
    return db_null(s, column) ? NAN : sqlite3_column_double(s, column);
}

const char *db_text(sqlite3_stmt *s, int column)
{
    const char *text = (const char *)sqlite3_column_text(s, column);
    return text ? text : "";
}

bool db_null(sqlite3_stmt *s, int column)
{
    return sqlite3_column_type(s, column) == SQLITE_NULL;
}
