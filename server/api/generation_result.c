#include "server/api/generation_result.h"

#include "engine/base/mem.h"

#include <math.h>
#include <stdlib.h>

/* Those of the batch's from `from`.  A batch without any has no array, into which nothing may point. */
static uint32_t add_top(struct generation_result *r, const struct event_batch *batch, uint32_t from, int n)
{
    uint32_t at = (uint32_t)r->n_top;
    if (n <= 0) return at;
    mem_grow(&r->top, &r->top_cap, r->n_top + (size_t)n, sizeof *r->top);
    for (int i = 0; i < n; i++) r->top[r->n_top++] = batch->top[from + (uint32_t)i];
    return at;
}

/* Of both kinds. */
static size_t tops_of(const struct event *ev)
{
    size_t n = ev->n_top > 0 ? (size_t)ev->n_top : 0;
    return ev->kind == EV_PROMPT && ev->n_scored > 0 ? n + (size_t)ev->n_scored : n;
}

bool result_room(struct generation_result *r, const struct event *ev)
{
    if (ev->kind == EV_DONE) return true;
    size_t n_top = tops_of(ev);
    bool prompt = ev->kind == EV_PROMPT;
    return mem_try_grow(&r->top, &r->top_cap, r->n_top + n_top, sizeof *r->top) &&
           buf_try_room(&r->text, ev->text_len) && (prompt || buf_try_room(&r->generated, ev->gen_len)) &&
           mem_try_grow(prompt ? (void *)&r->prompt : (void *)&r->tokens, prompt ? &r->prompt_cap : &r->tokens_cap,
                        (prompt ? r->n_prompt : r->n_tokens) + 1, sizeof *r->tokens);
}

size_t result_event_bytes(const struct event *ev)
{
    size_t n_top = tops_of(ev);
    if (ev->kind == EV_DONE) return 0;
    return 3 * (ev->text_len + ev->gen_len + n_top * sizeof(struct top_token) + sizeof(struct generation_token));
}

size_t result_bytes(const struct generation_result *r)
{
    enum { TOKEN = 160 }; /* as JSON, with its text */
    return 2 * r->text.len + 2 * r->generated.len + (r->n_prompt + r->n_tokens + r->n_top) * TOKEN;
}

void result_add(struct generation_result *r, const struct event *ev, const struct event_batch *batch)
{
    if (ev->kind == EV_DONE) {
        r->done = *ev;
        return;
    }
    struct generation_token t = {
        .id = ev->token,
        .logprob = ev->logprob,
        .special = ev->special,
        .text = (uint32_t)r->text.len,
        .text_len = ev->text_len,
        .top = add_top(r, batch, ev->top, ev->n_top),
        .n_top = ev->n_top,
    };
    if (ev->kind == EV_PROMPT) {
        t.scored = add_top(r, batch, ev->scored, ev->n_scored);
        t.n_scored = ev->n_scored;
    }
    buf_append(&r->text, batch->text + ev->text, ev->text_len);
    if (ev->kind == EV_PROMPT) {
        mem_grow(&r->prompt, &r->prompt_cap, r->n_prompt + 1, sizeof *r->prompt);
        r->prompt[r->n_prompt++] = t;
        return;
    }
    mem_grow(&r->tokens, &r->tokens_cap, r->n_tokens + 1, sizeof *r->tokens);
    r->tokens[r->n_tokens++] = t;
    buf_append(&r->generated, batch->text + ev->text, ev->gen_len);
    r->sum_logprob += ev->logprob;
}

void result_free(struct generation_result *r)
{
    free(r->prompt);
    free(r->tokens);
    free(r->top);
    buf_free(&r->text);
    buf_free(&r->generated);
    *r = (struct generation_result){0};
}

double result_mean_logprob(const struct generation_result *r)
{
    return r->n_tokens ? r->sum_logprob / (double)r->n_tokens : -INFINITY;
}
