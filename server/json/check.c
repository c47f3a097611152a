/* The strict JSON validator.  Pure; any thread.
 *
 * cJSON is lenient (it accepts raw control characters, invalid UTF-8, "01", deep nesting, and truncates long numbers)
 * and stores every number as a double.  So the text is validated here first, by RFC 8259 and more strictly where two
 * parsers could disagree: NUL characters, unpaired surrogates and numbers beyond a double are refused.  Accepted text
 * is passed to cJSON with its big numbers wrapped as strings (check.h), so that 64-bit integers keep their value.
 *
 * Recursion is bounded by JSON_MAX_DEPTH. */
#include "server/json/check.h"

#include "server/json/path.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    const unsigned char *text;
    size_t n, at;
    size_t copied; /* text[0, copied) is in *out already */
    int depth;
    struct buf *out; /* NULL: only measure the text */
    struct json_size size;
    size_t most;                /* memory of the tree */
    size_t field, field_length; /* the top-level name being read */
    int code;                   /* of the error */
    struct err *e;
};

/* Memory of a cJSON node and of a string, as rounded up by the allocators: glibc adds at most 16 bytes to a node and
 * allocates at least 32, jemalloc's size classes are up to a quarter apart. */
enum { NODE = sizeof(cJSON) + 16, STRING = 32, NUMBER = 64 /* cJSON's copy of a number's text while parsing */ };

static bool read_value(struct reader *r);

size_t json_size_memory(const struct json_size *s)
{
    return NUMBER + s->values * NODE + s->strings * STRING + s->bytes + s->bytes / 4;
}

static bool fault(struct reader *r, size_t at, const char *what)
{
    r->code = err_set(r->e, ERR_INVALID, "malformed JSON at byte %zu: %s", at, what);
    return false;
}

/* Checks the tree's size after each value. */
static bool fits(struct reader *r)
{
    if (json_size_memory(&r->size) <= r->most) return true;
    int n = r->field_length > 60 ? 60 : (int)r->field_length;
    r->code = err_set(r->e, ERR_NOMEM,
                      "%.*s%sthe JSON needs more than the %zu bytes of memory that one body may take (a quarter of "
                      "--request-memory): %zu values up to byte %zu",
                      n, (const char *)r->text + r->field, n ? ": " : "", r->most, r->size.values, r->at);
    return false;
}

static void count_string(struct reader *r, size_t bytes)
{
    r->size.strings++;
    r->size.bytes += bytes;
}

/* @return the next byte, or -1 at the end. */
static int peek(const struct reader *r)
{
    return r->at < r->n ? r->text[r->at] : -1;
}

static void skip_space(struct reader *r)
{
    for (int ch = peek(r); ch == ' ' || ch == '\t' || ch == '\n' || ch == '\r'; ch = peek(r)) r->at++;
}

static bool is_digit(int ch)
{
    return ch >= '0' && ch <= '9';
}

int utf8_length(const unsigned char *p, size_t n)
{
    if (n == 0) return 0;
    if (p[0] < 0x80) return 1;
    /* Table 3-7 of the Unicode standard: the second byte's range is what excludes overlong forms and surrogates. */
    int len;
    unsigned low = 0x80, high = 0xbf;
    if (p[0] >= 0xc2 && p[0] <= 0xdf) {
        len = 2;
    } else if (p[0] >= 0xe0 && p[0] <= 0xef) {
        len = 3;
        if (p[0] == 0xe0) low = 0xa0;
        if (p[0] == 0xed) high = 0x9f;
    } else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
        len = 4;
        if (p[0] == 0xf0) low = 0x90;
        if (p[0] == 0xf4) high = 0x8f;
    } else {
        return 0;
    }
    if (n < (size_t)len || p[1] < low || p[1] > high) return 0;
    for (int i = 2; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
    }
    return len;
}

/* Reads four hexadecimal digits at r->at; @return -1 if absent. */
static int read_hex4(struct reader *r)
{
    int v = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        int ch = peek(r);
        if (is_digit(ch)) {
            v = v * 16 + (ch - '0');
        } else if ((ch | 32) >= 'a' && (ch | 32) <= 'f') {
            v = v * 16 + ((ch | 32) - 'a' + 10);
        } else {
            return -1;
        }
    }
    return v;
}

/* Valid JSON, which clients do send: the message quotes the string, so that they can find it. */
static bool refuse_nul(struct reader *r, size_t start)
{
    char path[JSON_PATH_MAX], what[JSON_PATH_MAX + 60];
    json_path((const char *)r->text, start, path);
    snprintf(what, sizeof what, "the NUL character (\\u0000) is not allowed%s%s", *path ? ", in " : "", path);
    return fault(r, start, what);
}

/* r->at is after the backslash. */
static bool read_escape(struct reader *r)
{
    size_t start = r->at - 1;
    int ch = peek(r);
    if (ch < 0) return fault(r, r->at, "the text ends inside a string");
    r->at++;
    if (ch != 'u') {
        return ch && strchr("\"\\/bfnrt", ch) ? true : fault(r, start, "unknown escape in a string");
    }
    int unit = read_hex4(r);
    if (unit < 0) return fault(r, start, "\\u needs four hexadecimal digits");
    if (unit == 0) return refuse_nul(r, start);
    if (unit >= 0xdc00 && unit <= 0xdfff) return fault(r, start, "unpaired surrogate");
    if (unit < 0xd800 || unit > 0xdbff) return true;
    if (r->n - r->at < 2 || r->text[r->at] != '\\' || r->text[r->at + 1] != 'u') {
        return fault(r, start, "unpaired surrogate");
    }
    r->at += 2;
    int second = read_hex4(r);
    return second >= 0xdc00 && second <= 0xdfff ? true : fault(r, start, "unpaired surrogate");
}

/* r->at is at the opening quote. */
static bool read_string(struct reader *r)
{
    size_t start = r->at;
    for (r->at++;;) {
        int ch = peek(r);
        if (ch < 0) return fault(r, r->at, "the text ends inside a string");
        if (ch < 0x20) return fault(r, r->at, "control character in a string: it must be escaped");
        if (ch == '"') break;
        if (ch == '\\') {
            r->at++;
            if (!read_escape(r)) return false;
            continue;
        }
        int len = utf8_length(r->text + r->at, r->n - r->at);
        if (!len) return fault(r, r->at, "the text is not valid UTF-8");
        r->at += (size_t)len;
    }
    r->at++;
    count_string(r, r->at - start);
    return true;
}

/* Wraps the literal text[start, r->at) for cJSON if a double might not represent it exactly.  15 significant digits
 * always fit; an exponent can add more (12345678901e9 is not exact), so those are wrapped too. */
static bool keep_literal(struct reader *r, size_t start)
{
    const char *literal = (const char *)r->text + start;
    size_t len = r->at - start;
    if (!json_literal_needed(literal, len)) return true;
    if (len > JSON_MAX_NUMBER) return fault(r, start, "number with too many digits");
    char copy[JSON_MAX_NUMBER + 1];
    memcpy(copy, literal, len);
    copy[len] = 0;
    if (!isfinite(strtod(copy, NULL))) return fault(r, start, "number out of range");
    count_string(r, len + 3);
    r->size.wrapped++;
    if (!r->out) return true;
    buf_append(r->out, r->text + r->copied, start - r->copied);
    buf_char(r->out, '"');
    buf_char(r->out, JSON_LITERAL_TAG);
    buf_append(r->out, literal, len);
    buf_char(r->out, '"');
    r->copied = r->at;
    return true;
}

static bool read_digits(struct reader *r, const char *otherwise)
{
    if (!is_digit(peek(r))) return fault(r, r->at, otherwise);
    while (is_digit(peek(r))) r->at++;
    return true;
}

static bool read_number(struct reader *r)
{
    size_t start = r->at;
    if (peek(r) == '-') r->at++;
    if (peek(r) == '0') {
        r->at++;
        if (is_digit(peek(r))) return fault(r, start, "number with a leading zero");
    } else if (!read_digits(r, "expected a digit")) {
        return false;
    }
    if (peek(r) == '.') {
        r->at++;
        if (!read_digits(r, "expected a digit after the decimal point")) return false;
    }
    if (peek(r) == 'e' || peek(r) == 'E') {
        r->at++;
        if (peek(r) == '+' || peek(r) == '-') r->at++;
        if (!read_digits(r, "expected a digit in the exponent")) return false;
    }
    return keep_literal(r, start);
}

static bool read_word(struct reader *r, const char *word)
{
    size_t len = strlen(word);
    if (r->n - r->at < len || memcmp(r->text + r->at, word, len) != 0) return fault(r, r->at, "expected a value");
    r->at += len;
    return true;
}

/* Reads a name, the colon and the white space around it. */
static bool read_name(struct reader *r)
{
    size_t start = r->at + 1;
    if (peek(r) != '"') return fault(r, r->at, "expected a field name in double quotes");
    if (!read_string(r)) return false;
    if (r->depth == 1) {
        r->field = start;
        r->field_length = r->at - 1 - start;
    }
    skip_space(r);
    if (peek(r) != ':') return fault(r, r->at, "expected ':' after the field name");
    r->at++;
    skip_space(r);
    return true;
}

static bool read_container(struct reader *r, char close, const char *otherwise)
{
    bool object = close == '}';
    if (r->depth == JSON_MAX_DEPTH) return fault(r, r->at, "nested deeper than 64 levels");
    r->depth++;
    r->at++;
    skip_space(r);
    if (peek(r) == close) {
        r->at++;
        r->depth--;
        return true;
    }
    for (;;) {
        if (object && !read_name(r)) return false;
        if (!read_value(r)) return false;
        skip_space(r);
        int ch = peek(r);
        if (ch != ',' && ch != close) return fault(r, r->at, otherwise);
        r->at++;
        if (ch == close) break;
        skip_space(r);
    }
    r->depth--;
    return true;
}

static bool read_value(struct reader *r)
{
    r->size.values++;
    if (!fits(r)) return false;
    switch (peek(r)) {
    case -1: return fault(r, r->at, "the text ends where a value is expected");
    case '{': return read_container(r, '}', "expected ',' or '}'");
    case '[': return read_container(r, ']', "expected ',' or ']'");
    case '"': return read_string(r);
    case 't': return read_word(r, "true");
    case 'f': return read_word(r, "false");
    case 'n': return read_word(r, "null");
    default: break;
    }
    if (peek(r) == '-' || is_digit(peek(r))) return read_number(r);
    return fault(r, r->at, "expected a value");
}

static int read_text(struct reader *r)
{
    bool good;
    if (r->n >= 3 && memcmp(r->text, "\xef\xbb\xbf", 3) == 0) {
        good = fault(r, 0, "byte order mark");
    } else {
        skip_space(r);
        good = r->at == r->n ? fault(r, r->at, "the text is empty") : read_value(r);
        if (good) skip_space(r);
        if (good && r->at < r->n) good = fault(r, r->at, "text after the end of the value");
    }
    if (good) good = fits(r);
    return good ? ERR_OK : r->code;
}

int json_measure(const char *text, size_t n, size_t most, struct json_size *size, struct err *e)
{
    struct reader r = {.text = (const unsigned char *)text, .n = n, .most = most, .e = e};
    int rc = read_text(&r);
    *size = r.size;
    return rc;
}

int json_check(const char *text, size_t n, struct buf *out, struct err *e)
{
    struct reader r = {.text = (const unsigned char *)text, .n = n, .most = SIZE_MAX, .out = out, .e = e};
    int rc = read_text(&r);
    if (rc == ERR_OK) buf_append(out, text + r.copied, n - r.copied);
    return rc;
}
