#include "engine/data/scan.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 256 << 10, APPEND = 16 << 10 };

void scan_open(struct scan *s, struct source *source, enum scan_kind kind, size_t max_row)
{
    *s = (struct scan){.source = source, .kind = kind, .max_row = max_row, .line = 1, .block = mem_alloc(BLOCK)};
}

void scan_close(struct scan *s)
{
    free(s->block);
    s->block = NULL;
}

/* Makes block[at] readable.  @return 1; 0 at the end; or an err code. */
static int fill(struct scan *s, struct err *e)
{
    if (s->at < s->n) return 1;
    if (s->ended) return 0;
    ssize_t n = source_read(s->source, s->block, BLOCK, e);
    s->at = s->n = 0;
    if (n <= 0) {
        s->ended = true;
        return (int)n;
    }
    s->n = (size_t)n;
    if (s->source->at == (uint64_t)n && n >= 3 && !memcmp(s->block, "\xef\xbb\xbf", 3)) s->at = 3; /* a BOM */
    return 1;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* @return the next byte that is not a space, without consuming it; 0 at the end; or an err code. */
static int peek(struct scan *s, struct err *e)
{
    for (;;) {
        int rc = fill(s, e);
        if (rc <= 0) return rc;
        char c = s->block[s->at];
        if (!is_space(c)) return (unsigned char)c ? (unsigned char)c : 1; /* a NUL byte is not the end */
        s->line += c == '\n';
        s->at++;
    }
}

static void keep(struct scan *s, struct buf *bytes, size_t start, struct scan_row *row, const char *p, size_t n)
{
    if (row->too_large || bytes->len - start + n > s->max_row) {
        row->too_large = true;
        bytes->len = start;
    } else {
        buf_append(bytes, p, n);
    }
}

static int line_next(struct scan *s, struct buf *bytes, struct scan_row *row, struct err *e)
{
    size_t start = bytes->len;
    int rc = peek(s, e);
    if (rc <= 0) return rc;
    row->line = s->line;
    for (;;) {
        rc = fill(s, e);
        if (rc < 0) return rc;
        if (rc == 0) return 1;
        const char *p = s->block + s->at, *end = memchr(p, '\n', s->n - s->at);
        size_t n = end ? (size_t)(end - p) : s->n - s->at;
        keep(s, bytes, start, row, p, n);
        s->at += n + (end != NULL);
        s->line += end != NULL;
        if (end) return 1;
    }
}

/* ---- arrays ------------------------------------------------------------------------------------------------------ */

/* State of a walk over JSON's bytes. */
struct walk {
    bool string, escaped;
    int64_t depth;
};

static void walk_byte(struct walk *w, char c)
{
    if (w->escaped) {
        w->escaped = false;
    } else if (w->string) {
        if (c == '\\') w->escaped = true;
        if (c == '"') w->string = false;
    } else if (c == '"') {
        w->string = true;
    } else if (c == '{' || c == '[') {
        w->depth++;
    } else if (c == '}' || c == ']') {
        w->depth--;
    }
}

static int cut_off(struct scan *s, int rc, struct err *e)
{
    return rc < 0 ? rc : err_set(e, ERR_INVALID, "%s: the array does not end: is the file cut off?", s->source->name);
}

/* Moves to the array that is the member "data" of the current object. */
static int member_find(struct scan *s, struct err *e)
{
    struct walk w = {0};
    char key[4];
    size_t n = 0;
    bool value = false;
    for (int rc; (rc = fill(s, e)) != 0; s->at++) {
        if (rc < 0) return rc;
        char c = s->block[s->at];
        s->line += c == '\n';
        if (w.depth == 1 && w.string && !value && (c != '"' || w.escaped)) {
            if (n < sizeof key) key[n] = c;
            n++;
        } else if (w.depth == 1 && !w.string) {
            if (c == '[' && value && n == sizeof key && !memcmp(key, "data", n)) return 0;
            if (c == ':') value = true;
            if (c == ',') value = false;
            if (c == '"' && !value) n = 0;
        }
        walk_byte(&w, c);
        if (w.depth <= 0 && !w.string) break;
    }
    return err_set(e, ERR_INVALID, "%s: no list \"data\"", s->source->name);
}

bool scan_has_member(const char *text, size_t n)
{
    struct source source = {.name = "", .text = text, .fd = -1, .size = n};
    struct scan s;
    scan_open(&s, &source, SCAN_MEMBER, 0);
    bool found = peek(&s, NULL) == '{' && !member_find(&s, NULL);
    scan_close(&s);
    return found;
}

static int array_start(struct scan *s, struct err *e)
{
    s->started = true;
    int rc = peek(s, e);
    if (rc < 0) return rc;
    if (s->kind == SCAN_MEMBER && (rc = member_find(s, e))) return rc;
    rc = fill(s, e);
    if (rc < 0) return rc;
    if (rc == 0 || s->block[s->at] != '[') return err_set(e, ERR_INVALID, "%s: not a JSON array", s->source->name);
    s->at++;
    s->inside = true;
    return 0;
}

/* After the array's end. */
static int array_end(struct scan *s, struct err *e)
{
    s->inside = false;
    if (s->kind == SCAN_MEMBER) return 0;
    int rc = peek(s, e);
    if (rc <= 0) return rc;
    return err_set(e, ERR_INVALID, "%s: line %llu: text behind the array", s->source->name,
                   (unsigned long long)s->line);
}

static int element_next(struct scan *s, struct buf *bytes, struct scan_row *row, struct err *e)
{
    int rc = s->started ? 0 : array_start(s, e);
    if (rc || !s->inside) return rc;
    rc = peek(s, e);
    if (rc <= 0) return cut_off(s, rc, e);
    if (rc == ']') {
        s->at++;
        return array_end(s, e);
    }
    size_t start = bytes->len;
    struct walk w = {0};
    row->line = ++s->element;
    for (;;) {
        rc = fill(s, e);
        if (rc <= 0) return cut_off(s, rc, e);
        size_t from = s->at;
        bool over = false;
        for (; s->at < s->n; s->at++) {
            char c = s->block[s->at];
            over = !w.string && w.depth == 0 && (c == ',' || c == ']');
            if (over) break;
            s->line += c == '\n';
            walk_byte(&w, c);
        }
        keep(s, bytes, start, row, s->block + from, s->at - from);
        if (!over) continue;
        if (s->block[s->at] == ',') s->at++;
        return 1;
    }
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* The best position in (from, n] to split a text that is too long: after a line, before a word, else after a character.
 */
static size_t cut_place(const char *p, size_t from, size_t n)
{
    const char *line = memrchr(p + from, '\n', n - from);
    if (line) return (size_t)(line - p) + 1;
    for (size_t i = n - 1; i > from; i--)
        if (p[i] == ' ') return i; /* the space begins the word's token */
    size_t i = n;
    while (i > from + 1 && i > n - 3 && ((unsigned char)p[i] & 0xc0) == 0x80) i--;
    return i;
}

/* Where the text p[0, n) ends and how long the mark there is; examines only the new bytes, from `from` on. */
static bool text_end(const struct scan *s, const char *p, size_t from, size_t n, size_t *end, size_t *mark)
{
    bool found = false;
    if (s->kind == SCAN_MARKED) {
        for (int i = 0; i < SCAN_MARKS; i++) {
            size_t len = s->mark[i] ? strlen(s->mark[i]) : 0;
            size_t start = from < len ? 0 : from - len + 1;
            const char *at = len ? memmem(p + start, n - start, s->mark[i], len) : NULL;
            if (!at || (found && (size_t)(at - p) >= *end)) continue;
            found = true;
            *end = (size_t)(at - p);
            *mark = len;
        }
        return found;
    }
    const char *line = p + from;
    while ((line = memchr(line, '\n', n - (size_t)(line - p)))) {
        const char *back = line;
        while (back > p && (back[-1] == ' ' || back[-1] == '\t' || back[-1] == '\r')) back--;
        if (back > p && back[-1] == '\n') {
            *end = (size_t)(back - p) - 1;
            *mark = (size_t)(line - p) + 1 - *end;
            return true;
        }
        line++;
    }
    return false;
}

static uint64_t lines_in(const char *p, size_t n)
{
    uint64_t lines = 0;
    for (const char *end = p + n; (p = memchr(p, '\n', (size_t)(end - p))); p++) lines++;
    return lines;
}

static int text_next(struct scan *s, struct buf *bytes, struct scan_row *row, struct err *e)
{
    size_t start = bytes->len, end = 0, mark = 0;
    row->is_rest = s->inside;
    int rc = s->inside ? fill(s, e) : peek(s, e);
    if (rc <= 0) return rc;
    row->line = s->line;
    while ((rc = fill(s, e)) > 0) {
        size_t from = bytes->len - start, n = s->n - s->at < APPEND ? s->n - s->at : APPEND;
        bool full = from + n > SCAN_TEXT_MAX && n > 2 * SCAN_MARK_MAX;
        buf_append(bytes, s->block + s->at, n);
        const char *text = bytes->data + start;
        bool over = text_end(s, text, from, from + n, &end, &mark);
        if (!over && full) {
            /* before an incomplete mark; the bytes after the split are read again from the block */
            end = cut_place(text, from, from + n - SCAN_MARK_MAX);
            mark = 0;
        }
        if (over || full) n = end + mark - from;
        s->line += lines_in(s->block + s->at, n);
        s->at += n;
        if (!over && !full) continue;
        bytes->len = start + end;
        s->inside = row->goes_on = !over;
        return 1;
    }
    s->inside = false;
    return rc < 0 ? rc : 1;
}

int scan_next(struct scan *s, struct buf *bytes, struct scan_row *row, struct err *e)
{
    *row = (struct scan_row){0};
    if (s->kind == SCAN_LINES) return line_next(s, bytes, row, e);
    if (s->kind == SCAN_ARRAY || s->kind == SCAN_MEMBER) return element_next(s, bytes, row, e);
    return text_next(s, bytes, row, e);
}
