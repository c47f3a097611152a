#include "engine/serve/ngrams.h"

#include "kernels/rng.h"

#include <stdlib.h>

enum { PLACES = 16 }; /* compared for one proposal */

bool ngrams_open(struct ngrams *g, int len)
{
    uint32_t size = 64;
    while (size < (uint32_t)len && size < NGRAMS_MAX) size *= 2;
    *g = (struct ngrams){.mask = size - 1};
    g->head = calloc(2 * (size_t)size, sizeof *g->head);
    g->prev = g->head ? g->head + size : NULL;
    return g->head != NULL;
}

void ngrams_close(struct ngrams *g)
{
    free(g->head);
    *g = (struct ngrams){0};
}

size_t ngrams_bytes(const struct ngrams *g)
{
    return g->head ? 2 * ((size_t)g->mask + 1) * sizeof *g->head : 0;
}

/* of the n-gram whose last token is at `pos` */
static uint32_t hash_at(const struct ngrams *g, const int32_t *tokens, int pos)
{
    uint64_t h = 0;
    for (int i = pos - NGRAM + 1; i <= pos; i++) h = rng_mix(h ^ (uint64_t)(uint32_t)tokens[i]);
    return (uint32_t)h & g->mask;
}

bool ngrams_add(struct ngrams *g, const int32_t *tokens, int n)
{
    int end = n;
    if (n - g->n > (int)g->mask) g->n = n - (int)g->mask; /* earlier ones would be forgotten at once */
    if (end - g->n > NGRAMS_ADD) end = g->n + NGRAMS_ADD;
    for (int pos = g->n; pos < end; pos++) {
        if (pos < NGRAM - 1) continue;
        int32_t *head = &g->head[hash_at(g, tokens, pos)];
        g->prev[(uint32_t)pos & g->mask] = *head;
        *head = pos + 1;
    }
    g->n = end;
    return end == n;
}

/* @return how many tokens up to a[i] equal those up to b[k], at most NGRAMS_AGREE. */
static int agreement(const int32_t *a, int i, const int32_t *b, int k)
{
    int n = 0;
    while (n < NGRAMS_AGREE && n <= i && n <= k && a[i - n] == b[k - n]) n++;
    return n;
}

int ngrams_propose(const struct ngrams *g, const int32_t *tokens, int n, int most, int32_t *out, int *agreed)
{
    int last = n - 1, best = -1, best_len = NGRAM - 1;
    if (n < NGRAM || g->n != n || most <= 0) return 0;
    int at = g->prev[(uint32_t)last & g->mask] - 1;
    for (int i = 0; i < PLACES && at >= 0 && last - at <= (int)g->mask; i++) {
        int len = agreement(tokens, at, tokens, last);
        if (len > best_len) best = at, best_len = len;
        int before = g->prev[(uint32_t)at & g->mask] - 1;
        if (before >= at) break; /* its place in the ring was taken by a later token */
        at = before;
    }
    if (best < 0) return 0;
    *agreed = best_len;
    /* Past the end of the text it repeats itself: a period goes on. */
    for (int i = 0; i < most; i++) out[i] = best + 1 + i < n ? tokens[best + 1 + i] : out[best + 1 + i - n];
    return most;
}

int ngrams_propose_from(const struct ngrams *g, const int32_t *text, int m, const int32_t *tokens, int n, int most,
                        int32_t *out, int *agreed)
{
    int best = -1, best_len = NGRAM - 1, k = 0;
    if (n < NGRAM || g->n != m || most <= 0) return 0;
    int at = g->head[hash_at(g, tokens, n - 1)] - 1;
    for (int i = 0; i < PLACES && at >= 0 && m - 1 - at <= (int)g->mask; i++) {
        int len = agreement(text, at, tokens, n - 1);
        if (len > best_len) best = at, best_len = len;
        int before = g->prev[(uint32_t)at & g->mask] - 1;
        if (before >= at) break;
        at = before;
    }
    *agreed = best_len;
    for (; best >= 0 && k < most && best + 1 + k < m && text[best + 1 + k] >= 0; k++) out[k] = text[best + 1 + k];
    return k;
}
