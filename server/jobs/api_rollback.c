/* POST /adapters/NAME/rollback: the version that a job replaced is served again (published.h).  Loop thread, except
 * work_back. */
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/access/admission.h"
#include "server/api/adapters.h"
#include "server/api/app.h"
#include "server/api/model_table.h"
#include "server/bridge/bridge.h"
#include "server/config/settings.h"
#include "server/jobs/published.h"
#include "server/jobs/routes.h"
#include "server/json/json.h"
#include "server/net/http.h"
#include "server/store/data_dir.h"

#include <stdlib.h>
#include <string.h>

struct rollback {
    struct app *app;
    struct http_req *req; /* NULL once the client disconnected; the change goes on */
    struct served_model *served;
    char *name, *target, *before; /* owned */
    struct err e;
};

static void on_close(struct http_req *req)
{
    ((struct rollback *)req->user)->req = NULL;
}

static void work_back(void *arg)
{
    struct rollback *b = arg;
    published_back(b->served, b->name, b->target, b->before, &b->e);
}

static void reply(const struct rollback *b)
{
    struct buf out = {0};
    if (b->e.code) {
        bool none = b->e.code == ERR_NOT_FOUND;
        http_reply_error(b->req, none ? 404 : 507, none ? "not_found" : "storage", "%s", b->e.msg);
        return;
    }
    buf_str(&out, "{\"name\":");
    json_put_string(&out, b->name, strlen(b->name));
    buf_str(&out, ",\"rolled_back\":true}");
    http_reply(b->req, 200, "application/json", out.data, out.len);
    buf_free(&out);
}

static void after_back(void *arg)
{
    struct rollback *b = arg;
    if (b->e.code) {
        log_warn("adapter not rolled back name=%.100s reason=\"%s\"", b->name, b->e.msg);
    } else {
        log_info("adapter rolled back name=%s", b->name);
        adapters_supersede(b->app, b->served, b->name);
    }
    model_release(b->app->models, b->served);
    if (b->req) {
        b->req->on_close = NULL;
        reply(b);
    }
    free(b->name);
    free(b->target);
    free(b->before);
    free(b);
}

void api_adapter_rollback(struct http_req *req)
{
    struct app *app = req->app;
    bool adapter = false;
    if (admission_refuses(req, NULL)) return;
    struct served_model *m = data_name_ok(req->param) ? model_table_find(app->models, req->param, &adapter) : NULL;
    if (!m || !adapter) {
        http_reply_error(req, 404, "not_found", "no model has an adapter %.100s", req->param);
        return;
    }
    if (!model_use(app->models, m)) {
        http_set_header(req, "Retry-After", "1");
        http_reply_error(req, 409, "conflict", "the model of the adapter %.100s is not loaded: send it a request first",
                         req->param);
        return;
    }
    const char *dir = settings_data_dir(app->set);
    struct rollback *b = mem_zalloc(sizeof *b);
    *b = (struct rollback){.app = app,
                           .req = req,
                           .served = m,
                           .name = mem_strdup(req->param),
                           .target = data_path(dir, "adapters", req->param),
                           .before = data_path(dir, "adapters-before", req->param)};
    req->user = b;
    req->on_close = on_close;
    bridge_work(app->bridge, 0, work_back, after_back, b);
}
