#include "server/jobs/batch_db.h"

#include "engine/base/log.h"
#include "server/jobs/file_db.h"
#include "server/json/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Columns of batch_put; JSON that is damaged is left out. */
#define COLUMNS                                                                                                        \
    "id, status, endpoint, input_file, window, CASE WHEN json_valid(metadata) THEN metadata END,"                      \
    " CASE WHEN json_valid('[' || errors || ']') THEN errors END, output_file, error_file, created, started, expires," \
    " finalizing, completed, failed_at, expired, cancelling, cancelled, total, good, bad, seq"

enum { ATTEMPTS_MAX = 5, ERR_MESSAGE = sizeof((struct err *)0)->msg };

enum column {
    B_ID,
    B_STATUS,
    B_ENDPOINT,
    B_INPUT,
    B_WINDOW,
    B_METADATA,
    B_ERRORS,
    B_OUTPUT_FILE,
    B_ERROR_FILE,
    B_CREATED,
    B_STARTED,
    B_EXPIRES,
    B_FINALIZING,
    B_COMPLETED,
    B_FAILED,
    B_EXPIRED,
    B_CANCELLING,
    B_CANCELLED,
    B_TOTAL,
    B_GOOD,
    B_BAD,
};

/* ---- as JSON --------------------------------------------------------------------------------------------------- */

static void put_text(struct buf *b, const char *name, sqlite3_stmt *q, enum column column)
{
    const char *text = db_text(q, column);
    buf_printf(b, ",\"%s\":", name);
    if (db_null(q, column))
        buf_str(b, "null");
    else
        json_put_string(b, text, strlen(text));
}

static void put_batch(struct buf *b, sqlite3_stmt *q)
{
    static const struct {
        const char *name;
        enum column column;
    } times[] = {
        {"created_at", B_CREATED},       {"in_progress_at", B_STARTED},   {"expires_at", B_EXPIRES},
        {"finalizing_at", B_FINALIZING}, {"completed_at", B_COMPLETED},   {"failed_at", B_FAILED},
        {"expired_at", B_EXPIRED},       {"cancelling_at", B_CANCELLING}, {"cancelled_at", B_CANCELLED},
    };
    buf_str(b, "{\"object\":\"batch\"");
    put_text(b, "id", q, B_ID);
    put_text(b, "status", q, B_STATUS);
    put_text(b, "endpoint", q, B_ENDPOINT);
    put_text(b, "input_file_id", q, B_INPUT);
    put_text(b, "completion_window", q, B_WINDOW);
    put_text(b, "output_file_id", q, B_OUTPUT_FILE);
    put_text(b, "error_file_id", q, B_ERROR_FILE);
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        if (db_null(q, times[i].column))
            buf_printf(b, ",\"%s\":null", times[i].name);
        else
            buf_printf(b, ",\"%s\":%lld", times[i].name, (long long)db_int(q, times[i].column));
    }
    buf_printf(b, ",\"request_counts\":{\"total\":%lld,\"completed\":%lld,\"failed\":%lld},\"metadata\":%s,\"errors\":",
               (long long)db_int(q, B_TOTAL), (long long)db_int(q, B_GOOD), (long long)db_int(q, B_BAD),
               db_null(q, B_METADATA) ? "null" : db_text(q, B_METADATA));
    if (db_null(q, B_ERRORS))
        buf_str(b, "null}");
    else
        buf_printf(b, "{\"object\":\"list\",\"data\":[%s]}}", db_text(q, B_ERRORS));
}

void batch_put(struct db *db, struct buf *out, int64_t seq)
{
    sqlite3_stmt *q = db_query(db, "SELECT " COLUMNS " FROM batches WHERE seq = ?", "i", seq);
    if (!db_step(db, q)) return;
    put_batch(out, q);
    db_done(q);
}

void batch_put_list(struct db *db, struct buf *out, int64_t before, int64_t limit)
{
    sqlite3_stmt *q = db_query(db, "SELECT " COLUMNS " FROM batches WHERE seq < ? ORDER BY seq DESC LIMIT ?", "ii",
                               before, limit + 1);
    char first[DATA_ID_MAX] = "", last[DATA_ID_MAX] = "";
    int64_t n = 0;
    bool more = false;
    buf_str(out, "{\"object\":\"list\",\"data\":[");
    while (!more && db_step(db, q)) {
        more = n == limit;
        if (more) break;
        if (n) buf_char(out, ',');
        put_batch(out, q);
        snprintf(last, sizeof last, "%s", db_text(q, B_ID));
        if (!n++) memcpy(first, last, sizeof first);
    }
    db_done(q);
    const char *quote = n ? "\"" : "";
    buf_printf(out, "],\"first_id\":%s%s%s,\"last_id\":%s%s%s,\"has_more\":%s}", quote, n ? first : "null", quote,
               quote, n ? last : "null", quote, more ? "true" : "false");
}

/* ---- rows ------------------------------------------------------------------------------------------------------ */

static int64_t now_s(void)
{
    return data_now_ms() / 1000;
}

int64_t batch_find(struct db *db, const char *id)
{
    return db_number(db, -1, "SELECT seq FROM batches WHERE id = ?", "t", id);
}

int64_t batch_insert(struct db *db, const struct batch_new *b)
{
    char id[DATA_ID_MAX], output[DATA_ID_MAX], errors[DATA_ID_MAX];
    int64_t now = now_s();
    data_id(id, "batch_");
    data_id(output, "file-");
    data_id(errors, "file-");
    int n = db_run(db,
                   "INSERT INTO batches(id, status, endpoint, input_file, window, metadata, lifetime, created, expires,"
                   " output_id, errors_id, client, idem_key, idem_hash)"
                   " VALUES(?, 'validating', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                   "tttttiiittttt", id, b->endpoint, b->input, b->window, b->metadata, b->lifetime, now,
                   now + b->seconds, output, errors, b->client, b->idem_key, b->idem_hash);
    return n == 1 ? sqlite3_last_insert_rowid(db->h) : 0;
}

/* Copies an id that names a file.  @return false: it is damaged. */
static bool copy_id(char out[static DATA_ID_MAX], const char *id)
{
    snprintf(out, DATA_ID_MAX, "%s", id);
    return strlen(id) < DATA_ID_MAX && data_name_ok(id);
}

/* Reads the first row of those wanted.  *attempts: how often it was taken up.  @return false: there is none. */
static bool read_next(struct db *db, bool validating, const struct batch_clients *but, struct batch_row *out,
                      int64_t *attempts)
{
    _Static_assert(BATCH_RUNS_MAX == 4, "one parameter for each client");
    const char *name[BATCH_RUNS_MAX] = {0};
    for (int i = 0; i < but->n; i++) name[i] = but->name[i];
    sqlite3_stmt *q = db_query(db,
                               "SELECT seq, id, input_file, output_id, errors_id, endpoint, total, good, bad,"
                               " output_bytes, errors_bytes, expires, status = 'cancelling', attempts, client"
                               " FROM batches WHERE CASE WHEN ? THEN status = 'validating'"
                               " ELSE status IN ('in_progress', 'finalizing', 'cancelling') END"
                               " AND client IS NOT ? AND client IS NOT ? AND client IS NOT ? AND client IS NOT ?"
                               " ORDER BY status <> 'cancelling', seq LIMIT 1",
                               "ntttt", (int)validating, name[0], name[1], name[2], name[3]);
    if (!db_step(db, q)) return false;
    *out = (struct batch_row){.seq = db_int(q, 0), .expires = db_int(q, 11), .cancelling = db_int(q, 12)};
    *attempts = db_int(q, 13);
    out->progress = (struct batch_progress){.total = (int)db_int(q, 6),
                                            .good = (int)db_int(q, 7),
                                            .bad = (int)db_int(q, 8),
                                            .output_bytes = db_int(q, 9),
                                            .errors_bytes = db_int(q, 10)};
    out->endpoint = batch_endpoint_find(db_text(q, 5));
    snprintf(out->client, sizeof out->client, "%.79s", db_text(q, 14));
    bool good = out->endpoint >= 0 && out->progress.output_bytes >= 0 && out->progress.errors_bytes >= 0;
    good = copy_id(out->id, db_text(q, 1)) && copy_id(out->input, db_text(q, 2)) && good;
    good = copy_id(out->output, db_text(q, 3)) && copy_id(out->errors, db_text(q, 4)) && good;
    db_done(q);
    if (!good) out->endpoint = -1;
    return true;
}

static void fail(struct db *db, int64_t seq, const char *code, const char *message)
{
    struct buf text = {0};
    buf_printf(&text, "{\"code\":\"%s\",\"message\":", code);
    json_put_string(&text, message, strlen(message));
    buf_str(&text, ",\"param\":null,\"line\":null}");
    db_run(db, "UPDATE batches SET status = 'failed', failed_at = ?, errors = ? WHERE seq = ?", "iti", now_s(),
           text.data, seq);
    buf_free(&text);
}

bool batch_next(struct db *db, bool validating, const struct batch_clients *but, struct batch_row *out)
{
    int64_t attempts = 0;
    while (read_next(db, validating, but, out, &attempts)) {
        if (out->endpoint < 0) {
            log_warn("batch given up: batch=%s error=\"its row in jobs.sqlite is damaged\"", out->id);
            fail(db, out->seq, "damaged", "the row of this batch in jobs.sqlite is damaged");
        } else if (attempts >= ATTEMPTS_MAX && !out->cancelling) {
            log_warn("batch given up: batch=%s error=\"the daemon ended %d times while it ran or validated it\"",
                     out->id, ATTEMPTS_MAX);
            batch_finish(db, out->seq, BATCH_CRASHED,
                         "the daemon crashed or was killed each time it ran this batch; the answers so far are kept");
        } else {
            db_run(db, "UPDATE batches SET attempts = attempts + 1 WHERE seq = ?", "i", out->seq);
            return !db->e.code;
        }
        if (db->e.code) return false;
    }
    return false;
}

void batch_put_back(struct db *db, int64_t seq)
{
    db_run(db, "UPDATE batches SET attempts = max(attempts - 1, 0) WHERE seq = ?", "i", seq);
}

void batch_validated(struct db *db, int64_t seq, int lines, const char *errors)
{
    if (lines > 0)
        db_run(db,
               "UPDATE batches SET status = 'in_progress', started = ?, total = ?, attempts = 0 WHERE seq = ?"
               " AND status = 'validating'",
               "ini", now_s(), lines, seq);
    else
        db_run(db,
               "UPDATE batches SET status = 'failed', failed_at = ?, errors = ? WHERE seq = ?"
               " AND status = 'validating'",
               "iti", now_s(), errors, seq);
}

void batch_advance(struct db *db, int64_t seq, const struct batch_progress *p)
{
    db_run(db,
           "UPDATE batches SET good = ?1, bad = ?2, output_bytes = ?3, errors_bytes = ?4, attempts = 0,"
           " finalizing = CASE WHEN ?1 + ?2 = total THEN coalesce(finalizing, ?6) END,"
           " status = CASE WHEN status = 'in_progress' AND ?1 + ?2 = total THEN 'finalizing' ELSE status END"
           " WHERE seq = ?5",
           "nniiii", p->good, p->bad, p->output_bytes, p->errors_bytes, seq, now_s());
}

bool batch_cancel(struct db *db, int64_t seq)
{
    return db_run(db,
                  "UPDATE batches SET status = 'cancelling', cancelling = coalesce(cancelling, ?) WHERE seq = ?"
                  " AND status IN " BATCH_ACTIVE,
                  "ii", now_s(), seq) == 1;
}

/* An output file at the end of its batch. */
struct output {
    const char *id, *what;
    int64_t bytes; /* committed */
    bool there;    /* it became one of /v1/files */
};

/* Cuts the file at its committed end: an earlier process may have written more.  @return false: it is not there as it
 * was committed, with the reason in message. */
static bool cut_file(const char *path, const struct output *o, char message[static ERR_MESSAGE])
{
    struct stat st = {0};
    int rc = stat(path, &st);
    if (rc == 0 && st.st_size >= o->bytes && (st.st_size == o->bytes || (rc = truncate(path, o->bytes)) == 0))
        return true;
    if (rc)
        snprintf(message, ERR_MESSAGE, "%s: %s", o->id, strerror(errno));
    else
        snprintf(message, ERR_MESSAGE, "%s: has %lld bytes, and %lld were written", o->id, (long long)st.st_size,
                 (long long)o->bytes);
    return false;
}

/* Makes an output file one of /v1/files, with what is committed of it; removes it when nothing is.  @return false: what
 * was committed is lost, with the reason in message. */
static bool add_file(struct db *db, struct output *o, const char *batch, int64_t lifetime,
                     char message[static ERR_MESSAGE])
{
    char name[DATA_ID_MAX + 24];
    char *path = data_path(db->dir, "files", o->id);
    if (!o->bytes) unlink(path);
    o->there = o->bytes && cut_file(path, o, message);
    free(path);
    if (!o->there) return !o->bytes;
    snprintf(name, sizeof name, "%s_%s.jsonl", batch, o->what);
    file_add_row(db, o->id, (uint64_t)o->bytes, name, "batch_output", lifetime);
    return true;
}

void batch_finish(struct db *db, int64_t seq, enum batch_end end, const char *message)
{
    static const char *const states[] = {[BATCH_COMPLETED] = "completed",
                                         [BATCH_CANCELLED] = "cancelled",
                                         [BATCH_EXPIRED] = "expired",
                                         [BATCH_FAILED] = "failed",
                                         [BATCH_CRASHED] = "failed"};
    char id[DATA_ID_MAX], output_id[DATA_ID_MAX], errors_id[DATA_ID_MAX], lost[ERR_MESSAGE] = "";
    sqlite3_stmt *q = db_query(db,
                               "SELECT id, output_id, errors_id, output_bytes, errors_bytes, lifetime,"
                               " status = 'cancelling' FROM batches WHERE seq = ? AND status IN " BATCH_ACTIVE,
                               "i", seq);
    if (!db_step(db, q)) return;
    bool good = copy_id(id, db_text(q, 0)) && copy_id(output_id, db_text(q, 1)) && copy_id(errors_id, db_text(q, 2));
    struct output output = {output_id, "output", good ? db_int(q, 3) : 0, false};
    struct output errors = {errors_id, "error", good ? db_int(q, 4) : 0, false};
    int64_t lifetime = db_int(q, 5), now = now_s();
    if (db_int(q, 6)) end = BATCH_CANCELLED;
    db_done(q);
    bool whole = !good || add_file(db, &output, id, lifetime, lost);
    whole = (!good || add_file(db, &errors, id, lifetime, lost)) && whole;
    if (!whole && end != BATCH_FAILED && end != BATCH_CRASHED) {
        end = BATCH_FAILED;
        message = lost;
    }
    if (!whole) log_warn("a batch's answers are lost: batch=%s error=\"%s\"", id, lost);
    /* counts are those of the files */
    db_run(db,
           "UPDATE batches SET status = ?1, output_file = ?2, error_file = ?3, finalizing = coalesce(finalizing, ?4),"
           " completed = CASE ?1 WHEN 'completed' THEN ?4 END, expired = CASE ?1 WHEN 'expired' THEN ?4 END,"
           " cancelled = CASE ?1 WHEN 'cancelled' THEN ?4 END, good = CASE WHEN ?2 IS NULL THEN 0 ELSE good END,"
           " bad = CASE WHEN ?3 IS NULL THEN 0 ELSE bad END WHERE seq = ?5",
           "tttii", states[end], output.there ? output.id : NULL, errors.there ? errors.id : NULL, now, seq);
    if (end == BATCH_CRASHED || end == BATCH_FAILED)
        fail(db, seq, end == BATCH_CRASHED ? "crashed" : "failed", message);
}
