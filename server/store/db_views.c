/* The views' SQL, and the functions it calls (db_views.h). */
#include "server/store/db_views.h"

#include "engine/base/log.h"
#include "server/json/check.h"
#include "server/store/data_dir.h"

#include <stddef.h>

#define STATES "'queued', 'running', 'paused', 'succeeded', 'failed', 'cancelled'"
/* The form made by data_id: no characters special in paths or JSON. */
#define GOOD_ID "length(id) BETWEEN 5 AND 45 AND id GLOB 'job-*' AND id NOT GLOB '*[^a-z0-9-]*'"

enum check {
    PLAIN,  /* any value of the column's type */
    OBJECT, /* a JSON object */
    INSIDE, /* the members of one, without braces */
    STATE,  /* these three: one of a few words */
    KIND,
    LEVEL,
};

struct column {
    const char *name;
    enum check check;
};

static const struct column job_columns[] = {
    {"seq", PLAIN},      {"id", PLAIN},         {"status", STATE},      {"wanted", PLAIN},
    {"created", PLAIN},  {"started", PLAIN},    {"finished", PLAIN},    {"method", PLAIN},
    {"serve_as", PLAIN}, {"spec", OBJECT},      {"openai", OBJECT},     {"phase", PLAIN},
    {"prepared", PLAIN}, {"step", PLAIN},       {"steps", PLAIN},       {"last", OBJECT},
    {"plan", OBJECT},    {"report", OBJECT},    {"eval", OBJECT},       {"stride", PLAIN},
    {"error", PLAIN},    {"error_code", PLAIN}, {"adapter_dir", PLAIN}, {"result_file", PLAIN},
    {"idem_key", PLAIN}, {"idem_hash", PLAIN},  {"attempts", PLAIN},    {0},
};
static const struct column event_columns[] = {
    {"id", PLAIN},   {"job", PLAIN},   {"created", PLAIN},
    {"kind", KIND},  {"level", LEVEL}, {"message", PLAIN},
    {"step", PLAIN}, {"data", INSIDE}, {0},
};
static const struct column checkpoint_columns[] = {
    {"id", PLAIN}, {"job", PLAIN}, {"created", PLAIN}, {"step", PLAIN}, {"dir", PLAIN}, {"data", INSIDE}, {0},
};

static const struct view {
    const char *name, *table, *job, *where; /* job: the column with the job's seq */
    const struct column *columns;
} views[] = {
    {"job_rows", "jobs", "seq", GOOD_ID, job_columns},
    {"event_rows", "events", "job", "1", event_columns},
    {"checkpoint_rows", "checkpoints", "job", "1", checkpoint_columns},
};

static const char *const words[] = {
    [STATE] = STATES,
    [KIND] = "'state', 'log', 'warning', 'plan', 'step', 'eval', 'checkpoint'",
    [LEVEL] = "'info', 'warn', 'error'",
};
static const char *const otherwise[] = {[STATE] = "'failed'", [KIND] = "'log'", [LEVEL] = "'info'"};

/* ---- functions in SQL ------------------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t h, const char *text)
{
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 0x100000001b3u; /* FNV-1a */
    return h;
}

/* SQL function damaged(table, job, column): logs once that this value of the job is damaged; returns NULL. */
static void on_damaged(sqlite3_context *context, int n, sqlite3_value **v)
{
    struct db *db = sqlite3_user_data(context);
    const int most = sizeof db->damaged / sizeof *db->damaged;
    const char *table = (const char *)sqlite3_value_text(v[0]), *column = (const char *)sqlite3_value_text(v[2]);
    sqlite3_int64 job = sqlite3_value_int64(v[1]);
    (void)n;
    sqlite3_result_null(context);
    if (!table || !column) return; /* no memory */
    uint64_t hash = mix(mix((uint64_t)job * 0x9e3779b97f4a7c15u, table), column);
    for (int i = 0; i < db->n_damaged; i++)
        if (db->damaged[i] == hash) return;
    if (db->n_damaged == most) return;
    db->damaged[db->n_damaged++] = hash;
    log_warn("jobs.sqlite: a damaged value is left out table=%s job_seq=%lld column=%s", table, (long long)job, column);
    if (db->n_damaged == most) log_warn("jobs.sqlite: further damaged values are not logged");
}

/* SQL function utf8(text): whether text is well-formed UTF-8, as JSON requires. */
static void on_utf8(sqlite3_context *context, int n, sqlite3_value **v)
{
    const unsigned char *p = sqlite3_value_text(v[0]);
    size_t left = p ? (size_t)sqlite3_value_bytes(v[0]) : 0;
    (void)n;
    for (int len; left; p += len, left -= (size_t)len)
        if (!(len = *p < 0x80 ? 1 : utf8_length(p, left))) break;
    sqlite3_result_int(context, left == 0);
}

/* ---- views ----------------------------------------------------------------------------------------------------- */

static void put_test(struct buf *sql, const struct column *c)
{
    const char *name = c->name;
    if (c->check == OBJECT)
        buf_printf(sql, "utf8(%s) AND CASE WHEN json_valid(%s) THEN json_type(%s) = 'object' END", name, name, name);
    else if (c->check == INSIDE)
        buf_printf(sql, "utf8(%s) AND json_valid('{' || %s || '}')", name, name);
    else
        buf_printf(sql, "%s IN (%s)", name, words[c->check]);
}

static void put_view(struct buf *sql, const struct view *v)
{
    buf_printf(sql, "CREATE TEMP VIEW %s AS SELECT ", v->name);
    for (const struct column *c = v->columns; c->name; c++) {
        if (c != v->columns) buf_str(sql, ", ");
        if (c->check == PLAIN) {
            buf_str(sql, c->name);
            continue;
        }
        buf_printf(sql, "CASE WHEN %s IS NULL THEN NULL WHEN ", c->name);
        put_test(sql, c);
        buf_printf(sql, " THEN %s ELSE coalesce(damaged('%s', %s, '%s'), %s) END AS %s", c->name, v->table, v->job,
                   c->name, c->check < STATE ? "NULL" : otherwise[c->check], c->name);
    }
    buf_printf(sql, " FROM %s WHERE %s;", v->table, v->where);
}

int db_views_open(struct db *db, struct err *e)
{
    struct buf sql = {0};
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) put_view(&sql, &views[i]);
    int rc = sqlite3_create_function(db->h, "utf8", 1, SQLITE_UTF8 | SQLITE_INNOCUOUS | SQLITE_DETERMINISTIC, NULL,
                                     on_utf8, NULL, NULL);
    if (!rc)
        rc = sqlite3_create_function(db->h, "damaged", 3, SQLITE_UTF8 | SQLITE_INNOCUOUS, db, on_damaged, NULL, NULL);
    if (!rc) rc = sqlite3_exec(db->h, sql.data, NULL, NULL, NULL);
    buf_free(&sql);
    return rc ? err_set(e, ERR_IO, "%s/jobs.sqlite: %s", db->dir, sqlite3_errmsg(db->h)) : 0;
}

void db_views_check(struct db *db)
{
    sqlite3_stmt *q = db_query(db, "SELECT damaged('jobs', seq, 'id') FROM jobs WHERE NOT (" GOOD_ID ")", "");
    while (db_step(db, q)) continue;
    /* count() of a column evaluates it */
    db_number(db, 0,
              "SELECT count(status) + count(spec) + count(openai) + count(last) + count(plan) + count(report)"
              " + count(eval) FROM job_rows",
              "");
    db_number(db, 0, "SELECT count(data) FROM checkpoint_rows", "");
    db_run(db,
           "UPDATE jobs SET status = 'failed', error_code = 'damaged', finished = coalesce(finished, ?),"
           " error = 'the state of this job in jobs.sqlite is damaged; resume the job, or cancel it'"
           " WHERE status NOT IN (" STATES ")",
           "i", data_now_ms());
    db->jobs_changed = true;
}
