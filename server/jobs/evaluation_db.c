#include "server/jobs/evaluation_db.h"

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/jobs/file_db.h"
#include "server/json/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ATTEMPTS_MAX = 5 };

/* Columns of put_row; JSON that is damaged is left out. */
#define COLUMNS                                                                                                        \
    "seq, id, status, cancelling, created, started, finished,"                                                         \
    " CASE WHEN json_valid(spec) THEN spec ELSE '{}' END, rows_file, error, error_code"
#define RESULTS "CASE WHEN json_valid(results) THEN results END"

enum column {
    E_SEQ,
    E_ID,
    E_STATUS,
    E_CANCELLING,
    E_CREATED,
    E_STARTED,
    E_FINISHED,
    E_SPEC,
    E_ROWS_FILE,
    E_ERROR,
    E_ERROR_CODE,
    E_RESULTS,
};

/* ---- as JSON --------------------------------------------------------------------------------------------------- */

static void put_text(struct buf *b, const char *name, const char *value)
{
    buf_printf(b, "\"%s\":", name);
    json_put_string(b, value, strlen(value));
}

static void put_time(struct buf *b, const char *name, sqlite3_stmt *q, enum column column)
{
    if (db_null(q, column))
        buf_printf(b, ",\"%s\":null", name);
    else
        buf_printf(b, ",\"%s\":%.3f", name, (double)db_int(q, column) * 1e-3);
}

static void put_row(struct buf *b, sqlite3_stmt *q, bool results, const struct evaluation_live *live)
{
    const char *status = db_text(q, E_STATUS), *spec = db_text(q, E_SPEC);
    size_t n = strlen(spec);
    buf_char(b, '{');
    put_text(b, "id", db_text(q, E_ID));
    buf_str(b, ",\"object\":\"evaluation\",");
    put_text(b, "status", db_int(q, E_CANCELLING) && strcmp(status, "running") == 0 ? "cancelling" : status);
    if (live->seq && live->seq == db_int(q, E_SEQ) && strcmp(status, "running") == 0)
        buf_printf(b, ",%s", live->json);
    else
        buf_printf(b, ",\"progress\":%d", strcmp(status, "succeeded") == 0);
    put_time(b, "created_at", q, E_CREATED);
    put_time(b, "started_at", q, E_STARTED);
    put_time(b, "finished_at", q, E_FINISHED);
    if (n > 2) {
        buf_char(b, ',');
        buf_append(b, spec + 1, n - 2);
    }
    if (results) buf_printf(b, ",\"results\":%s", db_null(q, E_RESULTS) ? "null" : db_text(q, E_RESULTS));
    if (db_null(q, E_ROWS_FILE)) {
        buf_str(b, ",\"rows_file\":null");
    } else {
        buf_char(b, ',');
        put_text(b, "rows_file", db_text(q, E_ROWS_FILE));
    }
    if (db_null(q, E_ERROR)) {
        buf_str(b, ",\"error\":null}");
        return;
    }
    buf_str(b, ",\"error\":{");
    put_text(b, "code", db_text(q, E_ERROR_CODE));
    buf_char(b, ',');
    put_text(b, "message", db_text(q, E_ERROR));
    buf_str(b, "}}");
}

void evaluation_put(struct db *db, struct buf *out, int64_t seq, const struct evaluation_live *live)
{
    sqlite3_stmt *q = db_query(db, "SELECT " COLUMNS ", " RESULTS " FROM evaluations WHERE seq = ?", "i", seq);
    if (!db_step(db, q)) return;
    put_row(out, q, true, live);
    db_done(q);
}

void evaluation_put_list(struct db *db, struct buf *out, int64_t before, int64_t limit,
                         const struct evaluation_live *live)
{
    sqlite3_stmt *q = db_query(db, "SELECT " COLUMNS " FROM evaluations WHERE seq < ? ORDER BY seq DESC LIMIT ?", "ii",
                               before, limit + 1);
    int64_t n = 0;
    bool more = false;
    buf_str(out, "{\"object\":\"list\",\"data\":[");
    while (!more && db_step(db, q)) {
        more = n == limit;
        if (more) break;
        if (n++) buf_char(out, ',');
        put_row(out, q, false, live);
    }
    db_done(q);
    buf_printf(out, "],\"has_more\":%s}", more ? "true" : "false");
}

/* ---- rows ------------------------------------------------------------------------------------------------------ */

int64_t evaluation_insert(struct db *db, const struct evaluation_new *v)
{
    int n = db_run(db,
                   "INSERT INTO evaluations(id, status, spec, file, created, idem_key, idem_hash)"
                   " VALUES(?, 'queued', ?, ?, ?, ?, ?)",
                   "tttitt", v->id, v->spec, v->file, data_now_ms(), v->idem_key, v->idem_hash);
    return n == 1 ? sqlite3_last_insert_rowid(db->h) : 0;
}

bool evaluation_find(struct db *db, const char *id, struct evaluation_key *out)
{
    *out = (struct evaluation_key){0};
    sqlite3_stmt *q = db_query(db, "SELECT seq, id, status FROM evaluations WHERE id = ?", "t", id);
    if (strlen(id) >= sizeof out->id || !db_step(db, q)) return false;
    out->seq = db_int(q, 0);
    snprintf(out->id, sizeof out->id, "%s", db_text(q, 1));
    snprintf(out->status, sizeof out->status, "%.15s", db_text(q, 2));
    db_done(q);
    return true;
}

static void end(struct db *db, int64_t seq, const char *status, const char *code, const char *error)
{
    db_run(db,
           "UPDATE evaluations SET status = ?, finished = ?, error_code = ?, error = ?, cancelling = 0 WHERE seq = ?",
           "titti", status, data_now_ms(), code, error, seq);
}

/* Ends one that is not to be run.  @return false: it is to be. */
static bool settle(struct db *db, int64_t seq, bool cancelling, int64_t attempts, bool damaged)
{
    if (cancelling)
        end(db, seq, "cancelled", NULL, NULL);
    else if (damaged)
        end(db, seq, "failed", "damaged", "the row of this evaluation in jobs.sqlite is damaged");
    else if (attempts >= ATTEMPTS_MAX)
        end(db, seq, "failed", "crashed", "the daemon crashed or was killed each time it ran this evaluation");
    else
        return false;
    return true;
}

bool evaluation_claim(struct db *db, struct evaluation_claimed *out)
{
    for (;;) {
        sqlite3_stmt *q = db_query(db,
                                   "SELECT v.seq, v.id, v.spec, f.filename, v.cancelling, v.attempts"
                                   " FROM evaluations v LEFT JOIN files f ON f.id = v.file"
                                   " WHERE v.status IN " EVALUATION_ACTIVE " ORDER BY v.status <> 'running', v.seq"
                                   " LIMIT 1",
                                   "");
        if (!db_step(db, q)) return false;
        *out = (struct evaluation_claimed){.seq = db_int(q, 0)};
        bool damaged = strlen(db_text(q, 1)) >= sizeof out->id || !data_name_ok(db_text(q, 1));
        if (!damaged) snprintf(out->id, sizeof out->id, "%s", db_text(q, 1));
        out->spec = mem_strdup(db_text(q, 2));
        out->filename = db_null(q, 3) ? NULL : mem_strdup(db_text(q, 3));
        bool cancelling = db_int(q, 4);
        int64_t attempts = db_int(q, 5);
        db_done(q);
        bool settled = settle(db, out->seq, cancelling, attempts, damaged);
        if (!settled)
            db_run(db,
                   "UPDATE evaluations SET status = 'running', started = coalesce(started, ?),"
                   " attempts = attempts + 1 WHERE seq = ?",
                   "ii", data_now_ms(), out->seq);
        if (!settled && !db->e.code) return true;
        free(out->spec);
        free(out->filename);
        *out = (struct evaluation_claimed){0};
        if (db->e.code) return false;
    }
}

void evaluation_put_back(struct db *db, int64_t seq)
{
    db_run(db, "UPDATE evaluations SET attempts = max(attempts - 1, 0) WHERE seq = ?", "i", seq);
}

bool evaluation_cancel(struct db *db, const struct evaluation_key *k, bool *runs)
{
    bool queued = strcmp(k->status, "queued") == 0;
    *runs = strcmp(k->status, "running") == 0;
    if (queued) end(db, k->seq, "cancelled", NULL, NULL);
    if (*runs) db_run(db, "UPDATE evaluations SET cancelling = 1 WHERE seq = ?", "i", k->seq);
    return queued || *runs;
}

bool evaluation_finish(struct db *db, const struct evaluation_key *k, const struct evaluation_last *last)
{
    char name[DATA_ID_MAX + 16];
    if (db_number(db, 0, "SELECT cancelling FROM evaluations WHERE seq = ?", "i", k->seq)) {
        end(db, k->seq, "cancelled", NULL, NULL);
        return false;
    }
    end(db, k->seq, last->results ? "succeeded" : "failed", last->error_code, last->error);
    if (!last->results) return false;
    db_run(db, "UPDATE evaluations SET results = ?, rows_file = ? WHERE seq = ?", "tti", last->results, last->rows_file,
           k->seq);
    snprintf(name, sizeof name, "%s_rows.jsonl", k->id);
    file_add_row(db, last->rows_file, (uint64_t)last->rows_bytes, name, "evaluation_output", 0);
    return !db->e.code;
}
