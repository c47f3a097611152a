/* The lists of runs, saved weights and sessions, as Tinker's RestClient reads them, and changes of saved weights.
 *
 * What is alive is copied on the loop; files are read, and the answer is written, on the pool. */
#include "engine/base/mem.h"
#include "server/access/admission.h"
#include "server/access/client.h"
#include "server/api/app.h"
#include "server/api/served_model.h"
#include "server/api/store_request.h"
#include "server/net/http.h"
#include "server/store/data_dir.h"
#include "server/store/store.h"
#include "server/tinker/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- work on the pool ----------------------------------------------------------------------------------------------
 */

/* A run as it is listed. */
struct row {
    char id[RUN_ID];
    const char *base;
    int rank;
    int64_t used;
    const struct checkpoint *last[2]; /* of weights, of sampler_weights; NULL: none */
};

enum change { CHANGE_DELETE, CHANGE_EXPIRY, CHANGE_PUBLISH, CHANGE_UNPUBLISH };

struct task {
    struct app *app;
    struct http_req *req; /* NULL once closed */
    void (*work)(struct task *);
    char owner[CLIENT_NAME], run[RUN_ID];
    struct checkpoint target;
    int64_t limit, offset, expires;
    enum change change; /* of target */
    struct row *row;    /* (n_rows) those alive, and then all; owned; their bases are served models' names */
    size_t n_rows, cap_rows;
    struct checkpoint *saved; /* (n_saved) owned */
    size_t n_saved;
    struct buf answer;
    struct err e;
};

static void task_free(struct task *t)
{
    for (size_t i = 0; i < t->n_saved; i++) checkpoint_free(&t->saved[i]);
    checkpoint_free(&t->target);
    free(t->saved);
    free(t->row);
    buf_free(&t->answer);
    free(t);
}

static void on_close(struct http_req *req)
{
    ((struct task *)req->user)->req = NULL;
}

static void work(void *arg)
{
    ((struct task *)arg)->work(arg);
}

static void after(void *arg)
{
    struct task *t = arg;
    struct http_req *req = t->req;
    if (req) {
        req->on_close = NULL;
        req->user = NULL;
        if (t->e.code)
            http_reply_error(req,
                             t->e.code == ERR_NOT_FOUND ? 404
                             : t->e.code == ERR_INVALID ? 422
                                                        : 500,
                             t->e.code == ERR_NOT_FOUND ? "not_found" : "validation", "%s", t->e.msg);
        else
            http_reply(req, 200, "application/json", t->answer.data, t->answer.len);
    }
    task_free(t);
}

static struct row *add_row(struct task *t, const char *id)
{
    mem_grow(&t->row, &t->cap_rows, t->n_rows + 1, sizeof *t->row);
    struct row *r = &t->row[t->n_rows++];
    *r = (struct row){0};
    snprintf(r->id, sizeof r->id, "%s", id);
    return r;
}

/* With the runs of the client that are alive; run NULL: all of them. */
static struct task *task_new(struct http_req *req, void (*fn)(struct task *), const char *run)
{
    struct task *t = mem_zalloc(sizeof *t);
    *t = (struct task){.app = req->app, .req = req, .work = fn};
    client_name(req, t->owner);
    for (const struct run *r = tinker_of(req)->runs; r; r = r->next) {
        if (!r->session || strcmp(r->owner, t->owner) || (run && strcmp(r->id, run))) continue;
        struct row *row = add_row(t, r->id);
        row->base = r->model->name;
        row->rank = r->params.r;
        row->used = r->used;
    }
    if (run) snprintf(t->run, sizeof t->run, "%s", run);
    return t;
}

static void begin(struct task *t)
{
    t->req->user = t;
    t->req->on_close = on_close;
    tinker_work(t->app->tinker, client_id(t->req), work, after, t);
}

/* ?limit and ?offset; false with an answer. */
static bool read_page(struct http_req *req, struct task *t, int64_t otherwise)
{
    struct err e = {0};
    query_int(req->query, "limit", 1, 1000, otherwise, &t->limit, &e);
    if (!e.code) query_int(req->query, "offset", 0, INT32_MAX, 0, &t->offset, &e);
    if (!e.code) return true;
    tinker_refuse(req, &e);
    task_free(t);
    return false;
}

static void put_cursor(struct task *t, size_t total)
{
    buf_printf(&t->answer, "],\"cursor\":{\"offset\":%lld,\"limit\":%lld,\"total_count\":%zu}}", (long long)t->offset,
               (long long)t->limit, total);
}

static bool on_page(const struct task *t, size_t i)
{
    return (int64_t)i >= t->offset && (int64_t)i < t->offset + t->limit;
}

/* ---- runs ----------------------------------------------------------------------------------------------------------
 */

static int by_id(const void *a, const void *b)
{
    return strcmp(((const struct row *)a)->id, ((const struct row *)b)->id);
}

static int newest_first(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    return x->used != y->used ? (x->used > y->used ? -1 : 1) : by_id(a, b);
}

/* A run of each of the saved weights, and those alive: each once, the newest first. */
static void gather(struct task *t)
{
    size_t n = 0;
    t->saved = checkpoint_list(store_dir(t->app->store), *t->run ? t->run : NULL, t->owner, &t->n_saved);
    for (size_t i = 0; i < t->n_saved; i++) {
        const struct checkpoint *c = &t->saved[i];
        struct row *r = add_row(t, c->run);
        r->base = c->base;
        r->rank = c->rank;
        r->used = c->created;
        r->last[c->sampler] = c;
    }
    if (t->n_rows) qsort(t->row, t->n_rows, sizeof *t->row, by_id);
    for (size_t i = 0; i < t->n_rows; i++) {
        struct row *r = &t->row[i], *last = n ? &t->row[n - 1] : NULL;
        if (!last || strcmp(last->id, r->id)) {
            t->row[n++] = *r;
            continue;
        }
        if (r->used > last->used) last->used = r->used;
        for (int k = 0; k < 2; k++)
            if (r->last[k] && (!last->last[k] || last->last[k]->created < r->last[k]->created))
                last->last[k] = r->last[k];
    }
    t->n_rows = n;
    if (n) qsort(t->row, n, sizeof *t->row, newest_first);
}

static void put_run(struct task *t, const struct row *r)
{
    static const char *const names[] = {"last_checkpoint", "last_sampler_checkpoint"};
    struct buf *b = &t->answer;
    buf_printf(b, "{\"training_run_id\":\"%s\",\"base_model\":", r->id);
    json_put_string(b, r->base, strlen(r->base));
    buf_str(b, ",\"model_owner\":");
    json_put_string(b, t->owner, strlen(t->owner));
    buf_printf(b, ",\"is_lora\":true,\"corrupted\":false,\"lora_rank\":%d,\"last_request_time\":", r->rank);
    checkpoint_put_time(b, r->used);
    for (int k = 0; k < 2; k++) {
        if (!r->last[k]) continue;
        buf_printf(b, ",\"%s\":", names[k]);
        checkpoint_put(b, r->last[k]);
    }
    buf_char(b, '}');
}

static void list_runs(struct task *t)
{
    gather(t);
    buf_str(&t->answer, "{\"training_runs\":[");
    for (size_t i = 0, n = 0; i < t->n_rows; i++) {
        if (!on_page(t, i)) continue;
        if (n++) buf_char(&t->answer, ',');
        put_run(t, &t->row[i]);
    }
    put_cursor(t, t->n_rows);
}

static void get_run(struct task *t)
{
    gather(t);
    if (t->n_rows)
        put_run(t, t->row);
    else
        err_set(&t->e, ERR_NOT_FOUND, "there is no training run %s", t->run);
}

void api_tinker_runs(struct http_req *req)
{
    if (admission_refuses(req, NULL)) return;
    struct task *t = task_new(req, list_runs, NULL);
    if (read_page(req, t, 20)) begin(t);
}

void api_tinker_run(struct http_req *req)
{
    if (!admission_refuses(req, NULL)) begin(task_new(req, get_run, req->param));
}

/* ---- saved weights -------------------------------------------------------------------------------------------------
 */

static void list_saved(struct task *t)
{
    gather(t);
    if (*t->run && !t->n_rows) {
        err_set(&t->e, ERR_NOT_FOUND, "there is no training run %s", t->run);
        return;
    }
    buf_str(&t->answer, "{\"checkpoints\":[");
    for (size_t i = 0, n = 0; i < t->n_saved; i++) {
        if (t->limit && !on_page(t, i)) continue;
        if (n++) buf_char(&t->answer, ',');
        checkpoint_put(&t->answer, &t->saved[i]);
    }
    if (t->limit)
        put_cursor(t, t->n_saved);
    else
        buf_str(&t->answer, "]}");
}

void api_tinker_run_checkpoints(struct http_req *req)
{
    if (!admission_refuses(req, NULL)) begin(task_new(req, list_saved, req->param));
}

void api_tinker_checkpoints(struct http_req *req)
{
    if (admission_refuses(req, NULL)) return;
    struct task *t = task_new(req, list_saved, NULL);
    if (read_page(req, t, 100)) begin(t);
}

static void change(struct task *t)
{
    struct checkpoint found = {.sampler = t->target.sampler};
    const char *data = store_dir(t->app->store);
    memcpy(found.run, t->target.run, sizeof found.run);
    memcpy(found.name, t->target.name, sizeof found.name);
    if (!checkpoint_read(data, &found, t->owner, true, &t->e)) {
        switch (t->change) {
        case CHANGE_DELETE: checkpoint_delete(data, &found, &t->e); break;
        case CHANGE_EXPIRY: checkpoint_expire(data, &found, t->expires, &t->e); break;
        case CHANGE_PUBLISH:
        case CHANGE_UNPUBLISH: checkpoint_publish(data, &found, t->change == CHANGE_PUBLISH, &t->e); break;
        }
    }
    checkpoint_free(&found);
    buf_str(&t->answer, "{}");
}

/* The path's rest: RUN/checkpoints/weights/NAME and `end`.  expires: of CHANGE_EXPIRY. */
static void change_named(struct http_req *req, const char *end, enum change change_to, int64_t expires)
{
    static const char lead[] = "/api/v1/training_runs/", middle[] = "/checkpoints/";
    struct err e = {0};
    const char *run = req->path + sizeof lead - 1, *rest = strchr(run, '/');
    size_t n = rest ? strlen(rest) : 0, n_end = strlen(end);
    struct checkpoint target = {0};
    bool form =
        n > sizeof middle - 1 + n_end && !strncmp(rest, middle, sizeof middle - 1) && !strcmp(rest + n - n_end, end);
    char *id = form ? mem_strndup(rest + sizeof middle - 1, n - (sizeof middle - 1) - n_end) : NULL;
    char *name = mem_strndup(run, rest ? (size_t)(rest - run) : 0);
    if (id) checkpoint_parse_id(&target, name, id, &e);
    if (!id || e.code) {
        http_reply_error(req, 404, "not_found", "there are no such weights");
    } else {
        struct task *t = task_new(req, change, name);
        t->target = target;
        t->change = change_to;
        t->expires = expires;
        begin(t);
    }
    free(id);
    free(name);
}

void api_tinker_checkpoint_delete(struct http_req *req)
{
    static const char publish[] = "/publish", middle[] = "/checkpoints/";
    if (admission_refuses(req, NULL)) return;
    /* KIND/NAME/publish; what is only called publish has one part less */
    const char *id = strstr(req->path, middle), *name = id ? strchr(id + sizeof middle - 1, '/') : NULL;
    const char *end = name ? strchr(name + 1, '/') : NULL;
    if (end && !strcmp(end, publish))
        change_named(req, publish, CHANGE_UNPUBLISH, 0);
    else
        change_named(req, "", CHANGE_DELETE, 0);
}

void api_tinker_checkpoint_publish(struct http_req *req)
{
    if (!admission_refuses(req, NULL)) change_named(req, "/publish", CHANGE_PUBLISH, 0);
}

void api_tinker_checkpoint_ttl(struct http_req *req)
{
    struct err e = {0};
    int64_t ttl = 0;
    if (admission_refuses(req, NULL)) return;
    cJSON *tree = tinker_body(req);
    if (!tree) return;
    struct json_at at = {tree, "", &e};
    bool some = json_get_int(&at, "ttl_seconds", 1, TTL_MOST, &ttl);
    json_free(tree);
    if (e.code)
        tinker_refuse(req, &e);
    else
        change_named(req, "/ttl", CHANGE_EXPIRY, some ? data_now_ms() + 1000 * ttl : 0);
}

/* ---- sessions ------------------------------------------------------------------------------------------------------
 */

void api_tinker_sessions(struct http_req *req)
{
    const struct handles *all = &tinker_of(req)->sessions;
    struct err e = {0};
    struct buf b = {0};
    int64_t limit = 20, offset = 0, seen = 0;
    if (admission_refuses(req, NULL)) return;
    query_int(req->query, "limit", 1, 1000, 20, &limit, &e);
    if (!e.code) query_int(req->query, "offset", 0, INT32_MAX, 0, &offset, &e);
    if (e.code) {
        tinker_refuse(req, &e);
        return;
    }
    buf_str(&b, "{\"sessions\":[");
    for (size_t i = 0; i < all->n; i++) {
        if (!all->v[i] || all->v[i]->client != client_id(req)) continue;
        if (seen >= offset && seen < offset + limit)
            buf_printf(&b, "%s\"%s\"", seen > offset ? "," : "", all->v[i]->id);
        seen++;
    }
    buf_str(&b, "]}");
    http_reply(req, 200, "application/json", b.data, b.len);
    buf_free(&b);
}

/* Asking for it is no sign that its client lives. */
void api_tinker_session(struct http_req *req)
{
    const struct tinker *t = tinker_of(req);
    const struct session *s = (struct session *)handles_find(&t->sessions, req->param, client_id(req));
    struct buf b = {0};
    int n = 0;
    if (admission_refuses(req, NULL)) return;
    if (!s) {
        http_reply_error(req, 404, "not_found", "there is no such session");
        return;
    }
    buf_str(&b, "{\"training_run_ids\":[");
    for (const struct run *r = t->runs; r; r = r->next)
        if (r->session == s) buf_printf(&b, "%s\"%s\"", n++ ? "," : "", r->id);
    buf_str(&b, "],\"sampler_ids\":[");
    n = 0;
    for (size_t i = 0; i < t->samplers.n; i++) {
        const struct sampler *p = (struct sampler *)t->samplers.v[i];
        if (p && p->session == s) buf_printf(&b, "%s\"%s\"", n++ ? "," : "", p->handle.id);
    }
    buf_str(&b, "]}");
    http_reply(req, 200, "application/json", b.data, b.len);
    buf_free(&b);
}
