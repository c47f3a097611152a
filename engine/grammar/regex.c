/* Regular expressions as Python's re reads them (Lib/re/_parser.py), as expressions of a builder.  Laziness does not
 * change the language, so lazy quantifiers are treated as greedy.  fullmatch anchors both ends, so ^ and $ are
 * redundant there, and anywhere else they are rejected. */
#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/grammar/program.h"
#include "engine/tokenizer/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GROUPS_MAX = 200 }; /* nesting depth */
#define CATEGORIES "dDsSwW"

struct flags {
    bool ignore_case, ascii, dot_all;
};

struct regex_parser {
    struct grammar_builder *b;
    const char *s;
    size_t n, at;
    struct flags f;
    int depth;
    gexpr category[2][6]; /* [ascii][of CATEGORIES], each made once; 0: not yet, else the expression + 1 */
};

/* The result of compiling a part of the pattern. */
struct part {
    gexpr x;
    bool starts, ends; /* has a ^ (at its beginning), a $ (at its end) */
    bool is_char;      /* a single literal character `c`: adjacent ones are joined to one text */
    uint32_t c;
};

struct list {
    gexpr *v;
    size_t n, cap;
};

static void list_add(struct list *l, gexpr x)
{
    mem_grow(&l->v, &l->cap, l->n + 1, sizeof *l->v);
    l->v[l->n++] = x;
}

__attribute__((format(printf, 3, 4))) static struct part refuse(struct regex_parser *r, size_t byte, const char *fmt,
                                                                ...)
{
    char text[160];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    gram_fail(r->b, "byte %zu of the regular expression: %s", byte, text);
    r->at = r->n;
    return (struct part){.x = -1};
}

static bool failed(const struct regex_parser *r)
{
    return r->b->err.code != 0;
}

static bool more(const struct regex_parser *r)
{
    return r->at < r->n && !failed(r);
}

static char peek(const struct regex_parser *r)
{
    return r->s[r->at];
}

static bool match(struct regex_parser *r, const char *text)
{
    size_t n = strlen(text);
    if (r->n - r->at < n || memcmp(r->s + r->at, text, n) != 0) return false;
    r->at += n;
    return true;
}

/* The next character; the pattern is valid UTF-8. */
static uint32_t take(struct regex_parser *r)
{
    uint32_t c;
    r->at += utf8_get(r->s + r->at, &c);
    return c;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* ---- characters ---- */

static bool is_octal(const struct regex_parser *r, size_t at)
{
    return at < r->n && r->s[at] >= '0' && r->s[at] <= '7';
}

/* \x41, \u0041...: exactly `digits` of them. */
static uint32_t take_hex(struct regex_parser *r, size_t start, int digits)
{
    uint32_t c = 0;
    for (int i = 0; i < digits; i++) {
        int d = r->at < r->n ? hex(peek(r)) : -1;
        if (d < 0) {
            refuse(r, start, "an incomplete escape: %d hexadecimal digits are wanted", digits);
            return 0;
        }
        c = c * 16 + (uint32_t)d;
        r->at++;
    }
    if (c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) refuse(r, start, "U+%04X is no character of UTF-8", c);
    return c;
}

/* A numbered escape that is a character: \0, \07, \101. */
static bool take_octal(struct regex_parser *r, size_t start, char first, bool in_class, uint32_t *c)
{
    int digits = 0;
    if (first == '0')
        while (digits < 2 && is_octal(r, r->at + (size_t)digits)) digits++;
    else if (first >= '1' && first <= '7' && is_octal(r, r->at) && is_octal(r, r->at + 1))
        digits = 2;
    else if (in_class && first >= '1' && first <= '7')
        while (digits < 2 && is_octal(r, r->at + (size_t)digits)) digits++;
    else
        return false;
    *c = (uint32_t)(first - '0');
    for (int i = 0; i < digits; i++) *c = *c * 8 + (uint32_t)(r->s[r->at++] - '0');
    if (*c > 0377) refuse(r, start, "an octal escape above \\377");
    return true;
}

/* After the backslash: reads a character; @return false when it is not one, with r->at unchanged. */
static bool take_char_escape(struct regex_parser *r, bool in_class, uint32_t *c)
{
    static const char names[] = "abfnrtv\\", values[] = "\a\b\f\n\r\t\v\\";
    size_t start = r->at - 1, back = r->at;
    uint32_t e = take(r);
    const char *hit = e < 0x80 && e ? strchr(names, (int)e) : NULL;
    if (hit && (e != 'b' || in_class)) {
        *c = (unsigned char)values[hit - names];
        return true;
    }
    if (e == 'x' || e == 'u' || e == 'U') {
        *c = take_hex(r, start, e == 'x' ? 2 : e == 'u' ? 4 : 8);
        return true;
    }
    if (e >= '0' && e <= '9' && take_octal(r, start, (char)e, in_class, c)) return true;
    if ((e >= '0' && e <= '9') || (e < 0x80 && ((e | 32) >= 'a' && (e | 32) <= 'z'))) {
        r->at = back;
        return false;
    }
    *c = e;
    return true;
}

/* \d \D \s \S \w \W: adds its characters.  @return false: it is none of them. */
static bool add_category(struct regex_parser *r, char which, struct ranges *out)
{
    struct ranges set = {0};
    char lower = (char)(which | 32);
    if (lower != 'd' && lower != 's' && lower != 'w') return false;
    ranges_add_escape(&set, lower, r->f.ascii);
    ranges_normalize(&set);
    if (which != lower) ranges_complement(&set);
    ranges_add_all(out, &set);
    ranges_free(&set);
    return true;
}

static struct part bad_escape(struct regex_parser *r, size_t start, char which)
{
    if (which >= '1' && which <= '9') return refuse(r, start, "back-references (\\%c) are not regular", which);
    if (which == 'b' || which == 'B') return refuse(r, start, "word boundaries (\\%c) are not supported", which);
    if (which == 'p' || which == 'P') return refuse(r, start, "Unicode properties (\\%c) are not supported", which);
    return refuse(r, start, "bad escape \\%c", which);
}

static struct part char_part(struct regex_parser *r, uint32_t c)
{
    if (!r->f.ignore_case) return (struct part){.is_char = true, .c = c};
    struct ranges set = {0};
    ranges_add(&set, c, c);
    ranges_add_cases(&set, r->f.ascii);
    return (struct part){.x = gram_class_ranges(r->b, &set)};
}

static gexpr char_expr(struct regex_parser *r, uint32_t c)
{
    char text[4];
    return gram_bytes(r->b, text, utf8_put(text, c));
}

/* ---- sets ---- */

/* One member of a set: a character (true) or a category, which was added; *had: those already in the set. */
static bool take_member(struct regex_parser *r, struct ranges *out, unsigned *had, uint32_t *c)
{
    size_t start = r->at;
    if (peek(r) != '\\') {
        *c = take(r);
        return true;
    }
    if (++r->at == r->n) {
        refuse(r, start, "a backslash at the end");
        return false;
    }
    if (take_char_escape(r, true, c)) return true;
    if (failed(r)) return false;
    char which = peek(r);
    const char *known = which ? strchr(CATEGORIES, which) : NULL;
    unsigned bit = known ? 1U << (known - CATEGORIES) : 0;
    if (*had & bit || add_category(r, which, out))
        r->at++;
    else
        bad_escape(r, start, which);
    *had |= bit;
    return false;
}

/* The set whose [ was read. */
static struct part take_set(struct regex_parser *r, size_t start)
{
    struct ranges set = {0};
    unsigned had = 0;
    bool not_in = match(r, "^"), closed = false;
    for (bool first = true; more(r); first = false) {
        size_t at = r->at;
        uint32_t lo, hi;
        if (!first && match(r, "]")) {
            closed = true;
            break;
        }
        bool is_char = take_member(r, &set, &had, &lo);
        if (r->n - r->at >= 2 && peek(r) == '-' && r->s[r->at + 1] != ']') {
            r->at++;
            bool also = take_member(r, &set, &had, &hi);
            if (!is_char || !also || lo > hi) refuse(r, at, "a bad character range");
        } else {
            hi = lo;
        }
        if (!failed(r) && is_char) ranges_add(&set, lo, hi);
    }
    if (!closed) refuse(r, start, "a set without its ]");
    ranges_normalize(&set);
    if (r->f.ignore_case) ranges_add_cases(&set, r->f.ascii);
    if (not_in) ranges_complement(&set);
    return (struct part){.x = gram_class_ranges(r->b, &set)};
}

/* ---- quantifiers ---- */

static bool take_number(struct regex_parser *r, uint32_t *out)
{
    uint64_t v = 0;
    size_t start = r->at;
    for (; more(r) && peek(r) >= '0' && peek(r) <= '9'; r->at++)
        if ((v = v * 10 + (uint64_t)(peek(r) - '0')) >= UINT32_MAX) {
            refuse(r, start, "a repetition count that is too large");
            return false;
        }
    if (r->at > start) *out = (uint32_t)v;
    return r->at > start;
}

/* @return true when there is one.  A { that does not begin one is a literal character. */
static bool take_quantifier(struct regex_parser *r, uint32_t *min, uint32_t *max)
{
    size_t start = r->at;
    if (!more(r)) return false;
    *min = 0;
    *max = UINT32_MAX;
    if (match(r, "*")) return true;
    if (match(r, "+")) {
        *min = 1;
        return true;
    }
    if (match(r, "?")) {
        *max = 1;
        return true;
    }
    if (!match(r, "{")) return false;
    bool low = take_number(r, min), comma = !failed(r) && match(r, ",");
    if (comma)
        take_number(r, max);
    else
        *max = *min;
    if (failed(r)) return false;
    if ((!low && !comma) || !match(r, "}")) {
        r->at = start;
        return false;
    }
    if (*min > *max) {
        refuse(r, start, "a repetition whose least count is above its greatest");
        return false;
    }
    return true;
}

static struct part repeat_part(struct regex_parser *r, struct part p)
{
    size_t start = r->at;
    uint32_t min, max, again_min, again_max;
    if (!take_quantifier(r, &min, &max)) return p;
    if (p.starts || p.ends) {
        if (max > 1) return refuse(r, start, "a repetition of what has ^ or $ in it");
    }
    if (more(r) && peek(r) == '+') return refuse(r, r->at, "possessive quantifiers are not supported");
    match(r, "?"); /* lazy: the same texts */
    size_t second = r->at;
    if (take_quantifier(r, &again_min, &again_max)) return refuse(r, second, "a repetition of a repetition");
    gexpr x = p.is_char ? char_expr(r, p.c) : p.x;
    return (struct part){.x = gram_repeat(r->b, x, min, max), .starts = p.starts, .ends = p.ends};
}

/* ---- groups ---- */

static struct part take_choice(struct regex_parser *r, bool at_start);

/* Reads the letters of (?ims-x... into *f; @return false when they are rejected. */
static bool take_flags(struct regex_parser *r, struct flags *f)
{
    for (bool on = true; more(r) && peek(r) != ')' && peek(r) != ':'; r->at++) {
        char c = peek(r);
        if (c == '-' && on)
            on = false;
        else if (c == 'i')
            f->ignore_case = on;
        else if (c == 's')
            f->dot_all = on;
        else if (c == 'a' && on)
            f->ascii = true;
        else if (c == 'u' && on)
            f->ascii = false;
        else {
            refuse(r, r->at, "the flag %c of a (?...) group is not supported", c >= 0x20 && c < 0x7f ? c : '?');
            return false;
        }
    }
    return more(r);
}

static void skip_name(struct regex_parser *r, size_t start)
{
    size_t from = r->at;
    while (more(r) && peek(r) != '>') r->at++;
    if (r->at == from || !more(r)) refuse(r, start, "a group name that does not end");
    if (!failed(r)) r->at++;
}

static struct part group_body(struct regex_parser *r, size_t start, bool at_start, struct flags f)
{
    struct flags outer = r->f;
    if (++r->depth > GROUPS_MAX) return refuse(r, start, "groups nested deeper than %d", GROUPS_MAX);
    r->f = f;
    struct part p = take_choice(r, at_start);
    r->f = outer;
    r->depth--;
    if (failed(r)) return p;
    if (!match(r, ")")) return refuse(r, start, "a group without its )");
    return p;
}

/* The group whose ( was read. */
static struct part take_group(struct regex_parser *r, size_t start, bool at_start)
{
    struct flags f = r->f;
    if (!match(r, "?")) return group_body(r, start, at_start, f);
    if (match(r, ":")) return group_body(r, start, at_start, f);
    if (match(r, "=") || match(r, "!")) return refuse(r, start, "look-ahead is not supported");
    if (match(r, "<=") || match(r, "<!")) return refuse(r, start, "look-behind is not supported");
    if (match(r, "P=")) return refuse(r, start, "back-references are not regular");
    if (match(r, ">")) return refuse(r, start, "atomic groups are not supported");
    if (match(r, "(")) return refuse(r, start, "conditional groups are not supported");
    if (match(r, "P<") || match(r, "<")) {
        skip_name(r, start);
        return group_body(r, start, at_start, f);
    }
    if (match(r, "#")) {
        while (more(r) && peek(r) != ')') r->at++;
        if (!match(r, ")")) return refuse(r, start, "a comment without its )");
        return (struct part){.x = gram_seq(r->b, NULL, 0)};
    }
    if (!take_flags(r, &f)) return failed(r) ? (struct part){.x = -1} : refuse(r, start, "a group without its )");
    if (match(r, ":")) return group_body(r, start, at_start, f);
    return refuse(r, start, "flags stand at the start of the whole expression, or before a colon");
}

/* ---- sequences and choices ---- */

static struct part take_escape(struct regex_parser *r, size_t start)
{
    uint32_t c;
    struct ranges set = {0};
    if (r->at == r->n) return refuse(r, start, "a backslash at the end");
    char which = peek(r);
    if (which == 'A' || which == 'Z') {
        r->at++;
        return (struct part){.x = gram_seq(r->b, NULL, 0), .starts = which == 'A', .ends = which == 'Z'};
    }
    if (take_char_escape(r, false, &c)) return failed(r) ? (struct part){.x = -1} : char_part(r, c);
    if (failed(r)) return (struct part){.x = -1};
    const char *known = which ? strchr(CATEGORIES, which) : NULL;
    if (!known) return bad_escape(r, start, which);
    gexpr *made = &r->category[r->f.ascii][known - CATEGORIES];
    r->at++;
    if (!*made) {
        add_category(r, which, &set);
        *made = gram_class_ranges(r->b, &set) + 1;
    }
    return (struct part){.x = *made - 1};
}

static struct part take_atom(struct regex_parser *r, bool at_start)
{
    size_t start = r->at;
    uint32_t c, min, max;
    if (take_quantifier(r, &min, &max)) return refuse(r, start, "nothing to repeat");
    if (failed(r)) return (struct part){.x = -1};
    c = take(r);
    if (c == '^') return (struct part){.x = gram_seq(r->b, NULL, 0), .starts = true};
    if (c == '$') return (struct part){.x = gram_seq(r->b, NULL, 0), .ends = true};
    if (c == '(') return take_group(r, start, at_start);
    if (c == '[') return take_set(r, start);
    if (c == '\\') return take_escape(r, start);
    if (c != '.') return char_part(r, c);
    struct grange newline = {'\n', '\n'};
    return (struct part){.x = gram_class(r->b, &newline, r->f.dot_all ? 0 : 1, 1)};
}

static void text_flush(struct regex_parser *r, struct buf *text, struct list *l)
{
    if (text->len) list_add(l, gram_bytes(r->b, text->data, text->len));
    buf_clear(text);
}

static struct part take_sequence(struct regex_parser *r, bool at_start)
{
    struct list l = {0};
    struct buf text = {0};
    struct part all = {0};
    bool first = at_start;
    while (more(r) && peek(r) != '|' && peek(r) != ')') {
        size_t start = r->at;
        struct part p = take_atom(r, first);
        if (!failed(r) && p.starts && !first) refuse(r, start, "^ is only supported at the beginning");
        if (!failed(r) && all.ends && !(p.ends && !p.is_char && r->at - start <= 2))
            refuse(r, start, "$ is only supported at the end");
        if (failed(r)) break;
        bool anchor = (p.starts || p.ends) && r->at - start <= 2 && r->s[start] != '(';
        size_t before = r->at;
        struct part q = repeat_part(r, p);
        if (anchor && r->at != before) refuse(r, before, "nothing to repeat");
        if (failed(r)) break;
        all.starts |= q.starts;
        all.ends |= q.ends;
        if (!anchor) first = false;
        if (q.is_char) {
            char utf8[4];
            buf_append(&text, utf8, utf8_put(utf8, q.c));
            continue;
        }
        text_flush(r, &text, &l);
        list_add(&l, q.x);
    }
    text_flush(r, &text, &l);
    all.x = gram_seq(r->b, l.v, l.n);
    free(l.v);
    buf_free(&text);
    return all;
}

static struct part take_choice(struct regex_parser *r, bool at_start)
{
    struct list l = {0};
    struct part all = {0};
    do {
        struct part p = take_sequence(r, at_start);
        all.starts |= p.starts;
        all.ends |= p.ends;
        list_add(&l, p.x);
    } while (!failed(r) && match(r, "|"));
    all.x = gram_alt(r->b, l.v, l.n);
    free(l.v);
    return all;
}

/* (?i) and the like, before everything else. */
static void take_global_flags(struct regex_parser *r)
{
    static const char letters[] = "aiLmsux";
    while (r->n - r->at > 2 && r->s[r->at] == '(' && r->s[r->at + 1] == '?' && strchr(letters, r->s[r->at + 2])) {
        size_t start = r->at;
        struct flags f = r->f;
        r->at += 2;
        if (!take_flags(r, &f) || !match(r, ")")) {
            r->at = start; /* an ordinary group, or an invalid one */
            return;
        }
        r->f = f;
    }
}

gexpr gram_regex(struct grammar_builder *b, const char *pattern, size_t n)
{
    if (b->err.code) return -1;
    for (size_t i = 0; i < n;) {
        int step = utf8_step(pattern + i, n - i);
        if (step <= 0) return gram_fail(b, "byte %zu of the regular expression: not UTF-8", i);
        i += (size_t)step;
    }
    struct regex_parser r = {.b = b, .s = pattern, .n = n};
    take_global_flags(&r);
    struct part p = failed(&r) ? (struct part){.x = -1} : take_choice(&r, true);
    if (!failed(&r) && r.at < n) refuse(&r, r.at, "a ) without its (");
    return failed(&r) ? -1 : p.x;
}
