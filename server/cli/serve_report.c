#include "server/cli/serve_report.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/api/app.h"
#include "server/api/model_table.h"
#include "server/config/settings.h"
#include "server/memory/reservation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_bytes(char out[static 24], size_t bytes)
{
    const char *units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    int u = 0;
    while (v >= 1024 && u < 4) v /= 1024, u++;
    snprintf(out, 24, u ? "%.1f %s" : "%.0f %s", v, units[u]);
}

/* a line, or nothing when there are none */
static void print_adapters(const struct app *app, char out[static 120])
{
    const struct engine_info *i = app->model->info;
    struct adapter_info *v = mem_array((size_t)i->max_adapters, sizeof *v);
    char size[24];
    size_t bytes = 0;
    int n = engine_adapters_list(app->model->engine, v, i->max_adapters);
    for (int k = 0; k < n; k++) bytes += v[k].bytes;
    print_bytes(size, bytes);
    out[0] = 0;
    if (n) snprintf(out, 120, "adapters   %d of at most %d, %s\n", n, i->max_adapters, size);
    free(v);
}

/* Formats the memory use of a device with its own memory, by part; "" for others. */
static void print_memory(const struct app *app, char out[static 240])
{
    const struct engine_info *i = app->model->info;
    char budget[24], all[24], weights[24], kv[24], work[24], rest[24];
    print_bytes(budget, i->device_budget);
    print_bytes(all, i->device_bytes);
    print_bytes(weights, i->weight_bytes);
    print_bytes(kv, i->kv_bytes);
    print_bytes(work, i->workspace_bytes);
    size_t used = i->weight_bytes + i->kv_bytes + i->workspace_bytes;
    print_bytes(rest, i->device_budget > used ? i->device_budget - used : 0);
    out[0] = 0;
    if (i->device_budget)
        snprintf(out, 240,
                 "memory     %s of %s may be taken: weights %s, kv cache %s, workspace %s; training and adapters %s\n",
                 budget, all, weights, kv, work, rest);
}

/* Which models there are besides, and what they may take. */
static void print_models(const struct app *app, char out[static 200])
{
    struct model_totals t;
    char budget[24];
    model_table_totals(app->models, &t);
    print_bytes(budget, t.budget);
    out[0] = 0;
    int n = model_table_count(app->models);
    if (n > 1)
        snprintf(out, 200, "models     %d, of which %d are loaded; all that are loaded may take %s (--models-memory)\n",
                 n, t.loaded, t.budget ? budget : "any memory");
}

/* The draft model's line; "" without one. */
static void print_draft(const struct engine_info *i, char out[static 240])
{
    char weights[24], kv[24], work[24];
    print_bytes(weights, i->draft_weight_bytes);
    print_bytes(kv, i->draft_kv_bytes);
    print_bytes(work, i->draft_workspace_bytes);
    out[0] = 0;
    if (i->draft_model)
        snprintf(out, 240, "draft      %.80s, %.2f M parameters: weights %s, kv cache %s (%d pages), workspace %s\n",
                 i->draft_model, (double)i->draft_parameters * 1e-6, weights, kv, i->draft_pages, work);
}

void serve_report_print(const struct app *app, uint64_t started)
{
    char models[200];
    print_models(app, models);
    if (!app->model->info) {
        fprintf(stderr, "%sready      after %.3f s; a model is loaded when a request names it, by default %s\n", models,
                (double)(clock_now() - started) * 1e-9, app->model->name);
        return;
    }
    const struct engine_info *i = app->model->info;
    char weights[24], kv[24], requests[24], adapters[120], memory[240], draft[240];
    struct reservation_stats held;
    reservation_stats(&held);
    print_bytes(requests, held.budget);
    print_bytes(weights, i->weight_bytes);
    print_bytes(kv, i->kv_bytes);
    print_adapters(app, adapters);
    print_memory(app, memory);
    print_draft(i, draft);
    fprintf(stderr,
            "model      %s (%s), %.2f M parameters, %d layers, vocabulary %d\n"
            "weights    %s as %s\n"
            "kv cache   %s as %s: %d pages of %d tokens, %lld tokens\n"
            "limits     %d tokens a request, %d requests at once, %d waiting, %d tokens a step\n"
            "requests   %s of memory for bodies, texts and answers (--request-memory)\n"
            "device     %s, %d thread%s%s%s\n"
            "%s%s%s%s%s%s%s"
            "ready      after %.3f s (model %.3f s)\n",
            i->model_id, i->family, (double)i->parameters * 1e-6, i->layers, i->vocab, weights, i->weight_type, kv,
            i->kv_type, i->pages, i->page_tokens, (long long)i->pages * i->page_tokens, i->max_total_tokens,
            i->max_seqs, app->set->max_queue, i->max_batch_tokens, requests, i->device, i->threads,
            i->threads == 1 ? "" : "s", *i->device_note ? "; no GPU: " : "", i->device_note,
            *i->exchange ? "ranks      exchange " : "", i->exchange, *i->exchange ? "\n" : "", memory, draft, adapters,
            models, (double)(clock_now() - started) * 1e-9, i->load_seconds);
}

void serve_url(char out[static SERVE_URL], const struct settings *set, const char *host, int port)
{
    const char *scheme = *set->tls_cert ? "https" : "http";
    if (strcmp(host, "0.0.0.0") == 0) host = "127.0.0.1";
    if (strcmp(host, "::") == 0) host = "::1";
    snprintf(out, SERVE_URL, strchr(host, ':') ? "%s://[%.64s]:%d" : "%s://%.64s:%d", scheme, host, port);
}

void serve_report_log(const struct app *app, const char *url)
{
    const struct engine_info *i = app->model->info;
    struct log_line l;
    if (!i) {
        log_info("ready url=%s models=%d model=%s", url, model_table_count(app->models), app->model->name);
        return;
    }
    struct reservation_stats held;
    reservation_stats(&held);
    log_begin(&l, LOG_INFO, "ready");
    log_text(&l, "url", url);
    log_text(&l, "model", i->model_id);
    log_text(&l, "family", i->family);
    log_text(&l, "weight_type", i->weight_type);
    log_text(&l, "kv_type", i->kv_type);
    log_text(&l, "device", i->device);
    log_number(&l, "threads", i->threads);
    log_number(&l, "weight_bytes", (long long)i->weight_bytes);
    log_number(&l, "kv_bytes", (long long)i->kv_bytes);
    if (i->draft_model) log_text(&l, "draft_model", i->draft_model);
    size_t draft = i->draft_weight_bytes + i->draft_kv_bytes + i->draft_workspace_bytes;
    if (i->draft_model) log_number(&l, "draft_bytes", (long long)draft);
    if (i->device_budget) log_number(&l, "workspace_bytes", (long long)i->workspace_bytes);
    if (i->device_budget) log_number(&l, "device_budget_bytes", (long long)i->device_budget);
    if (*i->device_note) log_text(&l, "no_gpu", i->device_note);
    if (*i->exchange) log_text(&l, "exchange", i->exchange);
    log_number(&l, "max_total_tokens", i->max_total_tokens);
    log_number(&l, "max_seqs", i->max_seqs);
    log_number(&l, "max_queue", app->set->max_queue);
    log_number(&l, "request_memory_bytes", (long long)held.budget);
    log_decimal(&l, "seconds", app->metrics.startup[STARTUP_READY]);
    log_end(&l);
}
