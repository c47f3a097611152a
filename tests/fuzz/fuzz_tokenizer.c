/* libFuzzer: a tokenizer.json, a NUL, and a text (without one, the file's own bytes are the text).  What is accepted
 * must encode, decode and stream; the stream must never cut a character. */
#include "engine/base/check.h"
#include "engine/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Whole UTF-8 characters only; a sketch is enough, as no invalid byte may come out at all. */
static void check_whole(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        size_t len = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
        CHECK(len && len <= n - i);
        for (size_t k = 1; k < len; k++) CHECK(((unsigned char)s[i + k] & 0xc0) == 0x80);
        i += len;
    }
}

static void decode_all(const struct tokenizer *t, const struct tokens *tokens)
{
    struct buf whole = {0}, piece = {0};
    int32_t *ids = malloc((tokens->n + 4) * sizeof *ids);
    size_t n = 0;
    for (; n < tokens->n; n++) ids[n] = tokens->v[n].id;
    ids[n++] = -1;
    ids[n++] = tokenizer_size(t);
    ids[n++] = 0;
    ids[n++] = tokenizer_size(t) / 2;
    tokenizer_decode(t, ids, n, false, &whole);
    tokenizer_decode(t, ids, n, true, &whole);
    struct detok d = {.mid_context = tokens->n & 1};
    for (size_t i = 0; i < n; i++) {
        detok_push(&d, t, ids[i], &piece);
        check_whole(piece.data, piece.len);
        buf_clear(&piece);
    }
    detok_flush(&d, t, &piece);
    check_whole(whole.data, whole.len);
    check_whole(piece.data, piece.len);
    buf_free(&whole);
    buf_free(&piece);
    free(ids);
}

/* The text as one input and, cut in the middle, as a pair, with limits. */
static void inputs_encode(const struct tokenizer *t, const char *text, size_t n)
{
    for (unsigned k = 0; k < 12; k++) {
        struct encode_input in = {.text = text, .n_text = n, .max = k % 4 * 5, .cut_left = k & 1};
        in.cut = k / 4 == 1 ? CUT_FIRST : k / 4 == 2 ? CUT_SECOND : CUT_LONGEST;
        if (k & 2) {
            in.pair = text + n / 2;
            in.n_pair = n - n / 2;
            in.n_text = n / 2;
        }
        struct tokens tokens = {0};
        struct buf types = {0};
        struct err e = {0};
        if (tokenizer_encode_input(t, &in, TOKENIZE_SPECIAL, &tokens, &types, &e))
            CHECK(e.msg[0]);
        else
            CHECK(types.len == tokens.n && (!in.max || tokens.n <= in.max));
        tokens_free(&tokens);
        buf_free(&types);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - data) : size;
    const char *text = nul ? (const char *)nul + 1 : (const char *)data;
    size_t n_text = nul ? size - n - 1 : size;
    struct err e = {0};
    struct tokenizer *t = tokenizer_parse((const char *)data, n, &e);
    if (!t) {
        if (!e.msg[0]) abort(); /* an error without a sentence */
        return 0;
    }
    struct tokens tokens = {0};
    if (!tokenizer_encode(t, text, n_text, TOKENIZE_SPECIAL, &tokens, &e))
        for (size_t i = 0; i < tokens.n; i++) CHECK(tokens.v[i].start <= tokens.v[i].end && tokens.v[i].end <= n_text);
    else if (!e.msg[0])
        abort();
    decode_all(t, &tokens);
    tokens_free(&tokens);
    inputs_encode(t, text, n_text);
    tokenizer_close(t);
    return 0;
}
