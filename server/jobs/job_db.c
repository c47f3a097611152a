/* Jobs as rows, and rows as JSON (job_db.h).  Store thread. */
#include "server/jobs/job_db.h"

#include "server/jobs/file_db.h"
#include "server/json/json.h"
#include "server/store/data_dir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEP_EVENTS_MAX = 20000, KEEP_FINISHED = 10 };

bool job_find(struct db *db, const char *id, struct job_key *out)
{
    *out = (struct job_key){0};
    if (strncmp(id, "ftjob-", 6) == 0) id += 2;
    if (strncmp(id, "job-", 4) != 0 || strlen(id) >= sizeof out->id - 2) return false;
    snprintf(out->id, sizeof out->id, "%s", id);
    sqlite3_stmt *q = db_query(db, "SELECT seq, status FROM job_rows WHERE id = ?", "t", out->id);
    if (!db_step(db, q)) return false;
    out->seq = db_int(q, 0);
    for (int i = 0; i < JOB_STATES; i++)
        if (strcmp(db_text(q, 1), job_state_names[i]) == 0) out->state = (enum job_state)i;
    db_done(q);
    return true;
}

int64_t job_insert(struct db *db, const struct job_new *n)
{
    int rows = db_run(db,
                      "INSERT INTO jobs(id, status, created, method, serve_as, spec, openai, idem_key, idem_hash)"
                      " VALUES(?, 'queued', ?, ?, ?, ?, ?, ?, ?)",
                      "tittttt"
                      "t",
                      n->id, data_now_ms(), n->method, n->serve_as, n->spec, n->openai, n->idem_key, n->idem_hash);
    db->jobs_changed = true;
    return rows == 1 ? sqlite3_last_insert_rowid(db->h) : 0;
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

int64_t job_event(struct db *db, int64_t seq, const struct job_event *ev)
{
    int rows = db_run(db,
                      "INSERT INTO events(job, created, kind, level, message, step, data)"
                      " VALUES(?, ?, ?, ?, ?, nullif(?, -1), ?)",
                      "iitttit", seq, data_now_ms(), ev->kind, ev->level, ev->message, ev->step, ev->data);
    return rows == 1 ? sqlite3_last_insert_rowid(db->h) : 0;
}

static const char *state_message(enum job_state state)
{
    switch (state) {
    case JOB_QUEUED: return "Job queued";
    case JOB_RUNNING: return "Fine-tuning job started";
    case JOB_PAUSED: return "Job paused";
    case JOB_SUCCEEDED: return "The job has successfully completed";
    case JOB_CANCELLED: return "Job cancelled";
    default: return "Job failed";
    }
}

void job_set_state(struct db *db, int64_t seq, enum job_state state, const char *error_code, const char *error)
{
    bool over = state >= JOB_SUCCEEDED;
    db_run(db,
           "UPDATE jobs SET status = ?1, error_code = ?2, error = ?3, wanted = NULL, phase = NULL, attempts = 0,"
           " started = CASE WHEN ?1 = 'running' THEN coalesce(started, ?4) ELSE started END,"
           " finished = CASE WHEN ?5 THEN ?4 ELSE NULL END WHERE seq = ?6",
           "tttini", job_state_names[state], error_code, error, data_now_ms(), (int)over, seq);
    struct buf data = {0}, message = {0};
    buf_printf(&data, "\"status\":\"%s\"", job_state_names[state]);
    buf_str(&message, state_message(state));
    if (error) {
        buf_str(&data, ",\"error\":");
        json_put_string(&data, error, strlen(error));
        buf_printf(&message, ": %s", error);
    }
    job_event(db, seq,
              &(struct job_event){.kind = "state",
                                  .level = state == JOB_FAILED ? "error" : "info",
                                  .message = message.data,
                                  .step = -1,
                                  .data = data.data});
    buf_free(&data);
    buf_free(&message);
    db->jobs_changed = true;
}

void job_thin_events(struct db *db, int64_t seq)
{
    int64_t n = db_number(db, 0, "SELECT count(*) FROM events WHERE job = ? AND kind = 'step'", "i", seq);
    if (n <= STEP_EVENTS_MAX) return;
    db_run(db, "UPDATE jobs SET stride = 2 * min(max(stride, 1), 1073741824) WHERE seq = ?", "i", seq);
    db_run(db,
           "DELETE FROM events WHERE job = ?1 AND kind = 'step'"
           " AND step % (SELECT stride FROM jobs WHERE seq = ?1) <> 0",
           "i", seq);
}

void job_sweep_checkpoints(struct db *db)
{
    sqlite3_stmt *q = db_query(db,
                               "SELECT id FROM job_rows WHERE status IN ('succeeded', 'failed', 'cancelled')"
                               " ORDER BY finished DESC LIMIT -1 OFFSET ?",
                               "n", (int)KEEP_FINISHED);
    while (db_step(db, q)) {
        char *path = data_path(db->dir, "checkpoints", db_text(q, 0));
        data_remove(path);
        free(path);
    }
}

/* ---- one job --------------------------------------------------------------------------------------------------- */

static void put_text(struct buf *b, const char *name, const char *value)
{
    buf_printf(b, ",\"%s\":", name);
    json_put_string(b, value, strlen(value));
}

static void put_time(struct buf *b, const char *name, sqlite3_stmt *q, int column)
{
    if (db_null(q, column))
        buf_printf(b, ",\"%s\":null", name);
    else
        buf_printf(b, ",\"%s\":%.3f", name, (double)db_int(q, column) * 1e-3);
}

/* Appends the fields of a stored object to the current one. */
static void put_inside(struct buf *b, const char *object)
{
    size_t n = strlen(object);
    if (n <= 2) return;
    buf_char(b, ',');
    buf_append(b, object + 1, n - 2);
}

#define JOB_COLUMNS                                                                                                    \
    "id, status, wanted, created, started, finished, spec, phase, prepared, step, steps, last, plan, report, error,"   \
    " error_code, adapter_dir, serve_as, eval, seq,"                                                                   \
    " CASE WHEN json_extract(spec, '$.gate') THEN coalesce(json_extract(eval, '$.best_step'), 0) > 0 END"

enum column {
    C_ID,
    C_STATUS,
    C_WANTED,
    C_CREATED,
    C_STARTED,
    C_FINISHED,
    C_SPEC,
    C_PHASE,
    C_PREPARED,
    C_STEP,
    C_STEPS,
    C_LAST,
    C_PLAN,
    C_REPORT,
    C_ERROR,
    C_ERROR_CODE,
    C_ADAPTER_DIR,
    C_SERVE_AS,
    C_EVAL,
    C_SEQ,
    C_BETTER, /* NULL without a gate */
};

static void put_job(const struct db *db, struct buf *b, sqlite3_stmt *q)
{
    bool unsaved = db->unsaved.seq && db->unsaved.seq == db_int(q, C_SEQ);
    const char *status = unsaved ? job_state_names[db->unsaved.state] : db_text(q, C_STATUS);
    double steps = (double)db_int(q, C_STEPS), step = (double)db_int(q, C_STEP);
    double progress = strcmp(status, "succeeded") == 0 ? 1 : steps > 0 ? step / steps : 0;
    buf_str(b, "{\"id\":");
    json_put_string(b, db_text(q, C_ID), strlen(db_text(q, C_ID)));
    buf_printf(b, ",\"object\":\"train.job\",\"status\":\"%s\"", status);
    if (!db_null(q, C_PHASE)) put_text(b, "phase", db_text(q, C_PHASE));
    if (!db_null(q, C_WANTED)) put_text(b, "wanted", db_text(q, C_WANTED));
    buf_printf(b, ",\"progress\":%.6g,\"step\":%.0f,\"steps\":", progress > 1 ? 1 : progress, step);
    if (db_null(q, C_STEPS))
        buf_str(b, "null");
    else
        buf_printf(b, "%.0f", steps);
    if (!db_null(q, C_PREPARED)) {
        buf_str(b, ",\"prepared\":");
        json_put_number(b, db_double(q, C_PREPARED));
    }
    put_time(b, "created_at", q, C_CREATED);
    put_time(b, "started_at", q, C_STARTED);
    put_time(b, "finished_at", q, C_FINISHED);
    if (db_null(q, C_LAST))
        buf_str(b, ",\"loss\":null,\"eta_s\":null");
    else
        put_inside(b, db_text(q, C_LAST));
    put_inside(b, db_text(q, C_EVAL));
    if (!db_null(q, C_BETTER) && strcmp(status, "succeeded") == 0)
        buf_printf(b, ",\"published\":%s", db_int(q, C_BETTER) ? "true" : "false");
    put_inside(b, db_text(q, C_SPEC));
    buf_printf(b, ",\"plan\":%s,\"report\":%s", db_null(q, C_PLAN) ? "null" : db_text(q, C_PLAN),
               db_null(q, C_REPORT) ? "null" : db_text(q, C_REPORT));
    if (unsaved ? db->unsaved.error[0] == 0 : db_null(q, C_ERROR)) {
        buf_str(b, ",\"error\":null");
    } else {
        const char *code = unsaved ? "failed" : db_text(q, C_ERROR_CODE);
        const char *error = unsaved ? db->unsaved.error : db_text(q, C_ERROR);
        buf_str(b, ",\"error\":{\"code\":");
        json_put_string(b, code, strlen(code));
        put_text(b, "message", error);
        buf_char(b, '}');
    }
    if (!db_null(q, C_ADAPTER_DIR)) put_text(b, "adapter_dir", db_text(q, C_ADAPTER_DIR));
    buf_printf(b, ",\"events\":\"/train/%s/events\"}", db_text(q, C_ID));
}

void job_put(struct db *db, struct buf *out, int64_t seq)
{
    sqlite3_stmt *q = db_query(db, "SELECT " JOB_COLUMNS " FROM job_rows WHERE seq = ?", "i", seq);
    if (!db_step(db, q)) return;
    put_job(db, out, q);
    db_done(q);
}

void job_put_list(struct db *db, struct buf *out, const char *status, int64_t before, int limit)
{
    sqlite3_stmt *q = db_query(db,
                               "SELECT " JOB_COLUMNS " FROM job_rows WHERE (?1 IS NULL OR status = ?1) AND seq < ?2"
                               " ORDER BY seq DESC LIMIT ?3",
                               "tin", status, before, limit + 1);
    int n = 0;
    bool more = false;
    buf_str(out, "{\"object\":\"list\",\"data\":[");
    while (db_step(db, q)) {
        if (n == limit) {
            more = true;
            db_done(q);
            break;
        }
        if (n++) buf_char(out, ',');
        put_job(db, out, q);
    }
    buf_printf(out, "],\"has_more\":%s}", more ? "true" : "false");
}

/* ---- events ---------------------------------------------------------------------------------------------------- */

int job_put_events(struct db *db, struct buf *out, int64_t seq, int64_t after, int limit, bool sse, int64_t *last)
{
    sqlite3_stmt *q = db_query(db,
                               "SELECT id, created, kind, level, message, data FROM event_rows"
                               " WHERE job = ? AND id > ? ORDER BY id LIMIT ?",
                               "iin", seq, after, limit);
    int n = 0;
    for (; db_step(db, q); n++) {
        *last = db_int(q, 0);
        if (sse) buf_printf(out, "id: %lld\nevent: %s\ndata: ", (long long)*last, db_text(q, 2));
        if (!sse && n) buf_char(out, ',');
        buf_printf(out, "{\"id\":%lld,\"type\":\"%s\",\"created_at\":%.3f,\"level\":\"%s\"", (long long)*last,
                   db_text(q, 2), (double)db_int(q, 1) * 1e-3, db_text(q, 3));
        put_text(out, "message", db_text(q, 4));
        if (*db_text(q, 5)) buf_printf(out, ",%s", db_text(q, 5));
        buf_str(out, sse ? "}\n\n" : "}");
    }
    return n;
}

/* A step repeated after a crash counts once, with its latest row; the values are bit-identical. */
static void put_series(struct db *db, struct buf *out, int64_t seq, const char *kind, const char *key, const char *name,
                       bool first)
{
    sqlite3_stmt *q = db_query(db,
                               "WITH e AS MATERIALIZED (SELECT id, created, '{' || data || '}' AS d FROM event_rows"
                               "  WHERE job = ?1 AND kind = ?2)"
                               " SELECT d ->> '$.step' AS at, json_extract(d, '$.' || ?3) AS v, max(id), created FROM e"
                               " WHERE v IS NOT NULL GROUP BY at ORDER BY at",
                               "itt", seq, kind, key);
    buf_printf(out, "%s\"%s\":[", first ? "" : ",", name);
    for (int n = 0; db_step(db, q); n++) {
        buf_printf(out, "%s{\"step\":%lld,\"value\":", n ? "," : "", (long long)db_int(q, 0));
        json_put_number(out, db_double(q, 1));
        buf_printf(out, ",\"timestamp\":%.3f}", (double)db_int(q, 3) * 1e-3);
    }
    buf_char(out, ']');
}

void job_put_metrics(struct db *db, struct buf *out, int64_t seq)
{
    static const struct {
        const char *kind, *key, *name;
    } series[] = {
        {"step", "loss", "train_loss"},
        {"step", "accuracy", "train_accuracy"},
        {"step", "learning_rate", "learning_rate"},
        {"step", "grad_norm", "grad_norm"},
        {"step", "tokens_per_s", "tokens_per_s"},
        {"eval", "eval_loss", "eval_loss"},
        {"eval", "eval_accuracy", "eval_accuracy"},
        /* of preferences; quoted for a path of JSON */
        {"step", "\"rewards/chosen\"", "rewards/chosen"},
        {"step", "\"rewards/rejected\"", "rewards/rejected"},
        {"step", "\"rewards/accuracies\"", "rewards/accuracies"},
        {"step", "\"rewards/margins\"", "rewards/margins"},
        {"step", "kl", "kl"},
        /* of grpo */
        {"step", "reward", "reward"},
        {"step", "reward_std", "reward_std"},
        {"step", "frac_reward_zero_std", "frac_reward_zero_std"},
        {"step", "\"completions/mean_length\"", "completions/mean_length"},
        {"step", "\"completions/clipped_ratio\"", "completions/clipped_ratio"},
    };
    enum { N = sizeof series / sizeof *series };
    buf_str(out, "{\"object\":\"train.metrics\",\"keys\":[");
    for (int i = 0; i < N; i++) buf_printf(out, "%s\"%s\"", i ? "," : "", series[i].name);
    buf_str(out, "],\"metrics\":{");
    for (int i = 0; i < N; i++) put_series(db, out, seq, series[i].kind, series[i].key, series[i].name, i == 0);
    buf_str(out, "}}");
}

static void put_cell(struct buf *b, sqlite3_stmt *q, int column)
{
    buf_char(b, ',');
    if (!db_null(q, column)) json_put_number(b, db_double(q, column));
}

bool job_add_result_file(struct db *db, int64_t seq, char id[static DATA_ID_MAX], struct err *e)
{
    struct buf csv = {0};
    buf_str(&csv, "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy\n");
    sqlite3_stmt *q = db_query(db,
                               "WITH e AS MATERIALIZED (SELECT '{' || data || '}' AS d FROM event_rows"
                               "  WHERE job = ? AND kind IN ('step', 'eval') AND data IS NOT NULL)"
                               " SELECT d ->> '$.step' AS at, max(d ->> '$.loss'), max(d ->> '$.accuracy'),"
                               " max(d ->> '$.eval_loss'), max(d ->> '$.eval_accuracy') FROM e"
                               " GROUP BY at ORDER BY at",
                               "i", seq);
    while (db_step(db, q)) {
        buf_printf(&csv, "%lld", (long long)db_int(q, 0));
        for (int i = 1; i <= 4; i++) put_cell(&csv, q, i);
        buf_char(&csv, '\n');
    }
    bool good = file_add(db, "step_metrics.csv", "fine-tune-results", csv.data, csv.len, id, e);
    buf_free(&csv);
    if (good) db_run(db, "UPDATE jobs SET result_file = ? WHERE seq = ?", "ti", id, seq);
    return good;
}

void job_put_checkpoints(struct db *db, struct buf *out, int64_t seq)
{
    sqlite3_stmt *q = db_query(
        db, "SELECT id, created, step, dir, data FROM checkpoint_rows WHERE job = ? ORDER BY step DESC", "i", seq);
    buf_str(out, "{\"object\":\"list\",\"data\":[");
    for (int n = 0; db_step(db, q); n++) {
        buf_printf(out, "%s{\"id\":%lld,\"created_at\":%.3f", n ? "," : "", (long long)db_int(q, 0),
                   (double)db_int(q, 1) * 1e-3);
        put_text(out, "dir", db_text(q, 3));
        if (*db_text(q, 4)) buf_printf(out, ",%s", db_text(q, 4));
        buf_char(out, '}');
    }
    buf_str(out, "],\"has_more\":false}");
}
