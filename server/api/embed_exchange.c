#include "server/api/embed_exchange.h"

#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/access/client.h"
#include "server/access/keys.h"
#include "server/api/app.h"
#include "server/api/request_body.h"
#include "server/api/served_model.h"
#include "server/api/store_request.h"
#include "server/bridge/bridge.h"
#include "server/config/settings.h"
#include "server/metrics/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { IN_FLIGHT = 32 }; /* inputs of one request at the engine, at most */

static void exchange_unref(struct embed_exchange *x)
{
    if (--x->refs) return;
    cJSON *tree = x->params.tree;
    x->params.tree = NULL;
    embed_params_free(&x->params);
    body_free_json(x->app->bridge, x->client, tree);
    http_body_free(&x->body);
    free(x->items);
    free(x->values);
    reservation_free(&x->held);
    free(x);
}

static void cancel_all(struct embed_exchange *x)
{
    for (int i = 0; x->items && i < x->params.n; i++) {
        bridge_cancel(x->items[i].gen);
        x->items[i].gen = NULL;
    }
}

/* Answered or refused: releases its admission handle. */
static void on_answer(struct http_req *req)
{
    struct embed_exchange *x = req->user;
    admission_handle_close(x->handle);
    x->handle = NULL;
}

/* Answered, or the client disconnected. */
static void on_close(struct http_req *req)
{
    struct embed_exchange *x = req->user;
    x->req = NULL;
    atomic_store(&x->gone, true);
    admission_handle_close(x->handle);
    cancel_all(x);
    exchange_unref(x);
}

static void reply_error(struct embed_exchange *x, int status, const char *code, const char *param, const char *msg)
{
    struct buf out = {0};
    cancel_all(x);
    if (status < 500) metrics_reject(&x->app->metrics, REJECT_VALIDATION);
    if (embed_refusal(x->params.shape) == 400) {
        store_request_put_error(&out, true, status, code, param, msg);
    } else {
        struct err e = {0};
        err_set(&e, 0, "%s", msg);
        if (status == 422) err_prefix(&e, "Input validation error");
        if (status == 500) status = 424; /* as TGI and TEI have it */
        store_request_put_error(&out, false, status, status == 400 || status == 422 ? "validation" : code, NULL, e.msg);
    }
    http_reply(x->req, status, "application/json", out.data, out.len);
    buf_free(&out);
}

/* Runs work(x) here or on the pool; then done(x), even if the client disconnected. */
static void do_work(struct embed_exchange *x, bool here, void (*work)(void *), void (*done)(void *))
{
    x->refs++;
    if (here) {
        work(x);
        done(x);
    } else {
        bridge_work(x->served->bridge, x->client, work, done, x);
    }
}

/* ---- the vectors ----------------------------------------------------------------------------------------------- */

/* The first `dimensions` values, of length 1 where asked (a vector of zeros stays one). */
static void take_vector(const struct embed_params *p, const float *v, float *out)
{
    double sum = 0;
    for (int i = 0; i < p->dimensions; i++) sum += (double)v[i] * (double)v[i];
    double scale = p->normalize && sum > 0 ? 1 / sqrt(sum) : 1;
    for (int i = 0; i < p->dimensions; i++) out[i] = (float)((double)v[i] * scale);
}

static void submit_more(struct embed_exchange *x);

static void on_event(void *arg, const struct event *ev, const struct event_batch *batch)
{
    struct embed_item *item = arg;
    struct embed_exchange *x = item->x;
    size_t i = (size_t)(item - x->items);
    if (ev->kind == EV_EMBEDDING)
        take_vector(&x->params, batch->values + ev->values, x->values + i * (size_t)x->params.dimensions);
    if (ev->kind != EV_DONE) return;
    item->gen = NULL;
    x->n_running--;
    x->n_done++;
    if (ev->finish == FINISH_CANCELLED)
        reply_error(x, 503, "incomplete_generation", NULL, "the server is stopping");
    else if (ev->finish == FINISH_ABORTED)
        reply_error(x, 503, "incomplete_generation", NULL, "aborted by POST /pause");
    else if (ev->finish != FINISH_EMBEDDED)
        reply_error(x, 500, "generation", NULL, ev->error ? ev->error : "unknown");
    else if (x->n_done == x->params.n)
        x->answer(x);
    else
        submit_more(x);
}

static void submit_more(struct embed_exchange *x)
{
    const struct embed_params *p = &x->params;
    struct err e = {0};
    while (x->next < p->n && x->n_running < x->in_flight) {
        struct embed_input *in = &p->inputs[x->next];
        struct embed_item *item = &x->items[x->next];
        const struct gen_request r = {.prompt = in->ids,
                                      .n_prompt = (int)in->n,
                                      .pooling = p->pooling,
                                      .pool_from = (int)in->skip,
                                      .score = x->limits.embedder == &x->scores,
                                      .types = in->types,
                                      .priority = admission_handle_priority(x->handle, p->priority),
                                      .adapter = x->model.adapter};
        item->x = x;
        item->gen = bridge_submit(x->served->bridge, &r, x->handle, x->req, on_event, item, &e);
        if (item->gen) {
            x->next++;
            x->n_running++;
            continue;
        }
        if (e.code == ERR_FULL && x->n_running) return; /* on_event calls this again */
        cancel_all(x);
        if (e.code == ERR_FULL)
            admission_reply_full(x->req);
        else if (e.code == ERR_NOMEM)
            admission_reply_memory(x->req, e.msg);
        else if (e.code == ERR_NOT_FOUND)
            reply_error(x, 404, "model_not_found", "model", e.msg);
        else
            reply_error(x, embed_refusal(p->shape), "invalid_value", "input", e.msg);
        return;
    }
}

/* ---- tokenising ------------------------------------------------------------------------------------------------ */

static void work_tokenize(void *arg)
{
    struct embed_exchange *x = arg;
    const struct tokenizer *tk = engine_tokenizer(x->served->engine);
    for (int i = 0; i < x->params.n && !x->status && !atomic_load(&x->gone); i++)
        x->status = embed_input_tokenize(&x->params, i, tk, &x->limits, &x->held, &x->err);
}

static void after_tokenize(void *arg)
{
    struct embed_exchange *x = arg;
    const struct embed_params *p = &x->params;
    bool wanted = !atomic_load(&x->gone);
    if (wanted && x->status && !body_reply_memory(x->app, x->req, &x->err)) {
        reply_error(x, x->status, "invalid_value", "input", x->err.msg);
    } else if (wanted && !x->status) {
        for (int i = 0; i < p->n; i++) x->n_tokens += p->inputs[i].n;
        metrics_observe(&x->app->metrics, HIST_SEQUENCES, p->n);
        x->req->note.model = x->model.name;
        admission_handle_tokens(x->handle, (int64_t)x->n_tokens, (int64_t)x->n_tokens);
        x->items = mem_array((size_t)p->n, sizeof *x->items);
        size_t floats = (size_t)p->n * (size_t)p->dimensions;
        if (!reserve(&x->held, floats * sizeof *x->values, "the answer", &x->err)) {
            body_reply_memory(x->app, x->req, &x->err);
        } else {
            x->values = mem_array(floats, sizeof *x->values);
            submit_more(x);
        }
    }
    exchange_unref(x);
}

/* The deadline passed: a partial answer would be useless. */
static void on_late(void *arg)
{
    struct embed_exchange *x = arg;
    if (http_answered(x->req)) return;
    cancel_all(x);
    atomic_store(&x->gone, true);
    admission_reply_late(x->req);
}

/* ---- the handler ----------------------------------------------------------------------------------------------- */

static int lower(int a, int b)
{
    return a < b ? a : b;
}

/* At most what admission can ever grant at once, so that a batch of any size is served, if necessary one input at a
 * time. */
static int in_flight(const struct http_req *req, int n)
{
    const struct app *app = req->app;
    int places = lower(lower(n, IN_FLIGHT), served_model_of(req)->info->max_seqs + app->set->max_queue);
    return req->key && req->key->max_concurrent > 0 ? lower(places, req->key->max_concurrent) : places;
}

static void work_read(void *arg)
{
    struct embed_exchange *x = arg;
    if (atomic_load(&x->gone)) return;
    x->status =
        embed_params_parse(&x->params, x->shape, &x->limits, x->body.data ? x->body.data : "", x->body.len, &x->err);
    http_body_free(&x->body);
    if (!x->status && !reserve(&x->held, x->params.n_ids * sizeof(int32_t), "the token ids", &x->err))
        x->status = reservation_status(&x->err, 503);
    if (!x->status) return;
    const char *field = x->params.field;
    embed_params_free(&x->params); /* freed here rather than on the loop */
    x->params.field = field;
    x->params.shape = x->shape;
}

/* Whether the model gives what the route is for. */
static bool suits(const struct embed_exchange *x)
{
    return x->limits.embedder->classifies == embed_shape_ranks(x->shape);
}

/* Of a request for scores, whether the adapter that it names gives them. */
static bool adapter_suits(const struct embed_exchange *x)
{
    if (x->limits.embedder != &x->scores) return true;
    return x->model.adapter && engine_adapter_scores(x->served->engine, x->model.adapter);
}

static void return_unsuited(struct embed_exchange *x)
{
    bool classifies = x->served->info->embedder->classifies;
    reply_error(x, embed_refusal(x->shape), "invalid_value", "model",
                classifies
                    ? "this model gives scores of labels, not embeddings: use /v1/rerank, /score, /classify or /predict"
                    : "this model has no classifier: only a *ForSequenceClassification model, or at /classify an "
                      "adapter of method reward, gives scores");
}

static void after_read(void *arg)
{
    struct embed_exchange *x = arg;
    const struct embed_params *p = &x->params;
    struct err e = {0};
    x->in_flight = x->req ? in_flight(x->req, p->n) : 0;
    const struct admission_handle_need need = {
        .sequences = p->n, .at_once = x->in_flight, .copies = 1, .timeout_ms = p->timeout_ms};
    if (!x->req) {
        exchange_unref(x);
        return;
    }
    if (x->status && !body_reply_memory(x->app, x->req, &x->err)) {
        reply_error(x, x->status, "invalid_value", p->field, x->err.msg);
    } else if (!x->status && !suits(x)) {
        return_unsuited(x);
    } else if (!x->status && !models_find(x->app, x->served, p->model, &x->model, &e)) {
        reply_error(x, 404, "model_not_found", "model", e.msg);
    } else if (!x->status && !adapter_suits(x)) {
        return_unsuited(x);
    } else if (!x->status && admission_handle_reserve(x->handle, x->req, &need)) {
        size_t bytes = 0;
        admission_handle_watch(x->handle, on_late, x);
        for (int i = 0; i < p->n; i++) bytes += p->inputs[i].len;
        do_work(x, bytes <= TOKENIZE_INLINE_BYTES, work_tokenize, after_tokenize);
    }
    exchange_unref(x);
}

/* An adapter of a model that gives text may give scores; which is known when the body has been read. */
static void expect_score(struct embed_exchange *x)
{
    static char name[] = "LABEL_0", *labels[] = {name}; /* transformers' name for a label without one */
    x->scores = (struct embedder){.classifies = true,
                                  .default_prompt = -1,
                                  .labels = labels,
                                  .n_labels = 1,
                                  .pad = x->served->info->pad,
                                  .size = 1};
    x->limits.embedder = &x->scores;
    x->limits.hidden = 1;
    x->limits.pooling = (struct poolings){{POOLING_LAST}, 1};
}

void embed_exchange_begin(struct http_req *req, enum embed_shape shape, embed_answer_fn *answer)
{
    struct app *app = req->app;
    struct served_model *m = served_model_of(req);
    struct admission_handle *handle = admission_enter(req);
    if (!handle) return;
    struct embed_exchange *x = mem_zalloc(sizeof *x);
    *x = (struct embed_exchange){.refs = 2,
                                 .app = app,
                                 .served = m,
                                 .req = req,
                                 .handle = handle,
                                 .client = client_id(req),
                                 .shape = shape,
                                 .answer = answer};
    x->limits = (struct embed_limits){
        .embedder = m->info->embedder,
        .hidden = m->info->embedder->size,
        .types = m->info->token_types,
        .vocab = m->info->vocab,
        .max_total_tokens = m->info->max_total_tokens,
        .longest_token = m->longest_token,
        .pooling = m->info->embedder->pooling,
    };
    if (!x->limits.pooling.n)
        x->limits.pooling =
            (struct poolings){{strcmp(app->set->pooling, "last") == 0 ? POOLING_LAST : POOLING_MEAN}, 1};
    if (shape == EMBED_CLASSIFY && embedder_generates(m->info->embedder) && engine_adapter_scores(m->engine, NULL))
        expect_score(x);
    int most = m->info->embedder->max_tokens;
    if (most && most < x->limits.max_total_tokens) x->limits.max_total_tokens = most;
    req->user = x;
    req->on_answer = on_answer;
    req->on_close = on_close;
    http_take_body(req, &x->body);
    do_work(x, x->body.len <= BODY_INLINE, work_read, after_read);
    exchange_unref(x); /* NOLINT(clang-analyzer-unix.Malloc): one of two references */
}

static void on_drain(struct http_req *req)
{
    struct embed_exchange *x = req->user;
    incremental_reply_more(&x->reply);
}

void embed_reply_chunks(struct embed_exchange *x, reply_chunk_fn *write)
{
    x->req->on_drain = on_drain;
    incremental_reply_begin(&x->reply, x->req, "application/json", write, x);
}

void embed_reply_whole(struct embed_exchange *x, struct buf *out)
{
    http_reply(x->req, 200, "application/json", out->data, out->len);
    buf_free(out);
}

const float *embed_vector(const struct embed_exchange *x, int i)
{
    return x->values + (size_t)i * (size_t)x->params.dimensions;
}
