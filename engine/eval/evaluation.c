#include "engine/eval/evaluation.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/eval/metrics.h"
#include "engine/eval/prefix.h"
#include "engine/eval/results.h"
#include "engine/eval/words.h"
#include "engine/tokenizer/text.h"

#include <stdlib.h>
#include <string.h>

/* One request of a row: a window of a text, a choice, or a generation. */
struct evaluation_part {
    struct evaluation *owner;
    struct evaluation_part *prev, *next;
    struct gen_request request;
    int32_t *ids; /* of its prompt */
    size_t row;
    int index;  /* of the choice */
    int first;  /* the first token of the prompt that is scored */
    int scored; /* tokens so far */
    double logprob, work;
    struct buf text;  /* generated */
    struct event end; /* its EV_DONE */
};

struct evaluation {
    const struct evaluation_rows *rows;
    struct evaluation_options o;
    struct engine *engine;
    char *adapter;
    struct extractor *extractor;
    int32_t prefix; /* the token before a text that has nothing before it; -1: none */
    int window;
    struct evaluation_answer *answers; /* (rows) */
    double *sums;                      /* (rows, n_sums) */
    int n_sums;
    size_t row; /* the next to submit, and within it */
    int index;  /* the next choice */
    size_t at;  /* the next token of a text */
    struct tokens tokens, head;
    struct buf rendered;
    int32_t *ids; /* of the next request */
    size_t ids_cap;
    struct evaluation_part *live; /* prepared, and not scored yet */
    struct evaluation_progress progress;
};

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static int choose_limits(struct evaluation *v, struct err *e)
{
    int most = engine_info(v->engine)->max_total_tokens, room = most - 2; /* the engine generates a token after them */
    v->window = v->o.window ? v->o.window : room;
    if (v->window < 1 || v->window > room)
        return err_set(e, ERR_INVALID, "window: %d is not between 1 and %d, what a request may use less two", v->window,
                       room);
    if (v->rows->kind == EVALUATION_GENERATION && (v->o.max_new_tokens < 1 || v->o.max_new_tokens >= most))
        return err_set(e, ERR_INVALID, "max_new_tokens: %d is not between 1 and %d, what a request may use less one",
                       v->o.max_new_tokens, most - 1);
    return 0;
}

struct evaluation *evaluation_open(const struct evaluation_rows *rows, const struct evaluation_options *o,
                                   struct engine *engine, const char *adapter, struct err *e)
{
    struct evaluation *v = mem_zalloc(sizeof *v);
    *v = (struct evaluation){.rows = rows, .o = *o, .engine = engine, .n_sums = metrics_sums(rows->kind)};
    v->adapter = adapter ? mem_strdup(adapter) : NULL;
    v->answers = mem_array(rows->n, sizeof *v->answers);
    v->sums = mem_array(rows->n * (size_t)v->n_sums, sizeof *v->sums);
    v->prefix = evaluation_prefix(o->model, engine);
    v->progress.work = (double)rows->n;
    int rc = engine_check_generates(engine, e);
    if (!rc) rc = choose_limits(v, e);
    if (!rc && o->extract && !(v->extractor = extractor_open(o->extract, e))) rc = err_prefix(e, "extract");
    if (!rc) return v;
    evaluation_close(v);
    return NULL;
}

void evaluation_part_drop(struct evaluation_part *p)
{
    struct evaluation *v = p->owner;
    if (p->prev)
        p->prev->next = p->next;
    else
        v->live = p->next;
    if (p->next) p->next->prev = p->prev;
    buf_free(&p->text);
    free(p->ids);
    free(p);
}

void evaluation_close(struct evaluation *v)
{
    if (!v) return;
    while (v->live) evaluation_part_drop(v->live);
    for (size_t i = 0; i < v->rows->n; i++) {
        free(v->answers[i].logprob);
        free(v->answers[i].text);
        free(v->answers[i].prediction);
    }
    extractor_close(v->extractor);
    tokens_free(&v->tokens);
    tokens_free(&v->head);
    buf_free(&v->rendered);
    free(v->adapter);
    free(v->answers);
    free(v->sums);
    free(v->ids);
    free(v);
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* special: the tokenizer adds its tokens, unless the text has the first of them already. */
static int encode(const struct evaluation *v, const char *text, size_t n, bool special, struct tokens *out,
                  struct err *e)
{
    const struct tokenizer *tk = engine_tokenizer(v->engine);
    const int32_t *before = NULL;
    out->n = 0;
    int rc = tokenizer_encode(tk, text, n, 0, out, e);
    bool has_before = out->n && tokenizer_before(tk, &before) && out->v[0].id == before[0];
    if (rc || !special || has_before) return rc;
    out->n = 0;
    return tokenizer_encode(tk, text, n, TOKENIZE_SPECIAL, out, e);
}

/* v->ids gets the prefix token, if `prefixed` and there is one, then tokens[from, to).  @return how many. */
static int put_ids(struct evaluation *v, bool prefixed, const struct tokens *t, size_t from, size_t to)
{
    size_t n = 0;
    mem_grow(&v->ids, &v->ids_cap, to - from + 1, sizeof *v->ids);
    if (prefixed && v->prefix >= 0) v->ids[n++] = v->prefix;
    for (size_t i = from; i < to; i++) v->ids[n++] = t->v[i].id;
    return (int)n;
}

/* Prepares a request of v->ids[0, n) without those on the left that are more than `most`. */
static struct evaluation_part *add_part(struct evaluation *v, struct evaluation_part part, int n, int most,
                                        struct gen_request r)
{
    int drop = n > most ? n - most : 0;
    struct evaluation_part *p = mem_zalloc(sizeof *p);
    part.first = part.first > drop ? part.first - drop : 0;
    part.owner = v;
    part.row = v->row;
    part.next = v->live;
    part.ids = mem_array((size_t)(n - drop), sizeof *part.ids);
    memcpy(part.ids, v->ids + drop, (size_t)(n - drop) * sizeof *part.ids);
    r.prompt = part.ids;
    r.n_prompt = n - drop;
    r.sampling = (struct sampling_params){.repetition = 1, .temperature = 1};
    r.logprobs_from = part.first;
    r.adapter = v->adapter;
    r.user = p;
    part.request = r;
    *p = part;
    if (v->live) v->live->prev = p;
    v->live = p;
    v->progress.truncated += drop > 0;
    return p;
}

/* A prompt whose tokens from `first` on are scored; the one generated token is not looked at. */
static struct evaluation_part *add_scored(struct evaluation *v, struct evaluation_part part, int n)
{
    return add_part(v, part, n, v->window + 1, (struct gen_request){.max_new_tokens = 1, .prompt_logprobs = true});
}

/* The next window of the text, as lm-eval's rolling log-likelihood: windows do not overlap in what they score, the last
 * one is as long as the others, and every token is scored once. */
static struct evaluation_part *next_window(struct evaluation *v, struct err *e)
{
    const struct evaluation_row *row = &v->rows->v[v->row];
    struct evaluation_answer *a = &v->answers[v->row];
    size_t window = (size_t)v->window;
    if (v->at == 0) {
        if (encode(v, row->prompt, strlen(row->prompt), false, &v->tokens, e)) return NULL;
        if (v->tokens.n + (v->prefix >= 0) < 2)
            return err_set(e, ERR_INVALID, "text: has too few tokens to score one"), NULL;
        a->logprob = mem_array(1, sizeof *a->logprob);
        a->pending = (int)((v->tokens.n + window - 1) / window);
    }
    size_t end = v->at + window < v->tokens.n ? v->at + window : v->tokens.n;
    size_t start = end > window ? end - window - 1 : 0; /* one token before the window's inputs end */
    bool is_first = v->at == 0;
    int n = put_ids(v, is_first, &v->tokens, start, end);
    const struct evaluation_part part = {.first = is_first ? 1 : n - (int)(end - v->at),
                                         .work = (double)(end - v->at) / (double)v->tokens.n};
    struct evaluation_part *p = add_scored(v, part, n);
    v->at = end < v->tokens.n ? end : 0;
    v->row += v->at == 0;
    return p;
}

/* The next choice as a continuation of the prompt, as lm-eval's log-likelihood: white space at the prompt's end belongs
 * to the continuation; its tokens are those of both texts together, from where the prompt's own end. */
static struct evaluation_part *next_choice(struct evaluation *v, struct err *e)
{
    const struct evaluation_row *row = &v->rows->v[v->row];
    struct evaluation_answer *a = &v->answers[v->row];
    struct buf *whole = &v->rendered;
    size_t n_prompt = word_text_end(row->prompt), split = 0;
    if (v->index == 0) {
        a->logprob = mem_array((size_t)row->n, sizeof *a->logprob);
        a->pending = row->n;
    }
    buf_clear(whole);
    buf_str(whole, row->prompt);
    buf_str(whole, v->o.delimiter);
    buf_str(whole, row->list[v->index]);
    if (encode(v, whole->data, whole->len, v->o.special && n_prompt, &v->tokens, e)) return NULL;
    if (n_prompt) {
        if (encode(v, row->prompt, n_prompt, v->o.special, &v->head, e)) return NULL;
        split = v->head.n;
    }
    if (split == 0 && v->prefix < 0)
        return err_set(e, ERR_INVALID, "the prompt is empty, and the model has no token that begins a text"), NULL;
    if (split >= v->tokens.n)
        return err_set(e, ERR_INVALID, "choices[%d]: adds no token to the prompt", v->index), NULL;
    size_t scored = v->tokens.n - split;
    if (scored > (size_t)v->window)
        return err_set(e, ERR_INVALID, "choices[%d]: %zu tokens; at most %d are possible", v->index, scored, v->window),
               NULL;
    int n = put_ids(v, split == 0, &v->tokens, 0, v->tokens.n);
    const struct evaluation_part part = {.index = v->index, .first = n - (int)scored, .work = 1.0 / row->n};
    struct evaluation_part *p = add_scored(v, part, n);
    v->index = v->index + 1 < row->n ? v->index + 1 : 0;
    v->row += v->index == 0;
    return p;
}

static int encode_prompt(struct evaluation *v, const struct evaluation_row *row, struct err *e)
{
    if (row->prompt) return encode(v, row->prompt, strlen(row->prompt), v->o.special, &v->tokens, e);
    const struct chat_input in = {.messages = row->messages, .add_generation_prompt = true, .adapt = true};
    buf_clear(&v->rendered);
    buf_str(&v->rendered, "");
    if (chat_template_render(v->o.chat, &in, &v->rendered, NULL, e)) return err_prefix(e, "messages");
    /* a template writes the begin-of-text tokens itself */
    return encode(v, v->rendered.data, v->rendered.len, v->o.special && !v->o.chat, &v->tokens, e);
}

static struct evaluation_part *next_generation(struct evaluation *v, struct err *e)
{
    const struct evaluation_row *row = &v->rows->v[v->row];
    if (encode_prompt(v, row, e)) return NULL;
    int n = put_ids(v, v->tokens.n == 0, &v->tokens, 0, v->tokens.n);
    if (n == 0)
        return err_set(e, ERR_INVALID, "the prompt is empty, and the model has no token that begins a text"), NULL;
    const struct gen_request r = {.max_new_tokens = v->o.max_new_tokens, .stop = v->o.stop, .n_stop = v->o.n_stop};
    v->answers[v->row].pending = 1;
    int room = engine_info(v->engine)->max_total_tokens - v->o.max_new_tokens;
    struct evaluation_part *p = add_part(v, (struct evaluation_part){.work = 1}, n, room, r);
    v->row++;
    return p;
}

static int name_row(const struct evaluation *v, size_t row, struct err *e)
{
    return err_prefix(e, "%s:%llu", v->rows->name, (unsigned long long)v->rows->v[row].line);
}

struct evaluation_part *evaluation_next(struct evaluation *v, struct err *e)
{
    if (v->row == v->rows->n) return NULL;
    struct evaluation_part *p = v->rows->kind == EVALUATION_TEXT     ? next_window(v, e)
                                : v->rows->kind == EVALUATION_CHOICE ? next_choice(v, e)
                                                                     : next_generation(v, e);
    if (!p) name_row(v, v->row, e);
    return p;
}

const struct gen_request *evaluation_part_request(const struct evaluation_part *p)
{
    return &p->request;
}

int evaluation_submit(struct evaluation *v, struct err *e)
{
    while (engine_has_room(v->engine)) {
        struct evaluation_part *p = evaluation_next(v, e);
        if (!p) return e->code;
        if (!engine_submit(v->engine, &p->request, e)) return name_row(v, p->row, e);
    }
    return 0;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static double *sums_of(const struct evaluation *v, size_t row)
{
    return v->sums + row * (size_t)v->n_sums;
}

/* As lm-eval counts them: what white space separates, empty ends included. */
static double count_words(const char *text)
{
    double n = 1;
    bool space = false;
    while (*text) {
        uint32_t c;
        text += utf8_get(text, &c);
        n += word_is_space(c) && !space;
        space = word_is_space(c);
    }
    return n;
}

static double count_characters(const char *text)
{
    double n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static void score_text(struct evaluation *v, const struct evaluation_part *p)
{
    const char *text = v->rows->v[p->row].prompt;
    double *sums = sums_of(v, p->row);
    v->answers[p->row].logprob[0] += p->logprob;
    v->answers[p->row].n_scored += p->scored;
    sums[TEXT_NLL] -= p->logprob;
    sums[TEXT_TOKENS] += p->scored;
    if (v->answers[p->row].pending) return;
    sums[TEXT_WORDS] = count_words(text);
    sums[TEXT_BYTES] = (double)strlen(text);
}

/* The first of the greatest. */
static int best_of(const double *logprob, const double *length, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (logprob[i] / length[i] > logprob[best] / length[best]) best = i;
    return best;
}

static void score_choice(struct evaluation *v, const struct evaluation_part *p)
{
    const struct evaluation_row *row = &v->rows->v[p->row];
    struct evaluation_answer *a = &v->answers[p->row];
    double one[EVALUATION_LIST_MAX], characters[EVALUATION_LIST_MAX], bytes[EVALUATION_LIST_MAX],
        *sums = sums_of(v, p->row);
    a->logprob[p->index] = p->logprob;
    if (a->pending) return;
    for (int i = 0; i < row->n; i++) {
        one[i] = 1;
        characters[i] = count_characters(row->list[i]);
        bytes[i] = (double)strlen(row->list[i]);
    }
    a->choice = best_of(a->logprob, one, row->n);
    sums[CHOICE_ROWS] = 1;
    sums[CHOICE_ACC] = a->choice == row->answer;
    sums[CHOICE_ACC_NORM] = best_of(a->logprob, characters, row->n) == row->answer;
    sums[CHOICE_ACC_BYTES] = best_of(a->logprob, bytes, row->n) == row->answer;
}

/* The generated text without the stop text that ended it, up to the bytes that are kept.  The engine ends a text at the
 * first stop text, and says FINISH_LENGTH where its last token is also the last that is allowed. */
static void keep_text(struct evaluation *v, const struct evaluation_part *p)
{
    struct evaluation_answer *a = &v->answers[p->row];
    size_t n = p->text.len;
    for (int i = 0; i < v->o.n_stop; i++) {
        size_t m = strlen(v->o.stop[i]);
        if (m > n || memcmp(p->text.data + n - m, v->o.stop[i], m) != 0) continue;
        n -= m;
        break;
    }
    a->cut = n > EVALUATION_ANSWER_BYTES;
    if (a->cut) n = EVALUATION_ANSWER_BYTES;
    while (a->cut && n && ((unsigned char)p->text.data[n] & 0xc0) == 0x80) n--;
    a->text = mem_strndup(n ? p->text.data : "", n);
}

static void score_generation(struct evaluation *v, const struct evaluation_part *p)
{
    const struct evaluation_row *row = &v->rows->v[p->row];
    struct evaluation_answer *a = &v->answers[p->row];
    double *sums = sums_of(v, p->row);
    keep_text(v, p);
    struct buf found = {0};
    buf_str(&found, "");
    if (v->extractor) extractor_find(v->extractor, a->text, v->o.extract_last, &found);
    a->prediction = mem_strdup(v->extractor ? found.data : a->text);
    buf_free(&found);
    sums[GENERATION_ROWS] = 1;
    sums[GENERATION_EXACT] = match_exact(a->prediction, row->list, row->n, v->o.ignore);
    rouge_score(a->prediction, row->list, row->n, v->o.stem, sums + GENERATION_ROUGE);
    bleu_count(a->prediction, row->list, row->n, sums + GENERATION_BLEU);
    chrf_count(a->prediction, row->list, row->n, sums + GENERATION_CHRF, sums + GENERATION_CHRF_PLUS);
}

static int score(struct evaluation *v, const struct evaluation_part *p, struct err *e)
{
    struct evaluation_answer *a = &v->answers[p->row];
    const struct event *end = &p->end;
    if (end->finish == FINISH_ERROR)
        return err_set(e, engine_lost(v->engine) ? ERR_LOST : ERR_IO, "a step failed: %s", end->error);
    if (end->finish == FINISH_CANCELLED || end->finish == FINISH_TIMEOUT)
        return err_set(e, ERR_IO, "a request was ended");
    a->n_prompt = end->n_prompt;
    a->n_generated = end->n_generated;
    a->finish = end->finish;
    a->pending--;
    switch (v->rows->kind) {
    case EVALUATION_TEXT: score_text(v, p); break;
    case EVALUATION_CHOICE: score_choice(v, p); break;
    case EVALUATION_GENERATION: score_generation(v, p); break;
    }
    v->progress.done += p->work;
    v->progress.rows_done += a->pending == 0;
    v->progress.tokens += (uint64_t)end->n_prompt + (uint64_t)end->n_generated;
    return 0;
}

int evaluation_part_score(struct evaluation_part *p, struct err *e)
{
    int rc = score(p->owner, p, e);
    evaluation_part_drop(p);
    return rc;
}

/* A NUL, which some tokens contain, becomes U+FFFD: texts end at NULs. */
static void add_generated(struct evaluation_part *p, const char *text, size_t n)
{
    if (p->text.len > EVALUATION_ANSWER_BYTES + ENGINE_STOP_BYTES) return;
    for (size_t i = 0; i < n; i++) {
        if (text[i])
            buf_char(&p->text, text[i]);
        else
            buf_str(&p->text, "\xef\xbf\xbd");
    }
}

bool evaluation_part_take(struct evaluation_part *p, const struct event *ev, const struct event_batch *batch)
{
    if (ev->kind == EV_PROMPT) {
        p->logprob += (double)ev->logprob;
        p->scored++;
    }
    if (ev->kind == EV_TOKEN && !p->request.prompt_logprobs) add_generated(p, batch->text + ev->text, ev->gen_len);
    if (ev->kind == EV_DONE) p->end = *ev;
    return ev->kind == EV_DONE;
}

int evaluation_take(const struct event *ev, const struct event_batch *batch, struct err *e)
{
    struct evaluation_part *p = ev->user;
    return evaluation_part_take(p, ev, batch) ? evaluation_part_score(p, e) : 0;
}

struct evaluation_progress evaluation_progress(const struct evaluation *v)
{
    return v->progress;
}

bool evaluation_is_done(const struct evaluation *v)
{
    return v->row == v->rows->n && !v->live;
}

const struct evaluation_answer *evaluation_answer(const struct evaluation *v, size_t row)
{
    CHECK(row < v->rows->n);
    return &v->answers[row];
}

const double *evaluation_sums(const struct evaluation *v, size_t row)
{
    CHECK(row < v->rows->n);
    return sums_of(v, row);
}

const struct evaluation_rows *evaluation_rows_of(const struct evaluation *v)
{
    return v->rows;
}

double evaluation_row_score(const struct evaluation *v, size_t row, int metric)
{
    return metrics_score(v->rows->kind, metric, evaluation_sums(v, row), true);
}
