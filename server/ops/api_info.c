/* Description and health of the server: GET / /info /health /ping /ready.  Loop thread. */
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/access/admission.h"
#include "server/api/app.h"
#include "server/api/served_model.h"
#include "server/config/settings.h"
#include "server/console/console.h"
#include "server/json/json.h"
#include "server/net/http.h"
#include "server/ops/health.h"
#include "server/ops/routes.h"
#include "server/store/store.h"

#include <stdlib.h>
#include <string.h>

/* ---- GET ------------------------------------------------------------------------------------------------------- */

static void reply_json(struct http_req *req, struct buf *out)
{
    http_reply(req, 200, "application/json", out->data, out->len);
    buf_free(out);
}

static void put_field(struct buf *out, const char *name, const char *value)
{
    buf_printf(out, "\"%s\":", name);
    json_put_string(out, value, strlen(value));
    buf_char(out, ',');
}

/* For a browser the console, for other clients a list of the routes. */
void api_root(struct http_req *req)
{
    struct app *app = req->app;
    struct buf out = {0};
    http_set_header(req, "Vary", "Accept");
    if (console_accepts(http_header(req, "Accept"))) {
        console_page(req);
        return;
    }
    buf_char(&out, '{');
    put_field(&out, "server", "tandem " TANDEM_VERSION);
    if (app->model->id) put_field(&out, "model_id", app->model->id);
    buf_str(&out,
            "\"generate\":\"POST /generate\",\"stream\":\"POST /generate_stream\",\"tokenize\":\"POST /tokenize\","
            "\"train\":\"POST /train\","
            "\"adapters\":\"GET /adapters\","
            "\"info\":\"GET /info\",\"health\":\"GET /health\",\"ready\":\"GET /ready\",\"metrics\":\"GET /metrics\"}");
    reply_json(req, &out);
}

/* Writes the valid names of adapter_id, and ends the object. */
static void put_adapters(struct buf *out, const struct served_model *served)
{
    int max = served->info->max_adapters;
    struct adapter_info *v = mem_array((size_t)max, sizeof *v);
    int n = engine_adapters_list(served->engine, v, max);
    buf_printf(out, "\"max_adapters\":%d,\"max_lora_rank\":%d,\"adapters\":[", max, served->info->max_lora_rank);
    for (int i = 0; i < n; i++) {
        if (i) buf_char(out, ',');
        json_put_string(out, v[i].name, strlen(v[i].name));
    }
    buf_str(out, "]}");
    free(v);
}

/* TGI's fields first, then tandem's own. */
void api_info(struct http_req *req)
{
    struct app *app = req->app;
    const struct served_model *served = served_model_of(req);
    const struct engine_info *i = served->info;
    const struct settings *s = app->set;
    struct buf out = {0};
    if (!i) {
        admission_refuses(req, NULL);
        return;
    }
    buf_char(&out, '{');
    put_field(&out, "model_id", i->model_id);
    const struct embedder *m = i->embedder;
    buf_printf(&out, "\"model_sha\":null,\"model_pipeline_tag\":\"%s\",",
               m->classifies ? m->n_labels == 1 ? "text-ranking" : "text-classification"
               : m->encoder  ? "feature-extraction"
                             : "text-generation");
    buf_printf(&out,
               "\"max_concurrent_requests\":%d,\"max_best_of\":%d,\"max_stop_sequences\":%d,"
               "\"max_input_tokens\":%d,\"max_total_tokens\":%d,\"validation_workers\":1,"
               "\"max_client_batch_size\":1,",
               i->max_seqs + s->max_queue, s->max_best_of, s->max_stop_sequences, i->max_total_tokens - 1,
               i->max_total_tokens);
    buf_str(&out, "\"router\":\"tandem\",\"version\":\"" TANDEM_VERSION "\",\"sha\":null,\"docker_label\":null,");
    put_field(&out, "model_family", i->family);
    put_field(&out, "model_dtype", i->weight_type);
    put_field(&out, "kv_dtype", i->kv_type);
    put_field(&out, "device", i->device);
    buf_printf(&out,
               "\"parameters\":%llu,\"weight_bytes\":%zu,\"kv_bytes\":%zu,\"kv_pages\":%d,\"page_tokens\":%d,"
               "\"layers\":%d,\"hidden_size\":%d,\"vocab_size\":%d,\"max_model_len\":%d,\"max_seqs\":%d,"
               "\"max_batch_tokens\":%d,\"max_queue\":%d,\"max_top_n_tokens\":%d,\"threads\":%d,"
               "\"load_seconds\":%.6f,",
               (unsigned long long)i->parameters, i->weight_bytes, i->kv_bytes, i->pages, i->page_tokens, i->layers,
               i->hidden, i->vocab, i->max_model_len, i->max_seqs, i->max_batch_tokens, s->max_queue,
               s->max_top_n_tokens, i->threads, i->load_seconds);
    if (i->draft_model) {
        buf_printf(&out,
                   "\"draft\":{\"parameters\":%llu,\"weight_bytes\":%zu,\"kv_bytes\":%zu,\"kv_pages\":%d,"
                   "\"max_tokens\":%d,\"model\":",
                   (unsigned long long)i->draft_parameters, i->draft_weight_bytes, i->draft_kv_bytes, i->draft_pages,
                   i->draft_max_tokens);
        json_put_string(&out, i->draft_model, strlen(i->draft_model));
        buf_str(&out, "},");
    }
    put_adapters(&out, served);
    reply_json(req, &out);
}

/* Liveness: good while loading, draining or with a full queue; bad when an engine step hangs. */
void api_health(struct http_req *req)
{
    struct app *app = req->app;
    if (health_good(app))
        http_reply(req, 200, NULL, "", 0);
    else
        http_reply_error(req, 503, "healthcheck", "unhealthy");
}

/* Readiness: requests sent now are accepted. */
void api_ready(struct http_req *req)
{
    struct app *app = req->app;
    bool healthy = health_good(app), intact = store_intact(app->store);
    if (app->state == SERVING_READY && healthy && intact)
        http_reply(req, 200, NULL, "", 0);
    else
        http_reply_error(req, 503, "healthcheck", "%s",
                         app->state == SERVING_LOADING    ? "loading"
                         : app->state == SERVING_DRAINING ? "draining"
                         : !healthy                       ? "unhealthy"
                                                          : "the data directory was deleted or replaced");
}
