/* Answers of an exchange: errors, whole answers and streams, in the convention of its route. */
#include "server/api/openai_exchange.h"

#include "engine/base/mem.h"
#include "server/access/admission.h"
#include "server/api/answered.h"
#include "server/api/app.h"
#include "server/api/messages_params.h"
#include "server/api/served_model.h"
#include "server/api/store_request.h"
#include "server/bridge/bridge.h"
#include "server/metrics/metrics.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---------------------------------------------------------------------------------------------------- */

/* Appends an error in the convention of the route. */
static void put_error(struct exchange *x, struct buf *out, int status, const char *code, const char *param,
                      const char *msg)
{
    /* fields that have another name in the chat that a request became */
    static const char *const names[][3] = {
        {"response_format", "text.format", "output_config.format"},
        {"max_tokens", "max_output_tokens", "max_tokens"},
        {"thinking_token_budget", "thinking_token_budget", "thinking.budget_tokens"}};
    bool responses = x->style == STYLE_RESPONSES;
    struct buf text = {0};
    for (size_t i = 0; i < sizeof names / sizeof *names && x->style != STYLE_OPENAI; i++) {
        const char *at = strstr(msg, names[i][0]);
        if (!at) continue;
        buf_append(&text, msg, (size_t)(at - msg));
        buf_str(&text, names[i][responses ? 1 : 2]);
        msg = at + strlen(names[i][0]);
        if (responses) param = names[i][1];
        break;
    }
    buf_str(&text, msg);
    if (responses && param && strcmp(param, "messages") == 0) param = "input";
    if (responses && x->sse.hub)
        responses_put_failed(out, &x->items, &x->head, &x->asked_for, code, text.data);
    else if (x->style == STYLE_OPENAI || responses)
        store_request_put_error(out, true, status, code, param, text.data);
    else if (x->sse.hub)
        messages_put_error_event(out, status, text.data);
    else
        http_put_anthropic_error(out, status, text.data,
                                 param && strcmp(param, MESSAGES_THREAD) == 0 ? MESSAGES_THREAD_DETAILS : NULL);
    buf_free(&text);
}

void exchange_reply_error(struct exchange *x, int status, const char *code, const char *param, const char *msg)
{
    struct buf out = {0};
    if (status < 500) metrics_reject(&x->app->metrics, REJECT_VALIDATION);
    put_error(x, &out, status, code, param, msg);
    http_reply(x->req, status, "application/json", out.data, out.len);
    buf_free(&out);
}

/* Appends the error of a generation that failed. */
static void put_failure(struct exchange *x, struct buf *out, const struct event *done)
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
    x->usage.reasoning += done->n_thoughts;
    if ((seq - x->seqs) % x->params.best_of == 0) x->usage.cached += done->n_cached;
}

static int by_score(const void *a, const void *b)
{
    const struct choice *const *x = a, *const *y = b;
    double d = choice_score(*y) - choice_score(*x);
    return d > 0 ? 1 : d < 0 ? -1 : *x < *y ? -1 : *x > *y;
}

/* Orders the answer: the n likeliest of every prompt's best_of sequences, best first; in order of index where n is
 * best_of. */
static void order_answer(struct exchange *x)
{
    int n = x->params.n, best_of = x->params.best_of;
    x->answer = mem_array((size_t)x->n, sizeof(struct choice *));
    for (int p = 0; p < x->params.n_prompts; p++) {
        struct choice **own = x->answer + x->n_answer;
        for (int i = 0; i < best_of; i++) own[i] = &x->seqs[p * best_of + i].choice;
        if (best_of > n) qsort(own, (size_t)best_of, sizeof(struct choice *), by_score);
        x->n_answer += n;
    }
}

/* Keeps the answer for feedback: every sequence has come to its end. */
static void keep_answer(struct exchange *x)
{
    if (!x->draft || !x->req) return;
    struct answered_prompt *prompt = mem_array((size_t)x->params.n_prompts, sizeof *prompt);
    int *order = mem_array((size_t)x->n, sizeof *order), n = x->answer ? x->n_answer : x->n;
    for (int p = 0; p < x->params.n_prompts; p++)
        prompt[p] = (struct answered_prompt){x->prompts[p].ids, x->prompts[p].n};
    for (int i = 0; i < n; i++) {
        const char *choice = (const char *)(x->answer ? x->answer[i] : &x->seqs[i].choice);
        order[i] = (int)((const struct sequence *)(choice - offsetof(struct sequence, choice)) - x->seqs);
    }
    const struct answered_facts facts = {
        .served = x->served,
        .info = x->served->info,
        .adapter = x->params.gen.adapter,
        .id = x->head.id,
        .header_id = x->req->id,
        .client = x->client,
        .prompt = prompt,
        .n_prompts = x->params.n_prompts,
        .order = order,
        .n_choices = n,
    };
    answered_keep(x->draft, &facts);
    x->draft = NULL;
    free(prompt);
    free(order);
}

/* May run on a pool thread, because every sequence is over. */
static void work_render(void *arg)
{
    struct exchange *x = arg;
    if (x->style == STYLE_MESSAGES) {
        messages_put_whole(&x->out, &x->head, &x->seqs[0].choice, &x->usage);
        return;
    }
    if (x->style == STYLE_RESPONSES) {
        responses_put_whole(&x->out, &x->head, &x->asked_for, &x->seqs[0].choice, &x->usage);
        return;
    }
    openai_put_whole(&x->out, &x->head, x->answer, x->n_answer, &x->usage);
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
    order_answer(x);
    keep_answer(x);
    x->refs++; /* until after_render */
    bridge_render(x->served->bridge, x->client, bytes, work_render, after_render, x);
}

void exchange_on_gather(void *arg, const struct event *ev, const struct event_batch *batch)
{
    struct sequence *seq = arg;
    struct exchange *x = seq->x;
    if (ev->kind == EV_DONE) seq->gen = NULL;
    x->gathered_bytes += choice_event_bytes(&seq->choice, ev);
    if (!reserve_up_to(&x->held, x->gathered_bytes, "the answer", NULL) || !choice_room(&seq->choice, ev)) {
        exchange_cancel(x);
        admission_reply_memory(x->req, "no memory for the answer");
        return;
    }
    choice_add(&seq->choice, ev, batch);
    answered_add(x->draft, (int)(seq - x->seqs), ev);
    if (ev->kind != EV_DONE) return;
    if (has_failed(ev)) {
        struct buf out = {0};
        exchange_cancel(x);
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
    bool more = x->style != STYLE_OPENAI ? sse_write(&x->sse, x->out.data, x->out.len)
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

/* The same in the conventions of events with names. */
static void send_blocks(struct exchange *x, struct sequence *seq)
{
    for (; choice_ready(&seq->choice); choice_clear(&seq->choice)) {
        if (x->style == STYLE_MESSAGES)
            messages_put_ready(&x->out, &x->blocks, &seq->choice);
        else
            responses_put_ready(&x->out, &x->items, &x->head, &x->asked_for, &seq->choice);
    }
    if (x->out.len) send_out(x);
}

static void send_ready(struct exchange *x, struct sequence *seq, bool over)
{
    if (x->style != STYLE_OPENAI) {
        send_blocks(x, seq);
        return;
    }
    bool chat = x->route == OPENAI_CHAT;
    if (chat && !seq->started) send_chunk(x, seq, CHUNK_ROLE);
    bool first = !chat && !seq->started;
    seq->started = true;
    bool any = choice_ready(&seq->choice) || (over && !chat);
    for (; any; any = choice_ready(&seq->choice)) {
        send_chunk(x, seq, first ? CHUNK_FIRST : CHUNK_TEXT);
        first = false;
        choice_clear(&seq->choice);
    }
    if (over && chat) send_chunk(x, seq, CHUNK_END);
}

static void finish_sequence(struct exchange *x, struct sequence *seq, const struct event *done)
{
    seq->gen = NULL;
    if (has_failed(done)) {
        exchange_cancel(x);
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
    bool over = ++x->n_done == x->n;
    if (over) keep_answer(x); /* before the client can know its end */
    send_ready(x, seq, true);
    add_usage(x, seq, done);
    if (!over) return;
    if (x->style == STYLE_MESSAGES)
        messages_put_end(&x->out, &x->blocks, &seq->choice, &x->usage);
    else if (x->style == STYLE_RESPONSES)
        responses_put_end(&x->out, &x->items, &x->head, &x->asked_for, &seq->choice, &x->usage);
    else if (x->params.include_usage)
        openai_put_usage_chunk(&x->out, &x->head, &x->usage);
    if (x->out.len) send_out(x);
    end_stream(x);
}

/* A stream of items ends with all of them, so they are kept.  @return false when there is no memory: the stream is
 * over. */
static bool room_for_items(struct exchange *x, const struct sequence *seq, const struct event *ev)
{
    if (x->style != STYLE_RESPONSES) return true;
    x->gathered_bytes += ANSWER_GROWTH * choice_event_bytes(&seq->choice, ev);
    if (reserve_up_to(&x->held, x->gathered_bytes, "the answer", NULL)) return true;
    exchange_cancel(x);
    put_error(x, &x->out, 503, "server_error", NULL, "no memory for the answer");
    send_out(x);
    end_stream(x);
    return false;
}

void exchange_on_stream(void *arg, const struct event *ev, const struct event_batch *batch)
{
    struct sequence *seq = arg;
    struct exchange *x = seq->x;
    x->refs++;
    if (ev->kind == EV_TOKEN && !room_for_items(x, seq, ev)) {
        exchange_unref(x);
        return;
    }
    choice_add(&seq->choice, ev, batch);
    answered_add(x->draft, (int)(seq - x->seqs), ev);
    if (ev->kind == EV_DONE)
        finish_sequence(x, seq, ev);
    else if (ev->kind == EV_TOKEN && ev->finish == FINISH_NONE && choice_ready(&seq->choice))
        send_ready(x, seq, false); /* the last token is sent with the EV_DONE that follows in the same batch */
    exchange_unref(x);
}

static const char *next_keepalive(struct http_req *req)
{
    struct exchange *x = req->user;
    return responses_keepalive(&x->items);
}

void exchange_start_stream(struct exchange *x)
{
    x->req->on_drain = on_drain;
    if (x->style == STYLE_MESSAGES) x->sse.keepalive = MESSAGES_PING;
    if (x->style == STYLE_RESPONSES) x->sse.next_keepalive = next_keepalive;
    sse_start(&x->sse, x->app->sse, x->req);
    if (x->style == STYLE_OPENAI) return;
    if (x->style == STYLE_MESSAGES)
        messages_put_start(&x->out, &x->head, &x->usage);
    else
        responses_put_start(&x->out, &x->items, &x->head, &x->asked_for);
    send_out(x);
}
