/* POST /api/v1/copy_weights: saved weights once more, of a run that is only a name, for the client that asks. */
#include "engine/base/mem.h"
#include "server/access/admission.h"
#include "server/access/client.h"
#include "server/api/app.h"
#include "server/config/settings.h"
#include "server/net/http.h"
#include "server/net/request_id.h"
#include "server/store/data_dir.h"
#include "server/store/store.h"
#include "server/tinker/finding.h"
#include "server/tinker/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is asked for; of the finding. */
struct copy_order {
    char run[RUN_ID];
    int64_t ttl; /* seconds; 0: for ever */
};

struct copying {
    struct app *app;
    struct http_req *req;       /* NULL once closed */
    struct checkpoint from, to; /* of checkpoint_copy */
    struct err e;
};

static void on_close(struct http_req *req)
{
    ((struct copying *)req->user)->req = NULL;
}

static void work_copy(void *arg)
{
    struct copying *c = arg;
    checkpoint_copy(store_dir(c->app->store), &c->from, &c->to, (size_t)c->app->set->tinker_client_weights, &c->e);
}

static void after_copy(void *arg)
{
    struct copying *c = arg;
    struct http_req *req = c->req;
    struct buf b = {0};
    if (req) {
        req->on_close = NULL;
        req->user = NULL;
    }
    if (req && c->e.code) {
        bool own = c->e.code == ERR_INVALID || c->e.code == ERR_NOT_FOUND;
        http_reply_error(req, own ? 422 : 500, own ? "validation" : "storage", "%s", c->e.msg);
    } else if (req) {
        buf_str(&b, "{\"tinker_path\":\"");
        checkpoint_put_path(&b, &c->to);
        buf_str(&b, "\"}");
        http_reply(req, 200, "application/json", b.data, b.len);
        buf_free(&b);
    }
    checkpoint_free(&c->from);
    free(c);
}

static void on_found(struct http_req *req, struct checkpoint *found, struct served_model *m, void *arg)
{
    const struct copy_order *order = arg;
    struct copying *c = mem_zalloc(sizeof *c);
    (void)m;
    *c = (struct copying){
        .app = req->app, .req = req, .from = {.sampler = found->sampler}, .to = {.sampler = found->sampler}};
    memcpy(c->from.run, found->run, sizeof c->from.run);
    memcpy(c->from.name, found->name, sizeof c->from.name);
    memcpy(c->to.name, found->name, sizeof c->to.name);
    memcpy(c->to.run, order->run, sizeof c->to.run);
    client_name(req, c->to.owner);
    c->to.created = data_now_ms();
    c->to.expires = order->ttl ? c->to.created + 1000 * order->ttl : 0;
    req->user = c;
    req->on_close = on_close;
    tinker_work(c->app->tinker, client_id(req), work_copy, after_copy, c);
}

/* A name for the run that will have the copy: the session's, by its number, or one of its own, which is the same when
 * the request comes again. */
static int name_run(struct http_req *req, struct json_at *at, struct copy_order *order)
{
    const char *session = NULL, *project = NULL, *key = http_header(req, "x-idempotency-key");
    char random[REQUEST_ID_MAX + 1];
    int64_t seq = 0;
    json_get_string(at, "session_id", &session);
    json_get_string(at, "destination_project_id", &project);
    bool numbered = json_get_int(at, "model_seq_id", 0, INT32_MAX, &seq);
    if (at->e->code) return at->e->code;
    if (session ? !numbered : !project)
        return err_set(at->e, ERR_INVALID, "`session_id` with `model_seq_id`, or `destination_project_id` is needed");
    request_id_make(random);
    if (session)
        snprintf(order->run, sizeof order->run, "%.*s:train:%lld", HANDLE_ID, session, (long long)seq);
    else
        snprintf(order->run, sizeof order->run, "copy-%016llx-%.64s", (unsigned long long)client_id(req),
                 key && data_name_ok(key) ? key : random);
    for (const struct run *r = tinker_of(req)->runs; r; r = r->next)
        if (!strcmp(r->id, order->run))
            return err_set(at->e, ERR_INVALID, "`model_seq_id`: there is a model of this number");
    return 0;
}

void api_tinker_copy_weights(struct http_req *req)
{
    struct err e = {0};
    const char *path = NULL, *session = NULL;
    if (admission_refuses(req, NULL)) return;
    cJSON *tree = tinker_body(req);
    if (!tree) return;
    struct json_at at = {tree, "", &e};
    struct copy_order *order = mem_zalloc(sizeof *order);
    json_get_int(&at, "ttl_seconds", 1, TTL_MOST, &order->ttl);
    json_get_string(&at, "session_id", &session);
    if (!json_get_string(&at, "source_path", &path) && !e.code) err_set(&e, ERR_INVALID, "`source_path` is needed");
    if (e.code || name_run(req, &at, order)) {
        tinker_refuse(req, &e);
    } else if (!session || tinker_session(req, session)) {
        checkpoint_find(req, path, false, on_found, order);
        order = NULL;
    }
    free(order);
    json_free(tree);
}
