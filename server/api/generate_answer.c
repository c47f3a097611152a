/* TGI's JSON, field by field in its own order, so that answers can be compared byte by byte with recorded ones. */
#include "server/api/generate_answer.h"

#include "server/json/json.h"

const char *finish_name(enum finish_reason r)
{
    switch (r) {
    case FINISH_LENGTH: return "length";
    case FINISH_EOS: return "eos_token";
    case FINISH_STOP: return "stop_sequence";
    case FINISH_TIMEOUT: return "timeout";
    case FINISH_ABORTED: return "abort";
    case FINISH_CANCELLED: return "cancelled";
    default: return "error";
    }
}

static void put_bool(struct buf *out, bool v)
{
    buf_str(out, v ? "true" : "false");
}

void answer_put_token(struct buf *out, int32_t id, const char *text, size_t len, float logprob, bool special)
{
    buf_printf(out, "{\"id\":%d,\"text\":", id);
    json_put_string(out, text, len);
    buf_str(out, ",\"logprob\":");
    json_put_number(out, logprob);
    buf_str(out, ",\"special\":");
    put_bool(out, special);
    buf_char(out, '}');
}

void answer_put_top(struct buf *out, const struct tokenizer *tk, const struct top_token *top, int n)
{
    struct buf text = {0};
    buf_char(out, '[');
    for (int i = 0; i < n; i++) {
        struct detok d = {.started = true, .mid_context = true}; /* one token, decoded as in the middle of a text */
        buf_clear(&text);
        detok_push(&d, tk, top[i].id, &text);
        detok_flush(&d, tk, &text);
        if (i) buf_char(out, ',');
        answer_put_token(out, top[i].id, text.data ? text.data : "", text.len, top[i].logprob,
                         tokenizer_is_special(tk, top[i].id));
    }
    buf_char(out, ']');
    buf_free(&text);
}

static void put_seed(struct buf *out, const struct generate_params *p, uint64_t seed)
{
    if (p->gen.sampling.sample)
        buf_printf(out, ",\"seed\":%llu", (unsigned long long)seed);
    else
        buf_str(out, ",\"seed\":null");
}

/* The generated text as a JSON string; with return_full_text the prompt comes first. */
static void put_text(struct buf *out, const struct generate_params *p, const char *text, size_t len)
{
    if (!p->return_full_text) {
        json_put_string(out, text ? text : "", len);
        return;
    }
    struct buf full = {0};
    buf_append(&full, p->inputs, p->inputs_len);
    buf_append(&full, text, len);
    json_put_string(out, full.data, full.len);
    buf_free(&full);
}

void answer_put_event(struct buf *out, const struct answer_event *a)
{
    const struct event *t = a->token;
    buf_printf(out, "{\"index\":%d,\"token\":", a->index);
    answer_put_token(out, t->token, a->batch->text + t->text, t->text_len, t->logprob, t->special);
    if (t->n_top > 0) {
        buf_str(out, ",\"top_tokens\":");
        answer_put_top(out, a->tokenizer, a->batch->top + t->top, t->n_top);
    }
    buf_str(out, ",\"generated_text\":");
    if (!a->last) {
        buf_str(out, "null,\"details\":null}");
        return;
    }
    put_text(out, a->params, a->text, a->text_len);
    buf_str(out, ",\"details\":");
    if (a->params->details) {
        buf_printf(out, "{\"finish_reason\":\"%s\",\"generated_tokens\":%d", finish_name(a->last->finish),
                   a->last->n_generated);
        put_seed(out, a->params, a->params->gen.sampling.seed);
        buf_printf(out, ",\"input_length\":%d}}", a->last->n_prompt);
    } else {
        buf_str(out, "null}");
    }
}

/* ---- the whole answer ------------------------------------------------------------------------------------------ */

static void put_prefill(struct buf *out, const struct generation_result *r)
{
    buf_str(out, ",\"prefill\":[");
    for (size_t i = 0; i < r->n_prompt; i++) {
        const struct generation_token *t = &r->prompt[i];
        buf_printf(out, "%s{\"id\":%d,\"text\":", i ? "," : "", t->id);
        json_put_string(out, r->text.data + t->text, t->text_len);
        buf_str(out, ",\"logprob\":");
        json_put_number(out, t->logprob); /* NAN is written as null */
        buf_char(out, '}');
    }
    buf_char(out, ']');
}

static void put_tokens(struct buf *out, const struct generation_result *r)
{
    buf_str(out, ",\"tokens\":[");
    for (size_t i = 0; i < r->n_tokens; i++) {
        const struct generation_token *t = &r->tokens[i];
        if (i) buf_char(out, ',');
        answer_put_token(out, t->id, r->text.data + t->text, t->text_len, t->logprob, t->special);
    }
    buf_char(out, ']');
}

static void put_top_tokens(struct buf *out, const struct tokenizer *tk, const struct generation_result *r)
{
    if (!r->n_top) return;
    buf_str(out, ",\"top_tokens\":[");
    for (size_t i = 0; i < r->n_tokens; i++) {
        if (i) buf_char(out, ',');
        answer_put_top(out, tk, r->top + r->tokens[i].top, r->tokens[i].n_top);
    }
    buf_char(out, ']');
}

static void put_sequence(struct buf *out, const struct generate_params *p, const struct tokenizer *tk,
                         const struct generation_result *r, uint64_t seed)
{
    buf_printf(out, "\"finish_reason\":\"%s\",\"generated_tokens\":%zu", finish_name(r->done.finish), r->n_tokens);
    put_seed(out, p, seed);
    put_prefill(out, r);
    put_tokens(out, r);
    put_top_tokens(out, tk, r);
}

void answer_put_whole(struct buf *out, const struct generate_params *p, const struct tokenizer *tk,
                      const struct generation_result *results, const uint64_t *seeds, int n, int best)
{
    const struct generation_result *r = &results[best];
    buf_str(out, "{\"generated_text\":");
    put_text(out, p, r->generated.data, r->generated.len);
    if (p->details || p->decoder_input_details) {
        buf_str(out, ",\"details\":{");
        put_sequence(out, p, tk, r, seeds[best]);
        const char *lead = ",\"best_of_sequences\":[{\"generated_text\":";
        for (int i = 0; i < n; i++) {
            if (i == best) continue;
            buf_str(out, lead);
            lead = ",{\"generated_text\":";
            put_text(out, p, results[i].generated.data, results[i].generated.len);
            buf_char(out, ',');
            put_sequence(out, p, tk, &results[i], seeds[i]);
            buf_char(out, '}');
        }
        buf_str(out, n > 1 ? "]}" : "}");
    }
    buf_char(out, '}');
}
