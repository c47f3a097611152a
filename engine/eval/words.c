#include "engine/eval/words.h"

#include "engine/base/mem.h"
#include "engine/tokenizer/text.h"
#include "engine/tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

bool word_is_space(uint32_t c)
{
    return unicode_is_space(c) || (c >= 0x1c && c <= 0x1f);
}

size_t word_text_end(const char *text)
{
    size_t end = 0, at = 0;
    while (text[at]) {
        uint32_t c;
        at += utf8_get(text + at, &c);
        if (!word_is_space(c)) end = at;
    }
    return end;
}

void words_add(struct words *w, const char *at, size_t len)
{
    mem_grow(&w->v, &w->cap, w->n + 1, sizeof *w->v);
    w->v[w->n++] = (struct word){at, len};
}

void words_split(struct words *w, const char *text, size_t n)
{
    size_t start = 0, at = 0;
    while (at < n) {
        uint32_t c;
        size_t len = utf8_get(text + at, &c);
        if (word_is_space(c)) {
            if (at > start) words_add(w, text + start, at - start);
            start = at + len;
        }
        at += len;
    }
    if (n > start) words_add(w, text + start, n - start);
}

void words_free(struct words *w)
{
    free(w->v);
    *w = (struct words){0};
}

/* ---- numbering --------------------------------------------------------------------------------------------------- */

struct numbered {
    struct word word;
    int32_t *id; /* where its number goes */
};

static int compare_words(const struct word *a, const struct word *b)
{
    size_t n = a->len < b->len ? a->len : b->len;
    int order = memcmp(a->at, b->at, n);
    return order ? order : (a->len > b->len) - (a->len < b->len);
}

static int by_word(const void *a, const void *b)
{
    return compare_words(&((const struct numbered *)a)->word, &((const struct numbered *)b)->word);
}

void words_number(const struct words *texts, int n, struct ids *out)
{
    size_t total = 0, k = 0;
    for (int i = 0; i < n; i++) total += texts[i].n;
    struct numbered *all = mem_array(total + 1, sizeof *all);
    for (int i = 0; i < n; i++) {
        out[i] = (struct ids){mem_array(texts[i].n + 1, sizeof(int32_t)), texts[i].n};
        for (size_t j = 0; j < texts[i].n; j++) all[k++] = (struct numbered){texts[i].v[j], &out[i].v[j]};
    }
    qsort(all, total, sizeof *all, by_word);
    int32_t id = 0;
    for (size_t i = 0; i < total; i++) {
        if (i && compare_words(&all[i - 1].word, &all[i].word) != 0) id++;
        *all[i].id = id;
    }
    free(all);
}

void chars_number(const char *text, size_t n, struct ids *out)
{
    *out = (struct ids){mem_array(n + 1, sizeof(int32_t)), 0};
    for (size_t at = 0; at < n;) {
        uint32_t c;
        at += utf8_get(text + at, &c);
        if (!word_is_space(c)) out->v[out->n++] = (int32_t)c;
    }
}

/* ---- n-grams ----------------------------------------------------------------------------------------------------- */

struct gram {
    const int32_t *at;
    int order;
};

struct grams {
    struct gram *v; /* sorted, owned */
    size_t n, next;
};

static int by_ids(const void *a, const void *b)
{
    const struct gram *x = a, *y = b;
    for (int i = 0; i < x->order; i++)
        if (x->at[i] != y->at[i]) return x->at[i] < y->at[i] ? -1 : 1;
    return 0;
}

size_t ngrams_count(const struct ids *t, int order)
{
    return t->n >= (size_t)order ? t->n - (size_t)order + 1 : 0;
}

static struct grams sorted_grams(const struct ids *t, int order)
{
    struct grams g = {.n = ngrams_count(t, order)};
    g.v = mem_array(g.n + 1, sizeof *g.v);
    for (size_t i = 0; i < g.n; i++) g.v[i] = (struct gram){t->v + i, order};
    qsort(g.v, g.n, sizeof *g.v, by_ids);
    return g;
}

/* How often the list has the n-gram.  Calls for one list go up in the order of n-grams. */
static size_t count_of(struct grams *g, const struct gram *gram)
{
    while (g->next < g->n && by_ids(&g->v[g->next], gram) < 0) g->next++;
    size_t first = g->next;
    while (g->next < g->n && by_ids(&g->v[g->next], gram) == 0) g->next++;
    return g->next - first;
}

size_t ngrams_matched(const struct ids *text, const struct ids *refs, int n_refs, int order)
{
    struct grams mine = sorted_grams(text, order), *theirs = mem_array((size_t)n_refs + 1, sizeof *theirs);
    for (int i = 0; i < n_refs; i++) theirs[i] = sorted_grams(&refs[i], order);
    size_t matched = 0;
    while (mine.next < mine.n) {
        struct gram gram = mine.v[mine.next];
        size_t have = count_of(&mine, &gram), most = 0;
        for (int i = 0; i < n_refs; i++) {
            size_t there = count_of(&theirs[i], &gram);
            if (there > most) most = there;
        }
        matched += have < most ? have : most;
    }
    for (int i = 0; i < n_refs; i++) free(theirs[i].v);
    free(theirs);
    free(mine.v);
    return matched;
}
