/* GET /debug/state: a snapshot of the daemon's state, as JSON, for debugging.  Answers also while an engine step hangs,
 * because it reads only the loop's data and what the engine has published.  Contains numbers and names, never text of a
 * prompt or an answer.  Loop thread. */
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/access/admission.h"
#include "server/api/app.h"
#include "server/api/model_table.h"
#include "server/api/store_request.h"
#include "server/bridge/bridge.h"
#include "server/config/settings.h"
#include "server/jobs/jobs.h"
#include "server/json/json.h"
#include "server/net/http.h"
#include "server/ops/health.h"
#include "server/ops/routes.h"
#include "server/store/store.h"

#include <stdlib.h>
#include <string.h>

enum { REQUESTS_MAX = 1000, ADAPTERS_MAX = 256 };

static void put_string(struct buf *out, const char *name, const char *value)
{
    buf_printf(out, "\"%s\":", name);
    if (value)
        json_put_string(out, value, strlen(value));
    else
        buf_str(out, "null");
}

/* Milliseconds between two times; null where one of them is unset. */
static void put_ms(struct buf *out, const char *name, uint64_t from, uint64_t to)
{
    if (from && to >= from)
        buf_printf(out, ",\"%s\":%.3f", name, (double)(to - from) * 1e-6);
    else
        buf_printf(out, ",\"%s\":null", name);
}

static int count_active(const struct app *app)
{
    int n = bridge_active(app->bridge);
    for (int i = 0; i < model_table_count(app->models); i++) {
        const struct bridge *b = model_table_at(app->models, i)->bridge;
        if (b) n += bridge_active(b);
    }
    return n;
}

static void put_server(struct buf *out, struct app *app)
{
    static const char *const states[] = {"loading", "ready", "draining"};
    const struct http_server_stats *h = http_server_stats(app->http);
    put_string(out, "state", states[app->state]);
    buf_printf(out, ",\"healthy\":%s,\"version\":\"" TANDEM_VERSION "\",\"time\":%.3f",
               health_good(app) ? "true" : "false", (double)clock_unix() * 1e-9);
    buf_printf(out, ",\"uptime_s\":%.3f", (double)(clock_unix() - app->metrics.start_unix_ns) * 1e-9);
    buf_printf(out,
               ",\"connections\":{\"open\":%d,\"accepted\":%llu,\"rejected\":%llu},\"event_streams\":%d,"
               "\"adapter_loads\":%d,\"active\":%d,\"tracing\":%s",
               h->open, (unsigned long long)h->accepted, (unsigned long long)h->rejected, app->event_streams,
               app->adapter_loads, count_active(app), app->tracing ? "true" : "false");
}

static void put_engine(struct buf *out, struct app *app, const struct served_model *m, uint64_t now)
{
    struct engine_stats s;
    const struct engine_info *i = m->info;
    engine_stats_read(m->engine, &s);
    buf_printf(out,
               ",\"engine\":{\"waiting\":%d,\"running\":%d,\"paused\":%d,\"max_queue\":%d,\"max_seqs\":%d,"
               "\"max_batch_tokens\":%d,\"steps\":%llu,\"failed_steps\":%llu,\"preemptions\":%llu",
               s.waiting, s.running, s.paused, app->set->max_queue, i->max_seqs, i->max_batch_tokens,
               (unsigned long long)s.steps, (unsigned long long)s.failed_steps, (unsigned long long)s.preemptions);
    put_ms(out, "step_running_ms", s.step_started, now);
    put_ms(out, "oldest_waiting_ms", bridge_oldest_waiting(m->bridge), now);
    buf_printf(
        out,
        ",\"kv\":{\"pages\":%d,\"used\":%d,\"cached\":%d,\"page_tokens\":%d,\"bytes\":%zu},"
        "\"memory\":{\"weights\":%zu,\"kv_cache\":%zu,\"workspace\":%zu,\"draft\":%zu,\"adapters\":%zu,\"budget\":%zu,"
        "\"used\":%zu}}",
        s.pages_total, s.pages_used, s.pages_cached, i->page_tokens, i->kv_bytes, i->weight_bytes, i->kv_bytes,
        i->workspace_bytes, i->draft_weight_bytes + i->draft_kv_bytes + i->draft_workspace_bytes, s.adapter_bytes,
        i->device_budget, s.device_used);
}

static const struct seq_view *find_seq(const struct seq_view *v, int n, uint64_t id)
{
    for (int i = 0; i < n; i++)
        if (v[i].id == id) return &v[i];
    return NULL;
}

/* Writes the loop's data of a request and, if it has a slot, the engine's.  all: the engine's list is complete;
 * otherwise a request missing from it may still be running, and its state is null (unknown). */
static void put_request(struct buf *out, const struct gen_view *g, const struct seq_view *q, bool all, uint64_t now)
{
    const char *state = !g->req                         ? "cancelled"
                        : g->paused || (q && q->paused) ? "paused"
                        : q && q->blocked               ? "held"
                        : q                             ? "running"
                        : !all                          ? NULL
                        : g->first_token                ? "preempted"
                                                        : "waiting";
    buf_char(out, '{');
    put_string(out, "request_id", g->req ? g->req->id : NULL);
    buf_printf(out, ",\"engine_id\":%llu,", (unsigned long long)g->id);
    put_string(out, "state", state);
    buf_char(out, ',');
    put_string(out, "route", g->req && g->req->route ? g->req->route->path : NULL);
    buf_char(out, ',');
    put_string(out, "adapter", g->adapter);
    put_ms(out, "age_ms", g->received, now);
    put_ms(out, "ttft_ms", g->received, g->first_token);
    put_ms(out, "since_last_token_ms", g->last_token, now);
    buf_printf(out,
               ",\"priority\":%d,\"prompt_tokens\":%d,\"generated_tokens\":%d,\"max_new_tokens\":%d,"
               "\"constrained\":%s,\"embedding\":%s",
               g->priority, g->n_prompt, g->n_generated, g->max_new, g->constrained ? "true" : "false",
               g->pooled ? "true" : "false");
    if (q)
        buf_printf(out, ",\"computed_tokens\":%d,\"cached_tokens\":%d,\"pages\":%d", q->computed, q->cached, q->pages);
    buf_char(out, '}');
}

static void put_requests(struct buf *out, const struct served_model *m, uint64_t now)
{
    struct gen_view *v = mem_array(REQUESTS_MAX, sizeof *v);
    struct seq_view *seqs = mem_array(ENGINE_SEQS_KEPT, sizeof *seqs);
    int n = bridge_list(m->bridge, v, REQUESTS_MAX), n_seqs = engine_running(m->engine, seqs);
    buf_str(out, ",\"requests\":[");
    for (int i = 0; i < n; i++) {
        if (i) buf_char(out, ',');
        put_request(out, &v[i], find_seq(seqs, n_seqs, v[i].id), n_seqs < ENGINE_SEQS_KEPT, now);
    }
    buf_char(out, ']');
    free(seqs);
    free(v);
}

static void put_adapters(struct buf *out, const struct served_model *m)
{
    struct adapter_info *v = mem_array(ADAPTERS_MAX, sizeof *v);
    int n = engine_adapters_list(m->engine, v, ADAPTERS_MAX);
    buf_str(out, ",\"adapters\":[");
    for (int i = 0; i < n; i++) {
        buf_str(out, i ? ",{" : "{");
        put_string(out, "name", v[i].name);
        buf_printf(out, ",\"version\":%llu,\"rank\":%d,\"bytes\":%zu,\"requests\":%d,\"running\":%d}",
                   (unsigned long long)v[i].version, v[i].r, v[i].bytes, v[i].requests, v[i].running);
    }
    buf_char(out, ']');
    free(v);
}

static void put_jobs(struct buf *out, struct app *app)
{
    struct jobs_view j;
    jobs_view(app->jobs, &j);
    buf_str(out, ",\"jobs\":{\"counts\":{");
    for (int i = 0; i < JOB_STATES; i++) buf_printf(out, "%s\"%s\":%d", i ? "," : "", job_state_names[i], j.counts[i]);
    buf_str(out, "},\"running\":");
    if (!j.running) {
        buf_str(out, "null}");
        return;
    }
    buf_char(out, '{');
    put_string(out, "id", j.running);
    buf_char(out, ',');
    put_string(out, "phase", j.phase);
    buf_printf(out, ",\"step\":%lld,\"steps\":%lld,\"skipped\":%lld,\"loss\":", (long long)j.last.step,
               (long long)j.last.steps, (long long)j.last.skipped);
    json_put_number(out, j.last.loss);
    buf_str(out, ",\"eta_s\":");
    json_put_number(out, j.last.eta_s);
    buf_str(out, "}}");
}

static void put_steps(struct buf *out, const struct served_model *m, uint64_t now)
{
    struct step_record v[ENGINE_STEPS_KEPT];
    int n = engine_last_steps(m->engine, v);
    buf_str(out, ",\"last_steps\":[");
    for (int i = 0; i < n; i++) {
        const struct step_record *s = &v[i];
        buf_printf(out, "%s{\"number\":%llu", i ? "," : "", (unsigned long long)s->number);
        put_ms(out, "age_ms", s->started, now);
        buf_printf(out,
                   ",\"ms\":%.3f,\"training_ms\":%.3f,\"sequences\":%d,\"tokens\":%d,\"rows\":%d,\"preempted\":%d,"
                   "\"waiting\":%d,\"running\":%d,\"pages_used\":%d}",
                   (double)s->ns * 1e-6, (double)s->train_ns * 1e-6, s->seqs, s->tokens, s->rows, s->preempted,
                   s->waiting, s->running, s->pages_used);
    }
    buf_char(out, ']');
}

static void put_models(struct buf *out, const struct app *app)
{
    buf_str(out, ",\"models\":[");
    for (int i = 0; i < model_table_count(app->models); i++) {
        const struct served_model *m = model_table_at(app->models, i);
        buf_str(out, i ? ",{" : "{");
        put_string(out, "name", m->name ? m->name : m->where);
        buf_char(out, ',');
        put_string(out, "state", model_state_names[m->state]);
        buf_printf(out, ",\"users\":%d,\"bytes\":%zu,\"loads\":%llu}", m->users,
                   m->state == MODEL_LOADED ? m->bytes : 0, (unsigned long long)m->loads);
    }
    buf_char(out, ']');
}

/* The model of ?model=, else the default one, else the first that is loaded; NULL: none is. */
static const struct served_model *shown(const struct http_req *req)
{
    struct app *app = req->app;
    char name[256] = "";
    if (query_get(req->query, "model", name, sizeof name)) return model_table_find(app->models, name, NULL);
    if (app->model->engine) return app->model;
    for (int i = 0; i < model_table_count(app->models); i++)
        if (model_table_at(app->models, i)->engine) return model_table_at(app->models, i);
    return NULL;
}

void api_debug_state(struct http_req *req)
{
    struct app *app = req->app;
    struct buf out = {0};
    uint64_t now = clock_now();
    const struct served_model *m = shown(req);
    buf_char(&out, '{');
    put_server(&out, app);
    if (m && m->engine) {
        put_engine(&out, app, m, now);
        put_requests(&out, m, now);
        buf_str(&out, ",\"clients\":");
        admission_put_clients(app->admission, &out);
        put_adapters(&out, m);
        put_steps(&out, m, now);
    }
    put_models(&out, app);
    put_jobs(&out, app);
    buf_char(&out, '}');
    http_set_header(req, "Cache-Control", "no-store");
    http_reply(req, 200, "application/json", out.data, out.len);
    buf_free(&out);
}
