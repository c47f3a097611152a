/* /v1/batches: OpenAI's batches.  Handlers run on the loop thread and only queue work; functions with a db parameter
 * run on the store thread. */
#include "engine/base/mem.h"
#include "server/access/keys.h"
#include "server/api/store_request.h"
#include "server/jobs/api_train.h"
#include "server/jobs/batch_db.h"
#include "server/jobs/batches.h"
#include "server/jobs/idempotency.h"
#include "server/jobs/routes.h"
#include "server/json/json.h"
#include "server/json/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_MAX = 100, METADATA_MAX = 16, METADATA_NAME = 64, METADATA_VALUE = 512 };
#define WINDOW_MAX ((int64_t)30 * 24 * 3600) /* seconds */

/* ---- creating -------------------------------------------------------------------------------------------------- */

/* "24h": a number and s, m, h or d.  @return seconds; 0: it is none. */
static int64_t read_window(const char *text)
{
    static const struct {
        char unit;
        int64_t seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    char *end;
    long long n = *text >= '1' && *text <= '9' ? strtoll(text, &end, 10) : 0;
    if (n < 1 || n > WINDOW_MAX || strlen(end) != 1) return 0;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (units[i].unit == *end) return n * units[i].seconds <= WINDOW_MAX ? n * units[i].seconds : 0;
    return 0;
}

static void check_metadata(struct err *e, const cJSON *metadata)
{
    int n = 0;
    for (const cJSON *v = metadata->child; v && !e->code; v = v->next) {
        if (++n > METADATA_MAX)
            err_set(e, ERR_INVALID, "metadata: must have at most %d entries", METADATA_MAX);
        else if (!cJSON_IsString(v) || strlen(v->valuestring) > METADATA_VALUE || strlen(v->string) > METADATA_NAME)
            err_set(e, ERR_INVALID, "metadata: expected texts of at most %d bytes under names of at most %d",
                    METADATA_VALUE, METADATA_NAME);
    }
}

/* Reads {"anchor":"created_at","seconds":86400}. */
static void read_lifetime(struct json_at *top, int64_t *seconds)
{
    static const char *const names[] = {"anchor", "seconds"};
    const cJSON *obj = NULL;
    const char *anchor = NULL;
    if (!json_get_object(top, "output_expires_after", &obj)) return;
    struct json_at at = {.obj = obj, .path = "output_expires_after", .e = top->e};
    if (!json_only(&at, names, 2)) return;
    if (json_get_string(&at, "anchor", &anchor) && strcmp(anchor, "created_at") != 0)
        err_set(at.e, ERR_INVALID, "output_expires_after.anchor: must be created_at");
    if (!json_get_int(&at, "seconds", 3600, 2592000, seconds) && !at.e->code)
        err_set(at.e, ERR_INVALID, "output_expires_after.seconds: the field is missing");
}

static void need_string(struct json_at *at, const char *name, const char **out)
{
    if (!json_get_string(at, name, out) && !at->e->code) err_set(at->e, ERR_INVALID, "%s: the field is missing", name);
}

/* Reads the fields; metadata is appended to *text as JSON. */
static void read_batch(struct json_at *at, struct batch_new *b, struct buf *text)
{
    static const char *const names[] = {"input_file_id", "endpoint", "completion_window", "metadata",
                                        "output_expires_after"};
    const cJSON *metadata = NULL;
    if (!json_only(at, names, sizeof names / sizeof *names)) return;
    need_string(at, "input_file_id", &b->input);
    need_string(at, "endpoint", &b->endpoint);
    need_string(at, "completion_window", &b->window);
    if (!at->e->code && batch_endpoint_find(b->endpoint) < 0)
        err_set(at->e, ERR_INVALID,
                "endpoint: must be /v1/chat/completions, /v1/completions, /v1/embeddings or /v1/responses");
    if (!at->e->code && !(b->seconds = read_window(b->window)))
        err_set(at->e, ERR_INVALID, "completion_window: must be like 24h, at most 30 days");
    if (json_get_object(at, "metadata", &metadata)) check_metadata(at->e, metadata);
    if (metadata && !at->e->code) json_put_value(text, metadata, ",", ":");
    b->metadata = text->data;
    read_lifetime(at, &b->lifetime);
}

/* @return the field that the message begins with, in name; NULL: none. */
static const char *field_of(const char *message, char name[static 64])
{
    size_t n = strcspn(message, ":.");
    if (message[n] != ':' && message[n] != '.') return NULL;
    if (n >= 64 || memchr(message, ' ', n)) return NULL;
    snprintf(name, 64, "%.*s", (int)n, message);
    return name;
}

static void create_from(struct store_request *c, struct db *db, struct json_at *top)
{
    char hash[IDEMPOTENCY_HASH];
    idempotency_hash(c, hash);
    struct batch_new b = {.client = c->path, .idem_key = c->idempotency_key, .idem_hash = hash};
    struct buf text = {0};
    char purpose[64] = "", name[64];
    read_batch(top, &b, &text);
    if (!top->e->code) {
        sqlite3_stmt *q = db_query(db, "SELECT purpose FROM files WHERE id = ?", "t", b.input);
        bool found = db_step(db, q);
        if (found) snprintf(purpose, sizeof purpose, "%s", db_text(q, 0));
        db_done(q);
        if (!found)
            err_set(top->e, ERR_NOT_FOUND, "input_file_id: there is no file %.80s", b.input);
        else if (strcmp(purpose, "batch") != 0)
            err_set(top->e, ERR_INVALID, "input_file_id: the purpose of the file is %.32s, and must be batch", purpose);
    }
    int64_t seq = top->e->code ? 0 : batch_insert(db, &b);
    if (seq)
        batch_put(db, &c->out, seq);
    else if (top->e->code)
        store_request_fail(c, top->e->code == ERR_NOT_FOUND ? 404 : 400, "invalid_request", field_of(top->e->msg, name),
                           "%s", top->e->msg);
    buf_free(&text);
}

static void create(struct store_request *c, struct db *db)
{
    struct err e = {0};
    if (idempotency_replay(c, db, "SELECT seq, idem_hash FROM batches WHERE idem_key = ?")) {
        if (c->status < 400) batch_put(db, &c->out, c->job);
        return;
    }
    cJSON *tree = store_request_object(c);
    struct json_at top = {.obj = tree, .path = "", .e = &e};
    if (tree) create_from(c, db, &top);
    json_free(tree);
}

static void after_create(struct store_request *c)
{
    if (c->status < 400) batches_kick(c->app->batches);
}

void api_batches_create(struct http_req *req)
{
    if (train_refuses(req, true)) return;
    struct store_request *c = store_request_new(req, true, create);
    store_request_take_body(c);
    c->path = mem_strdup(req->key ? req->key->name : "");
    c->after = after_create;
    store_request_send(c);
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

static bool find(struct store_request *c, struct db *db)
{
    c->job = batch_find(db, c->param);
    if (c->job >= 0) return true;
    store_request_fail(c, 404, "not_found", "id", "No such Batch object: %.80s", c->param);
    return false;
}

static void get_one(struct store_request *c, struct db *db)
{
    if (find(c, db)) batch_put(db, &c->out, c->job);
}

static void list(struct store_request *c, struct db *db)
{
    struct err e = {0};
    int64_t limit, before = INT64_MAX;
    char after[64];
    if (!query_int(c->query, "limit", 1, LIST_MAX, 20, &limit, &e)) {
        store_request_fail(c, 400, "invalid_request", "limit", "%s", e.msg);
        return;
    }
    if (query_get(c->query, "after", after, sizeof after)) {
        before = batch_find(db, after);
        if (before < 0) {
            store_request_fail(c, 400, "invalid_request", "after", "after: there is no batch %s", after);
            return;
        }
    }
    batch_put_list(db, &c->out, before, limit);
}

void api_batches_get(struct http_req *req)
{
    store_request_start(req, true, get_one, NULL);
}

void api_batches_list(struct http_req *req)
{
    store_request_start(req, true, list, NULL);
}

/* ---- cancelling ------------------------------------------------------------------------------------------------ */

static void cancel(struct store_request *c, struct db *db)
{
    if (!find(c, db)) return;
    if (batch_cancel(db, c->job))
        batch_put(db, &c->out, c->job);
    else
        store_request_fail(c, 409, "conflict", NULL, "the batch %.80s is over", c->param);
}

static void after_cancel(struct store_request *c)
{
    if (c->status < 400) batches_cancelled(c->app->batches, c->job);
}

void api_batches_cancel(struct http_req *req)
{
    store_request_start(req, true, cancel, after_cancel);
}
