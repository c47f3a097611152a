/* POST /evaluate, GET /evaluate, and the routes below it.  Handlers run on the loop thread and only queue work;
 * functions with a db parameter run on the store thread. */
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/api/served_model.h"
#include "server/api/store_request.h"
#include "server/jobs/api_train.h"
#include "server/jobs/evaluation_db.h"
#include "server/jobs/evaluation_spec.h"
#include "server/jobs/evaluations.h"
#include "server/jobs/idempotency.h"
#include "server/jobs/job_data.h"
#include "server/jobs/routes.h"
#include "server/json/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUEUE_MAX = 1000, LIST_MAX = 100 };

static const struct evaluation_live none = {0};

/* ---- creating -------------------------------------------------------------------------------------------------- */

static bool check_data(struct store_request *c, struct db *db, const struct data_spec *d)
{
    const char *name = d->n_refs ? d->ref[0].name : "";
    struct err e = {0};
    if (d->kind == DATA_FILE && !db_number(db, 0, "SELECT count(*) FROM files WHERE id = ?", "t", name)) {
        if (!db->e.code)
            store_request_fail(c, 422, "file_not_found", NULL, "dataset.file: there is no file %.80s", name);
        return false;
    }
    if (d->kind != DATA_PATH) return true;
    free(data_find(db->dir, name, &e));
    if (e.code) store_request_fail(c, 422, "validation", NULL, "dataset.path: %s", e.msg);
    return !e.code;
}

static bool check_model(struct store_request *c, const struct evaluation_spec *s)
{
    struct err e = {0};
    if (!c->engine) return true; /* checked when it runs */
    bool good = engine_check_generates(c->engine, &e) == 0;
    for (int i = 0; i < s->n_adapters && good; i++) good = engine_adapter_check(c->engine, s->adapters[i], &e) == 0;
    if (!good) store_request_fail(c, 422, "validation", NULL, "%s", e.msg);
    return good;
}

static void insert(struct store_request *c, struct db *db, const struct evaluation_spec *s)
{
    char id[DATA_ID_MAX], hash[IDEMPOTENCY_HASH];
    struct err e = {0};
    struct buf text = {0};
    if (c->path) job_data_remove(db->dir, c->path); /* left by an attempt whose transaction failed */
    free(c->path);
    data_id(id, "eval-");
    c->path = mem_strdup(id);
    if (job_data_save(db->dir, id, &s->data, false, &e)) {
        store_request_fail(c, 507, "storage", NULL, "the rows could not be stored: %s", e.msg);
        return;
    }
    evaluation_spec_put(&text, s);
    idempotency_hash(c, hash);
    c->job =
        evaluation_insert(db, &(struct evaluation_new){.id = id,
                                                       .spec = text.data,
                                                       .file = s->data.kind == DATA_FILE ? s->data.ref[0].name : NULL,
                                                       .idem_key = c->idempotency_key,
                                                       .idem_hash = hash});
    buf_free(&text);
    if (c->job) evaluation_put(db, &c->out, c->job, &none);
}

static void create_from(struct store_request *c, struct db *db, const cJSON *tree)
{
    struct evaluation_spec spec = {0};
    struct err e = {0};
    if (evaluation_spec_read(&spec, tree, false, &e))
        store_request_fail(c, 422, "validation", NULL, "Input validation error: %s", e.msg);
    else if (db_number(db, 0, "SELECT count(*) FROM evaluations WHERE status = 'queued'", "") >= QUEUE_MAX)
        store_request_fail(c, 429, "overloaded", NULL, "%d evaluations are queued already", QUEUE_MAX);
    else if (check_model(c, &spec) && check_data(c, db, &spec.data)) {
        spec.model = c->served->id;
        insert(c, db, &spec);
    }
    evaluation_spec_free(&spec);
}

static void create(struct store_request *c, struct db *db)
{
    c->status = 202;
    if (idempotency_replay(c, db, "SELECT seq, idem_hash FROM evaluations WHERE idem_key = ?")) {
        if (c->status < 400) evaluation_put(db, &c->out, c->job, &none);
        return;
    }
    cJSON *tree = store_request_object(c);
    if (tree) create_from(c, db, tree);
    json_free(tree);
}

/* Removes the inline data when the row was not committed. */
static void settle_create(struct store_request *c, struct db *db)
{
    if (c->status >= 400 && c->path) job_data_remove(db->dir, c->path);
}

static void after_create(struct store_request *c)
{
    if (c->status < 400) evaluations_kick(c->app->evaluations);
}

void api_evaluate_create(struct http_req *req)
{
    if (train_refuses(req, false)) return;
    struct store_request *c = store_request_new(req, false, create);
    store_request_take_body(c);
    c->settle = settle_create;
    c->after = after_create;
    store_request_send(c);
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

static bool find(struct store_request *c, struct db *db, struct evaluation_key *k)
{
    if (evaluation_find(db, c->param, k)) return true;
    store_request_fail(c, 404, "not_found", NULL, "there is no evaluation %.80s", c->param);
    return false;
}

/* What the loop knew when the request came. */
static struct evaluation_live live_of(const struct store_request *c)
{
    return (struct evaluation_live){.seq = c->path ? c->job : 0, .json = c->path};
}

static void get_one(struct store_request *c, struct db *db)
{
    struct evaluation_key k;
    const struct evaluation_live live = live_of(c);
    if (find(c, db, &k)) evaluation_put(db, &c->out, k.seq, &live);
}

static void list(struct store_request *c, struct db *db)
{
    struct err e = {0};
    int64_t limit, before = INT64_MAX;
    char after[64];
    struct evaluation_key k;
    const struct evaluation_live live = live_of(c);
    if (!query_int(c->query, "limit", 1, LIST_MAX, 20, &limit, &e)) {
        store_request_fail(c, 422, "validation", NULL, "%s", e.msg);
        return;
    }
    if (query_get(c->query, "after", after, sizeof after)) {
        if (!evaluation_find(db, after, &k)) {
            store_request_fail(c, 422, "validation", NULL, "after: there is no evaluation %s", after);
            return;
        }
        before = k.seq;
    }
    evaluation_put_list(db, &c->out, before, limit, &live);
}

static void start_reading(struct http_req *req, store_request_fn *run)
{
    struct store_request *c = store_request_new(req, false, run);
    struct buf text = {0};
    c->job = evaluations_progress(c->app->evaluations, &text);
    if (c->job) c->path = mem_strdup(text.data);
    buf_free(&text);
    store_request_send(c);
}

void api_evaluate_list(struct http_req *req)
{
    start_reading(req, list);
}

void api_evaluate_get(struct http_req *req)
{
    start_reading(req, get_one);
}

/* ---- acting ---------------------------------------------------------------------------------------------------- */

static void cancel(struct store_request *c, struct db *db)
{
    struct evaluation_key k;
    bool runs = false;
    c->job = 0;
    if (!find(c, db, &k)) return;
    if (!evaluation_cancel(db, &k, &runs)) {
        store_request_fail(c, 409, "conflict", NULL, "%s is %s", k.id, k.status);
        return;
    }
    free(c->path2);
    c->path2 = runs ? NULL : mem_strdup(k.id);
    c->job = runs ? k.seq : 0;
    evaluation_put(db, &c->out, k.seq, &none);
}

/* Removes the inline data of one that will not run. */
static void settle_cancel(struct store_request *c, struct db *db)
{
    if (c->status < 400 && c->path2) job_data_remove(db->dir, c->path2);
}

static void after_cancel(struct store_request *c)
{
    if (c->status < 400 && c->job) evaluations_cancelled(c->app->evaluations, c->job);
}

void api_evaluate_cancel(struct http_req *req)
{
    struct store_request *c = store_request_new(req, false, cancel);
    c->settle = settle_cancel;
    c->after = after_cancel;
    store_request_send(c);
}

static void delete_one(struct store_request *c, struct db *db)
{
    struct evaluation_key k;
    if (!find(c, db, &k)) return;
    if (strcmp(k.status, "queued") == 0 || strcmp(k.status, "running") == 0) {
        store_request_fail(c, 409, "conflict", NULL, "%s is %s: cancel it first", k.id, k.status);
        return;
    }
    db_run(db, "DELETE FROM evaluations WHERE seq = ?", "i", k.seq);
    buf_printf(&c->out, "{\"id\":\"%s\",\"object\":\"evaluation\",\"deleted\":true}", k.id);
}

void api_evaluate_delete(struct http_req *req)
{
    store_request_start(req, false, delete_one, NULL);
}
