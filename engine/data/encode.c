#include "engine/data/encode.h"

#include "engine/base/mem.h"
#include "engine/data/dataset.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- tokens of a continued text ---------------------------------------------------------------------------------- */

/* Whether the ids, when they follow others, decode to text[0, n). */
static bool says(const struct tokenizer *t, const struct token *v, size_t n_tokens, const char *text, size_t n)
{
    struct detok d = {.started = true, .mid_context = true};
    struct buf out = {0};
    buf_str(&out, "");
    for (size_t i = 0; i < n_tokens; i++) detok_push(&d, t, v[i].id, &out);
    detok_flush(&d, t, &out);
    bool same = out.len == n && !memcmp(out.data, text, n);
    buf_free(&out);
    return same;
}

static bool starts_with(const struct tokens *all, const struct tokens *start)
{
    if (all->n < start->n) return false;
    for (size_t i = 0; i < start->n; i++)
        if (all->v[i].id != start->v[i].id) return false;
    return true;
}

/* Tokenises text[0, n) after an anchor and removes the anchor's tokens; @return false when a token spans both. */
static bool encode_anchored(const struct encoder *c, const char *text, size_t n, struct tokens *out)
{
    struct buf joined = {0};
    struct tokens all = {0};
    buf_str(&joined, c->anchor);
    buf_append(&joined, text, n);
    bool ok = !tokenizer_encode(c->tokenizer, joined.data, joined.len, 0, &all, NULL) && starts_with(&all, &c->before);
    size_t skip = c->before.n;
    uint32_t chars = (uint32_t)strlen(c->anchor);
    ok = ok && says(c->tokenizer, all.v + skip, all.n - skip, text, n);
    for (size_t i = skip; ok && i < all.n; i++) {
        struct token at = all.v[i];
        at.start = at.start > chars ? at.start - chars : 0;
        at.end = at.end > chars ? at.end - chars : 0;
        mem_grow(&out->v, &out->cap, out->n + 1, sizeof *out->v);
        out->v[out->n++] = at;
    }
    buf_free(&joined);
    tokens_free(&all);
    return ok;
}

/* Appends the tokens of a text that follows others: without the space that SentencePiece puts before a text. */
static int encode_rest(const struct encoder *c, const char *text, size_t n, struct tokens *out, struct err *e)
{
    if (c->anchor && n && encode_anchored(c, text, n, out)) return 0;
    return tokenizer_encode(c->tokenizer, text, n, 0, out, e);
}

int encoder_open(struct encoder *c, const struct tokenizer *t, int32_t eos, struct err *e)
{
    static const char *const anchors[] = {"\n", ".", "0", "a"};
    struct tokens probe = {0};
    *c = (struct encoder){.tokenizer = t, .eos = eos};
    int rc = tokenizer_encode(t, "a", 1, 0, &probe, e);
    c->adds_space = !rc && probe.n && !says(t, probe.v, probe.n, "a", 1);
    tokens_free(&probe);
    for (size_t i = 0; !rc && c->adds_space && !c->anchor && i < sizeof anchors / sizeof *anchors; i++) {
        c->anchor = anchors[i];
        rc = tokenizer_encode(t, c->anchor, 1, 0, &c->before, e);
        if (!rc && !encode_anchored(c, "b c", 3, &probe)) {
            c->anchor = NULL;
            tokens_free(&c->before);
        }
        tokens_free(&probe);
    }
    if (rc) encoder_close(c);
    return rc;
}

void encoder_close(struct encoder *c)
{
    tokens_free(&c->before);
    *c = (struct encoder){0};
}

void encoded_add(struct encoded *x, int32_t id, bool trained)
{
    mem_grow(&x->id, &x->cap, x->n + 1, sizeof *x->id);
    mem_grow(&x->trained, &x->cap_trained, x->n + 1, 1);
    x->id[x->n] = id;
    x->trained[x->n++] = trained;
}

static void fill_logprobs(struct encoded *x, size_t n)
{
    mem_grow(&x->logprob, &x->cap_logprob, n, sizeof *x->logprob);
    while (x->n_logprob < n) x->logprob[x->n_logprob++] = NAN;
}

void encoded_sampled(struct encoded *x, float logprob)
{
    if (isnan(logprob)) return;
    fill_logprobs(x, x->n);
    x->logprob[x->n - 1] = logprob;
}

const float *encoded_logprobs(struct encoded *x, size_t first, size_t n)
{
    if (x->n_logprob <= first) return NULL;
    fill_logprobs(x, first + n);
    return x->logprob + first;
}

void encoded_clear(struct encoded *x)
{
    x->n = x->n_logprob = 0;
}

void encoded_free(struct encoded *x)
{
    free(x->id);
    free(x->trained);
    free(x->logprob);
    *x = (struct encoded){0};
}

/* ---- boundaries -------------------------------------------------------------------------------------------------- */

/* A walk over a text and its tokens, stretch by stretch. */
struct cutting {
    const struct encoder *c;
    const char *text;
    size_t n;
    struct tokens now;  /* of text[from, n) */
    size_t from;        /* byte */
    size_t next;        /* index in `now` of the first token not yet in out */
    size_t byte, chars; /* a position in text, and the number of characters in [from, byte) */
    size_t budget;      /* bytes that may still be tokenised again */
    bool whole;         /* text[from...] was tokenised as a separate text, not as a continuation */
    struct encoded *out;
};

static bool is_lead(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

/* Characters in text[from, byte). */
static uint32_t chars_to(struct cutting *k, size_t byte)
{
    while (k->byte < byte) k->chars += is_lead(k->text[k->byte++]);
    while (k->byte > byte) k->chars -= is_lead(k->text[--k->byte]);
    return (uint32_t)k->chars;
}

/* The byte position after that many characters of text[from...]. */
static size_t byte_of(struct cutting *k, uint32_t chars)
{
    while (k->byte < k->n && (k->chars < chars || !is_lead(k->text[k->byte]))) k->chars += is_lead(k->text[k->byte++]);
    while (k->byte > k->from && k->chars > chars) k->chars -= is_lead(k->text[--k->byte]);
    return k->byte;
}

static void put(struct cutting *k, size_t end, bool trained)
{
    for (; k->next < end; k->next++) encoded_add(k->out, k->now.v[k->next].id, trained);
}

static int tokens_from(struct cutting *k, size_t byte, bool whole, struct err *e)
{
    k->now.n = 0;
    k->from = k->byte = byte;
    k->chars = k->next = 0;
    k->whole = whole;
    return whole ? tokenizer_encode(k->c->tokenizer, k->text + byte, k->n - byte, 0, &k->now, e)
                 : encode_rest(k->c, k->text + byte, k->n - byte, &k->now, e);
}

/* Index of the first token that begins at or after `chars`. */
static size_t token_at(const struct cutting *k, uint32_t chars)
{
    size_t i = k->next;
    while (i < k->now.n && (k->now.v[i].start < chars || k->now.v[i].end <= chars)) i++;
    return i;
}

/* Whether token i is a special token spelled out in the text, not the unknown token. */
static bool is_written(struct cutting *k, size_t i)
{
    const struct token *t = &k->now.v[i];
    const char *spelling = tokenizer_spelling(k->c->tokenizer, t->id);
    size_t n = spelling ? strlen(spelling) : 0;
    if (!n || t->end <= t->start || !tokenizer_is_special(k->c->tokenizer, t->id)) return false;
    size_t end = byte_of(k, t->end);
    return end - k->from >= n && !memcmp(k->text + end - n, spelling, n);
}

/* Emits all tokens before byte `start` as a prompt and sets `next` to the first token of the stretch there.  The prompt
 * is tokenised separately, starting at its last special token if it has one, since text before that has no influence.
 */
static int prompt_put(struct cutting *k, size_t start, struct err *e)
{
    uint32_t chars = chars_to(k, start);
    size_t anchor = 0, byte = k->from;
    bool special = false;
    for (size_t i = token_at(k, chars); i > k->next && !special; i--) {
        special = is_written(k, i - 1);
        if (!special) continue;
        anchor = i - 1;
        byte = byte_of(k, k->now.v[anchor].start);
    }
    if (start - byte > k->budget) {
        put(k, token_at(k, chars), false);
        return 0;
    }
    k->budget -= start - byte;
    struct tokens alone = {0};
    int rc = k->whole || special ? tokenizer_encode(k->c->tokenizer, k->text + byte, start - byte, 0, &alone, e)
                                 : encode_rest(k->c, k->text + byte, start - byte, &alone, e);
    struct tokens rest = {.v = k->now.v + anchor, .n = k->now.n - anchor};
    if (!rc && starts_with(&rest, &alone) && anchor + alone.n >= k->next) {
        put(k, anchor + alone.n, false);
    } else if (!rc) {
        if (anchor > k->next) put(k, anchor, false);
        for (size_t i = k->next - anchor; i < alone.n; i++) encoded_add(k->out, alone.v[i].id, false);
        k->budget -= k->n - start < k->budget ? k->n - start : k->budget;
        rc = tokens_from(k, start, false, e);
    }
    tokens_free(&alone);
    return rc;
}

int encode_text(const struct encoder *c, const char *text, size_t n, const struct stretch *v, size_t n_stretches,
                unsigned flags, struct encoded *out, struct err *e)
{
    const int32_t *before, *after;
    size_t n_before = tokenizer_before(c->tokenizer, &before), n_after = tokenizer_after(c->tokenizer, &after);
    struct cutting k = {.c = c, .text = text, .n = n, .budget = 8 * n + (64 << 10), .out = out};
    if (flags & ENCODE_SPECIAL && !(flags & ENCODE_GOES_ON))
        for (size_t i = 0; i < n_before; i++) encoded_add(out, before[i], false);
    int rc = tokens_from(&k, 0, !(flags & ENCODE_GOES_ON), e);
    for (size_t i = 0; i < n_stretches && !rc; i++) {
        if (v[i].start > 0) {
            rc = prompt_put(&k, v[i].start, e);
            /* the server's prompt ends with these */
            for (size_t j = 0; !rc && i == 0 && flags & ENCODE_SPECIAL && j < n_after; j++)
                encoded_add(out, after[j], false);
        }
        if (!rc) put(&k, token_at(&k, chars_to(&k, v[i].end)), true);
    }
    tokens_free(&k.now);
    if (rc || !(flags & ENCODE_EOS) || c->eos < 0) return rc;
    if (!out->n || (out->id[out->n - 1] != c->eos && !tokenizer_is_special(c->tokenizer, out->id[out->n - 1])))
        encoded_add(out, c->eos, true);
    return 0;
}

int dataset_encode_answer(const struct tokenizer *t, const char *text, size_t n, struct tokens *out, struct err *e)
{
    struct encoder c;
    int rc = encoder_open(&c, t, -1, e);
    if (!rc) rc = encode_rest(&c, text, n, out, e);
    encoder_close(&c);
    return rc;
}
