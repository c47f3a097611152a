#include "engine/base/log.h"

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    TAIL = 8,   /* bytes kept for the end of a line */
    MARK = 0x1e /* precedes a field's name while a format is filled in; see log_write */
};

static _Atomic int threshold = LOG_INFO, format = LOG_LOGFMT;
static const char *const names[] = {"debug", "info", "warn", "error"};

void log_set_level(enum log_level level)
{
    atomic_store(&threshold, (int)level);
}

int log_parse_level(const char *name)
{
    for (int i = 0; i < 4; i++)
        if (strcmp(name, names[i]) == 0) return i;
    return -1;
}

void log_set_format(enum log_format f)
{
    atomic_store(&format, (int)f);
}

enum log_format log_get_format(void)
{
    return (enum log_format)atomic_load_explicit(&format, memory_order_relaxed);
}

bool log_wants(enum log_level level)
{
    return (int)level >= atomic_load_explicit(&threshold, memory_order_relaxed);
}

/* ---- text into a line: each function leaves the line unchanged when it is full ---- */

static bool put(struct log_line *l, const char *s, size_t n)
{
    if (n > sizeof l->text - TAIL - l->n) return false;
    memcpy(l->text + l->n, s, n);
    l->n += n;
    return true;
}

/* Length of the well-formed UTF-8 character at s (RFC 3629: nothing overlong, no surrogates), 0 if there is none. */
static size_t utf8_length(const unsigned char *s, size_t n)
{
    size_t len = s[0] < 0x80 ? 1 : s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : 4;
    if (s[0] >= 0x80 && (s[0] < 0xc2 || s[0] > 0xf4)) return 0;
    if (len > n) return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return len;
}

/* One character of a quoted string; *used: its length in bytes. */
static bool put_escaped(struct log_line *l, const char *s, size_t n, size_t *used)
{
    unsigned char c = (unsigned char)*s;
    char hex[8];
    size_t len = utf8_length((const unsigned char *)s, n);
    *used = len ? len : 1;
    if (!len) return put(l, "\xef\xbf\xbd", 3);
    if (c == '"' || c == '\\') return put(l, (char[]){'\\', (char)c}, 2);
    /* C1 controls move terminals' cursors too */
    if (c < 0x20 || c == 0x7f || (c == 0xc2 && (unsigned char)s[1] < 0xa0))
        return put(l, hex, (size_t)snprintf(hex, sizeof hex, "\\u%04x", c == 0xc2 ? (unsigned char)s[1] : c));
    if (len == 3 && memcmp(s, "\xe2\x80", 2) == 0 && ((unsigned char)s[2] == 0xa8 || (unsigned char)s[2] == 0xa9))
        return put(l, (unsigned char)s[2] == 0xa8 ? "\\u2028" : "\\u2029", 6); /* line ends to many readers */
    return put(l, s, len);
}

static bool put_quoted(struct log_line *l, const char *s, size_t n)
{
    bool ok = put(l, "\"", 1);
    for (size_t i = 0, used; ok && i < n; i += used) ok = put_escaped(l, s + i, n - i, &used);
    return ok && put(l, "\"", 1);
}

static bool is_bare(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] <= ' ' || s[i] > '~' || s[i] == '"' || s[i] == '=' || s[i] == '\\') return false;
    return n > 0;
}

static bool put_name(struct log_line *l, const char *name, size_t n)
{
    bool first = l->n == 0;
    if (l->format == LOG_LOGFMT) return (first || put(l, " ", 1)) && put(l, name, n) && put(l, "=", 1);
    return put(l, first ? "{\"" : ",\"", 2) && put(l, name, n) && put(l, "\":", 2);
}

static void put_field(struct log_line *l, const char *name, size_t name_len, const char *value, size_t n)
{
    size_t before = l->n;
    if (n > LOG_VALUE) n = LOG_VALUE;
    bool ok = put_name(l, name, name_len);
    if (l->format == LOG_LOGFMT && is_bare(value, n))
        ok = ok && put(l, value, n);
    else
        ok = ok && put_quoted(l, value, n);
    if (!ok) l->n = before;
}

static void put_plain(struct log_line *l, const char *name, const char *value)
{
    size_t before = l->n;
    if (!put_name(l, name, strlen(name)) || !put(l, value, strlen(value))) l->n = before;
}

/* ---- lines ---- */

static void begin(struct log_line *l, enum log_level level)
{
    struct timespec t;
    struct tm tm;
    char text[64];
    l->format = log_get_format();
    l->n = 0;
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &tm);
    size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(text + n, sizeof text - n, ".%03ldZ", t.tv_nsec / 1000000);
    log_text(l, "time", text);
    log_text(l, "level", names[level]);
}

void log_begin(struct log_line *l, enum log_level level, const char *msg)
{
    begin(l, level);
    log_text(l, "msg", msg);
}

void log_text(struct log_line *l, const char *name, const char *value)
{
    if (value) put_field(l, name, strlen(name), value, strlen(value));
}

void log_bytes(struct log_line *l, const char *name, const char *value, size_t n)
{
    put_field(l, name, strlen(name), value, n);
}

void log_number(struct log_line *l, const char *name, long long value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", value);
    put_plain(l, name, text);
}

void log_decimal(struct log_line *l, const char *name, double value)
{
    char text[400];
    if (!isfinite(value)) return;
    snprintf(text, sizeof text, "%.3f", value);
    put_plain(l, name, text);
}

void log_end(struct log_line *l)
{
    if (l->format == LOG_JSON) l->text[l->n++] = '}';
    l->text[l->n++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, l->text, l->n);
    (void)ignored;
}

/* ---- a format as a line ---- */

/* Length of " name=" at s, 0 if there is none. */
static size_t field_length(const char *s)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz_";
    size_t n = strspn(s + 1, "abcdefghijklmnopqrstuvwxyz_0123456789");
    return *s == ' ' && strchr(letters, s[1]) && n && s[1 + n] == '=' ? n + 2 : 0;
}

/* The format with MARK in place of the space before each field; @return the number of fields. */
static int mark_fields(const char *fmt, char *out, size_t room)
{
    int n = 0;
    size_t i = 0;
    for (; fmt[i] && i + 1 < room; i++) {
        bool field = fmt[i] == ' ' && n < LOG_FIELDS && field_length(fmt + i);
        out[i] = field ? MARK : fmt[i];
        n += field;
    }
    out[i] = 0;
    return n;
}

static size_t trim_message(const char *s, size_t n)
{
    while (n && (s[n - 1] == ' ' || s[n - 1] == ':')) n--;
    return n;
}

/* text: a message, then MARK name=value for each field */
static void put_marked(struct log_line *l, char *text)
{
    char *at = strchr(text, MARK);
    size_t n = at ? (size_t)(at - text) : strlen(text);
    log_bytes(l, "msg", text, at ? trim_message(text, n) : n);
    while (at) {
        char *name = at + 1, *next = strchr(name, MARK), *equals = strchr(name, '=');
        char *value = equals + 1;
        n = next ? (size_t)(next - value) : strlen(value);
        if (n >= 2 && value[0] == '"' && value[n - 1] == '"') value++, n -= 2; /* quotes from the format */
        put_field(l, name, (size_t)(equals - name), value, n);
        at = next;
    }
}

/* Fields are marked in the format before the arguments are inserted, so arguments cannot create fields.  If an argument
 * contains the mark itself, or makes the text too long, the number of marks differs, and the line gets a single field,
 * its message. */
void log_write(enum log_level level, const char *fmt, ...)
{
    if (!log_wants(level)) return;
    char text[1024], marked[512];
    struct log_line line;
    int fields = mark_fields(fmt, marked, sizeof marked), seen = 0;
    va_list ap;
    va_start(ap, fmt);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    int n = vsnprintf(text, sizeof text, marked, ap);
#pragma GCC diagnostic pop
    va_end(ap);
    for (const char *p = text; (p = strchr(p, MARK)); p++) seen++;
    bool whole = n >= 0 && (size_t)n < sizeof text && seen == fields;
    begin(&line, level);
    if (whole) {
        put_marked(&line, text);
    } else {
        for (char *p = text; (p = strchr(p, MARK)); p++) *p = ' ';
        log_text(&line, "msg", text);
    }
    log_end(&line);
}
