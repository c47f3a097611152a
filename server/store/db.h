/* SQLite, as the store thread uses it: one connection, statements prepared once, values bound by a format.
 *
 * Everything here runs on the store thread (store.h).  An error is sticky in db->e until the failed work has been
 * rolled back: the helpers are no-ops after it, so a work checks for errors once, at its end. */
#ifndef TANDEM_SERVER_STORE_DB_H
#define TANDEM_SERVER_STORE_DB_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>

enum { DB_STATEMENTS = 128 };

struct db {
    sqlite3 *h;      /* NULL while closed */
    const char *dir; /* the data directory */
    int lock_fd;     /* DIR/lock, and dir_fd the directory itself: locked; -1: not */
    int dir_fd;
    struct {
        const char *sql; /* static text: the address is the key */
        sqlite3_stmt *stmt;
    } cache[DB_STATEMENTS];
    int n_cached;
    struct err e;         /* of the current work */
    uint64_t damaged[64]; /* hashes of the damaged values that were logged (db_views.h) */
    int n_damaged;
    bool jobs_changed; /* the counts by state must be read again */
    /* A final state that could not be written yet; readers see it anyway.  seq 0: none. */
    struct {
        int64_t seq;
        int state; /* enum job_state */
        char error[480];
    } unsaved;
};

/* Creates the directory if missing, locks it, opens and migrates DIR/jobs.sqlite.  @return 0, or ERR_IO and *e. */
int db_open(struct db *, const char *dir, struct err *e);
void db_close(struct db *);
/* Checks that the locked and opened files are still those in the directory.  @return 0, or ERR_IO and *e. */
int db_present(const struct db *, struct err *e);

/* @return a statement ready for db_step, with its values bound; fmt has a letter for each '?': i int64_t, n int, d
 * double (not finite: NULL), t text (NULL: NULL; copied), - NULL.  sql must be a literal. */
sqlite3_stmt *db_query(struct db *, const char *sql, const char *fmt, ...);
/* @return true for a row; false when there are no more, or db->e is set.  Resets the statement when it returns
 * false. */
bool db_step(struct db *, sqlite3_stmt *);
void db_done(sqlite3_stmt *); /* resets a statement that was not stepped to its end */
/* Runs a statement without result rows; @return the number of changed rows, -1 with db->e. */
int db_run(struct db *, const char *sql, const char *fmt, ...);
/* A savepoint for optional statements: if they fail, only they are rolled back, and the work continues.
 * db_optional_end then returns false and *e; if SQLite has rolled back the whole transaction, db->e stays set and the
 * work fails. */
void db_optional_begin(struct db *);
bool db_optional_end(struct db *, struct err *e);
/* @return a single number, `otherwise` when there is no row. */
int64_t db_number(struct db *, int64_t otherwise, const char *sql, const char *fmt, ...);

int64_t db_int(sqlite3_stmt *, int column);
double db_double(sqlite3_stmt *, int column);    /* NULL: NAN */
const char *db_text(sqlite3_stmt *, int column); /* NULL: ""; valid until the next step */
bool db_null(sqlite3_stmt *, int column);

#endif
