/* POST /v1/completions and /v1/chat/completions in OpenAI's convention, and /v1/messages in Anthropic's, whose bodies
 * are rewritten as those of chats (messages_params.h).
 *
 * Steps of an exchange: admission (admission.h, before any work) -> read and check the parameters -> find the model ->
 * render the chat and tokenise (on the pool when long) -> compile the constraint, if any -> submit every sequence
 * (prompts x best_of) -> gather, or stream.  It is reference-counted by http, each running callback and work on the
 * pool.  Loop thread, except prepare. */
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/access/admission.h"
#include "server/access/client.h"
#include "server/api/app.h"
#include "server/api/messages_answer.h"
#include "server/api/messages_params.h"
#include "server/api/models.h"
#include "server/api/openai_answer.h"
#include "server/api/request_body.h"
#include "server/api/request_fields.h"
#include "server/api/routes.h"
#include "server/api/store_request.h"
#include "server/bridge/bridge.h"
#include "server/bridge/encode.h"
#include "server/bridge/grammar_cache.h"
#include "server/config/settings.h"
#include "server/json/json.h"
#include "server/metrics/metrics.h"
#include "server/net/http.h"
#include "server/net/sse.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    ECHO_MAX = 64 * 1024 * 1024, /* bytes of all prompts echoed in one answer */
};

/* whose convention an answer follows */
enum style { STYLE_OPENAI, STYLE_MESSAGES, STYLE_COUNT /* of tokens: nothing is generated */ };

struct exchange;

struct sequence {
    struct exchange *x;
    struct gen *gen; /* NULL before and after it runs */
    struct choice choice;
    int index;    /* index of the choice in a stream */
    bool started; /* stream: its first chunk was sent */
};

/* a prompt prepared for the engine */
struct prepared {
    int32_t *ids; /* owned */
    size_t n;
    struct buf echo; /* its text for echo */
    bool thinking;   /* it ends with <think> */
    int max_new_tokens;
};

struct exchange {
    int refs; /* the open http exchange, running callbacks, work on the pool */
    struct app *app;
    struct http_req *req; /* NULL once closed */
    struct admission_handle *handle;
    _Atomic bool gone; /* the pool's flag: closed, or past its deadline */
    uint64_t client;
    enum openai_route route;
    enum style style;
    struct openai_params params;
    struct openai_limits limits;
    struct http_body body; /* while it is read on the pool */
    size_t body_len;
    int status; /* of reading it; 0: no error */
    struct err err;
    const char *param;
    struct reservation held; /* for prompts and answer; owned by the pool while it prepares */
    size_t gathered_bytes;   /* memory of the choices, at most */
    struct openai_head head;
    char id[REQUEST_ID_MAX + 16];
    struct choice_config config;

    struct prepared *prompts; /* (params.n_prompts) */
    struct err failed;        /* of preparing */
    const char *failed_param;
    struct grammar_cache_job *compiling;
    uint64_t asked;          /* clock_now() of the start of compiling */
    struct grammar *grammar; /* held until the sequences are submitted */

    struct sequence *seqs; /* n, prompt by prompt */
    int n, n_done, n_late;
    struct openai_usage usage;
    struct sse sse;
    struct messages_stream blocks; /* STYLE_MESSAGES */
    struct buf out;
};

/* ---- life ------------------------------------------------------------------------------------------------------ */

static void exchange_unref(struct exchange *x)
{
    if (--x->refs) return;
    for (int i = 0; i < x->n; i++) choice_free(&x->seqs[i].choice);
    for (int i = 0; x->prompts && i < x->params.n_prompts; i++) {
        free(x->prompts[i].ids);
        buf_free(&x->prompts[i].echo);
    }
    free(x->prompts);
    free(x->seqs);
    buf_free(&x->out);
    cJSON *tree = x->params.tree;
    x->params.tree = NULL;
    openai_params_free(&x->params);
    body_free_json(x->app->bridge, x->client, tree);
    http_body_free(&x->body);
    reservation_free(&x->held);
    messages_stream_free(&x->blocks);
    free(x);
}

static void cancel_all(struct exchange *x)
{
    for (int i = 0; i < x->n; i++) {
        bridge_cancel(x->seqs[i].gen);
        x->seqs[i].gen = NULL;
    }
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
    atomic_store(&x->gone, true);
    admission_handle_close(x->handle);
    sse_stop(&x->sse);
    grammar_cache_cancel(x->compiling);
    x->compiling = NULL;
    cancel_all(x);
    exchange_unref(x);
}

/* ---- errors ---------------------------------------------------------------------------------------------------- */

/* Appends an error in the convention of the route. */
static void put_error(const struct exchange *x, struct buf *out, int status, const char *code, const char *param,
                      const char *msg)
{
    static const char chat[] = "response_format"; /* where messages_to_chat puts output_config.format */
    struct buf text = {0};
    if (x->style == STYLE_OPENAI) {
        store_request_put_error(out, true, status, code, param, msg);
        return;
    }
    bool format = strncmp(msg, chat, sizeof chat - 1) == 0;
    buf_printf(&text, "%s%s", format ? "output_config.format" : "", format ? msg + sizeof chat - 1 : msg);
    if (x->sse.hub)
        messages_put_error_event(out, status, text.data);
    else
        http_put_anthropic_error(out, status, text.data);
    buf_free(&text);
}

static void reply_error(struct exchange *x, int status, const char *code, const char *param, const char *msg)
{
    struct buf out = {0};
    if (status < 500) metrics_reject(&x->app->metrics, REJECT_VALIDATION);
    put_error(x, &out, status, code, param, msg);
    http_reply(x->req, status, "application/json", out.data, out.len);
    buf_free(&out);
}

/* Appends the error of a generation that failed. */
static void put_failure(const struct exchange *x, struct buf *out, const struct event *done)
{
    struct err e = {0};
    bool failed = done->finish == FINISH_ERROR;
    err_set(&e, 0, "Request failed during generation: %s",
            !failed       ? "the server is stopping"
            : done->error ? done->error
                          : "unknown");
    put_error(x, out, failed ? 500 : 503, failed ? "generation" : "incomplete_generation", NULL, e.msg);
}

static bool has_failed(const struct event *done)
{
    return done->finish == FINISH_ERROR || done->finish == FINISH_CANCELLED;
}

/* @return whether, with this event, the deadline has passed before any sequence had a token. */
static bool all_late(struct exchange *x, const struct event *done)
{
    x->n_late += done->finish == FINISH_TIMEOUT && !done->n_generated;
    return x->n_late == x->n;
}

/* ---- the whole answer ------------------------------------------------------------------------------------------ */

/* Adds the tokens of one sequence; the prompt is counted once, with its first sequence. */
static void add_usage(struct exchange *x, const struct sequence *seq, const struct event *done)
{
    x->usage.completion += x->params.nothing_wanted ? 0 : done->n_generated;
    if ((seq - x->seqs) % x->params.best_of == 0) x->usage.cached += done->n_cached;
}

static int by_score(const void *a, const void *b)
{
    const struct choice *const *x = a, *const *y = b;
    double d = choice_score(*y) - choice_score(*x);
    return d > 0 ? 1 : d < 0 ? -1 : *x < *y ? -1 : *x > *y;
}

/* Orders the answer: the n likeliest of every prompt's best_of sequences, best first; in order of index where n is
 * best_of.  May run on a pool thread, because every sequence is over. */
static void work_render(void *arg)
{
    struct exchange *x = arg;
    int n = x->params.n, best_of = x->params.best_of, count = 0;
    if (x->style == STYLE_MESSAGES) {
        messages_put_whole(&x->out, &x->head, &x->seqs[0].choice, x->config.thinking, &x->usage);
        return;
    }
    struct choice **choices = mem_array((size_t)x->n, sizeof *choices);
    for (int p = 0; p < x->params.n_prompts; p++) {
        struct choice **own = choices + count;
        for (int i = 0; i < best_of; i++) own[i] = &x->seqs[p * best_of + i].choice;
        if (best_of > n) qsort(own, (size_t)best_of, sizeof *own, by_score);
        count += n;
    }
    openai_put_whole(&x->out, &x->head, choices, count, &x->usage);
    free(choices);
}

static void after_render(void *arg)
{
    struct exchange *x = arg;
    if (x->req && !http_answered(x->req)) http_reply(x->req, 200, "application/json", x->out.data, x->out.len);
    buf_free(&x->out);
    exchange_unref(x);
}

static void reply_whole(struct exchange *x)
{
    struct err e = {0};
    size_t bytes = 0;
    for (int i = 0; i < x->n; i++) bytes += ANSWER_GROWTH * choice_bytes(&x->seqs[i].choice);
    if (!reserve(&x->held, bytes, "the answer", &e)) {
        body_reply_memory(x->app, x->req, &e);
        return;
    }
    x->refs++; /* until after_render */
    bridge_render(x->app->bridge, x->client, bytes, work_render, after_render, x);
}

static void on_gather(void *arg, const struct event *ev, const struct event_batch *batch)
{
    struct sequence *seq = arg;
    struct exchange *x = seq->x;
    if (ev->kind == EV_DONE) seq->gen = NULL;
    x->gathered_bytes += choice_event_bytes(&seq->choice, ev);
    if (!reserve_up_to(&x->held, x->gathered_bytes, "the answer", NULL) || !choice_room(&seq->choice, ev)) {
        cancel_all(x);
        admission_reply_memory(x->req, "no memory for the answer");
        return;
    }
    choice_add(&seq->choice, ev, batch);
    if (ev->kind != EV_DONE) return;
    if (has_failed(ev)) {
        struct buf out = {0};
        cancel_all(x);
        put_failure(x, &out, ev);
        http_reply(x->req, ev->finish == FINISH_ERROR ? 500 : 503, "application/json", out.data, out.len);
        buf_free(&out);
        return;
    }
    add_usage(x, seq, ev);
    if (all_late(x, ev))
        admission_reply_late(x->req);
    else if (++x->n_done == x->n)
        reply_whole(x);
}

/* ---- the stream ------------------------------------------------------------------------------------------------ */

static void on_drain(struct http_req *req)
{
    struct exchange *x = req->user;
    for (int i = 0; i < x->n; i++)
        if (x->seqs[i].gen) bridge_resume(x->seqs[i].gen);
}

static void send_out(struct exchange *x)
{
    bool more = x->style == STYLE_MESSAGES ? sse_write(&x->sse, x->out.data, x->out.len)
                                           : sse_send(&x->sse, x->out.data, x->out.len);
    buf_clear(&x->out);
    for (int i = 0; i < x->n && !more; i++)
        if (x->seqs[i].gen) bridge_pause(x->seqs[i].gen);
}

static void send_chunk(struct exchange *x, const struct sequence *seq, enum openai_chunk kind)
{
    bool every = x->params.include_usage && x->params.continuous_usage;
    struct openai_usage u = {.prompt = x->usage.prompt, .cached = -1};
    for (int i = 0; i < x->n && every; i++) u.completion += x->seqs[i].choice.n_tokens;
    openai_put_chunk(&x->out, &x->head, kind, &seq->choice, seq->index, every ? &u : NULL);
    send_out(x);
}

static void end_stream(struct exchange *x)
{
    if (x->style == STYLE_OPENAI) sse_send(&x->sse, "[DONE]", 6);
    sse_stop(&x->sse);
    if (x->req) http_end(x->req);
}

/* The same in Anthropic's convention. */
static void send_blocks(struct exchange *x, struct sequence *seq)
{
    for (; choice_ready(&seq->choice); choice_clear(&seq->choice))
        messages_put_ready(&x->out, &x->blocks, &seq->choice);
    if (x->out.len) send_out(x);
}

static void send_ready(struct exchange *x, struct sequence *seq, bool over)
{
    if (x->style == STYLE_MESSAGES) {
        send_blocks(x, seq);
        return;
    }
    bool chat = x->route == OPENAI_CHAT;
    if (chat && !seq->started) send_chunk(x, seq, CHUNK_ROLE);
    seq->started = true;
    bool any = choice_ready(&seq->choice) || (over && !chat);
    for (; any; any = choice_ready(&seq->choice)) {
        send_chunk(x, seq, CHUNK_TEXT);
        choice_clear(&seq->choice);
    }
    if (over && chat) send_chunk(x, seq, CHUNK_END);
}

static void finish_sequence(struct exchange *x, struct sequence *seq, const struct event *done)
{
    seq->gen = NULL;
    if (has_failed(done)) {
        cancel_all(x);
        put_failure(x, &x->out, done);
        send_out(x);
        end_stream(x);
        return;
    }
    if (all_late(x, done)) {
        metrics_reject(&x->app->metrics, REJECT_DEADLINE);
        put_error(x, &x->out, 504, "timeout", NULL, "Request timed out: " ADMISSION_LATE);
        send_out(x);
        end_stream(x);
        return;
    }
    send_ready(x, seq, true);
    add_usage(x, seq, done);
    if (++x->n_done < x->n) return;
    if (x->style == STYLE_MESSAGES)
        messages_put_end(&x->out, &x->blocks, &seq->choice, &x->usage);
    else if (x->params.include_usage)
        openai_put_usage_chunk(&x->out, &x->head, &x->usage);
    if (x->out.len) send_out(x);
    end_stream(x);
}

static void on_stream(void *arg, const struct event *ev, const struct event_batch *batch)
{
    struct sequence *seq = arg;
    struct exchange *x = seq->x;
    x->refs++;
    choice_add(&seq->choice, ev, batch);
    if (ev->kind == EV_DONE)
        finish_sequence(x, seq, ev);
    else if (ev->kind == EV_TOKEN && ev->finish == FINISH_NONE && choice_ready(&seq->choice))
        send_ready(x, seq, false); /* the last token is sent with the EV_DONE that follows in the same batch */
    exchange_unref(x);
}

/* ---- submitting ------------------------------------------------------------------------------------------------ */

static int submit_prompt(struct exchange *x, int p, struct err *e)
{
    struct gen_request r = x->params.gen;
    const struct prepared *v = &x->prompts[p];
    uint64_t seed = r.sampling.seed;
    r.prompt = v->ids;
    r.n_prompt = (int)v->n;
    r.max_new_tokens = v->max_new_tokens;
    r.grammar = x->grammar;
    for (int i = 0; i < x->params.best_of; i++) {
        struct sequence *seq = &x->seqs[x->n++];
        *seq = (struct sequence){.x = x, .index = p * x->params.n + i};
        x->config.thinking = v->thinking;
        choice_init(&seq->choice, &x->config, v->echo.data, v->echo.len);
        r.sampling.seed = seed_derive(seed, i);
        seq->gen =
            bridge_submit(x->app->bridge, &r, x->handle, x->req, x->params.stream ? on_stream : on_gather, seq, e);
        if (!seq->gen) return e->code;
    }
    return 0;
}

/* Checks the lengths of all prompts before any is submitted.  @return false when refused. */
static bool fit_prompts(struct exchange *x)
{
    struct err e = {0};
    const char *param = NULL;
    for (int p = 0; p < x->params.n_prompts; p++) {
        struct prepared *v = &x->prompts[p];
        if (openai_params_fit(&x->params, x->route, &x->limits, v->n, &e, &param)) {
            reply_error(x, 400, x->params.code, param, e.msg);
            return false;
        }
        v->max_new_tokens = x->params.gen.max_new_tokens;
        x->usage.prompt += x->params.gen.n_prompt;
    }
    return true;
}

/* The deadline passed. */
static void on_late(void *arg)
{
    struct exchange *x = arg;
    for (int i = 0; i < x->n; i++) bridge_expire(x->seqs[i].gen);
    if (x->n || http_answered(x->req)) return;
    atomic_store(&x->gone, true);
    grammar_cache_cancel(x->compiling);
    x->compiling = NULL;
    admission_reply_late(x->req);
}

static void start_stream(struct exchange *x)
{
    x->req->on_drain = on_drain;
    if (x->style == STYLE_MESSAGES) x->sse.keepalive = MESSAGES_PING;
    sse_start(&x->sse, x->app->sse, x->req);
    if (x->style != STYLE_MESSAGES) return;
    if (x->config.thinking) thinking_begin_inside(&x->blocks.split);
    messages_put_start(&x->out, &x->head, &x->usage);
    send_out(x);
}

static void start_generation(struct exchange *x)
{
    struct err e = {0};
    int rc = 0;
    if (!fit_prompts(x)) return;
    admission_handle_tokens(x->handle, x->usage.prompt, x->usage.prompt * x->params.best_of);
    x->params.gen.priority = admission_handle_priority(x->handle, x->params.gen.priority);
    x->seqs = mem_array((size_t)x->params.n_prompts * (size_t)x->params.best_of, sizeof *x->seqs);
    metrics_observe(&x->app->metrics, HIST_SEQUENCES, x->params.n_prompts * x->params.best_of);
    if (!x->params.has_seed) x->params.gen.sampling.seed = seed_random();
    for (int p = 0; p < x->params.n_prompts && !rc; p++) rc = submit_prompt(x, p, &e);
    if (rc) cancel_all(x);
    if (rc == ERR_FULL) {
        admission_reply_full(x->req);
    } else if (rc == ERR_NOMEM) {
        admission_reply_memory(x->req, e.msg);
    } else if (rc) {
        reply_error(x, rc == ERR_NOT_FOUND ? 404 : 400, rc == ERR_NOT_FOUND ? "model_not_found" : "invalid_value",
                    rc == ERR_NOT_FOUND ? "model" : NULL, e.msg);
    } else if (x->params.stream) {
        start_stream(x);
    }
}

/* May run before grammar_cache_compile returns: then there is no job handle to clear. */
static void on_compiled(void *arg, struct grammar *g, const struct err *e)
{
    struct exchange *x = arg;
    x->refs++;
    if (x->params.constraint.kind)
        metrics_constraint(&x->app->metrics, x->compiling ? clock_now() - x->asked : 0, !e->code);
    x->compiling = NULL;
    x->grammar = g;
    if (e->code)
        reply_error(x, e->code == ERR_UNSUPPORTED ? 422 : 400, "invalid_value", x->params.constraint.field, e->msg);
    else
        start_generation(x);
    x->grammar = NULL; /* the engine has its own reference */
    exchange_unref(x);
}

/* ---- preparing ------------------------------------------------------------------------------------------------- */

static int tokenize(struct exchange *x, const char *text, size_t n, bool special, struct prepared *out)
{
    struct tokens t = {0};
    int rc = encode_reserved(engine_tokenizer(x->app->engine), text, n, special ? TOKENIZE_SPECIAL : 0, &t, &x->held,
                             &x->failed);
    out->n = rc ? 0 : t.n;
    out->ids = mem_array(out->n + 1, sizeof *out->ids);
    for (size_t i = 0; i < out->n; i++) out->ids[i] = t.v[i].id;
    if (!rc) reservation_shrink(&x->held, t.cap * sizeof *t.v);
    tokens_free(&t);
    return x->failed.code;
}

static void keep_last(struct prepared *v, size_t n)
{
    if (!n || v->n <= n) return;
    memmove(v->ids, v->ids + (v->n - n), n * sizeof *v->ids);
    v->n = n;
}

static void prepare_prompt(struct exchange *x, const struct openai_prompt *p, struct prepared *out)
{
    const struct tokenizer *tk = engine_tokenizer(x->app->engine);
    const cJSON *id = p->ids;
    if (p->text) {
        if (tokenize(x, p->text, p->len, x->params.add_special, out)) return;
        if (x->params.echo && reserve(&x->held, 2 * p->len, "the prompt's echo", &x->failed))
            buf_append(&out->echo, p->text, p->len);
        return;
    }
    if (!reserve(&x->held, (p->len + 1) * sizeof *out->ids, "the prompt's tokens", &x->failed)) return;
    out->ids = mem_array(p->len + 1, sizeof *out->ids);
    for (; id; id = id->next) out->ids[out->n++] = (int32_t)id->valuedouble;
    keep_last(out, (size_t)x->params.truncate); /* bounds the text to decode */
    if (x->params.echo && reserve(&x->held, 2 * out->n * x->limits.longest_token + 16, "the prompt's echo", &x->failed))
        tokenizer_decode(tk, out->ids, out->n, !x->params.keep_special, &out->echo);
}

static void prepare_chat(struct exchange *x, struct prepared *out)
{
    const struct chat_format *chat = &x->app->chat;
    struct buf page = {0};
    buf_str(&page, "");
    /* a template writes the begin-of-text token itself */
    bool special = x->params.add_special || chat->plain;
    if (chat_render(chat, &x->params, x->body_len, &page, &x->failed) == 0)
        tokenize(x, page.data, page.len, special, out);
    out->thinking = tool_prompt_thinks(page.data, page.len);
    buf_free(&page);
}

/* Builds the grammar of a required call, from copies of the tools. */
static void prepare_tools(struct exchange *x)
{
    struct reservation copies = {0};
    bool asked = x->params.constraint.kind != CONSTRAINT_NONE;
    x->failed_param = asked ? "tool_choice" : "tools";
    if (x->params.tools && !reserve(&copies, 2 * json_reserved(x->params.tree), "the tools", &x->failed)) return;
    chat_tool_constraint(&x->app->chat, &x->params, &x->params.constraint, &x->failed);
    reservation_free(&copies);
}

/* May run on a pool thread: uses only params, prompts, held and failed. */
static void prepare(void *arg)
{
    struct exchange *x = arg;
    size_t echo = 0;
    if (x->route == OPENAI_CHAT && x->style != STYLE_COUNT) prepare_tools(x);
    if (!x->failed.code) x->failed_param = x->route == OPENAI_CHAT ? "messages" : "prompt";
    for (int p = 0; p < x->params.n_prompts && !x->failed.code && !atomic_load(&x->gone); p++) {
        if (x->route == OPENAI_CHAT)
            prepare_chat(x, &x->prompts[p]);
        else
            prepare_prompt(x, &x->params.prompts[p], &x->prompts[p]);
        keep_last(&x->prompts[p], (size_t)x->params.truncate);
        echo += x->prompts[p].echo.len * (size_t)x->params.best_of;
        if (echo > ECHO_MAX)
            err_set(&x->failed, ERR_INVALID, "`echo`: the prompts are more than %d bytes of one answer: lower `n`",
                    ECHO_MAX);
    }
}

static void reply_count(struct exchange *x)
{
    struct buf out = {0};
    buf_printf(&out, "{\"input_tokens\":%zu}", x->prompts[0].n);
    http_reply(x->req, 200, "application/json", out.data, out.len);
    buf_free(&out);
}

static void on_prepared(void *arg)
{
    struct exchange *x = arg;
    bool wanted = !atomic_load(&x->gone);
    if (wanted && !x->failed.code && x->style == STYLE_COUNT) {
        reply_count(x);
    } else if (wanted && x->failed.code) {
        if (!body_reply_memory(x->app, x->req, &x->failed))
            reply_error(x, 400, "invalid_value", x->failed_param, x->failed.msg);
    } else if (wanted) {
        x->asked = clock_now();
        struct grammar_cache_job *job =
            grammar_cache_compile(x->app->grammar_cache, client_id(x->req), &x->params.constraint, on_compiled, x);
        if (job) x->compiling = job; /* otherwise on_compiled has already run */
    }
    exchange_unref(x);
}

/* ---- the request ----------------------------------------------------------------------------------------------- */

static void make_id(struct exchange *x)
{
    const char *lead = x->style != STYLE_OPENAI ? "msg_" : x->route == OPENAI_CHAT ? "chatcmpl-" : "cmpl-";
    snprintf(x->id, sizeof x->id, "%s%s", lead, x->req->id);
    http_set_id(x->req, x->id); /* the answer's id is also the request id, unless the client sent one */
    if (x->style != STYLE_OPENAI) http_set_header(x->req, "request-id", x->req->id);
    x->head = (struct openai_head){
        .route = x->route,
        .params = &x->params,
        .id = x->id,
        .fingerprint = x->app->fingerprint,
        .created = (int64_t)time(NULL),
    };
}

/* Finds the model and checks that it supports chat.  @return true when the exchange may continue. */
static bool find_model(struct exchange *x)
{
    const struct chat_format *chat = &x->app->chat;
    struct model_choice m;
    struct err e = {0};
    if (!models_find(x->app, x->params.model, &m, &e)) {
        reply_error(x, 404, "model_not_found", "model", e.msg);
        return false;
    }
    x->head.model = x->req->note.model = m.name;
    x->params.gen.adapter = m.adapter;
    x->config = (struct choice_config){
        .params = &x->params,
        .tokenizer = engine_tokenizer(x->app->engine),
        .route = x->route,
    };
    if (x->route == OPENAI_COMPLETIONS) return true;
    if (!chat->template && !chat->plain) {
        reply_error(x, 400, "no_chat_template", NULL, chat->reason);
        return false;
    }
    x->config.tools = chat_tool_format(chat, &x->params);
    return true;
}

static void begin(struct exchange *x)
{
    make_id(x);
    if (!find_model(x)) return;
    x->prompts = mem_array((size_t)x->params.n_prompts, sizeof *x->prompts);
    x->refs++; /* until on_prepared */
    if (x->body_len <= TOKENIZE_INLINE_BYTES) {
        prepare(x);
        on_prepared(x);
    } else {
        bridge_work(x->app->bridge, x->client, prepare, on_prepared, x);
    }
}

/* The fields have been read. */
static void begin_read(struct exchange *x)
{
    int n = x->params.n_prompts * x->params.best_of;
    const struct admission_handle_need need = {
        .sequences = n, .at_once = n, .copies = x->params.best_of, .timeout_ms = x->params.timeout_ms};
    if (x->status && body_reply_memory(x->app, x->req, &x->err)) return;
    if (x->status) {
        reply_error(x, x->status, x->params.code, x->param, x->err.msg);
    } else if (x->style == STYLE_COUNT) {
        begin(x);
    } else if (admission_handle_reserve(x->handle, x->req, &need)) {
        admission_handle_watch(x->handle, on_late, x);
        begin(x);
    }
}

/* Any thread. */
static void read_fields(struct exchange *x, const char *body, size_t len)
{
    struct messages_chat chat = {0};
    if (x->style != STYLE_OPENAI && !messages_to_chat(body, len, x->style == STYLE_COUNT, &chat, &x->err))
        x->status = 400;
    else if (x->style != STYLE_OPENAI)
        x->status =
            openai_params_parse(&x->params, x->route, &x->limits, chat.text.data, chat.text.len, &x->err, &x->param);
    else
        x->status = openai_params_parse(&x->params, x->route, &x->limits, body, len, &x->err, &x->param);
    messages_chat_free(&chat);
}

static void work_read(void *arg)
{
    struct exchange *x = arg;
    read_fields(x, x->body.data, x->body.len);
    http_body_free(&x->body);
    const char *code = x->params.code;
    if (!x->status) return;
    openai_params_free(&x->params); /* freed here rather than on the loop */
    x->params.code = code;
}

static void after_read(void *arg)
{
    struct exchange *x = arg;
    if (x->req) begin_read(x);
    exchange_unref(x);
}

static void handle(struct http_req *req, enum openai_route route, enum style style)
{
    struct app *app = req->app;
    struct admission_handle *handle = NULL;
    if (style == STYLE_COUNT && admission_refuses(req, &(struct admission_light_request){.works = true})) return;
    if (style != STYLE_COUNT && !(handle = admission_enter(req))) return;
    struct exchange *x = mem_zalloc(sizeof *x);
    int places = app->info->max_seqs + app->set->max_queue; /* all sequences are queued at once */
    *x = (struct exchange){.refs = 2,
                           .app = app,
                           .req = req,
                           .handle = handle,
                           .client = client_id(req),
                           .route = route,
                           .style = style,
                           .body_len = req->body_len};
    x->limits = (struct openai_limits){
        .max_stop = app->set->max_stop_sequences,
        .max_choices = app->set->max_choices < places ? app->set->max_choices : places,
        .longest_token = app->longest_token,
        .info = app->info,
        .messages = style != STYLE_OPENAI,
    };
    req->user = x;
    req->on_answer = on_answer;
    req->on_close = on_close;
    if (req->body_len > BODY_INLINE) {
        http_take_body(req, &x->body);
        bridge_work(app->bridge, x->client, work_read, after_read, x); /* takes over this reference */
        return;
    }
    read_fields(x, req->body, req->body_len);
    begin_read(x);
    exchange_unref(x); /* NOLINT(clang-analyzer-unix.Malloc): one of two references */
}

void api_completions(struct http_req *req)
{
    handle(req, OPENAI_COMPLETIONS, STYLE_OPENAI);
}

void api_chat_completions(struct http_req *req)
{
    handle(req, OPENAI_CHAT, STYLE_OPENAI);
}

void api_messages(struct http_req *req)
{
    handle(req, OPENAI_CHAT, STYLE_MESSAGES);
}

void api_messages_count(struct http_req *req)
{
    handle(req, OPENAI_CHAT, STYLE_COUNT);
}
