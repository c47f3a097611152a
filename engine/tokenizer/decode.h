/* The decoder of a tokenizer.json: spellings back to text, at once or token by token. */
#ifndef TANDEM_ENGINE_TOKENIZER_DECODE_H
#define TANDEM_ENGINE_TOKENIZER_DECODE_H

#include "engine/base/buf.h"
#include "engine/tokenizer/json.h"
#include "engine/tokenizer/pretokenize.h"
#include "engine/tokenizer/regex.h"
#include "engine/tokenizer/tokenizer.h"

struct decoder {
    struct decoder_step {
        enum decoder_kind {
            DECODE_REPLACE,
            DECODE_STRIP,
            DECODE_METASPACE,
            DECODE_BYTE_FALLBACK,
            DECODE_FUSE,
            DECODE_BYTE_LEVEL,
            DECODE_WORDPIECE,
        } kind;
        struct regex *regex; /* REPLACE */
        char *literal;       /* REPLACE: the pattern where it is plain text, else NULL; owned */
        char *content;       /* REPLACE: what it puts; STRIP: what it takes, one character; WORDPIECE: the prefix */
        int32_t start, stop; /* STRIP: at most so many, on each side */
        char mark[5];        /* METASPACE */
        bool cleanup;        /* WORDPIECE */
        enum prepend_scheme scheme;
    } * steps;
    size_t n, cap;
    bool none;     /* the file has no decoder: spellings are joined by spaces */
    bool fallback; /* there is a BYTE_FALLBACK step */
    size_t fused;  /* steps from here on see one string: FUSE or BYTE_LEVEL is just before; n when there is none */
};

int decoder_read(struct decoder *z, const struct json_at *at, struct err *e);
void decoder_free(struct decoder *z);

/* Strings end to end; the decoding of a list of tokens works on these. */
struct strings {
    struct buf text;
    size_t *ends;
    size_t n, cap;
};

void strings_add(struct strings *x, const char *s, size_t n);
void strings_free(struct strings *x);

/* Runs all steps over the list and appends the result. */
void decoder_run(const struct decoder *z, struct strings *list, struct buf *out);

/* What a token behind others adds, in bytes. */
void decoder_bytes(const struct decoder *z, const char *s, size_t n, struct buf *out);

/* One more token of a stream, and its end. */
void decoder_push(const struct decoder *z, struct detok *d, const char *s, size_t n, struct buf *out);
void decoder_flush(const struct decoder *z, struct detok *d, struct buf *out);

#endif
