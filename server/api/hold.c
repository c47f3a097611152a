/* POST /pause, POST /resume, GET /is_paused, POST /reset_prefix_cache: vLLM's routes for trainers that change weights
 * between texts, in its shapes (vllm/entrypoints/serve/dev/rlhf and cache).
 *
 *   mode=abort (default)  requests end with what they have, finish_reason "abort"; new ones wait
 *   mode=wait             requests run to their ends; new ones wait
 *   mode=keep             all wait, each with its tokens and pages
 *
 * The answer to abort and wait comes when the requests are over, to keep when the step in progress is.  Loop thread. */
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/api/app.h"
#include "server/api/routes.h"
#include "server/api/served_model.h"
#include "server/api/store_request.h"
#include "server/bridge/bridge.h"
#include "server/net/http.h"

#include <stdlib.h>
#include <string.h>

struct pausing {
    struct bridge_wait wait; /* first */
    struct bridge *bridge;
    struct http_req *req;
    bool forget;
};

/* @return NULL with an answer while the model is loading, or the daemon ends: nothing is to be held then. */
static const struct served_model *loaded(struct http_req *req)
{
    const struct served_model *m = served_model_of(req);
    bool drains = ((const struct app *)req->app)->state == SERVING_DRAINING;
    if (m->engine && m->info && !drains) return m;
    http_set_header(req, "Retry-After", "1");
    http_reply_error(req, 503, drains ? "draining" : "loading",
                     drains ? "the server is stopping" : "the model is loading");
    return NULL;
}

static void reply(struct http_req *req, const char *json)
{
    http_reply(req, 200, "application/json", json, strlen(json));
}

/* Reads a truth value of the query as Python's frameworks do. */
static bool query_flag(const char *query, const char *name, bool otherwise)
{
    char value[8];
    if (!query || !query_get(query, name, value, sizeof value)) return otherwise;
    return strcmp(value, "false") && strcmp(value, "False") && strcmp(value, "0") && strcmp(value, "no") &&
           strcmp(value, "off");
}

/* ---- /pause ---------------------------------------------------------------------------------------------------- */

static void on_close(struct http_req *req)
{
    struct pausing *p = req->user;
    bridge_wait_cancel(p->bridge, &p->wait);
    free(p);
}

static void on_held(void *arg, bool resumed)
{
    struct pausing *p = arg;
    if (resumed) {
        http_reply_error(p->req, 409, "conflict", "resumed before the pause was whole");
        return;
    }
    if (p->forget) engine_forget_prefixes(served_model_of(p->req)->engine);
    reply(p->req, "{\"status\":\"paused\"}");
}

/* @return false with an answer. */
static bool read_mode(struct http_req *req, char mode[8])
{
    bool waits = query_flag(req->query, "wait_for_inflight_requests", false);
    if (!req->query || !query_get(req->query, "mode", mode, 8)) strcpy(mode, waits ? "wait" : "abort");
    if (!strcmp(mode, "abort") || !strcmp(mode, "wait") || !strcmp(mode, "keep")) return true;
    http_reply_error(req, 400, "validation", "`mode` is abort, wait or keep");
    return false;
}

void api_pause(struct http_req *req)
{
    char mode[8];
    const struct served_model *m = loaded(req);
    if (!m || !read_mode(req, mode)) return;
    bool keep = !strcmp(mode, "keep");
    struct pausing *p = mem_zalloc(sizeof *p);
    *p = (struct pausing){.wait = {.fn = on_held, .arg = p},
                          .bridge = m->bridge,
                          .req = req,
                          .forget = query_flag(req->query, "clear_cache", true)};
    req->user = p;
    req->on_close = on_close;
    bridge_hold(m->bridge, keep ? HOLD_ALL : HOLD_NEW);
    if (!strcmp(mode, "abort")) bridge_abort_all(m->bridge);
    bridge_when_held(m->bridge, &p->wait);
}

/* ---- the others ------------------------------------------------------------------------------------------------- */

void api_resume(struct http_req *req)
{
    const struct served_model *m = loaded(req);
    if (!m) return;
    bridge_hold(m->bridge, HOLD_NONE);
    reply(req, "{\"status\":\"resumed\"}");
}

void api_is_paused(struct http_req *req)
{
    const struct served_model *m = loaded(req);
    if (m) reply(req, bridge_held(m->bridge) == HOLD_NONE ? "{\"is_paused\":false}" : "{\"is_paused\":true}");
}

void api_reset_prefix_cache(struct http_req *req)
{
    const struct served_model *m = loaded(req);
    if (!m) return;
    engine_forget_prefixes(m->engine);
    reply(req, "{\"success\":true}");
}
