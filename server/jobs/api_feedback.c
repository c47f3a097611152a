/* POST /feedback: what a client says of an answer becomes rows of training data; GET and DELETE /feedback.  Handlers
 * run on the loop thread; functions with a db parameter on the store thread, which writes the rows, so that a job is
 * submitted either before a row or after it. */
#include "engine/base/fnv.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/access/admission.h"
#include "server/access/client.h"
#include "server/api/answered.h"
#include "server/api/model_table.h"
#include "server/api/store_request.h"
#include "server/bridge/bridge.h"
#include "server/config/settings.h"
#include "server/jobs/api_train.h"
#include "server/jobs/feedback_rows.h"
#include "server/jobs/routes.h"
#include "server/json/find.h"
#include "server/json/json.h"
#include "server/net/http.h"
#include "server/store/data_dir.h"
#include "server/store/row_files.h"

#include <stdlib.h>
#include <string.h>

/* ---- collecting -------------------------------------------------------------------------------------------------- */

/* A row of feedback while it is stored. */
struct post {
    struct answered *answer; /* a reference; NULL: none has this id */
    uint64_t max_bytes;
    cJSON *tree; /* the store thread's; owned */
    struct feedback said;
};

/* The name of a model's folder: that of the model, with '-' for characters that a name may not have there. */
static void folder_name(char out[static DATA_NAME_MAX + 1], const char *model)
{
    size_t n = 0;
    for (; *model && n < DATA_NAME_MAX; model++) {
        const char begun[] = {'a', *model, 0};
        bool good = data_name_ok(n ? begun : begun + 1);
        if (n || good) out[n++] = good ? *model : '-';
    }
    if (!n) out[n++] = 'm';
    out[n] = 0;
}

static uint64_t hash_of(const char *text)
{
    return fnv1a(FNV1A_START, text, strlen(text));
}

/* Which of the two the body says that was not said before.  @return false: it contradicts what was said. */
static bool is_new(const struct feedback *f, const struct answered_choice *c, bool *rating, bool *better)
{
    *rating = f->has_rating && !c->rated;
    *better = f->better && !c->corrected;
    return !(f->has_rating && c->rated && c->rating != f->rating) &&
           !(f->better && c->corrected && c->correction != hash_of(f->better));
}

static void put_answer(struct buf *out, const struct feedback *f, const char *model, const struct feedback_rows *rows)
{
    buf_str(out, "{\"id\":");
    json_put_string(out, f->id, strlen(f->id));
    buf_printf(out, ",\"object\":\"feedback\",\"choice\":%d,\"model\":\"%s\",\"dataset\":\"%s\",\"rows\":[", f->choice,
               model, f->set);
    for (int i = 0; i < rows->n; i++)
        buf_printf(out, "%s{\"kind\":\"%s\",\"path\":\"" ROW_FILES "/%s/%s/%s-*.jsonl\"}", i ? "," : "",
                   rows->line[i].kind, model, f->set, rows->line[i].kind);
    buf_str(out, "]}");
}

static void write_rows(struct store_request *c, struct db *db)
{
    struct post *p = c->user;
    const struct feedback *f = &p->said;
    struct answered_choice *said_of = &p->answer->choice[f->choice];
    struct feedback_rows rows = {0};
    struct err e = {0};
    bool rating, better;
    char model[DATA_NAME_MAX + 1];
    folder_name(model, c->info->model_id);
    const struct feedback_source source = {.tokenizer = engine_tokenizer(c->engine),
                                           .end = c->info->n_eos ? c->info->eos[0] : -1,
                                           .adapter = p->answer->adapter,
                                           .time = data_now_ms() / 1000};
    if (!is_new(f, said_of, &rating, &better)) {
        store_request_fail(c, 409, "conflict", NULL, "id: something else was said of this answer before");
        return;
    }
    if (feedback_rows_make(&rows, f, said_of, &source, rating, better, &e))
        store_request_fail(c, 422, "validation", NULL, "Input validation error: %s", e.msg);
    else if (rows.n && row_files_append(db->dir, model, f->set, rows.line, rows.n, p->max_bytes, &e))
        store_request_fail(c, 507, "storage", NULL, "the feedback could not be stored: %s", e.msg);
    if (!e.code) {
        if (rating) said_of->rated = true, said_of->rating = f->rating;
        if (better) said_of->corrected = true, said_of->correction = hash_of(f->better);
        c->status = rows.n ? 201 : 200;
        put_answer(&c->out, f, model, &rows);
    }
    feedback_rows_free(&rows);
}

/* May run again when the transaction of others fails, so it writes nothing. */
static void check(struct store_request *c, struct db *db)
{
    struct post *p = c->user;
    struct err e = {0};
    (void)db;
    json_free(p->tree);
    p->tree = store_request_object(c);
    if (!p->tree) return;
    if (feedback_read(&p->said, p->tree, &e))
        store_request_fail(c, 422, "validation", NULL, "Input validation error: %s", e.msg);
    else if (!p->answer || (strcmp(p->said.id, p->answer->id) != 0 && strcmp(p->said.id, p->answer->header_id) != 0))
        store_request_fail(c, 404, "not_found", NULL,
                           "id: no answer of yours with the id %.100s is kept: it was given too long ago, or before a "
                           "restart, or to another API key",
                           p->said.id);
    else if (p->said.choice >= p->answer->n_choices)
        store_request_fail(c, 422, "validation", NULL, "Input validation error: choice: the answer has %d",
                           p->answer->n_choices);
}

/* The database's directory is there and locked, and nothing of this request runs again. */
static void settle(struct store_request *c, struct db *db)
{
    struct post *p = c->user;
    if (c->status < 400) write_rows(c, db);
    json_free(p->tree);
    p->tree = NULL;
}

static void after(struct store_request *c)
{
    struct post *p = c->user;
    answered_release(p->answer);
    free(p);
}

void api_feedback_create(struct http_req *req)
{
    struct app *app = req->app;
    struct answered *answer = NULL;
    char id[ANSWERED_ID];
    if (train_refuses(req, false)) return;
    if (!app->answered) {
        http_reply_error(req, 404, "not_found", "no feedback is collected: the daemon was started without --feedback");
        return;
    }
    if (json_find_string(req->body, req->body_len, "id", id, sizeof id))
        answer = answered_find(app->answered, client_id(req), id);
    if (answer && !model_use(app->models, answer->served)) {
        http_set_header(req, "Retry-After", "1");
        http_reply_error(req, 409, "conflict", "the model %.100s is not loaded: send it a request first",
                         answer->served->name);
        answered_release(answer);
        return;
    }
    struct store_request *c = store_request_new(req, false, check);
    struct post *p = mem_zalloc(sizeof *p);
    *p = (struct post){.answer = answer, .max_bytes = app->set->feedback_size};
    if (answer) {
        c->served = answer->served;
        c->info = c->served->info;
        c->engine = c->served->engine;
        c->pinned = true; /* released with the request */
    }
    c->user = p;
    c->settle = settle;
    c->after = after;
    store_request_take_body(c);
    store_request_send(c);
}

/* ---- what was collected ------------------------------------------------------------------------------------------ */

struct listing {
    struct app *app;
    struct http_req *req; /* NULL once the client disconnected */
    const char *dir;
    struct buf out;
    uint64_t bytes;
    int n;
};

static void on_list_close(struct http_req *req)
{
    ((struct listing *)req->user)->req = NULL;
}

static void put_kind(void *arg, const struct row_files_kind *k)
{
    struct listing *l = arg;
    if (!data_name_ok(k->model) || !data_name_ok(k->set)) return;
    buf_printf(&l->out,
               "%s{\"model\":\"%s\",\"dataset\":\"%s\",\"kind\":\"%s\",\"rows\":%llu,\"bytes\":%llu,\"files\":%d,"
               "\"path\":\"" ROW_FILES "/%s/%s/%s-*.jsonl\"}",
               l->n++ ? "," : "", k->model, k->set, k->kind, (unsigned long long)k->rows, (unsigned long long)k->bytes,
               k->files, k->model, k->set, k->kind);
    l->bytes += k->bytes;
}

static void work_list(void *arg)
{
    struct listing *l = arg;
    row_files_list(l->dir, put_kind, l);
}

static void after_list(void *arg)
{
    struct listing *l = arg;
    struct app *app = l->app;
    if (l->req) {
        struct answered_totals t = {0};
        if (app->answered) t = answered_totals(app->answered);
        buf_printf(&l->out,
                   "],\"collecting\":%s,\"bytes\":%llu,\"max_bytes\":%zu,\"kept\":{\"requests\":%d,\"bytes\":%zu,"
                   "\"max_requests\":%d,\"max_bytes\":%zu}}",
                   app->answered ? "true" : "false", (unsigned long long)l->bytes, app->set->feedback_size, t.requests,
                   t.bytes, ANSWERED_REQUESTS, app->set->feedback_memory);
        l->req->on_close = NULL;
        http_reply(l->req, 200, "application/json", l->out.data, l->out.len);
    }
    buf_free(&l->out);
    free(l);
}

void api_feedback_list(struct http_req *req)
{
    struct app *app = req->app;
    struct listing *l = mem_zalloc(sizeof *l);
    *l = (struct listing){.app = app, .req = req, .dir = settings_data_dir(app->set)};
    buf_str(&l->out, "{\"object\":\"list\",\"data\":[");
    req->user = l;
    req->on_close = on_list_close;
    bridge_work(app->bridge, client_id(req), work_list, after_list, l);
}

/* c->path: "MODEL/DATASET" */
static void remove_set(struct store_request *c, struct db *db)
{
    struct err e = {0};
    const char *slash = strchr(c->path, '/');
    char *model = mem_strndup(c->path, slash ? (size_t)(slash - c->path) : 0);
    if (!slash || row_files_remove(db->dir, model, slash + 1, &e) == ERR_NOT_FOUND) {
        store_request_fail(c, 404, "not_found", NULL, "there is no feedback %.200s", c->path);
    } else if (e.code) {
        store_request_fail(c, 507, "storage", NULL, "%s", e.msg);
    } else {
        log_info("feedback removed model=%s dataset=%s", model, slash + 1);
        buf_printf(&c->out, "{\"model\":\"%s\",\"dataset\":\"%s\",\"object\":\"feedback\",\"deleted\":true}", model,
                   slash + 1);
    }
    free(model);
}

static void nothing(struct store_request *c, struct db *db)
{
    (void)c, (void)db;
}

/* After the transaction, since it is not done again. */
static void settle_remove(struct store_request *c, struct db *db)
{
    if (c->status < 400) remove_set(c, db);
}

void api_feedback_delete(struct http_req *req)
{
    if (train_refuses(req, false)) return;
    struct store_request *c = store_request_new(req, false, nothing);
    c->path = mem_strdup(req->path + strlen("/feedback/"));
    c->settle = settle_remove;
    store_request_send(c);
}
