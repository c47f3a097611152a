#include "engine/serve/history.h"

#include "engine/serve/ngrams.h"
#include "kernels/rng.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { BETWEEN = -1, CONTEXT = NGRAM, ENTRY_BYTES = 1024 /* of a small one: for the size of the table */ };

struct history_entry {
    uint64_t key;
    struct history_entry *next;          /* in its chain */
    struct history_entry *newer, *older; /* by use */
    int refs;                            /* the table's is one */
    size_t bytes;
    struct ngrams index;
    /* Each text with the last CONTEXT tokens of its prompt before it, BETWEEN between two; the newest last, where
     * ngrams.c looks first. */
    int n, n_texts;
    int32_t tokens[];
};

struct history {
    size_t max, bytes;
    uint64_t seed;
    int n;
    uint32_t mask;
    struct history_entry *newest, *oldest;
    struct history_entry *chain[];
};

struct history *history_new(size_t bytes, uint64_t hash_seed)
{
    uint32_t size = 16;
    while (size < bytes / ENTRY_BYTES && size < 1u << 20) size *= 2;
    struct history *h = calloc(1, sizeof *h + size * sizeof *h->chain);
    if (h) h->max = bytes, h->mask = size - 1, h->seed = hash_seed;
    return h;
}

uint64_t history_key(const struct history *h, uint64_t root, uint64_t salt, const int32_t *prompt, int n)
{
    uint64_t key = rng_mix(rng_mix(h->seed ^ root) ^ salt);
    int from = n > HISTORY_PROMPT ? n - HISTORY_PROMPT : 0;
    for (int i = from; i < n; i++) key = rng_mix(key ^ (uint64_t)(uint32_t)prompt[i]);
    return rng_mix(key ^ (uint64_t)(n - from));
}

/* ---- the entries: by key, and by use ---- */

static struct history_entry **find_link(struct history *h, uint64_t key)
{
    struct history_entry **link = &h->chain[key & h->mask];
    while (*link && (*link)->key != key) link = &(*link)->next;
    return link;
}

static void list_take(struct history *h, struct history_entry *t)
{
    if (t->newer)
        t->newer->older = t->older;
    else
        h->newest = t->older;
    if (t->older)
        t->older->newer = t->newer;
    else
        h->oldest = t->newer;
    t->newer = t->older = NULL;
}

static void list_put(struct history *h, struct history_entry *t)
{
    t->older = h->newest;
    *(h->newest ? &h->newest->newer : &h->oldest) = t;
    h->newest = t;
}

void history_unref(struct history_entry *t)
{
    if (!t || --t->refs) return;
    ngrams_close(&t->index);
    free(t);
}

static void drop(struct history *h, struct history_entry *t)
{
    *find_link(h, t->key) = t->next;
    list_take(h, t);
    h->bytes -= t->bytes;
    h->n--;
    history_unref(t);
}

/* Drops the entries used longest ago until the others have room. */
static void evict(struct history *h)
{
    for (struct history_entry *t = h->oldest, *newer; t && h->bytes > h->max; t = newer) {
        newer = t->newer;
        drop(h, t);
    }
}

static void keep(struct history *h, struct history_entry *t)
{
    struct history_entry **link = find_link(h, t->key);
    if (*link) drop(h, *link);
    link = find_link(h, t->key);
    *link = t;
    list_put(h, t);
    h->bytes += t->bytes;
    h->n++;
    evict(h);
}

void history_free(struct history *h)
{
    if (!h) return;
    h->max = 0;
    evict(h);
    free(h);
}

struct history_entry *history_find(struct history *h, uint64_t key)
{
    struct history_entry *t = *find_link(h, key);
    if (!t) return NULL;
    list_take(h, t);
    list_put(h, t);
    t->refs++;
    return t;
}

/* ---- their texts ---- */

static int text_len(const struct history_entry *t, int from)
{
    int n = 0;
    while (from + n < t->n && t->tokens[from + n] != BETWEEN) n++;
    return n;
}

/* Whether a text that begins like the one (n) and is no shorter is kept. */
static bool has_text(const struct history_entry *t, const int32_t *v, int n)
{
    for (int at = 0; t && at < t->n; at += text_len(t, at) + 1)
        if (text_len(t, at) >= n && !memcmp(t->tokens + at, v, (size_t)n * sizeof *v)) return true;
    return false;
}

static void append(struct history_entry *t, const int32_t *v, int n)
{
    if (t->n) t->tokens[t->n++] = BETWEEN;
    memcpy(t->tokens + t->n, v, (size_t)n * sizeof *v);
    t->n += n;
    t->n_texts++;
}

/* The older texts that stay beside a new one (n), those that it begins with left out: the newest that have room. */
static void append_older(struct history_entry *t, const struct history_entry *old, const int32_t *v, int n)
{
    int start[HISTORY_TEXTS], len[HISTORY_TEXTS], texts = 0, first, room = HISTORY_TOKENS - n;
    for (int at = 0; at < old->n; at += len[texts++] + 1) start[texts] = at, len[texts] = text_len(old, at);
    for (first = texts; first > 0 && texts - first < HISTORY_TEXTS - 1 && len[first - 1] < room; first--)
        room -= len[first - 1] + 1;
    for (int i = first; i < texts; i++) {
        bool part = len[i] <= n && !memcmp(old->tokens + start[i], v, (size_t)len[i] * sizeof *v);
        if (!part) append(t, old->tokens + start[i], len[i]);
    }
}

void history_add(struct history *h, uint64_t key, const int32_t *tokens, int n_prompt, int n)
{
    int from = n_prompt > CONTEXT ? n_prompt - CONTEXT : 0;
    struct history_entry *old = *find_link(h, key);
    if (n - n_prompt < NGRAM || !h->max) return;
    if (n - from > HISTORY_TOKENS) n = from + HISTORY_TOKENS;
    if (has_text(old, tokens + from, n - from)) {
        list_take(h, old);
        list_put(h, old);
        return;
    }
    int most = n - from + (old ? old->n + 1 : 0);
    if (most > HISTORY_TOKENS) most = HISTORY_TOKENS;
    struct history_entry *t = calloc(1, sizeof *t + (size_t)most * sizeof *t->tokens);
    if (!t) return;
    t->key = key;
    t->refs = 1;
    if (old) append_older(t, old, tokens + from, n - from);
    append(t, tokens + from, n - from);
    if (!ngrams_open(&t->index, t->n)) {
        free(t);
        return;
    }
    while (!ngrams_add(&t->index, t->tokens, t->n)) {
    }
    t->bytes = sizeof *t + (size_t)most * sizeof *t->tokens + ngrams_bytes(&t->index);
    keep(h, t);
}

int history_propose(const struct history_entry *t, const int32_t *tokens, int n, int most, int32_t *out, int *agreed)
{
    return ngrams_propose_from(&t->index, t->tokens, t->n, tokens, n, most, out, agreed);
}

size_t history_bytes(const struct history *h)
{
    return h->bytes;
}

int history_entries(const struct history *h)
{
    return h->n;
}
