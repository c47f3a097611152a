/* POST /debug/trace?seconds=N: the steps, phases and ops of the next N seconds, in Chrome's trace format
 * (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU), which Perfetto and
 * chrome://tracing open.  One at a time.
 *
 *     handler: engine_trace_start -> a timer of N seconds, or the client leaves
 *     -> pool: engine_trace_stop, and the text -> loop: the answer
 *
 * Loop thread, except work_take (pool). */
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/api/app.h"
#include "server/api/model_table.h"
#include "server/api/models.h"
#include "server/api/store_request.h"
#include "server/bridge/bridge.h"
#include "server/json/json.h"
#include "server/net/http.h"
#include "server/ops/routes.h"

#include <stdlib.h>
#include <string.h>
#include <uv.h>

/* Events of one trace: 12 MB, and about 25 MB of text. */
enum { EVENTS_MAX = 200000, SECONDS_MAX = 30 };

struct tracing {
    struct app *app;
    struct served_model *served; /* used while it lasts */
    struct http_req *req;        /* NULL once closed */
    uv_timer_t timer;
    bool taking; /* the time is over; the pool collects the trace */
    struct buf out;
};

/* ---- the text ---------------------------------------------------------------------------------------------------- */

static void put_name(struct buf *out, const char *what, int thread, const char *name)
{
    buf_printf(out, "{\"name\":\"%s\",\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"args\":{\"name\":\"%s\"}}", what, thread,
               name);
}

/* Complete events: microseconds since the trace began. */
static void put_event(struct buf *out, const struct trace_event *e, uint64_t origin)
{
    static const char *const kinds[] = {[TRACE_STEP] = "step",
                                        [TRACE_PHASE] = "phase",
                                        [TRACE_OP] = "op",
                                        [TRACE_TRAINING] = "training",
                                        [TRACE_EXCHANGE] = "exchange"};
    double start = e->start > origin ? (double)(e->start - origin) * 1e-3 : 0;
    buf_printf(out, ",\n{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":1,\"tid\":%d",
               e->name, kinds[e->what], start, (double)(e->end - e->start) * 1e-3, e->track == TRACK_ENGINE ? 1 : 2);
    if (e->what == TRACE_STEP)
        buf_printf(out, ",\"args\":{\"sequences\":%d,\"tokens\":%d,\"rows\":%d}", e->seqs, e->tokens, e->rows);
    if (e->what == TRACE_EXCHANGE) buf_printf(out, ",\"args\":{\"sent_bytes\":%llu}", (unsigned long long)e->sent);
    buf_char(out, '}');
}

static void put_trace(struct buf *out, const struct engine_trace *t, const struct engine_info *info)
{
    buf_str(out, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"version\":\"tandem " TANDEM_VERSION "\",\"model\":");
    json_put_string(out, info->model_id, strlen(info->model_id));
    buf_str(out, ",\"device\":");
    json_put_string(out, info->device, strlen(info->device));
    buf_printf(out, ",\"seconds\":\"%.3f\",\"lost_events\":\"%llu\"},\n\"traceEvents\":[\n",
               (double)(t->end - t->start) * 1e-9, (unsigned long long)t->lost);
    put_name(out, "process_name", 0, "tandem");
    buf_str(out, ",\n");
    put_name(out, "thread_name", 1, "engine");
    buf_str(out, ",\n");
    put_name(out, "thread_name", 2, "trainer");
    for (size_t i = 0; i < t->n; i++)
        if (t->v[i].start >= t->start) put_event(out, &t->v[i], t->start);
    buf_str(out, "\n]}\n");
}

/* ---- the exchange ------------------------------------------------------------------------------------------------ */

static void on_timer_closed(uv_handle_t *h)
{
    struct tracing *t = h->data;
    buf_free(&t->out);
    free(t);
}

static void work_take(void *arg)
{
    struct tracing *t = arg;
    struct engine_trace *trace = engine_trace_stop(t->served->engine);
    if (trace) put_trace(&t->out, trace, t->served->info);
    engine_trace_free(trace);
}

static void after_take(void *arg)
{
    struct tracing *t = arg;
    t->app->tracing = false;
    model_release(t->app->models, t->served);
    if (t->req) {
        t->req->on_close = NULL;
        http_set_header(t->req, "Cache-Control", "no-store");
        http_set_header(t->req, "Content-Disposition", "attachment; filename=\"tandem-trace.json\"");
        http_reply(t->req, 200, "application/json", t->out.data, t->out.len);
    }
    uv_close((uv_handle_t *)&t->timer, on_timer_closed);
}

static void take(struct tracing *t)
{
    if (t->taking) return;
    t->taking = true;
    uv_timer_stop(&t->timer);
    bridge_work(t->app->bridge, 0, work_take, after_take, t);
}

static void on_timer(uv_timer_t *h)
{
    take(h->data);
}

/* The client disconnected, or the daemon closes: ends the trace now. */
static void on_close(struct http_req *req)
{
    struct tracing *t = req->user;
    t->req = NULL;
    take(t);
}

/* The model of ?model=, else the default one, else the first that is loaded; NULL: there is none of that name. */
static struct served_model *chosen(const struct http_req *req, struct err *e)
{
    struct app *app = req->app;
    char name[256] = "";
    struct served_model *m = app->model;
    if (query_get(req->query, "model", name, sizeof name) && *name) {
        if (!(m = model_table_find(app->models, name, NULL))) models_say_unknown(app, name, e);
        return m;
    }
    for (int i = 0; i < model_table_count(app->models) && !m->engine; i++)
        if (model_table_at(app->models, i)->engine) m = model_table_at(app->models, i);
    return m;
}

void api_debug_trace(struct http_req *req)
{
    struct app *app = req->app;
    struct err e = {0};
    int64_t seconds;
    if (!query_int(req->query, "seconds", 1, SECONDS_MAX, 1, &seconds, &e)) {
        http_reply_error(req, 400, "validation", "%s", e.msg);
        return;
    }
    struct served_model *m = chosen(req, &e);
    if (!m) {
        http_reply_error(req, 404, "not_found", "%s", e.msg);
        return;
    }
    if (!model_use(app->models, m)) {
        http_set_header(req, "Retry-After", "1");
        http_reply_error(req, 503, "loading", "the model is not loaded");
        return;
    }
    if (engine_trace_start(m->engine, EVENTS_MAX, &e)) {
        model_release(app->models, m);
        http_reply_error(req, 409, "conflict", "%s", e.msg);
        return;
    }
    struct tracing *t = mem_zalloc(sizeof *t);
    app->tracing = true;
    t->app = app;
    t->served = m;
    t->req = req;
    req->user = t;
    req->on_close = on_close;
    uv_timer_init(app->loop, &t->timer);
    t->timer.data = t;
    uv_timer_start(&t->timer, on_timer, (uint64_t)seconds * 1000, 0);
}
