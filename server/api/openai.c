/* POST /v1/completions and /v1/chat/completions in OpenAI's convention, /inference/v1/generate in vLLM's,
 * /v1/messages in Anthropic's and /v1/responses in OpenAI's newer one.  Bodies of the last two are rewritten as those
 * of chats (messages_params.h, responses_params.h), those of the third as those of completions (tokens_params.h).
 *
 * Steps of an exchange: admission (admission.h, before any work) -> read and check the parameters -> find the model ->
 * render the chat and tokenise (on the pool when long) -> compile the constraint, if any -> submit every sequence
 * (prompts x best_of) -> gather, or stream.  It is reference-counted by http, each running callback and work on the
 * pool.  Loop thread, except prepare. */
#include "server/api/openai_exchange.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/access/admission.h"
#include "server/access/client.h"
#include "server/api/answered.h"
#include "server/api/app.h"
#include "server/api/messages_params.h"
#include "server/api/models.h"
#include "server/api/request_fields.h"
#include "server/api/routes.h"
#include "server/api/served_model.h"
#include "server/api/store_request.h"
#include "server/bridge/bridge.h"
#include "server/bridge/encode.h"
#include "server/bridge/grammar_cache.h"
#include "server/config/settings.h"
#include "server/json/json.h"
#include "server/metrics/metrics.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    ECHO_MAX = 64 * 1024 * 1024, /* bytes of all prompts echoed in one answer */
};

/* ---- life ------------------------------------------------------------------------------------------------------ */

void exchange_unref(struct exchange *x)
{
    if (--x->refs) return;
    for (int i = 0; i < x->n; i++) choice_free(&x->seqs[i].choice);
    for (int i = 0; x->prompts && i < x->params.n_prompts; i++) {
        free(x->prompts[i].ids);
        free(x->prompts[i].scored);
        buf_free(&x->prompts[i].echo);
    }
    free(x->prompts);
    free(x->seqs);
    free(x->answer);
    answered_drop(x->draft);
    buf_free(&x->out);
    cJSON *tree = x->params.tree;
    x->params.tree = NULL;
    openai_params_free(&x->params);
    body_free_json(x->app->bridge, x->client, tree);
    http_body_free(&x->body);
    reservation_free(&x->held);
    responses_request_free(&x->asked_for);
    responses_stream_free(&x->items);
    free(x);
}

void exchange_cancel(struct exchange *x)
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
    exchange_cancel(x);
    exchange_unref(x);
}

/* ---- submitting ------------------------------------------------------------------------------------------------ */

/* How the model's thoughts are found, and what ends them when their budget is used up; ids: room for that. */
static void set_thoughts(const struct exchange *x, bool inside, struct gen_thoughts *out, int32_t *ids)
{
    const struct reasoning_marks *marks = reasoning_marks(x->config.reasoning);
    struct tokens stop = {0};
    struct err e = {0};
    if (!marks->end) return;
    *out = (struct gen_thoughts){
        .begin = marks->begin, .end = marks->end, .inside = inside, .again = marks->again, .budget = -1, .stop = ids};
    if (x->params.think_budget < 0) return;
    tokenizer_encode(engine_tokenizer(x->served->engine), marks->stop, strlen(marks->stop), 0, &stop, &e);
    if (!e.code && stop.n <= ENGINE_STOP_TOKENS) {
        out->budget = (int)x->params.think_budget;
        out->n_stop = (int)stop.n;
        for (size_t i = 0; i < stop.n; i++) ids[i] = stop.v[i].id;
    }
    tokens_free(&stop);
}

static int submit_prompt(struct exchange *x, int p, struct err *e)
{
    struct gen_request r = x->params.gen;
    const struct prepared *v = &x->prompts[p];
    uint64_t seed = r.sampling.seed;
    r.prompt = v->ids;
    r.n_prompt = (int)v->n;
    r.max_new_tokens = v->max_new_tokens;
    r.grammar = x->grammar;
    int32_t stop[ENGINE_STOP_TOKENS];
    set_thoughts(x, v->thinking, &r.thoughts, stop);
    for (int i = 0; i < x->params.best_of; i++) {
        struct sequence *seq = &x->seqs[x->n++];
        *seq = (struct sequence){.x = x, .index = p * x->params.n + i};
        x->config.thinking = v->thinking;
        choice_init(&seq->choice, &x->config, v->echo.data, v->echo.len);
        seq->choice.prompt_ids = v->ids;
        seq->choice.n_prompt_ids = v->n;
        if (i) seq->choice.first = &seq[-i].choice;
        r.prompt_logprobs = x->params.gen.prompt_logprobs && (i == 0 || x->params.echo);
        r.scored = v->scored;
        r.n_scored = v->scored && i == 0 ? x->params.n_scored : 0;
        r.sampling.seed = seed_derive(seed, i);
        seq->gen = bridge_submit(x->served->bridge, &r, x->handle, x->req,
                                 x->params.stream ? exchange_on_stream : exchange_on_gather, seq, e);
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
            exchange_reply_error(x, 400, x->params.code, param, e.msg);
            return false;
        }
        v->max_new_tokens = x->params.gen.max_new_tokens;
        if (x->params.n_scored &&
            !reserve(&x->held, v->n * (size_t)x->params.n_scored * sizeof *v->scored, "the ids to score", &e)) {
            body_reply_memory(x->app, x->req, &e);
            return false;
        }
        if (x->params.n_scored) v->scored = openai_params_scored(&x->params, v->n);
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
    if (!x->req->background && !x->params.nothing_wanted)
        x->draft = answered_begin(x->app->answered, x->params.n_prompts * x->params.best_of);
    for (int p = 0; p < x->params.n_prompts && !rc; p++) rc = submit_prompt(x, p, &e);
    if (rc) exchange_cancel(x);
    if (rc == ERR_FULL) {
        admission_reply_full(x->req);
    } else if (rc == ERR_NOMEM) {
        admission_reply_memory(x->req, e.msg);
    } else if (rc) {
        exchange_reply_error(x, rc == ERR_NOT_FOUND ? 404 : 400,
                             rc == ERR_NOT_FOUND ? "model_not_found" : "invalid_value",
                             rc == ERR_NOT_FOUND ? "model" : NULL, e.msg);
    } else if (x->params.stream) {
        exchange_start_stream(x);
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
    bool offered = x->params.constraint.kind == CONSTRAINT_MAY_CALL; /* then the description has to do */
    if (e->code && offered) log_debug("calls are not constrained: %s", e->msg);
    if (e->code && !offered)
        exchange_reply_error(x, e->code == ERR_UNSUPPORTED ? 422 : 400, "invalid_value", x->params.constraint.field,
                             e->msg);
    else
        start_generation(x);
    x->grammar = NULL; /* the engine has its own reference */
    exchange_unref(x);
}

/* ---- preparing ------------------------------------------------------------------------------------------------- */

static int tokenize(struct exchange *x, const char *text, size_t n, bool special, struct prepared *out)
{
    struct tokens t = {0};
    int rc = encode_reserved(engine_tokenizer(x->served->engine), text, n, special ? TOKENIZE_SPECIAL : 0, &t, &x->held,
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
    const struct tokenizer *tk = engine_tokenizer(x->served->engine);
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
    const struct chat_format *chat = &x->served->chat;
    struct buf page = {0};
    buf_str(&page, "");
    /* a template writes the begin-of-text token itself */
    bool special = x->params.add_special || chat->plain;
    if (chat_render(chat, &x->params, x->body_len, &page, &x->failed) == 0)
        tokenize(x, page.data, page.len, special, out);
    out->thinking = reasoning_prompt_thinks(chat->reasoning, page.data, page.len);
    buf_free(&page);
}

/* Builds the grammar of a required call, from copies of the tools. */
static void prepare_tools(struct exchange *x)
{
    struct reservation copies = {0};
    bool asked = x->params.constraint.kind != CONSTRAINT_NONE;
    x->failed_param = asked ? "tool_choice" : "tools";
    if (x->params.tools && !reserve(&copies, 2 * json_reserved(x->params.tree), "the tools", &x->failed)) return;
    chat_tool_constraint(&x->served->chat, &x->params, engine_tokenizer(x->served->engine), &x->params.constraint,
                         &x->failed);
    reservation_free(&copies);
}

/* The grammar of calls that the model may make. */
static void prepare_calls(struct exchange *x)
{
    struct reservation copies = {0};
    x->failed_param = "tools";
    if (x->params.tools && !reserve(&copies, 2 * json_reserved(x->params.tree), "the tools", &x->failed)) return;
    chat_calls_constraint(&x->served->chat, &x->params, engine_tokenizer(x->served->engine), &x->params.constraint,
                          &x->failed);
    reservation_free(&copies);
}

/* May run on a pool thread: uses only params, prompts, held and failed. */
static void prepare(void *arg)
{
    struct exchange *x = arg;
    size_t echo = 0;
    if (x->route == OPENAI_CHAT && x->style != STYLE_COUNT) prepare_tools(x);
    if (!x->failed.code)
        x->failed_param = x->route == OPENAI_CHAT     ? "messages"
                          : x->route == OPENAI_TOKENS ? "token_ids"
                                                      : "prompt";
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
    if (x->style == STYLE_RESPONSES && !x->failed.code && !atomic_load(&x->gone)) prepare_calls(x);
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
            exchange_reply_error(x, 400, "invalid_value", x->failed_param, x->failed.msg);
    } else if (wanted) {
        x->asked = clock_now();
        struct grammar_cache_job *job =
            grammar_cache_compile(x->served->grammar_cache, client_id(x->req), &x->params.constraint, on_compiled, x);
        if (job) x->compiling = job; /* otherwise on_compiled has already run */
    }
    exchange_unref(x);
}

/* ---- the request ----------------------------------------------------------------------------------------------- */

static void make_id(struct exchange *x)
{
    bool messages = x->style == STYLE_MESSAGES || x->style == STYLE_COUNT;
    const char *lead = messages                      ? "msg_"
                       : x->style == STYLE_RESPONSES ? "resp_"
                       : x->route == OPENAI_CHAT     ? "chatcmpl-"
                       : x->route == OPENAI_TOKENS   ? "generate-tokens-"
                                                     : "cmpl-";
    snprintf(x->id, sizeof x->id, "%s%s", lead, x->req->id);
    http_set_id(x->req, x->id); /* the answer's id is also the request id, unless the client sent one */
    if (messages) http_set_header(x->req, "request-id", x->req->id);
    x->head = (struct openai_head){
        .route = x->route,
        .params = &x->params,
        .id = x->params.request_id ? x->params.request_id : x->id,
        .fingerprint = x->served->fingerprint,
        .created = (int64_t)time(NULL),
    };
}

/* Finds the model and checks that it supports chat.  @return true when the exchange may continue. */
static bool find_model(struct exchange *x)
{
    const struct chat_format *chat = &x->served->chat;
    struct model_choice m;
    struct err e = {0};
    if (!models_find(x->app, x->served, x->params.model, &m, &e)) {
        exchange_reply_error(x, 404, "model_not_found", "model", e.msg);
        return false;
    }
    x->head.model = x->req->note.model = m.name;
    x->params.gen.adapter = m.adapter;
    x->config = (struct choice_config){
        .params = &x->params,
        .tokenizer = engine_tokenizer(x->served->engine),
        .route = x->route,
    };
    if (x->route != OPENAI_CHAT) return true;
    if (!chat->template && !chat->plain) {
        exchange_reply_error(x, 400, "no_chat_template", NULL, chat->reason);
        return false;
    }
    x->config.tools = chat_tool_format(chat, &x->params);
    x->config.reasoning = chat->reasoning;
    return true;
}

/* Agents send the same tools with every request: once a minute is enough. */
static void warn_skipped(const struct exchange *x)
{
    static uint64_t last;
    uint64_t now = clock_now();
    if (last && now - last < 60000000000u) return;
    last = now;
    log_warn("/v1/responses: what is not supported was left out of a request: %s", x->asked_for.skipped.data);
}

static void begin(struct exchange *x)
{
    make_id(x);
    if (!find_model(x)) return;
    x->prompts = mem_array((size_t)x->params.n_prompts, sizeof *x->prompts);
    if (x->asked_for.skipped.len) warn_skipped(x);
    x->refs++; /* until on_prepared */
    if (x->body_len <= TOKENIZE_INLINE_BYTES) {
        prepare(x);
        on_prepared(x);
    } else {
        bridge_work(x->served->bridge, x->client, prepare, on_prepared, x);
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
        exchange_reply_error(x, x->status, x->params.code, x->param, x->err.msg);
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
    bool good = true;
    if (x->style == STYLE_RESPONSES)
        good = responses_to_chat(body, len, &chat.text, &chat.held, &x->asked_for, &x->err, &x->param);
    else if (x->style != STYLE_OPENAI)
        good = messages_to_chat(body, len, x->style == STYLE_COUNT, &chat, &x->err), x->param = chat.param;
    if (good && x->style != STYLE_OPENAI) body = chat.text.data, len = chat.text.len;
    x->status = good ? openai_params_parse(&x->params, x->route, &x->limits, body, len, &x->err, &x->param) : 400;
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
    struct served_model *m = served_model_of(req);
    int places = m->info->max_seqs + app->set->max_queue; /* all sequences are queued at once */
    *x = (struct exchange){.refs = 2,
                           .app = app,
                           .served = m,
                           .req = req,
                           .handle = handle,
                           .client = client_id(req),
                           .route = route,
                           .style = style,
                           .body_len = req->body_len};
    x->limits = (struct openai_limits){
        .max_stop = app->set->max_stop_sequences,
        .max_choices = app->set->max_choices < places ? app->set->max_choices : places,
        .longest_token = m->longest_token,
        .info = m->info,
        .messages = style == STYLE_MESSAGES || style == STYLE_COUNT,
        .at_most = style != STYLE_OPENAI,
    };
    req->user = x;
    req->on_answer = on_answer;
    req->on_close = on_close;
    if (req->body_len > BODY_INLINE || style == STYLE_RESPONSES) { /* formats of tools are tried as grammars */
        http_take_body(req, &x->body);
        bridge_work(x->served->bridge, x->client, work_read, after_read, x); /* takes over this reference */
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

void api_generate_tokens(struct http_req *req)
{
    handle(req, OPENAI_TOKENS, STYLE_OPENAI);
}

void api_chat_completions(struct http_req *req)
{
    handle(req, OPENAI_CHAT, STYLE_OPENAI);
}

void api_responses(struct http_req *req)
{
    handle(req, OPENAI_CHAT, STYLE_RESPONSES);
}

void api_messages(struct http_req *req)
{
    handle(req, OPENAI_CHAT, STYLE_MESSAGES);
}

void api_messages_count(struct http_req *req)
{
    handle(req, OPENAI_CHAT, STYLE_COUNT);
}
