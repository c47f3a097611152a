/* Strings of the chat templates' language: slicing, searching and building them while tracking the origin of each byte,
 * and values as Python's str() and repr() write them. */
#include "engine/template/jinja_int.h"
#include "engine/template/jinja_value.h"
#include "engine/tokenizer/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { BYTES_PER_STEP = 64 };

struct jstr jstr_of(const char *s)
{
    return (struct jstr){.s = s, .n = strlen(s)};
}

bool jstr_same(struct jstr a, struct jstr b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.s, b.s, a.n) == 0);
}

struct jstr jstr_cut(struct jinja *j, struct jstr s, size_t start, size_t end)
{
    if (end < start) end = start;
    struct jstr cut = {.s = s.s + start, .n = end - start};
    if (!s.n_runs) return cut;
    jinja_work(j, s.n_runs / 8);
    struct jrun *runs = jinja_array(j, s.n_runs, sizeof *runs);
    for (size_t i = 0; i < s.n_runs; i++) {
        struct jrun r = s.runs[i];
        if (r.start < start) r.start = start;
        if (r.end > end) r.end = end;
        /* an empty slice of a message's text still has that message as origin */
        if (r.start > r.end || (r.start == r.end && cut.n && s.runs[i].start != s.runs[i].end)) continue;
        runs[cut.n_runs++] = (struct jrun){r.start - start, r.end - start, r.origin};
    }
    cut.runs = runs;
    return cut;
}

size_t jstr_chars(struct jinja *j, struct jstr s)
{
    jinja_work(j, s.n / BYTES_PER_STEP);
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) n += (s.s[i] & 0xc0) != 0x80;
    return n;
}

size_t jstr_at(struct jstr s, size_t from, size_t chars)
{
    for (; chars && from < s.n; chars--) do
            from++;
        while (from < s.n && (s.s[from] & 0xc0) == 0x80);
    return from;
}

size_t jstr_find(struct jinja *j, struct jstr s, size_t from, struct jstr what)
{
    if (from > s.n || what.n > s.n - from) return SIZE_MAX;
    if (!what.n) return from;
    const char *at = memmem(s.s + from, s.n - from, what.s, what.n);
    size_t end = at ? (size_t)(at - s.s) : s.n;
    jinja_work(j, (end - from) / BYTES_PER_STEP);
    return at ? end : SIZE_MAX;
}

static bool is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t jinja_space(const char *s, size_t n)
{
    if (!n) return 0;
    uint32_t c;
    unsigned len = utf8_get(s, &c);
    return is_space(c) ? len : 0;
}

size_t jinja_space_before(const char *s, size_t n)
{
    size_t start = n;
    while (start && (s[start - 1] & 0xc0) == 0x80) start--;
    if (!start) return 0;
    start--;
    uint32_t c;
    utf8_get(s + start, &c);
    return is_space(c) ? n - start : 0;
}

/* --- building */

static char *room(struct jinja *j, struct jtext *t, size_t n)
{
    if (n > JINJA_TEXT_MAX - t->n) jinja_fail(j, "makes a text of more than %d bytes", JINJA_TEXT_MAX);
    if (n > t->cap - t->n) {
        size_t cap = t->cap ? 2 * t->cap : 64;
        if (cap < t->n + n) cap = t->n + n;
        t->s = jinja_extend(j, t->s, t->cap, cap);
        t->cap = cap;
    }
    jinja_work(j, n / BYTES_PER_STEP);
    char *at = t->s + t->n;
    t->n += n;
    return at;
}

static void add_run(struct jinja *j, struct jtext *t, struct jrun r)
{
    if (t->n_runs) {
        struct jrun *last = &t->runs[t->n_runs - 1];
        if (last->origin == r.origin && last->end == r.start) {
            last->end = r.end;
            return;
        }
    }
    if (t->n_runs == t->cap_runs) {
        size_t cap = t->cap_runs ? 2 * t->cap_runs : 4;
        t->runs = jinja_extend(j, t->runs, t->cap_runs * sizeof *t->runs, cap * sizeof *t->runs);
        t->cap_runs = cap;
    }
    t->runs[t->n_runs++] = r;
}

void jtext_bytes(struct jinja *j, struct jtext *t, const char *s, size_t n)
{
    if (n) memcpy(room(j, t, n), s, n);
}

void jtext_add(struct jinja *j, struct jtext *t, struct jstr s)
{
    size_t at = t->n;
    jtext_bytes(j, t, s.s, s.n);
    for (size_t i = 0; i < s.n_runs; i++)
        add_run(j, t, (struct jrun){s.runs[i].start + at, s.runs[i].end + at, s.runs[i].origin});
}

void jtext_cstr(struct jinja *j, struct jtext *t, const char *s)
{
    jtext_bytes(j, t, s, strlen(s));
}

void jtext_char(struct jinja *j, struct jtext *t, uint32_t c)
{
    char s[4];
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) c = 0xfffd;
    jtext_bytes(j, t, s, utf8_put(s, c));
}

void jtext_repeat(struct jinja *j, struct jtext *t, char c, size_t n)
{
    if (n) memset(room(j, t, n), c, n);
}

void jtext_origin(struct jinja *j, struct jtext *t, size_t from, struct jstr of)
{
    if (!of.n_runs) return;
    int origin = of.runs[0].origin;
    for (size_t i = 1; i < of.n_runs; i++)
        if (of.runs[i].origin != origin) origin = JINJA_ORIGIN_MIXED;
    add_run(j, t, (struct jrun){from, t->n, origin});
}

struct jstr jtext_str(const struct jtext *t)
{
    return (struct jstr){.s = t->s ? t->s : "", .n = t->n, .runs = t->runs, .n_runs = t->n_runs};
}

struct jv jtext_value(struct jinja *j, const struct jtext *t)
{
    return jv_str(j, jtext_str(t));
}

/* --- str() and repr() */

/* The shortest digits that read back as the same number, written as Python does. */
/* d to so many digits, as %e writes it; whether that reads back as d.  Below a power of two doubles are denser than
 * above it, so the decimal that does need not be the nearest: then it is the nearest to a point between d and the
 * middle of d and the next double. */
static bool print_digits(char *s, size_t room, int digits, double d)
{
    snprintf(s, room, "%.*e", digits - 1, d);
    if (strtod(s, NULL) == d) return true;
    long double above = (long double)nextafter(d, copysign(INFINITY, d)) - d;
    snprintf(s, room, "%.*Le", digits - 1, d + above / 4);
    return strtod(s, NULL) == d;
}

void jtext_double(struct jinja *j, struct jtext *t, double d)
{
    char s[40];
    if (isnan(d)) return jtext_cstr(j, t, "nan");
    if (isinf(d)) return jtext_cstr(j, t, d < 0 ? "-inf" : "inf");
    int digits = 1;
    while (!print_digits(s, sizeof s, digits, d) && digits < 17) digits++;
    int exponent = atoi(strchr(s, 'e') + 1);
    if (exponent >= -4 && exponent < 16) { /* else 1e+16, 1e-05: as C writes it */
        int after = digits - 1 - exponent;
        snprintf(s, sizeof s, "%.*f", after > 0 ? after : 1, strtod(s, NULL));
    }
    jtext_cstr(j, t, s);
}

bool jinja_printable(uint32_t c)
{
    if (c < 0x7f) return c >= 0x20;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    default: return true;
    }
}

static void repr_str(struct jinja *j, struct jtext *t, struct jstr s)
{
    size_t from = t->n;
    bool single = s.n && memchr(s.s, '\'', s.n), both = single && memchr(s.s, '"', s.n);
    char quote = single && !both ? '"' : '\'';
    jtext_bytes(j, t, &quote, 1);
    for (size_t i = 0; i < s.n;) {
        uint32_t c;
        unsigned len = utf8_get(s.s + i, &c);
        char escaped[12];
        if (c == (unsigned char)quote || c == '\\') {
            snprintf(escaped, sizeof escaped, "\\%c", (int)c);
        } else if (c == '\n' || c == '\r' || c == '\t') {
            snprintf(escaped, sizeof escaped, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        } else if (!jinja_printable(c)) {
            snprintf(escaped, sizeof escaped, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
        } else {
            memcpy(escaped, s.s + i, len);
            escaped[len] = 0;
        }
        jtext_cstr(j, t, escaped);
        i += len;
    }
    jtext_bytes(j, t, &quote, 1);
    jtext_origin(j, t, from, s);
}

static void repr_dict(struct jinja *j, struct jtext *t, const struct jdict *d)
{
    jtext_cstr(j, t, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i) jtext_cstr(j, t, ", ");
        jtext_repr(j, t, d->v[i].key);
        jtext_cstr(j, t, ": ");
        jtext_repr(j, t, d->v[i].value);
    }
    jtext_cstr(j, t, "}");
}

static void repr_list(struct jinja *j, struct jtext *t, const struct jlist *l)
{
    static const char *const open[] = {"[", "(", NULL, NULL, "dict_keys([", "dict_values([", "dict_items([", NULL};
    static const char *const close[] = {"]", ")", NULL, NULL, "])", "])", "])", NULL};
    if (l->kind == JL_ITERATOR) return jtext_cstr(j, t, "<generator object>");
    if (l->kind == JL_BYTES) return jinja_bytes_repr(j, t, l);
    if (l->kind == JL_RANGE) {
        char s[100];
        int64_t start = l->n ? l->v[0].i : 0, step = l->n > 1 ? l->v[1].i - start : 1;
        int64_t stop = start + step * (int64_t)l->n;
        int n = snprintf(s, sizeof s, "range(%lld, %lld", (long long)start, (long long)stop);
        if (step != 1) n += snprintf(s + n, sizeof s - (size_t)n, ", %lld", (long long)step);
        snprintf(s + n, sizeof s - (size_t)n, ")");
        return jtext_cstr(j, t, s);
    }
    jtext_cstr(j, t, open[l->kind]);
    for (size_t i = 0; i < l->n; i++) {
        if (i) jtext_cstr(j, t, ", ");
        jtext_repr(j, t, l->v[i]);
    }
    if (l->kind == JL_TUPLE && l->n == 1) jtext_cstr(j, t, ",");
    jtext_cstr(j, t, close[l->kind]);
}

void jtext_repr(struct jinja *j, struct jtext *t, struct jv v)
{
    jinja_enter(j);
    jinja_work(j, 1);
    char s[32];
    switch (v.type) {
    case J_UNDEF: jtext_cstr(j, t, "Undefined"); break;
    case J_NONE: jtext_cstr(j, t, "None"); break;
    case J_BOOL: jtext_cstr(j, t, v.b ? "True" : "False"); break;
    case J_INT:
        snprintf(s, sizeof s, "%lld", (long long)v.i);
        jtext_cstr(j, t, s);
        break;
    case J_BIG:
        if (jint_below_zero(v)) jtext_cstr(j, t, "-");
        jtext_cstr(j, t, jint_digits(j, v, 10));
        break;
    case J_FLOAT: jtext_double(j, t, v.d); break;
    case J_STR: repr_str(j, t, *v.str); break;
    case J_LIST: repr_list(j, t, v.list); break;
    case J_DICT: repr_dict(j, t, v.dict); break;
    case J_NAMESPACE:
        jtext_cstr(j, t, "<Namespace ");
        repr_dict(j, t, v.dict);
        jtext_cstr(j, t, ">");
        break;
    default:
        jtext_cstr(j, t, "<");
        jtext_cstr(j, t, jv_type_name(v));
        jtext_cstr(j, t, ">");
    }
    jinja_leave(j);
}

void jtext_value_str(struct jinja *j, struct jtext *t, struct jv v)
{
    if (v.type == J_STR) {
        jtext_add(j, t, *v.str);
    } else if (v.type != J_UNDEF) {
        jtext_repr(j, t, v);
    }
}

struct jstr jv_to_str(struct jinja *j, struct jv v)
{
    if (v.type == J_STR) return *v.str;
    struct jtext t = {0};
    jtext_value_str(j, &t, v);
    return jtext_str(&t);
}
