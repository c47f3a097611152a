/* /v1/fine_tuning/jobs: OpenAI's API as a view of the same jobs, for its clients.  Objects have the types of the openai
 * Python package; event messages have the wording that scripts search for.  Handlers run on the loop thread and only
 * queue work; functions with a db parameter run on the store thread. */
#include "server/jobs/api_train.h"

#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/api/served_model.h"
#include "server/jobs/routes.h"
#include "server/json/json.h"
#include "server/json/names.h"
#include "server/store/data_dir.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_MAX = 100, SUFFIX_MAX = 64 };

static void put_text(struct buf *b, const char *name, const char *value)
{
    buf_printf(b, ",\"%s\":", name);
    if (value)
        json_put_string(b, value, strlen(value));
    else
        buf_str(b, "null");
}

static const char *text_or_null(sqlite3_stmt *q, int column)
{
    return db_null(q, column) ? NULL : db_text(q, column);
}

/* ---- the job object -------------------------------------------------------------------------------------------- */

#define FT_COLUMNS                                                                                                     \
    "id, status, phase, created, finished, "                                                                           \
    "iif(json_extract(spec, '$.gate') AND coalesce(json_extract(eval, '$.best_step'), 0) <= 0, NULL, serve_as), "      \
    "error, error_code, openai, "                                                                                      \
    "spec ->> '$.dataset.file', spec ->> '$.validation.file', spec ->> '$.hyperparameters.epochs',"                    \
    "spec ->> '$.hyperparameters.seed', spec -> '$.metadata', last ->> '$.trained_tokens', last ->> '$.eta_s',"        \
    "result_file, coalesce(spec ->> '$.from', spec ->> '$.base'), seq"

enum column {
    F_ID,
    F_STATUS,
    F_PHASE,
    F_CREATED,
    F_FINISHED,
    F_SERVE_AS,
    F_ERROR,
    F_ERROR_CODE,
    F_OPENAI,
    F_TRAINING,
    F_VALIDATION,
    F_EPOCHS,
    F_SEED,
    F_METADATA,
    F_TOKENS,
    F_ETA,
    F_RESULT,
    F_MODEL,
    F_SEQ,
};

/* {"n_epochs":3,"batch_size":"auto","learning_rate_multiplier":"auto"}: as requested, with "auto" replaced once the
 * value is known. */
static void put_hyperparameters(struct buf *b, sqlite3_stmt *q)
{
    struct err e = {0};
    const char *text = db_text(q, F_OPENAI);
    cJSON *tree = *text ? json_parse(text, strlen(text), &e) : NULL;
    const cJSON *batch = cJSON_GetObjectItemCaseSensitive(tree, "batch_size");
    const cJSON *rate = cJSON_GetObjectItemCaseSensitive(tree, "learning_rate_multiplier");
    buf_str(b, "{\"n_epochs\":");
    json_put_number(b, db_double(q, F_EPOCHS));
    buf_str(b, ",\"batch_size\":");
    if (cJSON_IsNumber(batch))
        json_put_number(b, batch->valuedouble);
    else
        buf_str(b, "\"auto\"");
    buf_str(b, ",\"learning_rate_multiplier\":");
    json_put_number(b, cJSON_IsNumber(rate) ? rate->valuedouble : 1);
    buf_char(b, '}');
    json_free(tree);
}

static void put_job(const struct db *db, struct buf *b, sqlite3_stmt *q, const struct app *app)
{
    bool unsaved = db->unsaved.seq && db->unsaved.seq == db_int(q, F_SEQ);
    const char *status = unsaved ? job_state_names[db->unsaved.state] : db_text(q, F_STATUS);
    bool running = strcmp(status, "running") == 0, succeeded = strcmp(status, "succeeded") == 0;
    if (running && strcmp(db_text(q, F_PHASE), "preparing") == 0) status = "validating_files";
    buf_printf(b,
               "{\"object\":\"fine_tuning.job\",\"id\":\"ft%s\",\"created_at\":%lld,\"finished_at\":", db_text(q, F_ID),
               (long long)db_int(q, F_CREATED) / 1000);
    if (db_null(q, F_FINISHED))
        buf_str(b, "null");
    else
        buf_printf(b, "%lld", (long long)db_int(q, F_FINISHED) / 1000);
    put_text(b, "model", db_null(q, F_MODEL) ? app->model->id : db_text(q, F_MODEL));
    put_text(b, "fine_tuned_model", succeeded ? text_or_null(q, F_SERVE_AS) : NULL);
    buf_str(b, ",\"organization_id\":\"tandem\",\"result_files\":[");
    if (!db_null(q, F_RESULT)) json_put_string(b, db_text(q, F_RESULT), strlen(db_text(q, F_RESULT)));
    buf_printf(b, "],\"status\":\"%s\",\"error\":", status);
    const char *error = unsaved ? db->unsaved.error : db_text(q, F_ERROR);
    if (*error) {
        const char *code = unsaved || db_null(q, F_ERROR_CODE) ? "failed" : db_text(q, F_ERROR_CODE);
        buf_str(b, "{\"code\":");
        json_put_string(b, code, strlen(code));
        static const char held_out[] = "validation: ";
        bool data = strcmp(code, "invalid_dataset") == 0, eval = strncmp(error, held_out, sizeof held_out - 1) == 0;
        put_text(b, "message", data && eval ? error + sizeof held_out - 1 : error);
        put_text(b, "param", !data ? NULL : eval ? "validation_file" : "training_file");
        buf_char(b, '}');
    } else {
        buf_str(b, "null");
    }
    buf_str(b, ",\"training_file\":");
    json_put_string(b, db_text(q, F_TRAINING), strlen(db_text(q, F_TRAINING)));
    put_text(b, "validation_file", text_or_null(q, F_VALIDATION));
    buf_str(b, ",\"hyperparameters\":");
    put_hyperparameters(b, q);
    buf_str(b, ",\"trained_tokens\":");
    if (succeeded && !db_null(q, F_TOKENS))
        buf_printf(b, "%lld", (long long)db_int(q, F_TOKENS));
    else
        buf_str(b, "null");
    if (running && !db_null(q, F_ETA))
        buf_printf(b, ",\"estimated_finish\":%.0f", (double)data_now_ms() * 1e-3 + db_double(q, F_ETA));
    else
        buf_str(b, ",\"estimated_finish\":null");
    buf_printf(b, ",\"seed\":%lld,\"integrations\":[],\"metadata\":%s", (long long)db_int(q, F_SEED),
               db_null(q, F_METADATA) ? "null" : db_text(q, F_METADATA));
    buf_str(b, ",\"method\":{\"type\":\"supervised\",\"supervised\":{\"hyperparameters\":");
    put_hyperparameters(b, q);
    buf_str(b, "}}}");
}

static void put_one(struct store_request *c, struct db *db, int64_t seq)
{
    sqlite3_stmt *q = db_query(db, "SELECT " FT_COLUMNS " FROM job_rows WHERE seq = ?", "i", seq);
    if (!db_step(db, q)) return;
    put_job(db, &c->out, q, c->app);
    db_done(q);
}

/* ---- creating -------------------------------------------------------------------------------------------------- */

struct asked {
    const char *model, *training, *validation, *suffix;
    double epochs, batch, rate; /* 0: auto */
    const cJSON *native;        /* hyperparameters under tandem's names, which clients may add; NULL */
};

/* "auto" or a number of at least min. */
static bool read_auto(struct json_at *at, const char *name, double min, double max, double *out)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(at->obj, name);
    if (!v || cJSON_IsNull(v) || (cJSON_IsString(v) && strcmp(v->valuestring, "auto") == 0)) return true;
    if (cJSON_IsNumber(v) && v->valuedouble >= min && v->valuedouble <= max) return *out = v->valuedouble, true;
    err_set(at->e, ERR_INVALID, "%s.%s: must be \"auto\" or a number between %g and %g", at->path, name, min, max);
    return false;
}

static bool read_hyperparameters(struct json_at *at, struct asked *a, cJSON *native)
{
    if (!read_auto(at, "n_epochs", 1, 1000, &a->epochs) || !read_auto(at, "batch_size", 1, 65536, &a->batch) ||
        !read_auto(at, "learning_rate_multiplier", 1e-6, 1e4, &a->rate))
        return false;
    /* all other fields are hyperparameters under tandem's names, and are checked as such */
    for (const cJSON *c = at->obj->child; c; c = c->next) {
        if (strcmp(c->string, "n_epochs") == 0 || strcmp(c->string, "batch_size") == 0 ||
            strcmp(c->string, "learning_rate_multiplier") == 0)
            continue;
        cJSON_AddItemToObject(native, c->string, cJSON_Duplicate(c, true));
    }
    return true;
}

static bool read_method(struct json_at *top, struct asked *a, cJSON *native)
{
    const cJSON *obj, *inner;
    const char *type = "supervised";
    if (json_get_object(top, "hyperparameters", &obj)) {
        struct json_at at = {.obj = obj, .path = "hyperparameters", .e = top->e};
        if (!read_hyperparameters(&at, a, native)) return false;
    }
    if (!json_get_object(top, "method", &obj)) return top->e->code == 0;
    struct json_at at = {.obj = obj, .path = "method", .e = top->e};
    json_get_string(&at, "type", &type);
    if (top->e->code) return false;
    if (strcmp(type, "supervised") != 0) {
        err_set(top->e, ERR_INVALID, "method.type: %.40s is not supported; supervised is", type);
        return false;
    }
    if (!json_get_object(&at, "supervised", &inner)) return top->e->code == 0;
    struct json_at in = {.obj = inner, .path = "method.supervised", .e = top->e};
    if (!json_get_object(&in, "hyperparameters", &obj)) return top->e->code == 0;
    struct json_at h = {.obj = obj, .path = "method.supervised.hyperparameters", .e = top->e};
    return read_hyperparameters(&h, a, native);
}

static bool read_asked(struct json_at *at, struct asked *a, cJSON *native)
{
    static const char *const names[] = {"model",  "training_file",   "validation_file", "suffix",      "seed",
                                        "method", "hyperparameters", "metadata",        "integrations"};
    const cJSON *integrations;
    if (!json_only(at, names, sizeof names / sizeof *names)) return false;
    if (!json_get_string(at, "model", &a->model) && !at->e->code)
        err_set(at->e, ERR_INVALID, "model: the field is missing");
    if (!json_get_string(at, "training_file", &a->training) && !at->e->code)
        err_set(at->e, ERR_INVALID, "training_file: the field is missing");
    json_get_string(at, "validation_file", &a->validation);
    if (json_get_string(at, "suffix", &a->suffix) && strlen(a->suffix) > SUFFIX_MAX)
        err_set(at->e, ERR_INVALID, "suffix: must have at most %d characters", SUFFIX_MAX);
    if (json_get_array(at, "integrations", &integrations) && integrations->child)
        err_set(at->e, ERR_INVALID, "integrations: none are supported");
    return at->e->code == 0 && read_method(at, a, native);
}

static void clean_name(char *out, const char *from, size_t most)
{
    size_t n = 0;
    for (; *from && n < most; from++) out[n++] = isalnum((unsigned char)*from) || strchr("._-", *from) ? *from : '-';
    out[n] = 0;
}

/* "ft:base:tandem:suffix:8 characters" */
static void make_name(char out[static DATA_NAME_MAX + 1], const char *base, const char *suffix, const char *id)
{
    struct buf name = {0};
    char b[DATA_NAME_MAX], s[SUFFIX_MAX + 1];
    clean_name(s, suffix ? suffix : "", SUFFIX_MAX);
    clean_name(b, base, DATA_NAME_MAX - 21 - strlen(s));
    buf_printf(&name, "ft:%s:tandem:%s:%.8s", b, s, id + 4);
    memcpy(out, name.data, name.len < DATA_NAME_MAX ? name.len + 1 : DATA_NAME_MAX + 1);
    buf_free(&name);
}

/* Translates the request to a body of POST /train, so that the same code checks both. */
static cJSON *native_request(const struct asked *a, cJSON *native, const cJSON *top, const char *name, bool from,
                             uint64_t seed)
{
    cJSON *t = cJSON_CreateObject(), *data = cJSON_AddObjectToObject(t, "dataset");
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(top, "metadata");
    cJSON_AddStringToObject(data, "file", a->training);
    if (a->validation) cJSON_AddStringToObject(cJSON_AddObjectToObject(t, "validation"), "file", a->validation);
    if (metadata) cJSON_AddItemToObject(t, "metadata", cJSON_Duplicate(metadata, true));
    if (from) cJSON_AddStringToObject(t, "from", a->model);
    cJSON_AddStringToObject(t, "serve_as", name);
    if (a->epochs > 0) cJSON_AddNumberToObject(native, "epochs", a->epochs);
    if (!cJSON_GetObjectItemCaseSensitive(native, "seed")) cJSON_AddNumberToObject(native, "seed", (double)seed);
    cJSON_AddItemToObject(t, "hyperparameters", native);
    return t;
}

static bool model_known(struct store_request *c, struct db *db, const char *model, bool *from)
{
    *from = strcmp(model, c->served->id) != 0;
    if (!*from) return true;
    if (data_name_ok(model) && train_adapter_exists(db->dir, model)) return true;
    store_request_fail(c, 404, "model_not_found", "model", "The model `%.100s` does not exist; this server has %s",
                       model, c->served->id);
    return false;
}

/* @return the path of the object with the hyperparameters, or with the one of this name; method's is read last and
 * wins. */
static const char *hyperparameters_path(const cJSON *request, const char *name)
{
    static const char *const path[] = {"method", "supervised", "hyperparameters"};
    const cJSON *obj = request;
    for (int i = 0; i < 3; i++) obj = cJSON_GetObjectItemCaseSensitive(obj, path[i]);
    bool inner = cJSON_GetObjectItemCaseSensitive(obj, name) ||
                 !cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(request, "hyperparameters"), name);
    return inner ? "method.supervised.hyperparameters" : "hyperparameters";
}

/* The request was checked as a body of POST /train; translates the error back.  The field is the text before the
 * message's first ": ", if that is a path. */
static void refuse(struct store_request *c, const cJSON *request, const char *msg)
{
    static const char *const fields[][2] = {{"dataset.file", "training_file"},
                                            {"dataset", "training_file"},
                                            {"validation.file", "validation_file"},
                                            {"validation", "validation_file"},
                                            {"from", "model"},
                                            {"base", "model"},
                                            {"serve_as", "suffix"}};
    static const char own[] = "hyperparameters.";
    const char *colon = strstr(msg, ": ");
    char field[120] = "";
    struct buf path = {0};
    if (colon && (size_t)(colon - msg) < sizeof field) snprintf(field, sizeof field, "%.*s", (int)(colon - msg), msg);
    if (!*field || strpbrk(field, " \"'")) {
        store_request_fail(c, 400, "invalid_request", NULL, "%s", msg);
        return;
    }
    const char *name = field;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (strcmp(field, fields[i][0]) == 0) name = fields[i][1];
    if (strncmp(name, own, sizeof own - 1) == 0)
        buf_printf(&path, "%s.%s", hyperparameters_path(request, name + sizeof own - 1), name + sizeof own - 1);
    else
        buf_str(&path, name);
    store_request_fail(c, 400, "invalid_request", path.data, "%s%s", path.data, colon);
    buf_free(&path);
}

static void create_from(struct store_request *c, struct db *db, struct json_at *top, cJSON *native)
{
    struct asked a = {0};
    struct train_spec spec = {0};
    struct train_limits lim = train_limits_of(c);
    char id[DATA_ID_MAX], name[DATA_NAME_MAX + 1];
    bool from = false;
    uint64_t seed = 0;
    if (!read_asked(top, &a, native) || (!json_get_u64(top, "seed", &seed) && top->e->code)) {
        cJSON_Delete(native);
        refuse(c, top->obj, top->e->msg);
        return;
    }
    if (!model_known(c, db, a.model, &from)) {
        cJSON_Delete(native);
        return;
    }
    data_id(id, "job-");
    make_name(name, c->served->id, a.suffix, id);
    if (!seed)
        for (const char *p = id + 4; *p; p++) seed = (seed * 31 + (uint64_t)(unsigned char)*p) & 0x7fffffff;
    cJSON *request = native_request(&a, native, top->obj, name, from, seed);
    int status = train_spec_read(&spec, request, &lim, top->e);
    if (a.batch > 0 && spec.batch_size && !status) {
        err_set(top->e, ERR_INVALID,
                "hyperparameters.batch_size: is the same as `per_device_train_batch_size`: give one of them");
        status = 422;
    }
    if (a.batch > 0) spec.batch_size = (int)a.batch;
    if (a.rate > 0) spec.p.learning_rate *= a.rate;
    struct buf openai = {0};
    buf_str(&openai, "{\"object\":\"fine_tuning.job\"");
    if (a.batch > 0) buf_printf(&openai, ",\"batch_size\":%.0f", a.batch);
    if (a.rate > 0) buf_printf(&openai, ",\"learning_rate_multiplier\":%.17g", a.rate);
    buf_char(&openai, '}');
    if (status)
        refuse(c, top->obj, top->e->msg);
    else if (!train_range_has(train_range("learning_rate"), spec.p.learning_rate))
        refuse(c, top->obj,
               spec.p.learning_rate > 0 ? "hyperparameters.learning_rate_multiplier: is too large"
                                        : "hyperparameters.learning_rate_multiplier: is too small");
    else if (train_create(c, db, &(struct train_create){.spec = &spec, .openai = openai.data, .id = id}))
        put_one(c, db, c->job);
    buf_free(&openai);
    train_spec_free(&spec);
    cJSON_Delete(request);
}

static void create(struct store_request *c, struct db *db)
{
    struct err e = {0};
    if (train_replay(c, db)) {
        if (c->status < 400) put_one(c, db, c->job);
        return;
    }
    cJSON *tree = store_request_object(c);
    struct json_at top = {.obj = tree, .path = "", .e = &e};
    if (tree) create_from(c, db, &top, cJSON_CreateObject());
    json_free(tree);
}

void api_finetune_create(struct http_req *req)
{
    if (train_refuses(req, true)) return;
    struct store_request *c = store_request_new(req, true, create);
    store_request_take_body(c);
    c->after = train_after_create;
    store_request_send(c);
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

static bool find(struct store_request *c, struct db *db, struct job_key *k)
{
    if (job_find(db, c->param, k)) return true;
    store_request_fail(c, 404, "fine_tune_not_found", "fine_tuning_job_id", "Could not find fine tune: %.80s",
                       c->param);
    return false;
}

static void get_one(struct store_request *c, struct db *db)
{
    struct job_key k;
    if (find(c, db, &k)) put_one(c, db, k.seq);
}

/* Reads limit and after, for the three lists. */
static bool read_page(struct store_request *c, int64_t otherwise, int64_t *limit, char after[static 80])
{
    struct err e = {0};
    after[0] = 0;
    query_get(c->query, "after", after, 80);
    if (query_int(c->query, "limit", 1, LIST_MAX, otherwise, limit, &e)) return true;
    store_request_fail(c, 400, "invalid_request", "limit", "%s", e.msg);
    return false;
}

/* Reads one pair metadata[name]=value; @return false when there is none. */
static bool metadata_filter(const char *query, char name[static 80], char value[static 520])
{
    char text[520];
    for (const char *p = query; *p; p += strcspn(p, "&"), p += *p == '&') {
        size_t skip = strncmp(p, "metadata[", 9) == 0 ? 9 : strncasecmp(p, "metadata%5B", 11) == 0 ? 11 : 0;
        if (!skip) continue;
        /* the pair up to the next '&': "name]=value" */
        struct buf one = {0};
        buf_printf(&one, "%.*s", (int)strcspn(p + skip, "&"), p + skip);
        size_t end = strcspn(one.data, "]%");
        snprintf(name, 80, "%.*s", (int)end, one.data);
        const char *eq = strchr(one.data, '=');
        struct buf pair = {0};
        buf_printf(&pair, "v=%s", eq ? eq + 1 : "");
        bool good = query_get(pair.data, "v", text, sizeof text);
        snprintf(value, 520, "%s", good ? text : "");
        buf_free(&pair);
        buf_free(&one);
        return true;
    }
    return false;
}

static void list(struct store_request *c, struct db *db)
{
    int64_t limit, before = INT64_MAX;
    char after[80], name[80], value[520], null[8] = "";
    struct job_key k;
    if (!read_page(c, 20, &limit, after)) return;
    if (*after && !job_find(db, after, &k)) {
        store_request_fail(c, 400, "invalid_request", "after", "after: there is no job %s", after);
        return;
    }
    if (*after) before = k.seq;
    bool filter = metadata_filter(c->query, name, value);
    bool none = query_get(c->query, "metadata", null, sizeof null) && strcmp(null, "null") == 0;
    sqlite3_stmt *q =
        db_query(db,
                 "SELECT " FT_COLUMNS " FROM job_rows WHERE seq < ?1 AND (?2 IS NULL OR EXISTS(SELECT 1 FROM"
                 " json_each(spec, '$.metadata') WHERE key = ?2 AND value = ?3))"
                 " AND (NOT ?4 OR spec ->> '$.metadata' IS NULL) ORDER BY seq DESC LIMIT ?5",
                 "ittni", before, filter ? name : NULL, filter ? value : NULL, (int)none, limit + 1);
    int64_t n = 0;
    bool more = false;
    buf_str(&c->out, "{\"object\":\"list\",\"data\":[");
    while (!more && db_step(db, q)) {
        more = n == limit;
        if (more) break;
        if (n++) buf_char(&c->out, ',');
        put_job(db, &c->out, q, c->app);
    }
    db_done(q);
    buf_printf(&c->out, "],\"has_more\":%s}", more ? "true" : "false");
}

/* ---- events ---------------------------------------------------------------------------------------------------- */

static void put_metric(struct buf *b, const char *name, sqlite3_stmt *q, int column, bool *first)
{
    if (db_null(q, column)) return;
    buf_printf(b, "%s\"%s\":", *first ? "" : ",", name);
    json_put_number(b, db_double(q, column));
    *first = false;
}

#define EVENT_COLUMNS                                                                                                  \
    "id, created, kind, level, message, '{' || coalesce(data, '') || '}' AS d, json_extract('{' || data || '}', "      \
    "'$.step'), json_extract('{' || data || '}', '$.loss'), json_extract('{' || data || '}', '$.accuracy'),"           \
    " json_extract('{' || data || '}', '$.eval_loss'), json_extract('{' || data || '}', '$.eval_accuracy'),"           \
    " json_extract('{' || data || '}', '$.steps'), json_extract('{' || data || '}', '$.learning_rate'),"               \
    " json_extract('{' || data || '}', '$.report') IS NOT NULL, json_extract('{' || data || '}', '$.status')"

static void put_event(struct buf *b, sqlite3_stmt *q, const char *training)
{
    const char *kind = db_text(q, 2), *level = db_text(q, 3);
    bool metrics = strcmp(kind, "step") == 0 || strcmp(kind, "eval") == 0, first = true;
    struct buf message = {0};
    if (strcmp(kind, "plan") == 0)
        buf_str(&message, "Fine-tuning job started");
    else if (strcmp(kind, "state") == 0 && strcmp(db_text(q, 14), "running") == 0)
        buf_printf(&message, "Validating training file: %s", training);
    else if (db_int(q, 13))
        buf_str(&message, "Files validated, moving job to queued state");
    else
        buf_str(&message, db_text(q, 4));
    buf_printf(b,
               "{\"object\":\"fine_tuning.job.event\",\"id\":\"ft-event-%lld\",\"created_at\":%lld,\"level\":\"%s\","
               "\"type\":\"%s\",\"message\":",
               (long long)db_int(q, 0), (long long)db_int(q, 1) / 1000, level, metrics ? "metrics" : "message");
    json_put_string(b, message.data, message.len);
    buf_free(&message);
    buf_str(b, ",\"data\":");
    if (metrics) {
        buf_char(b, '{');
        put_metric(b, "step", q, 6, &first);
        put_metric(b, "total_steps", q, 11, &first);
        put_metric(b, "train_loss", q, 7, &first);
        put_metric(b, "train_mean_token_accuracy", q, 8, &first);
        put_metric(b, "valid_loss", q, 9, &first);
        put_metric(b, "valid_mean_token_accuracy", q, 10, &first);
        put_metric(b, "learning_rate", q, 12, &first);
        buf_char(b, '}');
    } else {
        buf_str(b, strcmp(db_text(q, 5), "{}") == 0 ? "null" : db_text(q, 5));
    }
    buf_char(b, '}');
}

static void events(struct store_request *c, struct db *db)
{
    struct job_key k;
    int64_t limit, n = 0, before = INT64_MAX;
    char after[80], training[80] = "", *end;
    bool more = false;
    if (!find(c, db, &k) || !read_page(c, 20, &limit, after)) return;
    if (*after) {
        before = strncmp(after, "ft-event-", 9) == 0 ? strtoll(after + 9, &end, 10) : 0;
        if (before <= 0 || *end) {
            store_request_fail(c, 400, "invalid_request", "after", "after: %s is no event", after);
            return;
        }
    }
    sqlite3_stmt *q = db_query(
        db, "SELECT coalesce(spec ->> '$.dataset.file', 'inline rows') FROM job_rows WHERE seq = ?", "i", k.seq);
    if (db_step(db, q)) {
        snprintf(training, sizeof training, "%s", db_text(q, 0));
        db_done(q);
    }
    q = db_query(db, "SELECT " EVENT_COLUMNS " FROM event_rows WHERE job = ? AND id < ? ORDER BY id DESC LIMIT ?",
                 "iii", k.seq, before, limit + 1);
    buf_str(&c->out, "{\"object\":\"list\",\"data\":[");
    while (db_step(db, q)) {
        more = n == limit;
        if (more) break;
        if (n++) buf_char(&c->out, ',');
        put_event(&c->out, q, training);
    }
    db_done(q);
    buf_printf(&c->out, "],\"has_more\":%s}", more ? "true" : "false");
}

/* ---- checkpoints ----------------------------------------------------------------------------------------------- */

static void checkpoints(struct store_request *c, struct db *db)
{
    struct job_key k;
    int64_t limit, n = 0, before = INT64_MAX;
    char after[80];
    bool more = false;
    if (!find(c, db, &k) || !read_page(c, 10, &limit, after)) return;
    if (*after) before = strncmp(after, "ftckpt_", 7) == 0 ? strtoll(after + 7, NULL, 10) : 0;
    sqlite3_stmt *q = db_query(
        db,
        "SELECT c.id, c.created, c.step, json_extract('{' || c.data || '}', '$.loss'),"
        " (SELECT json_extract('{' || data || '}', '$.eval_loss') FROM event_rows WHERE job = j.seq AND kind = 'eval'"
        "  AND json_extract('{' || data || '}', '$.step') <= c.step ORDER BY id DESC LIMIT 1)"
        " FROM checkpoint_rows c JOIN jobs j ON j.seq = c.job WHERE c.job = ? AND c.id < ? ORDER BY c.id DESC LIMIT ?",
        "iii", k.seq, before, limit + 1);
    buf_str(&c->out, "{\"object\":\"list\",\"data\":[");
    while (db_step(db, q)) {
        more = n == limit;
        if (more) break;
        bool first = false;
        buf_printf(&c->out, "%s{\"object\":\"fine_tuning.job.checkpoint\",\"id\":\"ftckpt_%lld\",\"created_at\":%lld",
                   n++ ? "," : "", (long long)db_int(q, 0), (long long)db_int(q, 1) / 1000);
        buf_printf(&c->out, ",\"fine_tuning_job_id\":\"ft%s\",\"step_number\":%lld", k.id, (long long)db_int(q, 2));
        put_text(&c->out, "fine_tuned_model_checkpoint", NULL); /* a name would have to be a servable model */
        buf_printf(&c->out, ",\"metrics\":{\"step\":%lld", (long long)db_int(q, 2));
        put_metric(&c->out, "train_loss", q, 3, &first);
        put_metric(&c->out, "full_valid_loss", q, 4, &first);
        buf_str(&c->out, "}}");
    }
    db_done(q);
    buf_printf(&c->out, "],\"has_more\":%s}", more ? "true" : "false");
}

static bool loaded(struct http_req *req)
{
    return ((struct app *)req->app)->model->id || !train_refuses(req, true);
}

void api_finetune_list(struct http_req *req)
{
    if (loaded(req)) store_request_start(req, true, list, NULL);
}

void api_finetune_get(struct http_req *req)
{
    if (loaded(req)) store_request_start(req, true, get_one, NULL);
}

void api_finetune_events(struct http_req *req)
{
    if (loaded(req)) store_request_start(req, true, events, NULL);
}

void api_finetune_checkpoints(struct http_req *req)
{
    if (loaded(req)) store_request_start(req, true, checkpoints, NULL);
}

/* ---- acting ---------------------------------------------------------------------------------------------------- */

static const struct train_view openai_view = {true, find, put_one};

void api_finetune_cancel(struct http_req *req)
{
    if (loaded(req)) train_start_act(req, &openai_view, ACTION_CANCEL);
}

void api_finetune_pause(struct http_req *req)
{
    if (loaded(req)) train_start_act(req, &openai_view, ACTION_PAUSE);
}

void api_finetune_resume(struct http_req *req)
{
    if (loaded(req)) train_start_act(req, &openai_view, ACTION_RESUME);
}
