/* POST /v1/embeddings: OpenAI's embeddings from the served model; POST /embed and /similarity, and POST / with such
 * bodies: those of Text Embeddings Inference.
 *
 * Steps of an exchange: admission (admission.h) -> read and tokenise (on the pool when long) -> submit, a few inputs at
 * a time, so that one request does not fill the queue -> write the answer (in chunks, incremental_reply.h). It is
 * reference-counted: http, each running callback and work on the pool hold a reference. Loop thread, except the two
 * work_ functions, whose data the loop does not touch meanwhile. */
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/access/admission.h"
#include "server/access/client.h"
#include "server/access/keys.h"
#include "server/api/app.h"
#include "server/api/embed_params.h"
#include "server/api/models.h"
#include "server/api/rank_answer.h"
#include "server/api/request_body.h"
#include "server/api/routes.h"
#include "server/api/store_request.h"
#include "server/bridge/bridge.h"
#include "server/config/settings.h"
#include "server/json/json.h"
#include "server/metrics/metrics.h"
#include "server/net/http.h"
#include "server/net/incremental_reply.h"
#include "server/store/data_dir.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    IN_FLIGHT = 32,      /* inputs of one request at the engine, at most */
    VALUES_PIECE = 1024, /* values written at a time: takes less than a millisecond */
};

struct exchange;

struct item {
    struct exchange *x;
    struct gen *gen; /* NULL before and after it runs */
};

struct exchange {
    int refs; /* the open http exchange, running callbacks, work on the pool */
    struct app *app;
    struct http_req *req; /* NULL once closed */
    struct admission_handle *handle;
    uint64_t client;   /* client_id */
    _Atomic bool gone; /* the pool's flag: closed, or past its deadline */
    struct embed_params params;
    struct embed_limits limits;
    struct model_choice model;
    struct err err; /* of tokenising; status 0: no error */
    int status;
    struct item *items; /* params.n */
    float *values;      /* (params.n, dimensions) */
    int in_flight;      /* limit of inputs at the engine */
    int next, n_running, n_done;
    uint64_t n_tokens;
    enum embed_shape shape;
    struct http_body body;   /* while it is read on the pool */
    struct reservation held; /* for inputs, their tokens and the values */
    struct incremental_reply reply;
    int written, written_values; /* inputs, and values of the next one, already written to the answer */
};

static void exchange_unref(struct exchange *x)
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

static void cancel_all(struct exchange *x)
{
    for (int i = 0; x->items && i < x->params.n; i++) {
        bridge_cancel(x->items[i].gen);
        x->items[i].gen = NULL;
    }
}

/* Answered or refused: releases its admission handle. */
static void on_answer(struct http_req *req)
{
    struct exchange *x = req->user;
    admission_handle_close(x->handle);
    x->handle = NULL;
}

/* Answered, or the client disconnected. */
static void on_close(struct http_req *req)
{
    struct exchange *x = req->user;
    x->req = NULL;
    atomic_store(&x->gone, true);
    admission_handle_close(x->handle);
    cancel_all(x);
    exchange_unref(x);
}

static void reply_error(struct exchange *x, int status, const char *code, const char *param, const char *msg)
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
static void do_work(struct exchange *x, bool here, void (*work)(void *), void (*done)(void *))
{
    x->refs++;
    if (here) {
        work(x);
        done(x);
    } else {
        bridge_work(x->app->bridge, x->client, work, done, x);
    }
}

/* ---- the answer ------------------------------------------------------------------------------------------------ */

static void put_base64(struct buf *out, const void *data, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0);
        char four[4] = {digits[v >> 18], digits[v >> 12 & 63], i + 1 < n ? digits[v >> 6 & 63] : '=',
                        i + 2 < n ? digits[v & 63] : '='};
        buf_append(out, four, 4);
    }
}

static const float *vector(const struct exchange *x, int i)
{
    return x->values + (size_t)i * (size_t)x->params.dimensions;
}

/* Writes the next values of input `written`: as numbers that read back as the same floats, or as base64 of
 * little-endian floats.  @return true when they were its last. */
static bool put_values(struct exchange *x, struct buf *out)
{
    const struct embed_params *p = &x->params;
    const float *v = vector(x, x->written);
    int from = x->written_values, n = p->dimensions - from;
    if (n > VALUES_PIECE) n = VALUES_PIECE / 3 * 3; /* base64 takes three bytes at a time */
    if (!from) buf_char(out, p->base64 ? '"' : '[');
    if (p->base64) put_base64(out, v + from, (size_t)n * sizeof *v);
    for (int i = from; i < from + n && !p->base64; i++) buf_printf(out, i ? ",%.9g" : "%.9g", (double)v[i]);
    x->written_values += n;
    if (x->written_values < p->dimensions) return false;
    buf_char(out, p->base64 ? '"' : ']');
    x->written_values = 0;
    x->written++;
    return true;
}

static bool write_openai(void *arg, struct buf *out)
{
    struct exchange *x = arg;
    const struct embed_params *p = &x->params;
    unsigned long long n = x->n_tokens;
    if (!x->written && !x->written_values) {
        char id[DATA_ID_MAX];
        data_id(id, "embd-");
        buf_printf(out, "{\"object\":\"list\",\"id\":\"%s\",\"created\":%lld,\"model\":", id,
                   (long long)data_now_ms() / 1000);
        json_put_string(out, x->model.name, strlen(x->model.name));
        buf_str(out, ",\"data\":[");
    }
    while (x->written < p->n && out->len < REPLY_CHUNK_BYTES) {
        if (!x->written_values)
            buf_printf(out, "%s{\"object\":\"embedding\",\"index\":%d,\"embedding\":", x->written ? "," : "",
                       x->written);
        if (put_values(x, out)) buf_char(out, '}');
    }
    if (x->written < p->n) return true;
    buf_printf(out, "],\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu}}", n, n);
    return false;
}

/* The cosine of a and b, which are of length 1, or zeros. */
static double cosine(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum < -1 ? -1 : sum > 1 ? 1 : sum;
}

static bool write_tei(void *arg, struct buf *out)
{
    struct exchange *x = arg;
    if (!x->written && !x->written_values) buf_char(out, '[');
    while (x->written < x->params.n && out->len < REPLY_CHUNK_BYTES) {
        if (x->written && !x->written_values) buf_char(out, ',');
        put_values(x, out);
    }
    if (x->written < x->params.n) return true;
    buf_char(out, ']');
    return false;
}

static bool write_similarities(void *arg, struct buf *out)
{
    struct exchange *x = arg;
    const struct embed_params *p = &x->params;
    int end = x->written + 1 + REPLY_CHUNK_BYTES / p->dimensions; /* dot products per chunk */
    if (!x->written) buf_char(out, '[');
    for (; x->written < p->n - 1 && x->written < end; x->written++)
        buf_printf(out, x->written ? ",%.9g" : "%.9g", cosine(vector(x, 0), vector(x, x->written + 1), p->dimensions));
    if (x->written < p->n - 1) return true;
    buf_char(out, ']');
    return false;
}

static void on_drain(struct http_req *req)
{
    struct exchange *x = req->user;
    incremental_reply_more(&x->reply);
}

static void reply_vectors(struct exchange *x)
{
    if (embed_shape_ranks(x->shape)) {
        struct buf out = {0};
        rank_answer_write(&out, &x->params, x->app->info->embedder, x->values, x->model.name, x->n_tokens);
        http_reply(x->req, 200, "application/json", out.data, out.len);
        buf_free(&out);
        return;
    }
    x->req->on_drain = on_drain;
    static reply_chunk_fn *const write[] = {
        [EMBED_OPENAI] = write_openai, [EMBED_TEI] = write_tei, [EMBED_SIMILARITY] = write_similarities};
    incremental_reply_begin(&x->reply, x->req, "application/json", write[x->params.shape], x);
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

static void submit_more(struct exchange *x);

static void on_event(void *arg, const struct event *ev, const struct event_batch *batch)
{
    struct item *item = arg;
    struct exchange *x = item->x;
    size_t i = (size_t)(item - x->items);
    if (ev->kind == EV_EMBEDDING)
        take_vector(&x->params, batch->values + ev->values, x->values + i * (size_t)x->params.dimensions);
    if (ev->kind != EV_DONE) return;
    item->gen = NULL;
    x->n_running--;
    x->n_done++;
    if (ev->finish == FINISH_CANCELLED)
        reply_error(x, 503, "incomplete_generation", NULL, "the server is stopping");
    else if (ev->finish != FINISH_EMBEDDED)
        reply_error(x, 500, "generation", NULL, ev->error ? ev->error : "unknown");
    else if (x->n_done == x->params.n)
        reply_vectors(x);
    else
        submit_more(x);
}

static void submit_more(struct exchange *x)
{
    const struct embed_params *p = &x->params;
    struct err e = {0};
    while (x->next < p->n && x->n_running < x->in_flight) {
        struct embed_input *in = &p->inputs[x->next];
        struct item *item = &x->items[x->next];
        const struct gen_request r = {.prompt = in->ids,
                                      .n_prompt = (int)in->n,
                                      .pooling = p->pooling,
                                      .pool_from = (int)in->skip,
                                      .types = in->types,
                                      .priority = admission_handle_priority(x->handle, p->priority),
                                      .adapter = x->model.adapter};
        item->x = x;
        item->gen = bridge_submit(x->app->bridge, &r, x->handle, x->req, on_event, item, &e);
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
    struct exchange *x = arg;
    const struct tokenizer *tk = engine_tokenizer(x->app->engine);
    for (int i = 0; i < x->params.n && !x->status && !atomic_load(&x->gone); i++)
        x->status = embed_input_tokenize(&x->params, i, tk, &x->limits, &x->held, &x->err);
}

static void after_tokenize(void *arg)
{
    struct exchange *x = arg;
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
    struct exchange *x = arg;
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
    int places = lower(lower(n, IN_FLIGHT), app->info->max_seqs + app->set->max_queue);
    return req->key && req->key->max_concurrent > 0 ? lower(places, req->key->max_concurrent) : places;
}

static void work_read(void *arg)
{
    struct exchange *x = arg;
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
static bool suits(const struct exchange *x)
{
    return x->app->info->embedder->classifies == embed_shape_ranks(x->shape);
}

static void return_unsuited(struct exchange *x)
{
    bool classifies = x->app->info->embedder->classifies;
    reply_error(x, embed_refusal(x->shape), "invalid_value", "model",
                classifies
                    ? "this model gives scores of labels, not embeddings: use /v1/rerank, /score, /classify or /predict"
                    : "this model has no classifier: only a *ForSequenceClassification model gives scores");
}

static void after_read(void *arg)
{
    struct exchange *x = arg;
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
    } else if (!x->status && !models_find(x->app, p->model, &x->model, &e)) {
        reply_error(x, 404, "model_not_found", "model", e.msg);
    } else if (!x->status && admission_handle_reserve(x->handle, x->req, &need)) {
        size_t bytes = 0;
        admission_handle_watch(x->handle, on_late, x);
        for (int i = 0; i < p->n; i++) bytes += p->inputs[i].len;
        do_work(x, bytes <= TOKENIZE_INLINE_BYTES, work_tokenize, after_tokenize);
    }
    exchange_unref(x);
}

static void handle(struct http_req *req, enum embed_shape shape)
{
    struct app *app = req->app;
    struct admission_handle *handle = admission_enter(req);
    if (!handle) return;
    struct exchange *x = mem_zalloc(sizeof *x);
    *x = (struct exchange){
        .refs = 2, .app = app, .req = req, .handle = handle, .client = client_id(req), .shape = shape};
    x->limits = (struct embed_limits){
        .embedder = app->info->embedder,
        .hidden = app->info->embedder->size,
        .types = app->info->token_types,
        .vocab = app->info->vocab,
        .max_total_tokens = app->info->max_total_tokens,
        .longest_token = app->longest_token,
        .pooling = app->info->embedder->pooling,
    };
    if (!x->limits.pooling.n)
        x->limits.pooling =
            (struct poolings){{strcmp(app->set->pooling, "last") == 0 ? POOLING_LAST : POOLING_MEAN}, 1};
    int most = app->info->embedder->max_tokens;
    if (most && most < x->limits.max_total_tokens) x->limits.max_total_tokens = most;
    req->user = x;
    req->on_answer = on_answer;
    req->on_close = on_close;
    http_take_body(req, &x->body);
    do_work(x, x->body.len <= BODY_INLINE, work_read, after_read);
    exchange_unref(x); /* NOLINT(clang-analyzer-unix.Malloc): one of two references */
}

void api_embeddings(struct http_req *req)
{
    handle(req, EMBED_OPENAI);
}

void api_embed(struct http_req *req)
{
    handle(req, EMBED_TEI);
}

void api_similarity(struct http_req *req)
{
    handle(req, EMBED_SIMILARITY);
}

void api_rerank(struct http_req *req)
{
    handle(req, EMBED_RERANK);
}

void api_score(struct http_req *req)
{
    handle(req, EMBED_SCORE);
}

void api_classify(struct http_req *req)
{
    handle(req, EMBED_CLASSIFY);
}

void api_predict(struct http_req *req)
{
    handle(req, EMBED_PREDICT);
}

void api_predict_root(struct http_req *req)
{
    handle(req, EMBED_PREDICT_ROOT);
}
