/* A text being tokenised: bytes, for each byte the characters of the caller's text that it came from, and the pieces
 * into which the bytes have been split.  One encode call owns two of these and passes the text back and forth between
 * them. */
#ifndef TANDEM_ENGINE_TOKENIZER_TEXT_H
#define TANDEM_ENGINE_TOKENIZER_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct span {
    uint32_t start, end; /* code points of the caller's text */
};

enum { PIECE_OPEN = -1 };

struct piece {
    uint32_t start, end; /* bytes of text.s */
    int32_t id;          /* an added token, or PIECE_OPEN: still to be split or encoded */
};

struct text {
    char *s;         /* valid UTF-8, owned, may hold NULs */
    struct span *at; /* (n) where each byte came from */
    size_t n, cap;
    struct piece *pieces; /* in order; bytes between two pieces are dropped */
    size_t n_pieces, cap_pieces;
    size_t limit; /* maximum of n: a file's rules must not expand a text without bound */
    bool full;    /* the limit was reached */
};

/* Fills an empty text; bad UTF-8 becomes U+FFFD, one per maximal bad sequence; one open piece holds it all. */
void text_decode(struct text *t, const char *s, size_t n);
void text_add(struct text *t, const char *s, size_t n, struct span at);            /* n bytes, all from `at` */
void text_add_char(struct text *t, uint32_t c, struct span at);                    /* one code point from `at` */
void text_copy(struct text *t, const struct text *from, size_t start, size_t end); /* bytes with their spans */
void text_piece(struct text *t, size_t start, size_t end, int32_t id);             /* an empty piece is not kept */
void text_take_pieces(struct text *t, struct text *from); /* t's pieces become from's; from keeps t's memory */
void text_clear(struct text *t);                          /* keeps memory and limit */
void text_free(struct text *t);

/* One code point of valid UTF-8 at s; returns its length in bytes. */
unsigned utf8_get(const char *s, uint32_t *c);
unsigned utf8_put(char *s, uint32_t c);

/* Length of the maximal sequence at s[0, n), n > 0: > 0 when it is one valid character, < 0 when that many bytes are
 * bad and count as one U+FFFD, 0 when the bytes are the start of a character that n cuts off. */
int utf8_step(const char *s, size_t n);

#endif
