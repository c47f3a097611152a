/* The text being tokenised (text.h), and UTF-8 helpers. */
#include "engine/tokenizer/text.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

unsigned utf8_get(const char *s, uint32_t *c)
{
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) return *c = p[0], 1;
    if (p[0] < 0xe0) return *c = (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu), 2;
    if (p[0] < 0xf0) return *c = (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu), 3;
    *c = (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
    return 4;
}

unsigned utf8_put(char *s, uint32_t c)
{
    if (c < 0x80) return s[0] = (char)c, 1;
    if (c < 0x800) {
        s[0] = (char)(0xc0 | c >> 6);
        s[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        s[0] = (char)(0xe0 | c >> 12);
        s[1] = (char)(0x80 | (c >> 6 & 0x3f));
        s[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    s[0] = (char)(0xf0 | c >> 18);
    s[1] = (char)(0x80 | (c >> 12 & 0x3f));
    s[2] = (char)(0x80 | (c >> 6 & 0x3f));
    s[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

int utf8_step(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4) return -1;
    int want = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    /* the second byte's range shuts out overlong forms, surrogates and what is past U+10FFFF */
    unsigned lo = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : 0x80;
    unsigned hi = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : 0xbf;
    for (int i = 1; i < want; i++, lo = 0x80, hi = 0xbf) {
        if ((size_t)i == n) return 0;
        if (p[i] < lo || p[i] > hi) return -i;
    }
    return want;
}

static bool text_room(struct text *t, size_t n)
{
    if (t->full || n > t->limit - t->n) return t->full = true, false;
    if (t->n + n > t->cap) {
        size_t cap = t->cap;
        mem_grow(&t->s, &cap, t->n + n, 1);
        t->cap = cap;
        t->at = mem_resize(t->at, cap, sizeof *t->at);
    }
    return true;
}

void text_add(struct text *t, const char *s, size_t n, struct span at)
{
    if (!n || !text_room(t, n)) return;
    memcpy(t->s + t->n, s, n);
    for (size_t i = 0; i < n; i++) t->at[t->n + i] = at;
    t->n += n;
}

void text_add_char(struct text *t, uint32_t c, struct span at)
{
    char s[4];
    text_add(t, s, utf8_put(s, c), at);
}

void text_copy(struct text *t, const struct text *from, size_t start, size_t end)
{
    size_t n = end - start;
    if (!n || !text_room(t, n)) return;
    memcpy(t->s + t->n, from->s + start, n);
    memcpy(t->at + t->n, from->at + start, n * sizeof *t->at);
    t->n += n;
}

void text_piece(struct text *t, size_t start, size_t end, int32_t id)
{
    if (start >= end || t->full) return;
    mem_grow(&t->pieces, &t->cap_pieces, t->n_pieces + 1, sizeof *t->pieces);
    t->pieces[t->n_pieces++] = (struct piece){(uint32_t)start, (uint32_t)end, id};
}

void text_decode(struct text *t, const char *s, size_t n)
{
    uint32_t k = 0; /* code points so far */
    for (size_t i = 0; i < n && !t->full; k++) {
        struct span at = {k, k + 1};
        int step = utf8_step(s + i, n - i);
        if (step > 0) {
            text_add(t, s + i, (size_t)step, at);
            i += (size_t)step;
        } else {
            text_add_char(t, 0xfffd, at);
            i += step ? (size_t)-step : n - i; /* a cut-off character at the end is one bad sequence */
        }
    }
    text_piece(t, 0, t->n, PIECE_OPEN);
}

void text_take_pieces(struct text *t, struct text *from)
{
    struct piece *pieces = t->pieces;
    size_t cap = t->cap_pieces;
    t->pieces = from->pieces;
    t->n_pieces = from->n_pieces;
    t->cap_pieces = from->cap_pieces;
    from->pieces = pieces;
    from->cap_pieces = cap;
}

void text_clear(struct text *t)
{
    t->n = t->n_pieces = 0;
    t->full = false;
}

void text_free(struct text *t)
{
    free(t->s);
    free(t->at);
    free(t->pieces);
    *t = (struct text){0};
}
