#include "engine/grammar/force.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { FORCE_MAX = 256 }; /* bytes at once */

/* The bytes that must follow a state. */
struct stretch {
    char text[1 + FORCE_MAX]; /* text[0]: a line feed, which `forced` may begin with */
    int32_t state[FORCE_MAX + 1];
    size_t n;
    bool last; /* nothing can follow these bytes */
};

static void follow(struct gram_automaton *a, int32_t state, struct stretch *s)
{
    int byte;
    s->text[0] = '\n';
    s->state[0] = state;
    while (s->n < FORCE_MAX && (byte = gram_only_byte(a, s->state[s->n])) >= 0) {
        int32_t to = gram_next(a, s->state[s->n], (uint8_t)byte);
        if (to < 0) break;
        s->text[1 + s->n++] = (char)byte;
        s->state[s->n] = to;
    }
    s->last = gram_ends(a, s->state[s->n]);
}

/* The number of tokens from v on that spell the stretch's beginning and may be forced; *bytes: their length. */
static size_t take(const struct token_trie *t, const struct stretch *s, const struct token *v, size_t n, size_t *bytes)
{
    const char *text = s->text + 1;
    size_t k = 0;
    for (*bytes = 0; k < n; k++) {
        size_t len, left = s->n - *bytes;
        const unsigned char *spelled = token_trie_bytes(t, v[k].id, &len);
        if (len == 0 || len > left || memcmp(spelled, text + *bytes, len) != 0) break;
        if (!s->last && token_trie_longer(t, (const unsigned char *)text + *bytes, left)) break;
        *bytes += len;
    }
    return k;
}

/* Encodes the stretch.  For a tokenizer that adds a space before a text, a line feed is put before it. */
static struct gram_forced *spell(const struct token_trie *t, const struct tokenizer *z, const struct stretch *s)
{
    struct gram_forced *f = NULL;
    for (size_t before = 0; before < 2 && !f; before++) {
        struct tokens all = {0};
        struct err e = {0};
        size_t first = 0, bytes = 0, n = 0;
        if (tokenizer_encode(z, s->text + 1 - before, s->n + before, 0, &all, &e) == 0) {
            while (first < all.n && all.v[first].start < before) first++;
            n = take(t, s, all.v + first, all.n - first, &bytes);
        }
        if (n) {
            f = mem_alloc(sizeof *f + n * sizeof *f->ids);
            *f = (struct gram_forced){.to = s->state[bytes], .n = (int)n};
            for (size_t i = 0; i < n; i++) f->ids[i] = all.v[first + i].id;
        }
        tokens_free(&all);
    }
    return f;
}

int grammar_force(const struct token_trie *t, const struct tokenizer *z, struct gram_automaton *a, int32_t state,
                  const struct gram_forced **out)
{
    if ((*out = gram_forced_of(a, state))) return 1;
    struct gram_forced *f = NULL;
    if (gram_only_byte(a, state) >= 0) {
        struct stretch s;
        if (gram_hurries(a)) return GRAM_LATER;
        s.n = 0;
        follow(a, state, &s);
        if (s.n) f = spell(t, z, &s);
    }
    *out = gram_forced_store(a, state, f);
    return 1;
}
