/* GET /metrics.  Loop thread; with GPUs present, a pool thread queries the driver first, because a driver may hang with
 * its device. */
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/access/admission.h"
#include "server/api/app.h"
#include "server/api/model_table.h"
#include "server/bridge/bridge.h"
#include "server/config/settings.h"
#include "server/jobs/batches.h"
#include "server/jobs/jobs.h"
#include "server/kvevents/publisher.h"
#include "server/metrics/metrics.h"
#include "server/metrics/prometheus_text.h"
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

/* The model whose limits are shown: the default one, else the first that is loaded; NULL: none is. */
static const struct served_model *any_loaded(const struct app *app)
{
    if (app->model->engine) return app->model;
    for (int i = 0; i < model_table_count(app->models); i++)
        if (model_table_at(app->models, i)->engine) return model_table_at(app->models, i);
    return NULL;
}

static uint64_t oldest_waiting(const struct app *app)
{
    uint64_t oldest = 0;
    for (int i = 0; i < model_table_count(app->models); i++) {
        const struct bridge *b = model_table_at(app->models, i)->bridge;
        uint64_t at = b ? bridge_oldest_waiting(b) : 0;
        if (at && (!oldest || at < oldest)) oldest = at;
    }
    return oldest;
}

/* Those of all loaded models, owned by the caller. */
static struct adapter_info *list_adapters(const struct app *app, int *n)
{
    int max = app->set->max_adapters;
    struct adapter_info *all = mem_array((size_t)max * (size_t)model_table_count(app->models), sizeof *all);
    *n = 0;
    for (int i = 0; i < model_table_count(app->models); i++) {
        const struct engine *engine = model_table_at(app->models, i)->engine;
        if (engine) *n += engine_adapters_list(engine, all + *n, max);
    }
    return all;
}

static void put_each(const struct app *app, struct buf *out, const char *name, const char *type, const char *help,
                     double (*value)(const struct served_model *))
{
    prometheus_head(out, name, type, help);
    for (int i = 0; i < model_table_count(app->models); i++) {
        const struct served_model *m = model_table_at(app->models, i);
        if (m->name) prometheus_by(out, name, "model", m->name, value(m));
    }
}

static double is_loaded(const struct served_model *m)
{
    return m->state == MODEL_LOADED;
}

static double bytes_of(const struct served_model *m)
{
    return m->state == MODEL_LOADED ? (double)m->bytes : 0;
}

static double loads_of(const struct served_model *m)
{
    return (double)m->loads;
}

static double unloads_of(const struct served_model *m)
{
    return (double)m->unloads;
}

static double load_seconds_of(const struct served_model *m)
{
    return (double)m->load_ns * 1e-9;
}

static double users_of(const struct served_model *m)
{
    return m->users;
}

static void put_models(const struct app *app, const struct model_totals *t, struct buf *out)
{
    const struct prometheus_row rows[] = {
        {"tandem_models", "gauge", "Models that requests can name.", model_table_count(app->models)},
        {"tandem_models_loaded", "gauge", "Models that are loaded.", t->loaded},
        {"tandem_models_memory_bytes", "gauge", "Weights, KV cache and workspace of the loaded models.",
         (double)t->bytes},
        {"tandem_models_memory_budget_bytes", "gauge", "Limit of tandem_models_memory_bytes; 0: none.",
         (double)t->budget},
        {"tandem_model_requests_waiting", "gauge", "Requests that wait for their model to be loaded.", t->waiting},
        {"tandem_model_load_failures_total", "counter", "Loads of models that failed.", (double)t->failures},
    };
    prometheus_rows(out, rows, sizeof rows / sizeof *rows);
    put_each(app, out, "tandem_model_loaded", "gauge", "Whether the model is loaded.", is_loaded);
    put_each(app, out, "tandem_model_memory_bytes", "gauge", "Weights, KV cache and workspace of the model.", bytes_of);
    put_each(app, out, "tandem_model_loads_total", "counter", "Times that the model was loaded.", loads_of);
    put_each(app, out, "tandem_model_unloads_total", "counter", "Times that the model was unloaded.", unloads_of);
    put_each(app, out, "tandem_model_last_load_seconds", "gauge", "How long its last load took.", load_seconds_of);
    put_each(app, out, "tandem_model_users", "gauge", "Requests, jobs and evaluations that use the model.", users_of);
}

static void reply_metrics(struct app *app, struct http_req *req)
{
    struct engine_stats stats;
    struct jobs_view jobs;
    struct adapter_info *adapters = NULL;
    uint64_t now = clock_now();
    struct metrics_view view = {
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
    struct kv_publisher_counts events = kv_publisher_counts(app->kv_events);
    view.kv_event_batches = events.batches;
    view.kv_event_batches_refused = events.refused;
    view.kv_event_replays = events.replays;
    view.kv_event_resyncs = events.resyncs;
    struct model_totals totals;
    const struct served_model *m = any_loaded(app);
    model_table_totals(app->models, &totals);
    model_table_stats(app->models, &stats);
    view.info = m ? m->info : NULL;
    if (m) view.model_name = m->name;
    if (m) {
        view.stats = &stats;
        view.step_running = age(stats.step_started, now);
        view.oldest_waiting = age(oldest_waiting(app), now);
        adapters = list_adapters(app, &view.n_adapters);
        view.adapters = adapters;
    }
    struct buf out = {0};
    metrics_render(&app->metrics, &view, &out);
    admission_put_metrics(app->admission, &out);
    put_models(app, &totals, &out);
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
