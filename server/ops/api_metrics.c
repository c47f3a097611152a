/* GET /metrics.  Loop thread; with GPUs present, a pool thread queries the driver first, because a driver may hang with
 * its device. */
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/access/admission.h"
#include "server/api/app.h"
#include "server/api/served_model.h"
#include "server/bridge/bridge.h"
#include "server/config/settings.h"
#include "server/jobs/batches.h"
#include "server/jobs/jobs.h"
#include "server/metrics/metrics.h"
#include "server/net/http.h"
#include "server/net/tls.h"
#include "server/ops/device_watch.h"
#include "server/ops/process.h"
#include "server/ops/routes.h"

#include <stdlib.h>
#include <string.h>

/* A scrape that waits for a sample. */
struct scrape {
    struct app *app;
    struct http_req *req; /* NULL once closed */
};

static double age(uint64_t since, uint64_t now)
{
    return since && now > since ? (double)(now - since) * 1e-9 : 0;
}

static void reply_metrics(struct app *app, struct http_req *req)
{
    struct engine_stats stats;
    struct jobs_view jobs;
    struct adapter_info *adapters = NULL;
    uint64_t now = clock_now();
    struct metrics_view view = {
        .info = app->model->info,
        .http = http_server_stats(app->http),
        .jobs = &jobs,
        .devices = device_watch_sample(app->device_watch),
        .ready = app->state == SERVING_READY,
        .prefix_cache = app->set->prefix_cache,
        .batch_running = batches_running(app->batches),
        .memory_limit = process_memory_limit(),
        .certificate_expires = app->credentials.tls ? (double)tls_expires_at(app->credentials.tls) : 0,
        .train_speed_floor = app->set->train_speed_floor,
        .model_name = app->model->name,
        .vllm = strcmp(app->set->metrics_aliases, "vllm") == 0,
    };
    jobs_view(app->jobs, &jobs);
    if (app->model->engine && app->model->info) {
        engine_stats_read(app->model->engine, &stats);
        view.stats = &stats;
        view.step_running = age(stats.step_started, now);
        view.oldest_waiting = age(bridge_oldest_waiting(app->bridge), now);
        adapters = mem_array((size_t)app->model->info->max_adapters, sizeof *adapters);
        view.adapters = adapters;
        view.n_adapters = engine_adapters_list(app->model->engine, adapters, app->model->info->max_adapters);
    }
    struct buf out = {0};
    metrics_render(&app->metrics, &view, &out);
    admission_put_metrics(app->admission, &out);
    http_reply(req, 200, "text/plain; version=0.0.4; charset=utf-8", out.data, out.len);
    buf_free(&out);
    free(adapters);
}

static void on_close(struct http_req *req)
{
    struct scrape *s = req->user;
    s->req = NULL;
}

static void after_sample(void *arg)
{
    struct scrape *s = arg;
    if (s->req) {
        s->req->on_close = NULL;
        reply_metrics(s->app, s->req);
    }
    free(s);
}

void api_metrics(struct http_req *req)
{
    struct app *app = req->app;
    if (app->state == SERVING_DRAINING || !device_watch_idle(app->device_watch)) {
        reply_metrics(app, req);
        return;
    }
    struct scrape *s = mem_zalloc(sizeof *s);
    s->app = app;
    s->req = req;
    req->user = s;
    req->on_close = on_close;
    device_watch_query(app->device_watch, after_sample, s);
}
