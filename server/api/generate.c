/* POST /generate, /generate_stream and / in TGI's convention.
 *
 * Steps of an exchange: admission (admission.h, before any work) -> read and check the parameters -> tokenise (on the
 * pool when long) -> compile the grammar, if requested (on the pool) -> submit, best_of times -> gather, or stream. It
 * is reference-counted by http and each running callback, because calls of http.h may close it.  Loop thread. */
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/access/admission.h"
#include "server/access/client.h"
#include "server/api/answered.h"
#include "server/api/app.h"
#include "server/api/embed_shape.h"
#include "server/api/generate_answer.h"
#include "server/api/generate_params.h"
#include "server/api/request_body.h"
#include "server/api/request_fields.h"
#include "server/api/routes.h"
#include "server/api/served_model.h"
#include "server/bridge/bridge.h"
#include "server/bridge/grammar_cache.h"
#include "server/config/settings.h"
#include "server/metrics/metrics.h"
#include "server/net/http.h"
#include "server/net/sse.h"
#include "server/schema/constraint.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct exchange;

struct sequence {
    struct exchange *x;
    struct gen *gen; /* NULL before and after it runs */
};

struct exchange {
    int refs; /* the open http exchange, and running callbacks */
    struct app *app;
    struct served_model *served;
    struct http_req *req; /* NULL once closed */
    struct admission_handle *handle;
    uint64_t client;
    enum generate_route route;
    struct generate_params params;
    struct generate_limits limits;
    struct http_body body; /* while it is read on the pool */
    int status;            /* of reading it; 0: no error */
    struct err err;
    struct reservation held; /* for the prompt and the answer */
    struct token_job *job;
    struct grammar_cache_job *compiling;
    int32_t *prompt; /* (n_prompt) owned; from tokenising until submission, with a draft until the end */
    size_t n_prompt;
    struct answered_draft *draft; /* for feedback; owned; NULL: none */
    struct sse sse;
    struct event token;    /* streaming: the last token, kept until the EV_DONE that follows it */
    struct buf out;        /* the whole answer; streaming: one event's JSON */
    struct buf gathered;   /* streaming: the generated text so far */
    size_t gathered_bytes; /* memory of the results, at most */
    int best;              /* of the results */
    int n_sent;
    bool streaming; /* the head was sent */
    int n, n_done;
    struct sequence *seqs;             /* n */
    struct generation_result *results; /* n; not used when streaming */
    uint64_t *seeds;                   /* n */
    uint64_t tokenized;                /* clock_now() after tokenising, when compiling the grammar starts */
};

static void exchange_unref(struct exchange *x)
{
    if (--x->refs) return;
    for (int i = 0; i < x->n; i++) result_free(&x->results[i]);
    free(x->seqs);
    free(x->results);
    free(x->seeds);
    free(x->prompt);
    answered_drop(x->draft);
    buf_free(&x->out);
    buf_free(&x->gathered);
    cJSON *tree = x->params.tree;
    x->params.tree = NULL;
    generate_params_free(&x->params);
    body_free_json(x->app->bridge, x->client, tree);
    http_body_free(&x->body);
    reservation_free(&x->held);
    free(x);
}

static void cancel_all(struct exchange *x)
{
    for (int i = 0; i < x->n; i++) {
        bridge_cancel(x->seqs[i].gen);
        x->seqs[i].gen = NULL;
    }
}

static void stop_preparing(struct exchange *x)
{
    bridge_tokenize_cancel(x->job);
    x->job = NULL;
    grammar_cache_cancel(x->compiling);
    x->compiling = NULL;
}

/* Answered or refused: releases its admission handle. */
static void on_answer(struct http_req *req)
{
    struct exchange *x = req->user;
    admission_handle_close(x->handle);
    x->handle = NULL;
}

/* The exchange is over: answered, or the client disconnected. */
static void on_close(struct http_req *req)
{
    struct exchange *x = req->user;
    x->req = NULL;
    admission_handle_close(x->handle);
    sse_stop(&x->sse);
    stop_preparing(x);
    cancel_all(x);
    exchange_unref(x);
}

static void reply_invalid(struct exchange *x, int status, const struct err *e)
{
    if (body_reply_memory(x->app, x->req, e)) return;
    metrics_reject(&x->app->metrics, REJECT_VALIDATION);
    http_reply_error(x->req, status, "validation", "%s", e->msg);
}

/* ---- the whole answer ------------------------------------------------------------------------------------------ */

static size_t count_characters(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count;
}

__attribute__((format(printf, 3, 4))) static void set_header(struct http_req *req, const char *name, const char *fmt,
                                                             ...)
{
    char value[64];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(value, sizeof value, fmt, ap);
    va_end(ap);
    http_set_header(req, name, value);
}

static uint64_t span(uint64_t from, uint64_t to)
{
    return from && to > from ? to - from : 0;
}

/* Whole milliseconds, as in TGI. */
static void set_timing_headers(struct exchange *x, const struct generation_result *r)
{
    struct http_req *req = x->req;
    const struct event *d = &r->done;
    uint64_t total = span(req->received, clock_now()), inference = span(d->times.scheduled, d->times.done);
    unsigned long long ms = 1000000, per_token = d->n_generated ? inference / (uint64_t)d->n_generated : 0;
    set_header(req, "x-compute-type", "%.60s", x->served->info->device);
    set_header(req, "x-compute-time", "%.6f", (double)total * 1e-9);
    set_header(req, "x-compute-characters", "%zu", count_characters(x->params.inputs, x->params.inputs_len));
    set_header(req, "x-total-time", "%llu", total / ms);
    set_header(req, "x-validation-time", "%llu", span(req->received, x->tokenized) / ms);
    set_header(req, "x-queue-time", "%llu", span(d->times.submitted, d->times.scheduled) / ms);
    set_header(req, "x-inference-time", "%llu", inference / ms);
    set_header(req, "x-time-per-token", "%llu", per_token / ms);
    set_header(req, "x-prompt-tokens", "%d", d->n_prompt);
    set_header(req, "x-generated-tokens", "%d", d->n_generated);
    set_header(req, "x-cached-tokens", "%d", d->n_cached);
}

/* Keeps the answer of that sequence for feedback: it has come to its end. */
static void keep_answer(struct exchange *x, int sequence)
{
    const struct answered_facts facts = {
        .served = x->served,
        .info = x->served->info,
        .adapter = x->params.gen.adapter,
        .id = x->req->id,
        .header_id = x->req->id,
        .client = x->client,
        .prompt = &(struct answered_prompt){x->prompt, x->n_prompt},
        .n_prompts = 1,
        .order = &sequence,
        .n_choices = 1,
    };
    answered_keep(x->draft, &facts);
    x->draft = NULL;
}

static const char *failure_text(const struct event *done)
{
    return done->finish == FINISH_CANCELLED ? "the server is stopping" : done->error ? done->error : "unknown";
}

/* @return whether the deadline passed before its first token. */
static bool is_late(const struct event *done)
{
    return done->finish == FINISH_TIMEOUT && !done->n_generated;
}

/* Maybe on a pool thread: every sequence is over. */
static void work_render(void *arg)
{
    struct exchange *x = arg;
    bool list = x->route == ROUTE_COMPAT;
    if (list) buf_char(&x->out, '[');
    answer_put_whole(&x->out, &x->params, engine_tokenizer(x->served->engine), x->results, x->seeds, x->n, x->best);
    if (list) buf_char(&x->out, ']');
}

static void after_render(void *arg)
{
    struct exchange *x = arg;
    if (x->req && !http_answered(x->req)) {
        set_timing_headers(x, &x->results[x->best]);
        http_reply(x->req, 200, "application/json", x->out.data, x->out.len);
    }
    buf_free(&x->out);
    exchange_unref(x);
}

static void reply_whole(struct exchange *x)
{
    int best = 0, late = 0;
    for (int i = 0; i < x->n; i++) {
        const struct event *d = &x->results[i].done;
        late += is_late(d);
        if (d->finish == FINISH_ERROR || d->finish == FINISH_CANCELLED) {
            bool failed = d->finish == FINISH_ERROR;
            http_reply_error(x->req, failed ? 424 : 503, failed ? "generation" : "incomplete_generation",
                             "Request failed during generation: %s", failure_text(d));
            return;
        }
        if (result_mean_logprob(&x->results[i]) > result_mean_logprob(&x->results[best])) best = i;
    }
    if (late == x->n) {
        admission_reply_late(x->req);
        return;
    }
    size_t bytes = 0;
    for (int i = 0; i < x->n; i++) bytes += ANSWER_GROWTH * result_bytes(&x->results[i]);
    struct err e = {0};
    if (!reserve(&x->held, bytes, "the answer", &e)) {
        body_reply_memory(x->app, x->req, &e);
        return;
    }
    x->best = best;
    keep_answer(x, best);
    x->refs++; /* until after_render */
    bridge_render(x->served->bridge, x->client, bytes, work_render, after_render, x);
}

static void on_gather(void *arg, const struct event *ev, const struct event_batch *batch)
{
    struct sequence *seq = arg;
    struct exchange *x = seq->x;
    struct generation_result *r = &x->results[seq - x->seqs];
    x->gathered_bytes += result_event_bytes(ev);
    if (!reserve_up_to(&x->held, x->gathered_bytes, "the answer", NULL) || !result_room(r, ev)) {
        cancel_all(x);
        admission_reply_memory(x->req, "no memory for the answer");
        return;
    }
    result_add(r, ev, batch);
    answered_add(x->draft, (int)(seq - x->seqs), ev);
    if (ev->kind != EV_DONE) return;
    seq->gen = NULL;
    if (++x->n_done == x->n) reply_whole(x);
}

/* ---- the stream ------------------------------------------------------------------------------------------------ */

static void on_drain(struct http_req *req)
{
    struct exchange *x = req->user;
    if (x->seqs[0].gen) bridge_resume(x->seqs[0].gen);
}

static void send_token(struct exchange *x, const struct event *token, const struct event_batch *batch,
                       const struct event *done)
{
    struct answer_event a = {
        .params = &x->params,
        .tokenizer = engine_tokenizer(x->served->engine),
        .token = token,
        .batch = batch,
        .last = done,
        .text = x->gathered.data,
        .text_len = x->gathered.len,
        .index = ++x->n_sent,
    };
    buf_clear(&x->out);
    answer_put_event(&x->out, &a);
    bool more = sse_send(&x->sse, x->out.data, x->out.len);
    /* the write may have closed the exchange, which has then cancelled the gen */
    if (!more && x->seqs[0].gen) bridge_pause(x->seqs[0].gen);
}

/* Sends an error in the middle of the stream. */
static void send_error(struct exchange *x, const char *text, const char *type)
{
    buf_clear(&x->out);
    buf_printf(&x->out, "{\"error\":\"%s\",\"error_type\":\"%s\"}", text, type);
    sse_send(&x->sse, x->out.data, x->out.len);
}

static void end_stream(struct exchange *x, const struct event *done, const struct event_batch *batch)
{
    if (is_late(done)) {
        metrics_reject(&x->app->metrics, REJECT_DEADLINE);
        send_error(x, "Request timed out: " ADMISSION_LATE, "timeout");
    } else if (done->finish == FINISH_TIMEOUT && x->token.kind != EV_TOKEN) {
        send_error(x, "Request timed out: the deadline passed while it was held up", "timeout");
    } else if (done->finish == FINISH_ABORTED && x->token.kind != EV_TOKEN) {
        send_error(x, "Request aborted by POST /pause", "incomplete_generation");
    } else if (done->finish == FINISH_ERROR || done->finish == FINISH_CANCELLED) {
        buf_clear(&x->out);
        buf_printf(&x->out, "{\"error\":\"Request failed during generation: %s\",\"error_type\":\"%s\"}",
                   failure_text(done), done->finish == FINISH_ERROR ? "generation" : "incomplete_generation");
        sse_send(&x->sse, x->out.data, x->out.len);
    } else if (x->token.kind == EV_TOKEN) {
        if (x->req) keep_answer(x, 0);
        send_token(x, &x->token, batch, done);
    }
    sse_stop(&x->sse);
    if (x->req) http_end(x->req);
}

static void on_stream(void *arg, const struct event *ev, const struct event_batch *batch)
{
    struct sequence *seq = arg;
    struct exchange *x = seq->x;
    x->refs++;
    if (ev->kind == EV_DONE) {
        seq->gen = NULL;
        end_stream(x, ev, batch);
    } else if (ev->kind == EV_TOKEN) {
        buf_append(&x->gathered, batch->text + ev->text, ev->gen_len);
        answered_add(x->draft, 0, ev);
        /* a last token is sent with the EV_DONE that follows in the same batch and has the totals */
        if (ev->finish != FINISH_NONE)
            x->token = *ev;
        else
            send_token(x, ev, batch, NULL);
    }
    exchange_unref(x);
}

/* ---- submitting ------------------------------------------------------------------------------------------------ */

static int submit_all(struct exchange *x, struct err *e)
{
    struct gen_request r = x->params.gen;
    for (int i = 0; i < x->n; i++) {
        struct sequence *seq = &x->seqs[i];
        seq->x = x;
        x->seeds[i] = r.sampling.seed = seed_derive(x->params.gen.sampling.seed, i);
        seq->gen =
            bridge_submit(x->served->bridge, &r, x->handle, x->req, x->params.stream ? on_stream : on_gather, seq, e);
        if (!seq->gen) {
            cancel_all(x);
            return e->code;
        }
    }
    return 0;
}

/* The deadline passed. */
static void on_late(void *arg)
{
    struct exchange *x = arg;
    for (int i = 0; i < x->n; i++) bridge_expire(x->seqs[i].gen);
    if (x->n || http_answered(x->req)) return;
    stop_preparing(x);
    admission_reply_late(x->req);
}

static void start_generation(struct exchange *x)
{
    struct err e = {0};
    x->n = x->params.best_of;
    metrics_observe(&x->app->metrics, HIST_SEQUENCES, x->n);
    x->req->note.model = x->served->name;
    x->params.gen.priority = admission_handle_priority(x->handle, x->params.gen.priority);
    x->seqs = mem_array((size_t)x->n, sizeof *x->seqs);
    x->results = mem_array((size_t)x->n, sizeof *x->results);
    x->seeds = mem_array((size_t)x->n, sizeof *x->seeds);
    if (!x->params.has_seed) x->params.gen.sampling.seed = seed_random();
    if (!x->req->background) x->draft = answered_begin(x->app->answered, x->n);
    int rc = submit_all(x, &e);
    if (rc == ERR_FULL) {
        admission_reply_full(x->req);
    } else if (rc == ERR_NOMEM) {
        admission_reply_memory(x->req, e.msg);
    } else if (rc) {
        err_prefix(&e, "Input validation error");
        reply_invalid(x, 422, &e);
    } else if (x->params.stream) {
        x->req->on_drain = on_drain;
        set_header(x->req, "x-compute-type", "%.60s", x->served->info->device);
        set_header(x->req, "x-compute-characters", "%zu", count_characters(x->params.inputs, x->params.inputs_len));
        sse_start(&x->sse, x->app->sse, x->req);
    }
}

/* g: the grammar of the text; NULL: unconstrained.  May run before grammar_cache_compile returns. */
static void on_compiled(void *arg, struct grammar *g, const struct err *e)
{
    struct exchange *x = arg;
    x->refs++;
    if (x->params.constraint.kind)
        metrics_constraint(&x->app->metrics, x->compiling ? clock_now() - x->tokenized : 0, !e->code);
    x->compiling = NULL;
    if (e->code) {
        metrics_reject(&x->app->metrics, REJECT_VALIDATION);
        http_reply_error(x->req, 422, "validation", "Input validation error: %s is not valid: %s",
                         x->params.constraint.field, e->msg);
    } else {
        x->params.gen.prompt = x->prompt;
        x->params.gen.grammar = g;
        start_generation(x); /* the engine copies the prompt and references the grammar */
        x->params.gen.prompt = NULL;
        x->params.gen.grammar = NULL;
    }
    if (!x->draft) {
        free(x->prompt);
        x->prompt = NULL;
    }
    exchange_unref(x);
}

static void on_tokenized(void *arg, const struct tokenization *t)
{
    struct exchange *x = arg;
    struct err e = {0};
    size_t first;
    x->refs++;
    x->job = NULL;
    x->tokenized = clock_now();
    if (t->err.code && !body_reply_memory(x->app, x->req, &t->err)) {
        metrics_reject(&x->app->metrics, REJECT_VALIDATION);
        http_reply_error(x->req, 422, "validation", "Input validation error: tokenizer error %s", t->err.msg);
    } else if (!t->err.code) {
        int status = generate_params_fit(&x->params, &x->limits, t->tokens.n, &first, &e);
        if (status) {
            reply_invalid(x, status, &e);
        } else {
            size_t n = t->tokens.n - first;
            if (!reserve(&x->held, n * sizeof *x->prompt, "the prompt's tokens", &e)) {
                reply_invalid(x, 503, &e);
                exchange_unref(x);
                return;
            }
            admission_handle_tokens(x->handle, (int64_t)n, (int64_t)n * x->params.best_of);
            x->prompt = mem_array(n, sizeof *x->prompt);
            x->n_prompt = n;
            for (size_t i = 0; i < n; i++) x->prompt[i] = t->tokens.v[first + i].id;
            struct grammar_cache_job *job = grammar_cache_compile(x->served->grammar_cache, client_id(x->req),
                                                                  &x->params.constraint, on_compiled, x);
            if (job) x->compiling = job; /* otherwise on_compiled has already run */
        }
    }
    exchange_unref(x);
}

/* The fields have been read. */
static void begin(struct exchange *x)
{
    const char *adapter = x->params.gen.adapter;
    int status = x->status;
    if (!status && adapter && engine_adapter_check(x->served->engine, adapter, &x->err)) {
        err_prefix(&x->err, "Input validation error: `adapter_id`");
        status = 422;
    }
    const struct admission_handle_need need = {.sequences = x->params.best_of,
                                               .at_once = x->params.best_of,
                                               .copies = x->params.best_of,
                                               .timeout_ms = x->params.timeout_ms};
    if (status) {
        reply_invalid(x, status, &x->err);
    } else if (admission_handle_reserve(x->handle, x->req, &need)) {
        admission_handle_watch(x->handle, on_late, x);
        x->job = bridge_tokenize(x->served->bridge, x->client, x->params.inputs, x->params.inputs_len, TOKENIZE_SPECIAL,
                                 on_tokenized, x);
    }
}

static void work_read(void *arg)
{
    struct exchange *x = arg;
    x->status = generate_params_parse(&x->params, x->route, &x->limits, x->body.data, x->body.len, &x->err);
    http_body_free(&x->body);
    if (x->status) generate_params_free(&x->params); /* freed here rather than on the loop */
}

static void after_read(void *arg)
{
    struct exchange *x = arg;
    if (x->req) begin(x);
    exchange_unref(x);
}

static void handle(struct http_req *req, enum generate_route route)
{
    struct app *app = req->app;
    struct admission_handle *handle = admission_enter(req);
    if (!handle) return;
    struct exchange *x = mem_zalloc(sizeof *x);
    *x = (struct exchange){.refs = 2,
                           .app = app,
                           .served = served_model_of(req),
                           .req = req,
                           .handle = handle,
                           .client = client_id(req),
                           .route = route};
    x->limits = (struct generate_limits){
        .max_best_of = app->set->max_best_of,
        .max_stop = app->set->max_stop_sequences,
        .max_top_n = app->set->max_top_n_tokens,
        .max_total_tokens = x->served->info->max_total_tokens,
        .vocab = x->served->info->vocab,
        .longest_token = x->served->longest_token,
    };
    req->user = x;
    req->on_answer = on_answer;
    req->on_close = on_close;
    if (req->body_len > BODY_INLINE) {
        http_take_body(req, &x->body);
        bridge_work(x->served->bridge, x->client, work_read, after_read, x); /* takes over this reference */
        return;
    }
    x->status = generate_params_parse(&x->params, route, &x->limits, req->body, req->body_len, &x->err);
    begin(x);
    exchange_unref(x);
}

void api_generate(struct http_req *req)
{
    handle(req, ROUTE_GENERATE);
}

/* POST / accepts three kinds of bodies. */
static void handle_root(struct http_req *req, enum embed_shape shape)
{
    const struct engine_info *info = served_model_of(req)->info;
    const struct embedder *m = info ? info->embedder : NULL;
    if (m && m->classifies) {
        api_predict_root(req);
        return;
    }
    if (m && m->encoder && shape == EMBED_NONE) shape = EMBED_TEI;
    switch (shape) {
    case EMBED_TEI: api_embed(req); break;
    case EMBED_SIMILARITY: api_similarity(req); break;
    default: handle(req, ROUTE_COMPAT);
    }
}

struct shape_check {
    struct http_req *req; /* NULL once closed */
    struct http_body body;
    enum embed_shape shape;
};

static void on_shape_close(struct http_req *req)
{
    struct shape_check *l = req->user;
    l->req = NULL;
}

static void work_shape(void *arg)
{
    struct shape_check *l = arg;
    l->shape = embed_shape_of(l->body.data, l->body.len);
}

static void after_shape(void *arg)
{
    struct shape_check *l = arg;
    if (l->req) {
        l->req->on_close = NULL;
        l->req->user = NULL;
        http_return_body(l->req, &l->body);
        handle_root(l->req, l->shape);
    }
    http_body_free(&l->body);
    free(l);
}

void api_generate_compat(struct http_req *req)
{
    struct app *app = req->app;
    if (req->body_len <= BODY_INLINE) {
        handle_root(req, embed_shape_of(req->body, req->body_len));
        return;
    }
    struct shape_check *l = mem_zalloc(sizeof *l);
    l->req = req;
    http_take_body(req, &l->body);
    req->user = l;
    req->on_close = on_shape_close;
    bridge_work(app->bridge, client_id(req), work_shape, after_shape, l);
}

void api_generate_stream(struct http_req *req)
{
    handle(req, ROUTE_STREAM);
}
