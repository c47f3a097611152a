#include "engine/serve/request.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "kernels/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- checks ---- */

/* How many rows of ids are scored. */
static int scored_rows(const struct gen_request *g)
{
    return g->n_scored ? g->n_prompt - (g->logprobs_from > 1 ? g->logprobs_from : 1) : 0;
}

static int check_scored(const struct gen_request *g, const struct engine_info *m, struct err *e)
{
    if (g->n_scored < 0 || g->n_drawn < 0 || g->n_scored > ENGINE_TOP_MAX ||
        g->n_drawn > ENGINE_TOP_MAX - g->n_scored || ((g->n_scored || g->n_drawn) && !g->prompt_logprobs))
        return err_set(e, ERR_INVALID, "%d ids are scored and %d drawn, of at most %d, which needs `prompt_logprobs`",
                       g->n_scored, g->n_drawn, ENGINE_TOP_MAX);
    for (int i = 0; i < scored_rows(g) * g->n_scored; i++)
        if (g->scored[i] < -1 || g->scored[i] >= m->vocab)
            return err_set(e, ERR_INVALID, "`scored` %d is no token id below %d", g->scored[i], m->vocab);
    return 0;
}

static int check_lengths(const struct gen_request *g, const struct engine_info *m, struct err *e)
{
    if (g->n_prompt < 1) return err_set(e, ERR_INVALID, "`inputs` cannot be empty");
    if (g->max_new_tokens < 1) return err_set(e, ERR_INVALID, "`max_new_tokens` must be strictly positive");
    if (g->n_prompt > m->max_total_tokens || g->max_new_tokens > m->max_total_tokens - g->n_prompt)
        return err_set(e, ERR_INVALID,
                       "`inputs` tokens + `max_new_tokens` must be <= %d. Given: %d `inputs` tokens and %d "
                       "`max_new_tokens`",
                       m->max_total_tokens, g->n_prompt, g->max_new_tokens);
    if (g->logprobs_from < 0 || g->logprobs_from >= g->n_prompt)
        return err_set(e, ERR_INVALID, "`logprobs_from` %d is not below %d, the tokens of the prompt", g->logprobs_from,
                       g->n_prompt);
    int rc = check_scored(g, m, e);
    return rc ? rc : request_check_ids(g, m, e);
}

int request_check_ids(const struct gen_request *g, const struct engine_info *m, struct err *e)
{
    for (int i = 0; i < g->n_prompt; i++)
        if (g->prompt[i] < 0 || g->prompt[i] >= m->vocab)
            return err_set(e, ERR_INVALID, "token %d of the prompt is %d; the model knows 0 to %d", i, g->prompt[i],
                           m->vocab - 1);
    return 0;
}

static bool within(double v, double min, double max)
{
    return v >= min && v <= max; /* false for NaN */
}

static int check_sampling(const struct sampling_params *s, const struct engine_info *m, struct err *e)
{
    if (s->sample && !within(s->temperature, 1e-4, 1e4))
        return err_set(e, ERR_INVALID, "`temperature` must be from 0.0001 to 10000");
    if (s->sample && !(s->top_p > 0 && s->top_p <= 1))
        return err_set(e, ERR_INVALID, "`top_p` must be > 0.0 and <= 1.0");
    if (s->sample && !(s->typical_p > 0 && s->typical_p <= 1))
        return err_set(e, ERR_INVALID, "`typical_p` must be > 0.0 and <= 1.0");
    if (s->sample && !within(s->min_p, 0, 1)) return err_set(e, ERR_INVALID, "`min_p` must be >= 0.0 and <= 1.0");
    if (s->sample && s->top_k < 0) return err_set(e, ERR_INVALID, "`top_k` must not be negative");
    if (!within(s->repetition, 1e-3, 1e3))
        return err_set(e, ERR_INVALID, "`repetition_penalty` must be from 0.001 to 1000");
    if (!within(s->frequency, -1e3, 1e3))
        return err_set(e, ERR_INVALID, "`frequency_penalty` must be from -1000 to 1000");
    if (!within(s->presence, -1e3, 1e3))
        return err_set(e, ERR_INVALID, "`presence_penalty` must be from -1000 to 1000");
    if (s->n_bias < 0 || s->n_bias > m->vocab) return err_set(e, ERR_INVALID, "`logit_bias` has too many entries");
    for (int i = 0; i < s->n_bias; i++) {
        if (s->bias[i].id < 0 || s->bias[i].id >= m->vocab)
            return err_set(e, ERR_INVALID, "`logit_bias`: the model has no token %d", s->bias[i].id);
        if (!within(s->bias[i].add, -1e4, 1e4))
            return err_set(e, ERR_INVALID, "`logit_bias` must be from -10000 to 10000");
    }
    return 0;
}

static int check_stops(const struct gen_request *g, const struct engine_info *m, struct err *e)
{
    if (g->n_stop < 0 || g->n_stop > ENGINE_STOP_MAX || g->n_stop_ids < 0 || g->n_stop_ids > ENGINE_STOP_MAX)
        return err_set(e, ERR_INVALID, "`stop` supports up to %d stop sequences", ENGINE_STOP_MAX);
    for (int i = 0; i < g->n_stop; i++) {
        size_t n = strlen(g->stop[i]);
        if (n < 1 || n > ENGINE_STOP_BYTES)
            return err_set(e, ERR_INVALID, "`stop[%d]` must have 1 to %d bytes", i, ENGINE_STOP_BYTES);
    }
    for (int i = 0; i < g->n_stop_ids; i++)
        if (g->stop_ids[i] < 0 || g->stop_ids[i] >= m->vocab)
            return err_set(e, ERR_INVALID, "`stop_token_ids[%d]`: the model has no token %d", i, g->stop_ids[i]);
    if (g->top_n < 0 || g->top_n > ENGINE_TOP_MAX)
        return err_set(e, ERR_INVALID, "`top_n_tokens` must be >= 0 and <= %d", ENGINE_TOP_MAX);
    return 0;
}

static int check_thoughts(const struct gen_thoughts *t, const struct engine_info *m, struct err *e)
{
    if (!t->end) return 0;
    if (!*t->end || strlen(t->end) > ENGINE_STOP_BYTES || !t->begin || !*t->begin ||
        strlen(t->begin) > ENGINE_STOP_BYTES || t->n_stop < 0 || t->n_stop > ENGINE_STOP_TOKENS)
        return err_set(e, ERR_INVALID, "the marks of thoughts must have 1 to %d bytes, and %d tokens at most",
                       ENGINE_STOP_BYTES, ENGINE_STOP_TOKENS);
    for (int i = 0; i < t->n_stop; i++)
        if (t->stop[i] < 0 || t->stop[i] >= m->vocab)
            return err_set(e, ERR_INVALID, "the end of thoughts: the model has no token %d", t->stop[i]);
    return 0;
}

/* ---- creation and removal ---- */

static bool penalised(const struct sampling_params *s)
{
    return s->repetition != 1 || s->frequency != 0 || s->presence != 0;
}

/* the slot of id, or the empty slot for inserting it */
static int32_t *count_find(struct request *r, int32_t id)
{
    uint32_t at = (uint32_t)rng_mix((uint64_t)id) & r->count_mask;
    while (r->count_slot[at] >= 0 && r->counts[r->count_slot[at]].id != id) at = (at + 1) & r->count_mask;
    return &r->count_slot[at];
}

/* Doubles the table when it is half full.  It grows with the tokens seen, so that a large max_new costs nothing in
 * advance. */
static void count_grow(struct request *r)
{
    if (r->count_slot && 2 * (uint32_t)r->n_counts <= r->count_mask) return;
    r->count_mask = r->count_slot ? 2 * r->count_mask + 1 : 63;
    r->count_slot = mem_resize(r->count_slot, (size_t)r->count_mask + 1, sizeof *r->count_slot);
    memset(r->count_slot, 0xff, ((size_t)r->count_mask + 1) * sizeof *r->count_slot);
    for (int i = 0; i < r->n_counts; i++) *count_find(r, r->counts[i].id) = i;
}

static void count_token(struct request *r, int32_t id, bool generated)
{
    if (!penalised(&r->sampling)) return;
    count_grow(r);
    int32_t *slot = count_find(r, id);
    if (*slot < 0) {
        mem_grow(&r->counts, &r->cap_counts, (size_t)r->n_counts + 1, sizeof *r->counts);
        *slot = r->n_counts;
        r->counts[r->n_counts++] = (struct token_count){id, 0};
    }
    r->counts[*slot].generated += generated;
}

static void copy_stops(struct request *r, const struct gen_request *g, char *text)
{
    r->n_stop = g->n_stop;
    r->n_stop_ids = g->n_stop_ids;
    for (int i = 0; i < g->n_stop; i++) {
        size_t n = strlen(g->stop[i]);
        memcpy(text, g->stop[i], n);
        r->stop[i] = (struct stop_text){text, (uint32_t)n};
        text += n;
    }
    for (int i = 0; i < g->n_stop_ids; i++) r->stop_ids[i] = g->stop_ids[i];
}

/* The tokens that end the thoughts become known. */
static void stop_thoughts(struct request *r)
{
    int room = r->n_prompt + r->max_new - r->seq.n_known, n = r->thoughts.n_stop < room ? r->thoughts.n_stop : room;
    for (int i = 0; i < n; i++) {
        r->tokens[r->seq.n_known++] = r->thoughts.stop[i];
        count_token(r, r->thoughts.stop[i], true);
    }
}

/* ids: room for the tokens; text: for the marks. */
static void copy_thoughts(struct request *r, const struct gen_thoughts *t, int32_t *ids, char *text)
{
    if (!t->end) return;
    size_t n = strlen(t->begin) + 1;
    if (t->n_stop) memcpy(ids, t->stop, (size_t)t->n_stop * sizeof *ids);
    memcpy(text, t->begin, n);
    memcpy(text + n, t->end, strlen(t->end) + 1);
    r->thoughts = (struct thoughts){.state = t->inside ? THOUGHTS_INSIDE : THOUGHTS_FIRST,
                                    .begin = text,
                                    .end = text + n,
                                    .again = t->again,
                                    .left = t->budget,
                                    .stop = ids,
                                    .n_stop = t->n_stop};
    if (!t->inside || t->budget) return;
    r->thoughts.stopped = true;
    stop_thoughts(r);
}

static void copy_adds(struct request *r, const struct gen_request *g, const struct engine_info *m)
{
    for (int i = 0; i < g->sampling.n_bias; i++)
        r->adds[r->n_bias++] = (struct token_add){g->sampling.bias[i].id, g->sampling.bias[i].add};
    if (g->min_new_tokens <= 0 && !(g->grammar && g->ignore_eos)) return;
    for (int i = 0; i < m->n_eos; i++) r->adds[r->n_bias + r->n_bans++] = (struct token_add){m->eos[i], -INFINITY};
    r->n_eos_bans = r->n_bans;
    if (g->min_new_tokens <= 0) return;
    for (int i = 0; i < g->n_stop_ids; i++)
        r->adds[r->n_bias + r->n_bans++] = (struct token_add){g->stop_ids[i], -INFINITY};
}

/* The row of logits that predicts the token; nothing predicts the first. */
static int first_row(int token)
{
    return token > 0 ? token - 1 : 0;
}

struct request *request_new(const struct gen_request *g, const struct engine_info *m, struct err *e)
{
    if (g->pooling.n) return request_new_pooled(g, m, e);
    if (!embedder_generates(m->embedder)) {
        err_set(e, ERR_UNSUPPORTED, "this model generates no text: it is %s (%s) and gives %s",
                m->embedder->encoder ? "an encoder" : "a classifier", m->family,
                m->embedder->classifies ? "scores of texts (rerank, score, classify)" : "vectors (embeddings)");
        return NULL;
    }
    if (check_lengths(g, m, e) || check_sampling(&g->sampling, m, e) || check_stops(g, m, e) ||
        check_thoughts(&g->thoughts, m, e))
        return NULL;
    size_t total = (size_t)g->n_prompt + (size_t)g->max_new_tokens, pages = (total + KV_PAGE - 1) / KV_PAGE;
    size_t adds = (size_t)g->sampling.n_bias + (size_t)m->n_eos + (size_t)g->n_stop_ids, text = 0;
    size_t stops = g->thoughts.end ? (size_t)g->thoughts.n_stop : 0, marks = 0;
    for (int i = 0; i < g->n_stop; i++) text += strlen(g->stop[i]);
    if (g->thoughts.end) marks = strlen(g->thoughts.begin) + strlen(g->thoughts.end) + 2;
    size_t scored = (size_t)scored_rows(g) * (size_t)g->n_scored;

    struct request *r = calloc(1, sizeof *r + (total + pages + stops + scored) * sizeof(int32_t) +
                                      adds * sizeof(struct token_add) + text + marks);
    if (!r) {
        err_set(e, ERR_NOMEM, "no memory for a request of %zu tokens", total);
        return NULL;
    }
    r->adds = (struct token_add *)(r + 1);
    r->tokens = (int32_t *)(r->adds + adds);
    int32_t *ids = r->tokens + total + pages;
    char *texts = (char *)(ids + stops + scored);
    r->seq = (struct seq){.tokens = r->tokens,
                          .pages = r->tokens + total,
                          .n_known = g->n_prompt,
                          .priority = g->priority,
                          .client = g->client,
                          .first_row = g->prompt_logprobs ? first_row(g->logprobs_from) : g->n_prompt - 1};
    r->user = g->user;
    r->n_prompt = g->n_prompt;
    r->max_new = g->max_new_tokens;
    r->min_new = g->min_new_tokens;
    r->ignore_eos = g->ignore_eos;
    r->top_n = g->top_n < m->vocab ? g->top_n : m->vocab;
    r->prompt_logprobs = g->prompt_logprobs;
    r->n_prompt_sent = g->logprobs_from;
    r->sampling = g->sampling;
    r->detok.mid_context = true;
    memcpy(r->tokens, g->prompt, (size_t)g->n_prompt * sizeof *r->tokens);
    copy_adds(r, g, m);
    copy_stops(r, g, texts);
    if (scored) memcpy(ids + stops, g->scored, scored * sizeof *ids);
    r->scored = ids + stops;
    r->n_scored = g->n_scored;
    r->n_drawn = g->n_drawn;
    r->scored_from = first_row(g->logprobs_from);
    for (int i = 0; i < g->n_prompt; i++) count_token(r, g->prompt[i], false);
    copy_thoughts(r, &g->thoughts, ids, texts + text);
    return r;
}

void request_free(struct request *r)
{
    if (!r) return;
    masked_free(r->masked);
    masked_free(r->behind);
    buf_free(&r->tail);
    ngrams_close(&r->guess.index);
    history_unref(r->guess.history);
    free(r->counts);
    free(r->count_slot);
    free(r->names);
    free(r);
}

/* ---- sampling ---- */

static void put_choice(const struct sampling_params *s, int n_before, struct sample_row *row)
{
    if (!s->sample) return;
    row->temperature = s->temperature;
    row->top_p = s->top_p;
    row->min_p = s->min_p;
    row->typical_p = s->typical_p;
    row->top_k = s->top_k;
    row->seed = s->seed;
    row->step = (uint64_t)n_before;
}

static void put_penalties(const struct request *r, struct sample_row *row)
{
    row->repetition = r->sampling.repetition;
    row->frequency = r->sampling.frequency;
    row->presence = r->sampling.presence;
    row->counts = r->counts;
    row->n_counts = r->n_counts;
}

void request_sample_row(struct request *r, int pos, struct sample_row *row)
{
    const struct sampling_params *s = &r->sampling;
    bool last = pos + 1 >= r->seq.n_known;
    int n_before = pos + 1 - r->n_prompt; /* generated tokens, including those not emitted yet */
    *row = (struct sample_row){
        .top_p = 1, .typical_p = 1, .repetition = 1, .forced = last ? -1 : r->tokens[pos + 1], .top_n = r->top_n};
    if (!last) return;
    if (r->unsampled) {
        row->forced = 0;
        row->top_n = 0;
        return;
    }
    if (r->masked) row->allowed = masked_bits(r->masked);
    r->whole = r->masked && masked_ends(r->masked);
    put_choice(s, n_before, row);
    put_penalties(r, row);
    row->adds = r->adds;
    row->n_adds = r->n_bias;
    if (n_before < r->min_new && !r->whole)
        row->n_adds += r->n_bans;
    else if (r->masked && r->ignore_eos && !r->whole)
        row->n_adds += r->n_eos_bans;
}

void request_draft_row(const struct request *r, int ahead, bool whole, struct sample_row *row)
{
    int n_before = r->seq.n_known + ahead - r->n_prompt;
    *row = (struct sample_row){.top_p = 1, .typical_p = 1, .repetition = 1, .forced = -1};
    put_choice(&r->sampling, n_before, row);
    if (!whole) return;
    put_penalties(r, row); /* of the known tokens */
    row->adds = r->adds;
    row->n_adds = r->n_bias + (n_before < r->min_new ? r->n_bans : 0);
}

/* ---- events ---- */

static void fill_event(struct event *v, struct request *r, enum event_kind kind, const struct sample_out *o,
                       struct events *ev)
{
    *v = (struct event){.id = r->id,
                        .user = r->user,
                        .kind = kind,
                        .token = o->id,
                        .logprob = o->logprob,
                        .rank = o->rank,
                        .n_top = r->top_n,
                        .stop_index = -1};
    struct top_token top[ENGINE_TOP_MAX];
    for (int i = 0; i < r->top_n; i++) top[i] = (struct top_token){o->top_id[i], o->top_logprob[i]};
    v->top = events_top(ev, top, r->top_n);
}

/* appends the token's text to the batch; @return its length */
static uint32_t put_text(struct event *v, struct detok *d, const struct tokenizer *t, bool end, struct events *ev)
{
    struct buf *text = events_text(ev);
    v->text = (uint32_t)text->len;
    detok_push(d, t, v->token, text);
    if (end) detok_flush(d, t, text);
    return v->text_len = (uint32_t)text->len - v->text;
}

int32_t request_score_row(const struct request *r, int pos, int k, struct sample_row *row)
{
    *row = (struct sample_row){.top_p = 1, .typical_p = 1, .repetition = 1, .forced = -1};
    if (k < r->n_scored) {
        int32_t id = r->scored[(size_t)(pos - r->scored_from) * (size_t)r->n_scored + (size_t)k];
        row->forced = id < 0 ? 0 : id;
        return id;
    }
    if (r->sampling.sample) row->temperature = r->sampling.temperature;
    row->seed = rng_mix(r->sampling.seed); /* other numbers than those of the text's own tokens */
    row->step = (uint64_t)pos * ENGINE_TOP_MAX + (uint64_t)(k - r->n_scored);
    return SCORED_DRAWN;
}

static void send_prompt_token(struct request *r, const struct sample_out *o, const struct top_token *scores,
                              const struct tokenizer *t, struct events *ev)
{
    struct event v;
    fill_event(&v, r, EV_PROMPT, o, ev);
    if (isnan(o->logprob)) v.n_top = 0;
    if (scores) {
        v.n_scored = r->n_scored + r->n_drawn;
        v.scored = events_top(ev, scores, v.n_scored);
    }
    v.special = tokenizer_is_special(t, o->id);
    put_text(&v, &r->prompt_detok, t, ++r->n_prompt_sent == r->n_prompt, ev);
    events_add(ev, &v);
}

static void send_first_token(struct request *r, const struct tokenizer *t, struct events *ev)
{
    send_prompt_token(r, &(struct sample_out){.id = r->tokens[0], .logprob = NAN}, NULL, t, ev);
}

void request_prompt_row(struct request *r, int pos, const struct sample_out *o, const struct top_token *scores,
                        const struct tokenizer *t, struct events *ev)
{
    if (!r->prompt_logprobs) return;
    if (r->n_prompt_sent == 0) send_first_token(r, t, ev);
    CHECK(pos + 1 == r->n_prompt_sent);
    struct sample_out known = *o;
    known.id = r->tokens[pos + 1]; /* also when the row was not finite */
    send_prompt_token(r, &known, scores, t, ev);
    r->seq.first_row = pos + 1;
}

/* Looks for a stop text that ends within the last `len` bytes, which were just appended.  @return its index, with *keep
 * set to the number of those bytes up to its end; -1: none. */
static int find_stop(struct request *r, const char *text, uint32_t len, uint32_t *keep)
{
    if (r->n_stop == 0) return -1;
    int best = -1;
    size_t old = r->tail.len, best_end = SIZE_MAX;
    buf_append(&r->tail, text, len);
    for (int i = 0; i < r->n_stop; i++) {
        size_t from = old + 1 > r->stop[i].len ? old + 1 - r->stop[i].len : 0;
        const char *hit = memmem(r->tail.data + from, r->tail.len - from, r->stop[i].s, r->stop[i].len);
        if (!hit) continue;
        size_t end = (size_t)(hit - r->tail.data) + r->stop[i].len;
        if (end < best_end) best = i, best_end = end;
    }
    if (best >= 0) *keep = (uint32_t)(best_end - old);
    if (r->tail.len > ENGINE_STOP_BYTES) {
        memmove(r->tail.data, r->tail.data + r->tail.len - ENGINE_STOP_BYTES, ENGINE_STOP_BYTES);
        r->tail.len = ENGINE_STOP_BYTES;
    }
    return best;
}

static bool contains(const int32_t *v, int n, int32_t id)
{
    for (int i = 0; i < n; i++)
        if (v[i] == id) return true;
    return false;
}

/* The length limit is checked before eos and stops, as in TGI. */
static enum finish_reason finish_by_id(struct request *r, int32_t id, const struct engine_info *m, int *stop_index)
{
    bool early = r->n_generated < r->min_new;
    if (r->n_generated >= r->max_new) return FINISH_LENGTH;
    if ((r->whole || (!early && !r->ignore_eos)) && contains(m->eos, m->n_eos, id)) return FINISH_EOS;
    for (int i = 0; !early && i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id) {
            *stop_index = r->n_stop + i;
            return FINISH_STOP;
        }
    return FINISH_NONE;
}

void request_mask(struct request *r, struct masked *m)
{
    bool thinks = r->thoughts.state == THOUGHTS_INSIDE && r->seq.n_known == r->n_prompt;
    *(thinks ? &r->behind : &r->masked) = m;
}

/* After a token that is no longer, or should no longer be, within thoughts. */
static void end_thoughts(struct request *r, enum thoughts_change change)
{
    if (change == THOUGHTS_USED_UP) stop_thoughts(r);
    if (!r->behind) return;
    r->masked = r->behind;
    r->behind = NULL;
    masked_begin(r->masked, request_may_force(r));
}

enum finish_reason request_token(struct request *r, const struct sample_out *o, const struct engine_info *m,
                                 const struct tokenizer *t, struct events *ev, uint64_t now, int *stop_index)
{
    struct event v;
    if (r->prompt_logprobs && r->n_prompt_sent == 0) /* a prompt of one token has no row of its own */
        send_first_token(r, t, ev);
    fill_event(&v, r, EV_TOKEN, o, ev);
    bool known = r->n_prompt + r->n_generated++ < r->seq.n_known;
    if (!known) count_token(r, o->id, true);
    if (!r->times.first_token) r->times.first_token = now;
    *stop_index = -1;
    v.special = tokenizer_is_special(t, o->id);
    v.finish = finish_by_id(r, o->id, m, stop_index);
    uint32_t len = put_text(&v, &r->detok, t, v.finish != FINISH_NONE, ev);
    v.gen_len = v.special || *stop_index >= 0 ? 0 : len;
    const char *text = len ? events_text(ev)->data + v.text : "";
    enum thoughts_change change = thoughts_token(&r->thoughts, text, len, r->detok.n_pending > 0);
    uint32_t keep = 0;
    int hit = v.gen_len ? find_stop(r, events_text(ev)->data + v.text, v.gen_len, &keep) : -1;
    if (hit >= 0 && r->n_generated >= r->min_new && (v.finish == FINISH_NONE || v.finish == FINISH_LENGTH)) {
        v.gen_len = keep;
        if (v.finish == FINISH_NONE) {
            v.finish = FINISH_STOP;
            *stop_index = hit;
        }
    }
    v.stop_index = *stop_index;
    events_add(ev, &v);
    if (!known && v.finish == FINISH_NONE) r->tokens[r->seq.n_known++] = o->id;
    if (change != THOUGHTS_GO_ON && v.finish == FINISH_NONE) end_thoughts(r, change);
    r->seq.first_row = r->n_prompt + r->n_generated - 1;
    r->seq.generates = true;
    return v.finish;
}

bool request_samples_ahead(const struct request *r)
{
    return !r->masked && !penalised(&r->sampling);
}

bool request_may_force(const struct request *r)
{
    return r->n_bias == 0 && (r->min_new <= 0 || r->n_stop_ids == 0);
}

void request_force(struct request *r)
{
    int n, room = r->n_prompt + r->max_new - r->seq.n_known;
    const int32_t *ids = masked_forced(r->masked, &n);
    if (n > room) n = room;
    for (int i = 0; i < n; i++) {
        r->tokens[r->seq.n_known++] = ids[i];
        count_token(r, ids[i], true); /* they count for the penalties of the tokens sampled after them */
    }
}

void request_done(struct request *r, enum finish_reason why, int stop_index, const char *error, struct events *ev,
                  uint64_t now)
{
    r->times.done = now;
    struct event v = {.id = r->id,
                      .user = r->user,
                      .kind = EV_DONE,
                      .finish = why,
                      .n_prompt = r->n_prompt,
                      .n_cached = r->seq.n_cached,
                      .n_generated = r->n_generated,
                      .n_thoughts = r->thoughts.count,
                      .stop_index = stop_index,
                      .times = r->times,
                      .error = error};
    events_add(ev, &v);
}
