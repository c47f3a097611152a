#include "loadtest/trace.h"

#include "engine/base/file.h"
#include "engine/base/mem.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { COLUMN_AT, COLUMN_PROMPT, COLUMN_OUTPUT, COLUMNS, FIELDS_MAX = 64 };

struct field {
    const char *s;
    size_t n;
};

static const struct {
    int column;
    const char *name; /* compared without case, blanks, _ and - */
} names[] = {{COLUMN_AT, "timestamp"},
             {COLUMN_AT, "arrival"},
             {COLUMN_AT, "arrivaltime"},
             {COLUMN_AT, "time"},
             {COLUMN_AT, "at"},
             {COLUMN_PROMPT, "contexttokens"},
             {COLUMN_PROMPT, "requesttokens"},
             {COLUMN_PROMPT, "prompttokens"},
             {COLUMN_PROMPT, "inputtokens"},
             {COLUMN_PROMPT, "inputlength"},
             {COLUMN_PROMPT, "promptlen"},
             {COLUMN_OUTPUT, "generatedtokens"},
             {COLUMN_OUTPUT, "responsetokens"},
             {COLUMN_OUTPUT, "outputtokens"},
             {COLUMN_OUTPUT, "outputlength"},
             {COLUMN_OUTPUT, "completiontokens"},
             {COLUMN_OUTPUT, "outputlen"}};

/* The fields of one line, blanks and quotes around them taken off. */
static int split(const char *s, size_t n, struct field *out)
{
    int count = 0;
    for (size_t at = 0; count < FIELDS_MAX;) {
        const char *comma = memchr(s + at, ',', n - at);
        size_t end = comma ? (size_t)(comma - s) : n;
        const char *from = s + at, *to = s + end;
        while (from < to && (isspace((unsigned char)*from) || *from == '"')) from++;
        while (to > from && (isspace((unsigned char)to[-1]) || to[-1] == '"')) to--;
        out[count++] = (struct field){from, (size_t)(to - from)};
        if (!comma) break;
        at = end + 1;
    }
    return count;
}

static bool is_name(struct field f, const char *name)
{
    size_t k = 0, length = strlen(name);
    for (size_t i = 0; i < f.n; i++) {
        if (f.s[i] == ' ' || f.s[i] == '_' || f.s[i] == '-') continue;
        if (k == length || tolower((unsigned char)f.s[i]) != name[k++]) return false;
    }
    return k == length;
}

/* Is this the line of names?  Then columns[] says which field is which; -1: none. */
static bool read_names(const struct field *f, int n, int columns[COLUMNS])
{
    bool any = false;
    int found[COLUMNS] = {-1, -1, -1};
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            if (found[names[k].column] < 0 && is_name(f[i], names[k].name)) found[names[k].column] = i, any = true;
    if (any) memcpy(columns, found, sizeof found);
    return any;
}

/* The whole field as a number in [low, high]. */
static bool read_number(struct field f, double low, double high, double *out)
{
    char text[64], *end;
    if (!f.n || f.n >= sizeof text || !(isdigit((unsigned char)*f.s) || *f.s == '.' || *f.s == '-' || *f.s == '+'))
        return false;
    memcpy(text, f.s, f.n);
    text[f.n] = 0;
    if (memchr(text, 'x', f.n) || memchr(text, 'X', f.n)) return false; /* strtod reads hexadecimal */
    *out = strtod(text, &end);
    return *end == 0 && *out >= low && *out <= high; /* false for a NaN */
}

/* Exactly `digits` digits. */
static bool read_digits(const char **s, const char *end, int digits, int *out)
{
    *out = 0;
    for (int i = 0; i < digits; i++, ++*s) {
        if (*s == end || !isdigit((unsigned char)**s)) return false;
        *out = *out * 10 + (**s - '0');
    }
    return true;
}

static bool skip_char(const char **s, const char *end, const char *any)
{
    if (*s == end || !strchr(any, **s)) return false;
    ++*s;
    return true;
}

/* Days since 1970-01-01 of a date in the Gregorian calendar. */
static int64_t days_of(int year, int month, int day)
{
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    int64_t y = year - (month <= 2); /* leap days up to the end of February */
    int64_t leaps = y / 4 - y / 100 + y / 400;
    return 365 * (int64_t)year + leaps + before[month - 1] + day - 1 -
           (365 * 1970 + 1969 / 4 - 1969 / 100 + 1969 / 400);
}

/* +hh:mm, -hh:mm, Z or nothing. */
static bool read_zone(const char *s, const char *end, double *seconds)
{
    *seconds = 0;
    if (s == end || (*s == 'Z' && s + 1 == end)) return true;
    int sign = *s == '-' ? -1 : 1, hours, minutes;
    if (!skip_char(&s, end, "+-") || !read_digits(&s, end, 2, &hours) || !skip_char(&s, end, ":") ||
        !read_digits(&s, end, 2, &minutes))
        return false;
    *seconds = sign * (hours * 3600.0 + minutes * 60.0);
    return s == end;
}

/* 2023-11-16 18:15:46.6805900, also with a T between and a zone behind, or seconds as a number. */
static bool read_time(struct field f, double *out)
{
    const char *s = f.s, *end = f.s + f.n;
    int year, month, day, hour, minute, second;
    if (read_number(f, -1e12, 1e12, out)) return true;
    if (!read_digits(&s, end, 4, &year) || !skip_char(&s, end, "-") || !read_digits(&s, end, 2, &month) ||
        !skip_char(&s, end, "-") || !read_digits(&s, end, 2, &day) || !skip_char(&s, end, " T") ||
        !read_digits(&s, end, 2, &hour) || !skip_char(&s, end, ":") || !read_digits(&s, end, 2, &minute) ||
        !skip_char(&s, end, ":") || !read_digits(&s, end, 2, &second))
        return false;
    if (month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 || minute > 59 || second > 60) return false;
    double fraction = 0, unit = 0.1, zone;
    if (s < end && *s == '.')
        for (s++; s < end && isdigit((unsigned char)*s); s++, unit /= 10) fraction += unit * (*s - '0');
    if (!read_zone(s, end, &zone)) return false;
    *out = (double)days_of(year, month, day) * 86400 + hour * 3600.0 + minute * 60.0 + second + fraction - zone;
    return true;
}

static int read_row(struct trace_row *row, const struct field *f, int n, const int columns[COLUMNS], size_t line,
                    struct err *e)
{
    static const char *const what[COLUMNS] = {"time", "prompt's tokens", "answer's tokens"};
    double v[COLUMNS];
    for (int c = 0; c < COLUMNS; c++) {
        if (columns[c] < 0 || columns[c] >= n)
            return err_set(e, ERR_INVALID, "line %zu: no column for the %s", line, what[c]);
        struct field x = f[columns[c]];
        if (c == COLUMN_AT ? !read_time(x, &v[c]) : !read_number(x, 0, TRACE_TOKENS_MAX, &v[c]))
            return err_set(e, ERR_INVALID, "line %zu: \"%.*s\" is not the %s", line, (int)(x.n > 40 ? 40 : x.n), x.s,
                           what[c]);
    }
    *row = (struct trace_row){v[COLUMN_AT], v[COLUMN_PROMPT] < 1 ? 1 : (int)v[COLUMN_PROMPT],
                              v[COLUMN_OUTPUT] < 1 ? 1 : (int)v[COLUMN_OUTPUT]};
    return 0;
}

static int by_time(const void *a, const void *b)
{
    const struct trace_row *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

int trace_parse(struct trace *t, const char *text, size_t n, struct err *e)
{
    *t = (struct trace){0};
    int columns[COLUMNS] = {0, 1, 2};
    size_t cap = 0, line = 0;
    for (size_t at = 0; at < n;) {
        const char *newline = memchr(text + at, '\n', n - at);
        size_t end = newline ? (size_t)(newline - text) : n;
        struct field f[FIELDS_MAX];
        int count = split(text + at, end - at, f);
        bool blank = count == 1 && !f[0].n;
        at = end + 1;
        line++;
        if (blank || (!t->n && read_names(f, count, columns))) continue;
        mem_grow(&t->rows, &cap, t->n + 1, sizeof *t->rows);
        if (read_row(&t->rows[t->n], f, count, columns, line, e)) {
            trace_free(t);
            return ERR_INVALID;
        }
        t->n++;
    }
    if (!t->n) return err_set(e, ERR_INVALID, "no rows");
    qsort(t->rows, t->n, sizeof *t->rows, by_time);
    double start = t->rows[0].at;
    for (size_t i = 0; i < t->n; i++) t->rows[i].at -= start;
    return 0;
}

int trace_read(struct trace *t, const char *path, struct err *e)
{
    struct file_map m;
    *t = (struct trace){0};
    if (file_map(&m, path, e)) return e->code;
    if (m.size > 1000000000)
        err_set(e, ERR_INVALID, "%s: more than 1 GB", path);
    else if (trace_parse(t, m.data, m.size, e))
        err_prefix(e, "%s", path);
    file_unmap(&m);
    return e->code;
}

void trace_free(struct trace *t)
{
    free(t->rows);
    *t = (struct trace){0};
}
