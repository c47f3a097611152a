/* The decoder (decode.h).
 *
 * Decoding a list runs each step over all of it, as the format defines.  A stream cannot: it keeps only the bytes of an
 * unfinished character, so the steps a file may have are limited, when it is read, to those that need no more:
 *   per-token steps, ByteFallback, Replace or Metaspace, then Fuse or ByteLevel, then a Strip of the front.
 * Both give the same text, except for a run of byte tokens that is not valid UTF-8: in a list every byte of it is
 * replaced by U+FFFD, while a stream has already emitted its complete characters. */
#include "engine/tokenizer/decode.h"

#include "engine/base/mem.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/text.h"

#include <stdlib.h>
#include <string.h>

enum { CONTENT_MAX = 256, STRIP_MAX = 16, STRIP_OVER = 255 };

static const char bad[] = "\xef\xbf\xbd"; /* U+FFFD */

/* --- reading ------------------------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    enum decoder_kind kind;
} kinds[] = {
    {"Replace", DECODE_REPLACE},     {"Strip", DECODE_STRIP},
    {"Metaspace", DECODE_METASPACE}, {"ByteFallback", DECODE_BYTE_FALLBACK},
    {"Fuse", DECODE_FUSE},           {"ByteLevel", DECODE_BYTE_LEVEL},
    {"WordPiece", DECODE_WORDPIECE},
};

static int content_read(struct decoder_step *step, const struct json_at *at, struct err *e)
{
    const char *s;
    int rc = json_string(at, "content", &s, e);
    if (rc) return rc;
    struct json_at m = json_member(at, "content");
    if (strlen(s) > CONTENT_MAX) return json_fail(&m, e, ERR_INVALID, "longer than %d bytes", CONTENT_MAX);
    uint32_t c;
    if (step->kind == DECODE_STRIP && (!*s || s[utf8_get(s, &c)]))
        return json_fail(&m, e, ERR_INVALID, "must be one character");
    step->content = mem_strdup(s);
    return 0;
}

static int wordpiece_read(struct decoder_step *step, const struct json_at *at, struct err *e)
{
    const char *prefix;
    struct json_at m = json_member(at, "prefix");
    int rc = json_string_or(at, "prefix", "##", &prefix, e);
    if (!rc) rc = json_bool_or(at, "cleanup", true, &step->cleanup, e);
    if (rc) return rc;
    if (strlen(prefix) > CONTENT_MAX) return json_fail(&m, e, ERR_INVALID, "longer than %d bytes", CONTENT_MAX);
    step->content = mem_strdup(prefix);
    return 0;
}

static int step_read(struct decoder_step *step, const struct json_at *at, struct err *e)
{
    struct json_at start = json_member(at, "start"), stop = json_member(at, "stop");
    struct json_at pattern = json_member(at, "pattern");
    const char *literal;
    int rc = 0;
    switch (step->kind) {
    case DECODE_REPLACE:
        rc = regex_read(at, "pattern", &step->regex, e);
        if (!rc) rc = json_string_or(&pattern, "String", "", &literal, e);
        if (rc) return rc;
        if (*literal) step->literal = mem_strdup(literal);
        return content_read(step, at, e);
    case DECODE_STRIP:
        rc = content_read(step, at, e);
        if (!rc) rc = json_integer(&start, STRIP_MAX, &step->start, e);
        return rc ? rc : json_integer(&stop, STRIP_MAX, &step->stop, e);
    case DECODE_METASPACE: return metaspace_read(at, step->mark, &step->scheme, e);
    case DECODE_WORDPIECE: return wordpiece_read(step, at, e);
    default: return 0;
    }
}

/* Whether a stream can apply the steps: see the top of this file. */
static int step_place(struct decoder *z, const struct decoder_step *step, const struct json_at *at, struct err *e)
{
    bool fused = z->fused != SIZE_MAX;
    bool ok = !fused;
    switch (step->kind) {
    case DECODE_FUSE: ok = true; break;
    case DECODE_STRIP: ok = fused ? !step->stop && z->fused == z->n - 1 : !z->fallback; break;
    case DECODE_BYTE_FALLBACK:
        ok = !fused && !z->fallback;
        z->fallback = true;
        break;
    case DECODE_BYTE_LEVEL: ok = !fused && !z->fallback; break;
    default: break;
    }
    if (!ok) return json_fail(at, e, ERR_UNSUPPORTED, "this decoder step is not read in this place");
    if (!fused && (step->kind == DECODE_FUSE || step->kind == DECODE_BYTE_LEVEL)) z->fused = z->n;
    return 0;
}

static int decoder_read_into(void *arg, const struct json_at *at, struct err *e)
{
    struct decoder *z = arg;
    const char *type;
    int rc = json_type(at, &type, e);
    if (rc) return rc;
    if (!strcmp(type, "Sequence")) return json_each(at, "decoders", decoder_read_into, z, e);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        if (strcmp(type, kinds[k].name)) continue;
        if (kinds[k].kind == DECODE_FUSE && z->fused != SIZE_MAX) return 0; /* fusing one string changes nothing */
        mem_grow(&z->steps, &z->cap, z->n + 1, sizeof *z->steps);
        struct decoder_step *step = &z->steps[z->n++];
        *step = (struct decoder_step){.kind = kinds[k].kind};
        rc = step_read(step, at, e);
        return rc ? rc : step_place(z, step, at, e);
    }
    return json_fail(at, e, ERR_UNSUPPORTED, "decoder type \"%.40s\" is not known", type);
}

int decoder_read(struct decoder *z, const struct json_at *at, struct err *e)
{
    z->fused = SIZE_MAX;
    z->none = !at->v;
    int rc = z->none ? 0 : decoder_read_into(z, at, e);
    if (z->fused == SIZE_MAX) z->fused = z->n;
    return rc;
}

void decoder_free(struct decoder *z)
{
    for (size_t i = 0; i < z->n; i++) {
        regex_free(z->steps[i].regex);
        free(z->steps[i].content);
        free(z->steps[i].literal);
    }
    free(z->steps);
    *z = (struct decoder){0};
}

/* --- one string --------------------------------------------------------------------------------------------------- */

void strings_add(struct strings *x, const char *s, size_t n)
{
    buf_append(&x->text, s, n);
    mem_grow(&x->ends, &x->cap, x->n + 1, sizeof *x->ends);
    x->ends[x->n++] = x->text.len;
}

void strings_free(struct strings *x)
{
    buf_free(&x->text);
    free(x->ends);
    *x = (struct strings){0};
}

/* A stream replaces in every token: for the usual plain text, setting up a regex each time would cost more. */
static void replace_literal(const char *literal, const char *content, const char *s, size_t n, struct buf *out)
{
    size_t k = strlen(literal);
    for (const char *hit; (hit = memmem(s, n, literal, k)) != NULL;) {
        buf_append(out, s, (size_t)(hit - s));
        buf_str(out, content);
        n -= (size_t)(hit - s) + k;
        s = hit + k;
    }
    buf_append(out, s, n);
}

static void replace(const struct decoder_step *step, struct regex_run *run, const char *s, size_t n, struct buf *out)
{
    struct regex_scan scan = {.s = s, .n = n};
    size_t done = 0;
    while (n && regex_next(step->regex, run, &scan, NULL) > 0) {
        buf_append(out, s + done, scan.start - done);
        buf_str(out, step->content);
        done = scan.end;
    }
    buf_append(out, s + done, n - done);
}

static void strip(const struct decoder_step *step, const char *s, size_t n, struct buf *out)
{
    size_t k = strlen(step->content);
    for (int32_t i = 0; i < step->start && n >= k && !memcmp(s, step->content, k); i++) s += k, n -= k;
    for (int32_t i = 0; i < step->stop && n >= k && !memcmp(s + n - k, step->content, k); i++) n -= k;
    buf_append(out, s, n);
}

static void metaspace(const struct decoder_step *step, bool first, const char *s, size_t n, struct buf *out)
{
    size_t k = strlen(step->mark);
    bool drop = first && step->scheme != PREPEND_NEVER;
    for (size_t i = 0; i < n;) {
        if (n - i >= k && !memcmp(s + i, step->mark, k)) {
            if (!drop) buf_char(out, ' ');
            i += k;
        } else {
            buf_char(out, s[i++]);
        }
    }
}

/* What BERT's decoding tidies up within a token, in this order. */
static const char *const tidied[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};

static void wordpiece(const struct decoder_step *step, bool first, const char *s, size_t n, struct buf *out)
{
    struct buf a = {0}, b = {0};
    size_t k = strlen(step->content);
    if (!first && n >= k && !memcmp(s, step->content, k))
        s += k, n -= k;
    else if (!first)
        buf_char(&a, ' ');
    buf_append(&a, s, n);
    for (size_t i = 0; step->cleanup && i < sizeof tidied / sizeof *tidied; i++) {
        buf_clear(&b);
        replace_literal(tidied[i][0], tidied[i][1], a.data, a.len, &b);
        struct buf swap = a;
        a = b;
        b = swap;
    }
    if (a.len) buf_append(out, a.data, a.len);
    buf_free(&a);
    buf_free(&b);
}

/* The byte a spelling such as "<0x0A>" stands for, or -1. */
static int fallback_byte(const char *s, size_t n)
{
    if (n != 6 || memcmp(s, "<0x", 3) || s[5] != '>') return -1;
    int byte = 0;
    for (int i = 3; i < 5; i++) {
        char c = s[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        /* the reference reads the two digits as a number, and lets it have a sign */
        if (digit < 0 && !(i == 3 && c == '+')) return -1;
        byte = byte * 16 + (digit < 0 ? 0 : digit);
    }
    return byte;
}

/* The bytes a byte-level spelling stands for; one with other characters stands for itself. */
static void byte_level(const char *s, size_t n, struct buf *out)
{
    size_t before = out->len;
    for (size_t i = 0; i < n;) {
        uint32_t c;
        i += utf8_get(s + i, &c);
        int byte = byte_level_byte(c);
        if (byte < 0) {
            out->len = before;
            buf_append(out, s, n);
            return;
        }
        buf_char(out, (char)byte);
    }
}

static void step_one(const struct decoder_step *step, struct regex_run *run, bool first, const char *s, size_t n,
                     struct buf *out)
{
    switch (step->kind) {
    case DECODE_REPLACE:
        if (step->literal)
            replace_literal(step->literal, step->content, s, n, out);
        else
            replace(step, run, s, n, out);
        break;
    case DECODE_STRIP: strip(step, s, n, out); break;
    case DECODE_METASPACE: metaspace(step, first, s, n, out); break;
    case DECODE_WORDPIECE: wordpiece(step, first, s, n, out); break;
    default: buf_append(out, s, n);
    }
}

/* --- a list ------------------------------------------------------------------------------------------------------- */

static void lossy(const char *s, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n;) {
        int step = utf8_step(s + i, n - i);
        if (step > 0)
            buf_append(out, s + i, (size_t)step), i += (size_t)step;
        else
            buf_str(out, bad), i += step ? (size_t)-step : n - i;
    }
}

static bool is_utf8(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        int step = utf8_step(s + i, n - i);
        if (step <= 0) return false;
        i += (size_t)step;
    }
    return true;
}

static void bytes_end(struct buf *bytes, struct strings *out)
{
    if (!bytes->len) return;
    if (is_utf8(bytes->data, bytes->len))
        strings_add(out, bytes->data, bytes->len);
    else
        for (size_t i = 0; i < bytes->len; i++) strings_add(out, bad, 3);
    buf_clear(bytes);
}

static void step_list(const struct decoder_step *step, struct regex_run *run, const struct strings *in,
                      struct strings *out)
{
    struct buf bytes = {0};
    for (size_t i = 0, at = 0; i < in->n; at = in->ends[i++]) {
        const char *s = in->text.data + at;
        size_t n = in->ends[i] - at; /* NOLINT(clang-analyzer-unix.Malloc): the new list has its own */
        int byte = step->kind == DECODE_BYTE_FALLBACK ? fallback_byte(s, n) : -1;
        if (byte >= 0) {
            buf_char(&bytes, (char)byte);
        } else {
            bytes_end(&bytes, out);
            buf_clear(&bytes);
            step_one(step, run, i == 0, s, n, &bytes);
            strings_add(out, bytes.data, bytes.len);
            buf_clear(&bytes);
        }
    }
    bytes_end(&bytes, out);
    buf_free(&bytes);
}

/* FUSE and BYTE_LEVEL make one string of the list. */
static void step_fuse(const struct decoder_step *step, const struct strings *in, struct strings *out)
{
    if (step->kind == DECODE_FUSE) {
        strings_add(out, in->text.data ? in->text.data : "", in->text.len);
        return;
    }
    struct buf bytes = {0}, text = {0};
    for (size_t i = 0, at = 0; i < in->n; at = in->ends[i++]) byte_level(in->text.data + at, in->ends[i] - at, &bytes);
    lossy(bytes.data, bytes.len, &text);
    strings_add(out, text.data ? text.data : "", text.len);
    buf_free(&bytes);
    buf_free(&text);
}

void decoder_run(const struct decoder *z, struct strings *list, struct buf *out)
{
    if (z->none) {
        for (size_t i = 0, at = 0; i < list->n; at = list->ends[i++]) {
            if (i) buf_char(out, ' ');
            buf_append(out, list->text.data + at, list->ends[i] - at);
        }
        return;
    }
    struct regex_run run = {0};
    for (size_t i = 0; i < z->n; i++) {
        struct strings next = {0};
        if (z->steps[i].kind == DECODE_FUSE || z->steps[i].kind == DECODE_BYTE_LEVEL)
            step_fuse(&z->steps[i], list, &next);
        else
            step_list(&z->steps[i], &run, list, &next);
        strings_free(list);
        *list = next;
    }
    regex_run_free(&run);
    if (list->text.len) buf_append(out, list->text.data, list->text.len);
}

/* --- a stream ----------------------------------------------------------------------------------------------------- */

/* Emits complete text; a Strip after a Fuse applies to the beginning of the stream. */
static void stream_emit(const struct decoder *z, struct detok *d, const char *s, size_t n, struct buf *out)
{
    const struct decoder_step *step = z->fused < z->n ? &z->steps[z->fused] : NULL; /* a Strip: step_place */
    if (step && !d->mid_context && d->n_stripped != STRIP_OVER) {
        size_t k = strlen(step->content);
        while (n >= k && d->n_stripped < step->start && !memcmp(s, step->content, k)) {
            s += k;
            n -= k;
            d->n_stripped++;
        }
        if (n) d->n_stripped = STRIP_OVER;
    }
    buf_append(out, s, n);
}

/* Removes complete characters, and bytes that cannot become one, from d->pending. */
static void stream_drain(const struct decoder *z, struct detok *d, bool end, struct buf *out)
{
    while (d->n_pending) {
        char *s = (char *)d->pending;
        int step = utf8_step(s, d->n_pending);
        if (!step && !end) return;
        int taken = step > 0 ? step : step ? -step : d->n_pending;
        if (step > 0)
            stream_emit(z, d, s, (size_t)step, out);
        else /* ByteFallback marks each bad byte, ByteLevel each bad sequence */
            for (int i = 0; i < (z->fallback ? taken : 1); i++) stream_emit(z, d, bad, 3, out);
        d->n_pending = (uint8_t)(d->n_pending - taken);
        memmove(s, s + taken, d->n_pending);
    }
}

static void stream_byte(const struct decoder *z, struct detok *d, char byte, struct buf *out)
{
    d->pending[d->n_pending++] = (unsigned char)byte; /* at most 3 bytes are pending, so there is space */
    stream_drain(z, d, false, out);
}

/* The steps up to the fusing one, over one token; in and out are swapped after each step. */
static struct buf *stream_steps(const struct decoder *z, bool first, struct buf *in, struct buf *out, int *byte)
{
    struct regex_run run = {0};
    *byte = -1;
    for (size_t i = 0; i < z->fused && *byte < 0; i++) {
        if (z->steps[i].kind == DECODE_BYTE_FALLBACK) {
            *byte = fallback_byte(in->data, in->len);
            continue;
        }
        buf_clear(out);
        step_one(&z->steps[i], &run, first, in->data, in->len, out);
        struct buf *swap = in;
        in = out;
        out = swap;
    }
    regex_run_free(&run);
    return in;
}

void decoder_push(const struct decoder *z, struct detok *d, const char *s, size_t n, struct buf *out)
{
    bool first = !d->started && !d->mid_context;
    d->started = true;
    if (z->none) {
        if (!first) buf_char(out, ' ');
        buf_append(out, s, n);
        return;
    }
    struct buf a = {0}, b = {0};
    int byte;
    buf_append(&a, s, n);
    struct buf *text = stream_steps(z, first, &a, &b, &byte);
    if (byte >= 0) {
        stream_byte(z, d, (char)byte, out);
    } else if (z->fused && z->steps[z->fused - 1].kind == DECODE_BYTE_LEVEL) {
        struct buf *bytes = text == &a ? &b : &a;
        buf_clear(bytes);
        byte_level(text->data, text->len, bytes);
        for (size_t i = 0; i < bytes->len; i++) stream_byte(z, d, bytes->data[i], out);
    } else {
        stream_drain(z, d, true, out);
        stream_emit(z, d, text->data, text->len, out);
    }
    buf_free(&a);
    buf_free(&b);
}

void decoder_bytes(const struct decoder *z, const char *s, size_t n, struct buf *out)
{
    if (z->none) {
        buf_char(out, ' ');
        buf_append(out, s, n);
        return;
    }
    struct buf a = {0}, b = {0};
    int byte;
    buf_append(&a, s, n);
    const struct buf *text = stream_steps(z, false, &a, &b, &byte);
    if (byte >= 0)
        buf_char(out, (char)byte);
    else if (z->fused && z->steps[z->fused - 1].kind == DECODE_BYTE_LEVEL)
        byte_level(text->data, text->len, out);
    else if (text->len)
        buf_append(out, text->data, text->len);
    buf_free(&a);
    buf_free(&b);
}

void decoder_flush(const struct decoder *z, struct detok *d, struct buf *out)
{
    stream_drain(z, d, true, out);
}
