/* The byte gate in front of llhttp.  Pure; owns nothing.
 *
 * Request smuggling exploits parsers that disagree about one byte stream, so nothing ambiguous is passed to llhttp:
 * lines end in CRLF and only there, a header line is `token:` and printable bytes, nothing is folded, a chunk size is
 * hexadecimal digits.  llhttp (whose tolerance differs between versions and build flags) then only sees what every
 * parser reads the same way.  The gate also finds the end of the head and of a chunked body, so that llhttp is never
 * fed a byte of the next request, and enforces limits: on header lines, on head bytes, on body bytes announced by chunk
 * sizes. */
#include "server/net/wire.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum {
    AT_FIRST, /* the request line has not begun; empty lines before it are skipped (RFC 9112 2.2) */
    AT_FIRST_LF,
    AT_REQUEST,
    AT_REQUEST_LF,
    AT_NAME_FIRST, /* the first byte of a header line, or of the empty line that ends them */
    AT_NAME,
    AT_VALUE,
    AT_VALUE_LF,
    AT_END_LF,
    AT_SIZE,
    AT_EXTENSION,
    AT_SIZE_LF,
    AT_DATA,
    AT_DATA_CR,
    AT_DATA_LF,
};

void wire_begin_head(struct wire *w, uint64_t limit)
{
    *w = (struct wire){.state = AT_FIRST, .limit = limit};
}

void wire_begin_chunks(struct wire *w, uint64_t limit, uint64_t body_limit)
{
    *w = (struct wire){.state = AT_SIZE, .limit = limit, .room = body_limit};
}

__attribute__((format(printf, 3, 4))) static enum wire_result bad(struct wire *w, int status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(w->fault, sizeof w->fault, fmt, ap);
    va_end(ap);
    w->status = status;
    return WIRE_BAD;
}

static enum wire_result go(struct wire *w, int state)
{
    w->state = state;
    return WIRE_MORE;
}

static bool is_token(unsigned char ch)
{
    if ((ch | 32) >= 'a' && (ch | 32) <= 'z') return true;
    if (ch >= '0' && ch <= '9') return true;
    return ch && strchr("!#$%&'*+-.^_`|~", ch);
}

static bool is_text(unsigned char ch)
{
    return (ch >= 0x20 && ch != 0x7f) || ch == '\t';
}

static enum wire_result expect_lf(struct wire *w, unsigned char ch, int next)
{
    return ch == '\n' ? go(w, next) : bad(w, 400, "a carriage return must be followed by a line feed");
}

/* Counts a byte of framing. */
static enum wire_result count(struct wire *w)
{
    if (++w->framing <= w->limit) return WIRE_MORE;
    if (w->state <= AT_REQUEST_LF)
        return bad(w, 414, "the request line is longer than %llu bytes", (unsigned long long)w->limit);
    return bad(w, 431, "the headers are longer than %llu bytes", (unsigned long long)w->limit);
}

/* Checked at once: a client of another protocol that sends one line and waits should not have to wait for the
 * timeout. */
static enum wire_result end_request_line(struct wire *w)
{
    if (w->spaces == 2) return go(w, AT_REQUEST_LF);
    return bad(w, 400, "the request line must be: method, space, target, space, version");
}

static enum wire_result scan_request_line(struct wire *w, unsigned char ch)
{
    switch (w->state) {
    case AT_FIRST:
        if (ch == '\r') return go(w, AT_FIRST_LF);
        if (ch == 0x16) return bad(w, 400, "this port speaks plain HTTP, not TLS");
        if (!is_token(ch)) return bad(w, 400, "byte 0x%02x cannot begin a request", ch);
        return go(w, AT_REQUEST);
    case AT_FIRST_LF: return expect_lf(w, ch, AT_FIRST);
    case AT_REQUEST:
        if (ch == '\r') return end_request_line(w);
        w->spaces += ch == ' ';
        if (ch < 0x20 || ch > 0x7e) return bad(w, 400, "byte 0x%02x in the request line", ch);
        return WIRE_MORE;
    default: return expect_lf(w, ch, AT_NAME_FIRST);
    }
}

static enum wire_result scan_header_line(struct wire *w, unsigned char ch)
{
    switch (w->state) {
    case AT_NAME_FIRST:
        if (ch == '\r') return go(w, AT_END_LF);
        if (ch == ' ' || ch == '\t') return bad(w, 400, "a header line must not begin with white space");
        if (!is_token(ch)) return bad(w, 400, "byte 0x%02x cannot begin a header line", ch);
        if (++w->lines > HTTP_MAX_HEADERS) return bad(w, 431, "more than %d headers", HTTP_MAX_HEADERS);
        return go(w, AT_NAME);
    case AT_NAME:
        if (ch == ':') return go(w, AT_VALUE);
        if (!is_token(ch)) return bad(w, 400, "byte 0x%02x in a header name", ch);
        return WIRE_MORE;
    case AT_VALUE:
        if (ch == '\r') return go(w, AT_VALUE_LF);
        if (!is_text(ch)) return bad(w, 400, "byte 0x%02x in a header value", ch);
        return WIRE_MORE;
    case AT_VALUE_LF: return expect_lf(w, ch, AT_NAME_FIRST);
    default: return ch == '\n' ? WIRE_DONE : expect_lf(w, ch, AT_END_LF);
    }
}

static enum wire_result end_of_size(struct wire *w)
{
    if (!w->digits) return bad(w, 400, "a chunk must begin with its size in hexadecimal");
    if (w->chunk > w->room) return bad(w, 413, "the body is larger than the limit");
    return go(w, AT_SIZE_LF);
}

static int hex_digit(unsigned char ch)
{
    if (ch >= '0' && ch <= '9') return ch - '0';
    ch |= 32;
    return ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : -1;
}

static enum wire_result scan_size(struct wire *w, unsigned char ch)
{
    if (ch == '\r') return end_of_size(w);
    int digit = hex_digit(ch);
    if (digit < 0) return bad(w, 400, "byte 0x%02x in a chunk size", ch);
    if (++w->digits > 16) return bad(w, 400, "a chunk size has more than 16 digits");
    w->chunk = w->chunk * 16 + (uint64_t)digit;
    return WIRE_MORE;
}

static enum wire_result scan_chunk(struct wire *w, unsigned char ch)
{
    switch (w->state) {
    case AT_SIZE: return scan_size(w, ch);
    case AT_EXTENSION:
        if (!is_text(ch)) return bad(w, 400, "byte 0x%02x in a chunk extension", ch);
        return count(w);
    case AT_SIZE_LF: w->room -= w->chunk; return expect_lf(w, ch, w->chunk ? AT_DATA : AT_NAME_FIRST);
    case AT_DATA_CR: return ch == '\r' ? go(w, AT_DATA_LF) : bad(w, 400, "a chunk is longer than its size");
    default: w->digits = 0; return expect_lf(w, ch, AT_SIZE);
    }
}

/* Chunk extensions are hidden from llhttp: version 8 refuses good ones ("3;a=b;c=d").  @return whether an extension
 * begins or ends at this byte. */
static bool hide_or_show(struct wire *w, unsigned char ch)
{
    if (w->state == AT_SIZE && ch == ';' && w->digits) {
        w->state = AT_EXTENSION;
        return true;
    }
    if (w->state == AT_EXTENSION && ch == '\r') {
        w->state = AT_SIZE;
        return true;
    }
    return false;
}

enum wire_result wire_scan(struct wire *w, const char *p, size_t n, size_t *used)
{
    size_t i = 0;
    enum wire_result result = WIRE_MORE;
    w->hidden = w->state == AT_EXTENSION;
    while (i < n && result == WIRE_MORE) {
        if (w->state == AT_DATA) {
            size_t take = w->chunk < n - i ? (size_t)w->chunk : n - i;
            i += take;
            w->chunk -= take;
            if (!w->chunk) w->state = AT_DATA_CR;
            continue;
        }
        unsigned char ch = (unsigned char)p[i];
        if (hide_or_show(w, ch)) break;
        i++;
        if (w->state >= AT_SIZE) {
            result = scan_chunk(w, ch);
            continue;
        }
        result = count(w);
        if (result == WIRE_MORE)
            result = w->state <= AT_REQUEST_LF ? scan_request_line(w, ch) : scan_header_line(w, ch);
    }
    *used = i;
    return result;
}
