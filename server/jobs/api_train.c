/* POST /train, GET /train, GET /train/{id} and the routes below it.  Handlers run on the loop thread and only queue
 * work; functions with a db parameter run on the store thread. */
#include "server/jobs/api_train.h"

#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/access/admission.h"
#include "server/api/adapter_dir.h"
#include "server/api/model_table.h"
#include "server/api/models.h"
#include "server/api/served_model.h"
#include "server/config/settings.h"
#include "server/hub/hub.h"
#include "server/hub/repo.h"
#include "server/jobs/idempotency.h"
#include "server/jobs/job_data.h"
#include "server/jobs/jobs.h"
#include "server/jobs/routes.h"
#include "server/json/json.h"
#include "server/net/http.h"
#include "server/rewards/rewards.h"
#include "server/store/data_dir.h"
#include "server/store/row_files.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { QUEUE_MAX = 1000, LIST_MAX = 100 };

bool train_refuses(struct http_req *req, bool openai)
{
    struct app *app = req->app;
    if (app->state == SERVING_READY && !store_request_crowded(req)) return false;
    if (app->state == SERVING_READY) {
        http_set_header(req, "Retry-After", "2");
        store_request_reply_error(req, openai, 429, "overloaded", "too many large requests wait for the job store");
        return true;
    }
    http_set_header(req, "Retry-After", app->state == SERVING_LOADING ? "1" : "5");
    store_request_reply_error(req, openai, 503, app->state == SERVING_LOADING ? "loading" : "draining", "%s",
                              app->state == SERVING_LOADING ? "the model is loading" : "the server is shutting down");
    return true;
}

struct train_limits train_limits_of(const struct store_request *c)
{
    const struct engine_info *i = c->info;
    if (!i) /* the rest is checked when the job begins */
        return (struct train_limits){
            .model_id = c->served->id, .max_model_len = INT_MAX, .max_lora_rank = c->app->set->max_lora_rank};
    return (struct train_limits){.model_id = i->model_id,
                                 .weight_type = i->weight_type,
                                 .max_model_len = i->max_model_len,
                                 .max_lora_rank = i->max_lora_rank,
                                 .max_total_tokens = i->max_total_tokens};
}

/* ---- creating -------------------------------------------------------------------------------------------------- */

bool train_replay(struct store_request *c, struct db *db)
{
    return idempotency_replay(c, db, "SELECT seq, idem_hash FROM jobs WHERE idem_key = ?");
}

/* Prefix for job ids in messages: on OpenAI's routes they begin with "ftjob-". */
static const char *lead(const struct store_request *c)
{
    return c->openai ? "ft" : "";
}

/* Which of the paths are looked for. */
enum find {
    FIND_OTHERS, /* than those of feedback, which are kept as they are */
    FIND_SEALED, /* those of feedback: among the files whose rows never change again */
    FIND_ALL     /* those of feedback: the rows that came until now get such a file before */
};

static bool is_feedback(const char *path)
{
    return strncmp(path, ROW_FILES "/", strlen(ROW_FILES "/")) == 0;
}

/* Replaces patterns by the files that match now, so that the job has the same ones whenever it goes on. */
static bool find_files(struct store_request *c, struct db *db, struct data_spec *d, const char *name, enum find which)
{
    struct data_spec given = *d;
    struct err e = {0};
    if (d->kind != DATA_PATH) return true;
    d->ref = NULL;
    d->n_refs = 0;
    for (int i = 0; i < given.n_refs && !e.code; i++) {
        char **path = NULL;
        if (is_feedback(given.ref[i].name) == (which == FIND_OTHERS)) {
            data_spec_add(d, given.ref[i].name, given.ref[i].set);
            continue;
        }
        if (hub_is_data(given.ref[i].name)) {
            struct repo_name parsed;
            if (!repo_parse_data(&parsed, given.ref[i].name, &e)) data_spec_add(d, given.ref[i].name, given.ref[i].set);
            continue;
        }
        size_t n = 0;
        if (which == FIND_ALL && row_files_seal(db->dir, given.ref[i].name, &e)) break;
        data_find_all(db->dir, given.ref[i].name, DATASET_SOURCES_MAX, &path, &n, &e);
        for (size_t k = 0; k < n; k++) {
            data_spec_add(d, path[k], given.ref[i].set);
            free(path[k]);
        }
        free(path);
        if (which == FIND_SEALED && e.code == ERR_NOT_FOUND)
            err_prefix(&e, "rows of feedback get their file when a job is submitted");
        if (d->n_refs > DATASET_SOURCES_MAX) err_set(&e, ERR_INVALID, "more than %d files", DATASET_SOURCES_MAX);
    }
    for (int i = 0; i < given.n_refs; i++) free(given.ref[i].name);
    free(given.ref);
    bool disk = e.code == ERR_IO; /* rows of feedback could not get their final name */
    if (e.code)
        store_request_fail(c, disk ? 507 : 422, disk ? "storage" : "validation", name, "%s.path: %s", name, e.msg);
    return !e.code;
}

static bool check_file(struct store_request *c, struct db *db, const char *id, const char *name)
{
    if (db_number(db, 0, "SELECT count(*) FROM files WHERE id = ?", "t", id)) return true;
    const char *openai = strcmp(name, "dataset") == 0 ? "training_file" : "validation_file";
    if (!db->e.code && c->openai)
        store_request_fail(c, 400, "file_not_found", openai, "%s: there is no file %.80s", openai, id);
    else if (!db->e.code)
        store_request_fail(c, 422, "file_not_found", name, "%s.file: there is no file %.80s", name, id);
    return false;
}

static bool check_data(struct store_request *c, struct db *db, struct data_spec *d, const char *name)
{
    for (int i = 0; i < d->n_refs && d->kind == DATA_PATH && !c->may_download; i++) {
        if (!hub_is_data(d->ref[i].name)) continue;
        store_request_fail(c, 403, "insufficient_permissions", name,
                           "%s.path: %.80s: data sets of the Hugging Face hub need an API key with the role admin",
                           name, d->ref[i].name);
        return false;
    }
    for (int i = 0; i < d->n_refs && d->kind == DATA_FILE; i++)
        if (!check_file(c, db, d->ref[i].name, name)) return false;
    return true;
}

bool train_adapter_exists(const char *data_dir, const char *name)
{
    char *dir = data_path(data_dir, "adapters", name), *config = data_path(dir, "adapter_config.json", NULL);
    bool there = access(config, R_OK) == 0;
    free(dir);
    free(config);
    return there;
}

/* The adapters that judge its texts are asked by name.  Of a model that is not loaded they are looked up when the job
 * runs. */
static bool check_judges(struct store_request *c, const struct train_spec *s)
{
    struct err e = {0};
    if (!s->rewards || !c->engine) return true;
    cJSON *list = json_parse(s->rewards, strlen(s->rewards), &e);
    struct rewards *r = list ? rewards_open(list, "rewards", &e) : NULL;
    for (int i = 0; r && i < REWARDS_MAX && !e.code; i++) {
        const char *name = rewards_model(r, i);
        if (!name || engine_adapter_scores(c->engine, name) || engine_adapter_check(c->engine, name, &e)) continue;
        err_set(&e, ERR_INVALID, "adapter \"%.80s\": only an adapter of method reward gives scores", name);
    }
    rewards_free(r);
    json_free(list);
    if (e.code) store_request_fail(c, 422, "validation", "rewards", "rewards: %s", e.msg);
    return !e.code;
}

/* An adapter, which comes first, or another model that is served. */
static bool check_teacher(struct store_request *c, struct db *db, struct train_spec *s)
{
    enum { MOST = ENGINE_TOP_MAX };
    s->teacher_model = false;
    if (!s->teacher || train_adapter_exists(db->dir, s->teacher)) return true;
    const struct served_model *m = model_table_named(c->app->models, s->teacher);
    if (!m)
        store_request_fail(c, 422, "validation", "teacher",
                           "teacher: there is no adapter %s, and no other model of this name is served", s->teacher);
    else if (m == (s->base ? model_table_named(c->app->models, s->base) : c->served))
        store_request_fail(
            c, 422, "validation", "teacher",
            "teacher: %s is the model that is trained: leave `teacher` out, and name an adapter as `from`", s->teacher);
    else if (s->own_top_k && s->p.teacher_top_k > MOST)
        store_request_fail(c, 422, "validation", "teacher_top_k",
                           "hyperparameters.teacher_top_k: %d, and a teacher that is another model tells its %d "
                           "likeliest tokens at most",
                           s->p.teacher_top_k, MOST);
    else
        s->teacher_model = true;
    if (s->teacher_model && !s->own_top_k) s->p.teacher_top_k = MOST;
    return s->teacher_model;
}

/* Names are unique: with two jobs of the same name it would be undefined whose result is served. */
static bool check_names(struct store_request *c, struct db *db, struct train_spec *s)
{
    if (s->serve_as && models_is_taken(c->app, s->serve_as)) {
        store_request_fail(c, 422, "validation", "serve_as", "serve_as: %s is the name of the model itself",
                           s->serve_as);
        return false;
    }
    if (s->serve_as && adapter_dir_names(c->app->set, s->serve_as)) {
        store_request_fail(c, 409, "conflict", "serve_as",
                           "serve_as: %s is an adapter of --adapters, which is loaded under that name at every start",
                           s->serve_as);
        return false;
    }
    if (s->serve_as) {
        sqlite3_stmt *q =
            db_query(db, "SELECT id FROM jobs WHERE serve_as = ? AND status IN ('queued', 'running', 'paused')", "t",
                     s->serve_as);
        if (db_step(db, q)) {
            store_request_fail(c, 409, "conflict", "serve_as", "serve_as: %s%s, which is not over, will have this name",
                               lead(c), db_text(q, 0));
            db_done(q);
            return false;
        }
    }
    if (s->asks_others && !c->may_download) {
        store_request_fail(c, 403, "insufficient_permissions", "rewards",
                           "rewards: of type url need an API key with the role admin");
        return false;
    }
    if (!check_judges(c, s)) return false;
    if (s->gate && s->serve_as && (!s->from || strcmp(s->from, s->serve_as) != 0) &&
        train_adapter_exists(db->dir, s->serve_as)) {
        store_request_fail(
            c, 422, "validation", "gate",
            "gate: %s is served already, so it is what the result has to be better than: set `from` to it",
            s->serve_as);
        return false;
    }
    if (!check_teacher(c, db, s)) return false;
    if (s->from) {
        bool there = train_adapter_exists(db->dir, s->from);
        if (!there) store_request_fail(c, 422, "validation", "from", "from: there is no adapter %s", s->from);
        return there;
    }
    return true;
}

static bool find_all(struct store_request *c, struct db *db, struct train_spec *s, enum find which)
{
    return find_files(c, db, &s->data, "dataset", which) && find_files(c, db, &s->eval, "validation", which);
}

/* All but what feedback's paths mean. */
static bool check(struct store_request *c, struct db *db, struct train_spec *s)
{
    return check_data(c, db, &s->data, "dataset") && (!s->eval.kind || check_data(c, db, &s->eval, "validation")) &&
           find_all(c, db, s, FIND_OTHERS) && check_names(c, db, s);
}

bool train_check(struct store_request *c, struct db *db, struct train_spec *s)
{
    return check(c, db, s) && find_all(c, db, s, FIND_SEALED);
}

bool train_create(struct store_request *c, struct db *db, const struct train_create *t)
{
    struct train_spec *s = t->spec;
    char id[DATA_ID_MAX], hash[IDEMPOTENCY_HASH];
    struct err e = {0};
    struct buf text = {0};
    if (!check(c, db, s)) return false;
    if (db_number(db, 0, "SELECT count(*) FROM jobs WHERE status = 'queued'", "") >= QUEUE_MAX) {
        store_request_fail(c, 429, "overloaded", NULL, "%d jobs are queued already", QUEUE_MAX);
        return false;
    }
    if (!find_all(c, db, s, FIND_ALL)) return false; /* last, since each time makes a file of new rows */
    if (t->id)
        snprintf(id, sizeof id, "%s", t->id);
    else
        data_id(id, "job-");
    if (!s->serve_as) s->serve_as = mem_strdup(id);
    if (!s->base) s->base = mem_strdup(c->served->id);
    if (c->path) job_data_remove(db->dir, c->path); /* left by an attempt whose transaction failed */
    free(c->path);
    c->path = mem_strdup(id);
    if (job_data_save(db->dir, id, &s->data, false, &e) || job_data_save(db->dir, id, &s->eval, true, &e)) {
        store_request_fail(c, 507, "storage", NULL, "the rows could not be stored: %s", e.msg);
        return false;
    }
    train_spec_put(&text, s);
    idempotency_hash(c, hash);
    c->job = job_insert(db, &(struct job_new){.id = id,
                                              .method = train_spec_method(s),
                                              .serve_as = s->serve_as,
                                              .spec = text.data,
                                              .openai = t->openai,
                                              .idem_key = c->idempotency_key,
                                              .idem_hash = hash});
    buf_clear(&text);
    buf_printf(&text, "Created fine-tuning job: ft%s", id);
    job_event(db, c->job,
              &(struct job_event){
                  .kind = "state", .level = "info", .message = text.data, .step = -1, .data = "\"status\":\"queued\""});
    buf_free(&text);
    return db->e.code == 0;
}

/* Removes the inline data when the job's row was not committed. */
static void settle_create(struct store_request *c, struct db *db)
{
    if (c->status >= 400 && c->path) job_data_remove(db->dir, c->path);
}

void train_after_create(struct store_request *c)
{
    if (c->status < 400) jobs_kick(c->app->jobs);
}

static void create(struct store_request *c, struct db *db)
{
    struct err e = {0};
    struct train_spec spec = {0};
    struct train_limits lim = train_limits_of(c);
    c->status = 202;
    if (train_replay(c, db)) {
        if (c->status < 400) job_put(db, &c->out, c->job);
        return;
    }
    cJSON *tree = store_request_object(c);
    if (!tree) return;
    int status = train_spec_read(&spec, tree, &lim, &e);
    if (status)
        store_request_fail(c, status, "validation", NULL, "Input validation error: %s", e.msg);
    else if (train_create(c, db, &(struct train_create){.spec = &spec}))
        job_put(db, &c->out, c->job);
    train_spec_free(&spec);
    json_free(tree);
}

void api_train_create(struct http_req *req)
{
    if (train_refuses(req, false)) return;
    struct store_request *c = store_request_new(req, false, create);
    store_request_take_body(c);
    c->settle = settle_create;
    c->after = train_after_create;
    store_request_send(c);
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

static bool find(struct store_request *c, struct db *db, struct job_key *k)
{
    if (job_find(db, c->param, k)) return true;
    store_request_fail(c, 404, "not_found", NULL, "there is no job %.80s", c->param);
    return false;
}

static void get_one(struct store_request *c, struct db *db)
{
    struct job_key k;
    if (find(c, db, &k)) job_put(db, &c->out, k.seq);
}

static void list(struct store_request *c, struct db *db)
{
    struct err e = {0};
    int64_t limit, before = INT64_MAX;
    char status[16] = "", after[64] = "";
    struct job_key k;
    if (!query_int(c->query, "limit", 1, LIST_MAX, 20, &limit, &e)) {
        store_request_fail(c, 422, "validation", NULL, "%s", e.msg);
        return;
    }
    if (query_get(c->query, "after", after, sizeof after)) {
        if (!job_find(db, after, &k)) {
            store_request_fail(c, 422, "validation", NULL, "after: there is no job %s", after);
            return;
        }
        before = k.seq;
    }
    bool given = query_get(c->query, "status", status, sizeof status);
    int i = 0;
    while (given && i < JOB_STATES && strcmp(status, job_state_names[i]) != 0) i++;
    if (i == JOB_STATES)
        store_request_fail(c, 422, "validation", NULL,
                           "status: must be one of queued, running, paused, succeeded, failed, cancelled");
    else
        job_put_list(db, &c->out, given ? status : NULL, before, (int)limit);
}

static void metrics(struct store_request *c, struct db *db)
{
    struct job_key k;
    if (find(c, db, &k)) job_put_metrics(db, &c->out, k.seq);
}

static void checkpoints(struct store_request *c, struct db *db)
{
    struct job_key k;
    if (find(c, db, &k)) job_put_checkpoints(db, &c->out, k.seq);
}

void api_train_list(struct http_req *req)
{
    store_request_start(req, false, list, NULL);
}

void api_train_get(struct http_req *req)
{
    store_request_start(req, false, get_one, NULL);
}

void api_train_metrics(struct http_req *req)
{
    store_request_start(req, false, metrics, NULL);
}

void api_train_checkpoints(struct http_req *req)
{
    store_request_start(req, false, checkpoints, NULL);
}

/* ---- acting ---------------------------------------------------------------------------------------------------- */

static void want(struct db *db, int64_t seq, const char *wanted)
{
    char message[64];
    db_run(db, "UPDATE jobs SET wanted = ? WHERE seq = ?", "ti", wanted, seq);
    snprintf(message, sizeof message, "Asked to %s", wanted ? wanted : "go on");
    job_event(db, seq, &(struct job_event){.kind = "log", .level = "info", .message = message, .step = -1});
}

/* Finished jobs do not reserve their names. */
static bool name_taken(struct store_request *c, struct db *db, const struct job_key *k)
{
    sqlite3_stmt *q =
        db_query(db,
                 "SELECT id, serve_as FROM jobs WHERE serve_as = (SELECT serve_as FROM jobs WHERE seq = ?1)"
                 " AND seq <> ?1 AND status IN ('queued', 'running', 'paused')",
                 "i", k->seq);
    if (!db_step(db, q)) return false;
    store_request_fail(c, 409, "conflict", NULL,
                       "%s%s cannot be resumed: %s%s, which is not over, will have its name %s", lead(c), k->id,
                       lead(c), db_text(q, 0), db_text(q, 1));
    db_done(q);
    return true;
}

static bool train_act(struct store_request *c, struct db *db, const struct job_key *k, enum job_action action)
{
    static const char *const names[] = {"cancelled", "paused", "resumed"};
    bool waits = k->state == JOB_QUEUED || k->state == JOB_PAUSED, runs = k->state == JOB_RUNNING;
    c->job = k->seq;
    c->command = -1;
    if (action == ACTION_CANCEL && (waits || k->state == JOB_FAILED)) {
        job_set_state(db, k->seq, JOB_CANCELLED, NULL, NULL);
        free(c->path2);
        c->path2 = mem_strdup(k->id);
    } else if (action == ACTION_CANCEL && runs) {
        want(db, k->seq, "cancel");
        c->command = TRAIN_CANCEL;
    } else if (action == ACTION_PAUSE && k->state == JOB_QUEUED) {
        job_set_state(db, k->seq, JOB_PAUSED, NULL, NULL);
    } else if (action == ACTION_PAUSE && runs) {
        want(db, k->seq, "pause");
        c->command = TRAIN_PAUSE;
    } else if (action == ACTION_RESUME && (k->state == JOB_PAUSED || k->state == JOB_FAILED)) {
        if (k->state == JOB_FAILED && name_taken(c, db, k)) return false;
        job_set_state(db, k->seq, JOB_QUEUED, NULL, NULL);
    } else if (action == ACTION_RESUME && runs) {
        want(db, k->seq, NULL);
        c->command = TRAIN_GO_ON;
    } else if (!(action == ACTION_CANCEL && k->state == JOB_CANCELLED) &&
               !(action == ACTION_PAUSE && k->state == JOB_PAUSED) &&
               !(action == ACTION_RESUME && k->state == JOB_QUEUED)) {
        store_request_fail(c, c->openai ? 400 : 409, "conflict", NULL, "%s%s is %s and cannot be %s", lead(c), k->id,
                           job_state_names[k->state], names[action]);
        return false;
    }
    return true;
}

/* Removes the data of a job that was cancelled while queued. */
static void settle_act(struct store_request *c, struct db *db)
{
    if (c->status >= 400 || !c->path2) return;
    char *dir = data_path(db->dir, "checkpoints", c->path2);
    data_remove(dir);
    free(dir);
    job_data_remove(db->dir, c->path2);
}

static void after_act(struct store_request *c)
{
    if (c->status >= 400) return;
    jobs_notify(c->app->jobs, c->job);
    if (c->command >= 0) jobs_command(c->app->jobs, c->job, (enum train_command)c->command);
    jobs_kick(c->app->jobs);
}

static void act(struct store_request *c, struct db *db, enum job_action action)
{
    const struct train_view *view = c->user;
    struct job_key k;
    if (view->find(c, db, &k) && train_act(c, db, &k, action)) view->put(c, db, k.seq);
}

static void cancel(struct store_request *c, struct db *db)
{
    act(c, db, ACTION_CANCEL);
}

static void hold(struct store_request *c, struct db *db)
{
    act(c, db, ACTION_PAUSE);
}

static void resume(struct store_request *c, struct db *db)
{
    act(c, db, ACTION_RESUME);
}

void train_start_act(struct http_req *req, const struct train_view *view, enum job_action action)
{
    static store_request_fn *const run[] = {[ACTION_CANCEL] = cancel, [ACTION_PAUSE] = hold, [ACTION_RESUME] = resume};
    struct store_request *c = store_request_new(req, view->openai, run[action]);
    c->user = (void *)view;
    c->settle = settle_act;
    c->after = after_act;
    store_request_send(c);
}

static void put_one(struct store_request *c, struct db *db, int64_t seq)
{
    job_put(db, &c->out, seq);
}

static const struct train_view native = {false, find, put_one};

void api_train_cancel(struct http_req *req)
{
    train_start_act(req, &native, ACTION_CANCEL);
}

void api_train_pause(struct http_req *req)
{
    train_start_act(req, &native, ACTION_PAUSE);
}

void api_train_resume(struct http_req *req)
{
    train_start_act(req, &native, ACTION_RESUME);
}

/* ---- deleting -------------------------------------------------------------------------------------------------- */

static void delete_job(struct store_request *c, struct db *db)
{
    struct job_key k;
    if (!find(c, db, &k)) return;
    if (k.state < JOB_SUCCEEDED) {
        store_request_fail(c, 409, "conflict", NULL, "%s is %s: cancel it first", k.id, job_state_names[k.state]);
        return;
    }
    db_run(db, "DELETE FROM jobs WHERE seq = ?", "i", k.seq);
    db->jobs_changed = true;
    free(c->path2);
    c->path2 = mem_strdup(k.id);
    buf_clear(&c->out);
    buf_printf(&c->out, "{\"id\":\"%s\",\"object\":\"train.job\",\"deleted\":true}", k.id);
}

static void settle_delete(struct store_request *c, struct db *db)
{
    settle_act(c, db);
    if (c->status >= 400 || !c->path2) return;
    char *board = data_path(db->dir, "tensorboard", c->path2);
    data_remove(board);
    free(board);
}

void api_train_delete(struct http_req *req)
{
    struct store_request *c = store_request_new(req, false, delete_job);
    c->settle = settle_delete;
    store_request_send(c);
}
