/* The parser of regex.h: recursive descent, directly to expressions, with the anchors (^, $) as marks.  Then the marks
 * are resolved, and unanchored ends get any characters before or after them.  Depth and length are bounded. */
#include "server/schema/regex.h"

#include "engine/base/mem.h"
#include "server/json/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 60, LAST = 0x10ffff };

struct reader {
    struct jpool *p;
    const char *text;
    size_t n, at;
    int depth;
    struct err *e;
};

/* A character class being read: characters that belong to it in both dialects (sure), or in at least one (maybe). */
struct ranges {
    struct grange *v;
    size_t n, cap;
};
struct set {
    struct ranges sure, maybe;
};

__attribute__((format(printf, 3, 4))) static bool fault(struct reader *r, size_t at, const char *fmt, ...)
{
    char what[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (!r->e->code) err_set(r->e, ERR_INVALID, "byte %zu: %s", at, what);
    return false;
}

static int peek(const struct reader *r)
{
    return r->at < r->n ? (unsigned char)r->text[r->at] : -1;
}

static bool take(struct reader *r, const char *word)
{
    size_t len = strlen(word);
    if (r->n - r->at < len || memcmp(r->text + r->at, word, len) != 0) return false;
    r->at += len;
    return true;
}

/* Consumes the character at r->at, which must exist. */
static uint32_t take_char(struct reader *r)
{
    const unsigned char *s = (const unsigned char *)r->text + r->at;
    int len = utf8_length(s, r->n - r->at);
    static const unsigned char lead[5] = {0xff, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t c = s[0] & lead[len];
    for (int i = 1; i < len; i++) c = c << 6 | (s[i] & 0x3f);
    r->at += len ? (size_t)len : 1;
    return c;
}

/* ---- sets of characters ---------------------------------------------------------------------------------------- */

static void ranges_add(struct ranges *r, uint32_t lo, uint32_t hi)
{
    mem_grow(&r->v, &r->cap, r->n + 1, sizeof *r->v);
    r->v[r->n++] = (struct grange){lo, hi};
}

static int by_low(const void *a, const void *b)
{
    const struct grange *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

static struct ranges ranges_complement(struct ranges *r)
{
    struct ranges out = {0};
    uint32_t next = 0;
    if (r->n) qsort(r->v, r->n, sizeof *r->v, by_low);
    for (size_t i = 0; i < r->n; i++) {
        if (r->v[i].lo > next) ranges_add(&out, next, r->v[i].lo - 1);
        if (r->v[i].hi + 1 > next) next = r->v[i].hi + 1;
    }
    if (next <= LAST) ranges_add(&out, next, LAST);
    return out;
}

static void set_add(struct set *s, uint32_t lo, uint32_t hi)
{
    ranges_add(&s->sure, lo, hi);
    ranges_add(&s->maybe, lo, hi);
}

static void set_free(struct set *s)
{
    free(s->sure.v);
    free(s->maybe.v);
}

/* \d: Python's are the digits of all scripts, ECMA's are ASCII's.  \w, \s likewise.  The capital ones are what
 * remains, of the larger reading for `sure`.  (No digits lie in the ranges given for \D.) */
static const struct kind {
    char name;
    struct grange sure[8], maybe[14]; /* ended by {1, 0} */
} kinds[] = {
    {'d', {{'0', '9'}, {1, 0}}, {{'0', '9'}, {0x660, 0x1c59}, {0xa620, 0xabff}, {0xd800, LAST}, {1, 0}}},
    {'D', {{0, '/'}, {':', 0x65f}, {0x1c5a, 0xa61f}, {0xac00, 0xd7ff}, {1, 0}}, {{0, '/'}, {':', LAST}, {1, 0}}},
    {'w',
     {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}, {1, 0}},
     {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}, {0x80, LAST}, {1, 0}}},
    {'W',
     {{0, '/'}, {':', '@'}, {'[', '^'}, {'`', '`'}, {'{', 0x7f}, {1, 0}},
     {{0, '/'}, {':', '@'}, {'[', '^'}, {'`', '`'}, {'{', LAST}, {1, 0}}},
    {'s',
     {{'\t', '\r'}, {' ', ' '}, {1, 0}},
     {{'\t', '\r'},
      {0x1c, ' '},
      {0x85, 0x85},
      {0xa0, 0xa0},
      {0x1680, 0x1680},
      {0x180e, 0x180e},
      {0x2000, 0x200a},
      {0x2028, 0x2029},
      {0x202f, 0x202f},
      {0x205f, 0x205f},
      {0x3000, 0x3000},
      {0xfeff, 0xfeff},
      {1, 0}}},
};

static void add_all(struct ranges *out, const struct grange *v)
{
    for (; v->lo <= v->hi; v++) ranges_add(out, v->lo, v->hi);
}

/* \d and its like; false when c is none of them. */
static bool add_kind(struct set *s, char c)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (kinds[i].name != c) continue;
        add_all(&s->sure, kinds[i].sure);
        add_all(&s->maybe, kinds[i].maybe);
        return true;
    }
    if (c != 'S') return false;
    struct set space = {0};
    add_kind(&space, 's');
    struct ranges sure = ranges_complement(&space.maybe), maybe = ranges_complement(&space.sure);
    for (size_t i = 0; i < sure.n; i++) ranges_add(&s->sure, sure.v[i].lo, sure.v[i].hi);
    for (size_t i = 0; i < maybe.n; i++) ranges_add(&s->maybe, maybe.v[i].lo, maybe.v[i].hi);
    free(sure.v);
    free(maybe.v);
    set_free(&space);
    return true;
}

/* ---- escapes --------------------------------------------------------------------------------------------------- */

/* n hexadecimal digits at r->at. */
static bool take_hex(struct reader *r, size_t n, uint32_t *out)
{
    *out = 0;
    for (size_t i = 0; i < n; i++, r->at++) {
        int c = peek(r), low = c | 32;
        if (c >= '0' && c <= '9')
            *out = *out * 16 + (uint32_t)(c - '0');
        else if (low >= 'a' && low <= 'f')
            *out = *out * 16 + (uint32_t)(low - 'a' + 10);
        else
            return false;
    }
    return true;
}

static bool take_unicode(struct reader *r, size_t start, uint32_t *out)
{
    uint32_t low;
    if (peek(r) == '{') {
        size_t digits = 1;
        while (r->at + digits < r->n && r->text[r->at + digits] != '}') digits++;
        r->at++;
        if (digits < 2 || digits > 7 || !take_hex(r, digits - 1, out) || !take(r, "}") || *out > LAST)
            return fault(r, start, "\\u{...} needs the number of a character");
        return true;
    }
    if (!take_hex(r, 4, out)) return fault(r, start, "\\u needs four hexadecimal digits");
    if (*out >= 0xd800 && *out <= 0xdbff && take(r, "\\u")) {
        if (!take_hex(r, 4, &low) || low < 0xdc00 || low > 0xdfff) return fault(r, start, "an unpaired surrogate");
        *out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
    }
    return true;
}

/* r->at is after the backslash.  A class (then *one is false) is added to s; a character goes to *c. */
static bool take_escape(struct reader *r, bool in_class, struct set *s, bool *one, uint32_t *c)
{
    static const char names[] = "tnrfv0", values[] = "\t\n\r\f\v";
    size_t start = r->at - 1;
    int ch = peek(r);
    *one = true;
    if (ch < 0) return fault(r, start, "the pattern ends with a backslash");
    if (add_kind(s, (char)ch)) {
        r->at++;
        *one = false;
        return true;
    }
    *c = take_char(r);
    const char *name = ch < 0x80 ? strchr(names, ch) : NULL;
    if (name) {
        if (ch == '0' && peek(r) >= '0' && peek(r) <= '9') return fault(r, start, "an octal escape");
        *c = (unsigned char)values[name - names];
        return true;
    }
    switch (ch) {
    case 'x': return take_hex(r, 2, c) || fault(r, start, "\\x needs two hexadecimal digits");
    case 'u': return take_unicode(r, start, c);
    case 'c':
        if ((peek(r) | 32) < 'a' || (peek(r) | 32) > 'z') return fault(r, start, "\\c needs a letter");
        *c = take_char(r) & 31;
        return true;
    case 'b':
        if (!in_class) return fault(r, start, "\\b is not supported");
        *c = '\b';
        return true;
    case 'p':
    case 'P':
    case 'B': return fault(r, start, "\\%c is not supported", ch);
    case 'k': return fault(r, start, "back-references are not supported");
    default: break;
    }
    if (ch >= '1' && ch <= '9') return fault(r, start, "back-references are not supported");
    if ((ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z')) return fault(r, start, "unknown escape \\%c", ch);
    return true;
}

/* ---- the parser ------------------------------------------------------------------------------------------------ */

static jx read_alternatives(struct reader *r);

/* One end of a range in a class, or a whole kind (*one false). */
static bool read_member(struct reader *r, struct set *s, bool *one, uint32_t *c)
{
    if (take(r, "\\")) return take_escape(r, true, s, one, c);
    *one = true;
    *c = take_char(r);
    return true;
}

/* r->at is after the opening bracket. */
static bool read_members(struct reader *r, struct set *s, size_t start)
{
    while (peek(r) != ']') {
        bool one, other;
        uint32_t lo = 0, hi = 0;
        size_t at = r->at;
        if (peek(r) < 0) return fault(r, start, "the class has no closing ]");
        if (!read_member(r, s, &one, &lo)) return false;
        bool range = r->at + 1 < r->n && r->text[r->at] == '-' && r->text[r->at + 1] != ']';
        if (!range) {
            if (one) set_add(s, lo, lo);
            continue;
        }
        r->at++;
        if (!read_member(r, s, &other, &hi)) return false;
        if (!one || !other || lo > hi) return fault(r, at, "a bad range in a class");
        set_add(s, lo, hi);
    }
    r->at++;
    return true;
}

static jx read_class(struct reader *r)
{
    struct set s = {0};
    struct ranges rest = {0};
    jx out = JX_NONE;
    size_t start = r->at - 1;
    bool not_in = take(r, "^");
    if (peek(r) == ']') {
        fault(r, start, "an empty class"); /* in Python it begins with a bracket */
    } else if (read_members(r, &s, start)) {
        if (not_in) rest = ranges_complement(&s.maybe);
        out = not_in ? jx_chars(r->p, rest.v, rest.n) : jx_chars(r->p, s.sure.v, s.sure.n);
    }
    free(rest.v);
    set_free(&s);
    return out;
}

/* r->at is after the opening parenthesis. */
static jx read_group(struct reader *r)
{
    size_t start = r->at - 1;
    if (take(r, "?")) {
        bool named = take(r, "P<");
        if (take(r, "=") || take(r, "!") || (!named && (take(r, "<=") || take(r, "<!")))) {
            fault(r, start, "look-around is not supported");
            return JX_NONE;
        }
        if (named || take(r, "<")) {
            while (peek(r) > 0 && peek(r) != '>') r->at++;
            if (!take(r, ">")) fault(r, start, "a group's name has no end");
        } else if (!take(r, ":")) {
            fault(r, start, "this kind of group is not supported");
        }
    }
    if (r->e->code) return JX_NONE;
    if (++r->depth > DEPTH_MAX) {
        fault(r, start, "nested deeper than %d groups", DEPTH_MAX);
        return JX_NONE;
    }
    jx out = read_alternatives(r);
    r->depth--;
    if (!r->e->code && !take(r, ")")) fault(r, start, "the group has no closing )");
    return out;
}

/* Consumes {m}, {m,} or {m,n} at r->at.  @return whether there was one. */
static bool take_counts(struct reader *r, uint32_t *min, uint32_t *max)
{
    size_t at = r->at + 1;
    uint32_t v[2] = {0, 0};
    bool given[2] = {false, false}, comma = false;
    if (peek(r) != '{') return false;
    for (; at < r->n && r->text[at] != '}'; at++) {
        char c = r->text[at];
        if (c == ',' && !comma) {
            comma = true;
            continue;
        }
        if (c < '0' || c > '9') return false;
        given[comma] = true;
        if (v[comma] < 1000 * 1000) v[comma] = v[comma] * 10 + (uint32_t)(c - '0');
    }
    if (at >= r->n || !given[0]) return false;
    *min = v[0];
    *max = !comma ? v[0] : given[1] ? v[1] : JX_MANY;
    r->at = at + 1;
    return true;
}

static jx read_atom(struct reader *r)
{
    static const struct grange line_ends[] = {{0, '\t'}, {0xb, '\f'}, {0xe, 0x2027}, {0x202a, LAST}};
    size_t start = r->at;
    uint32_t c, min, max;
    if (take(r, "(")) return read_group(r);
    if (take(r, "[")) return read_class(r);
    if (take(r, ".")) return jx_chars(r->p, line_ends, 4); /* all but */
    if (take(r, "^") || take(r, "\\A")) return jx_anchor(r->p, 0);
    if (take(r, "$") || take(r, "\\Z")) return jx_anchor(r->p, 1);
    if (take(r, "\\")) {
        struct set s = {0};
        bool one;
        jx out = JX_NONE;
        if (take_escape(r, false, &s, &one, &c)) {
            if (one) set_add(&s, c, c);
            out = jx_chars(r->p, s.sure.v, s.sure.n);
        }
        set_free(&s);
        return out;
    }
    if (peek(r) == '*' || peek(r) == '+' || peek(r) == '?' || take_counts(r, &min, &max)) {
        fault(r, start, "nothing to repeat");
        return JX_NONE;
    }
    if (r->n - r->at > 1 && take(r, "{,")) {
        fault(r, start, "{,n} means two things; write {0,n}");
        return JX_NONE;
    }
    c = take_char(r);
    return jx_chars(r->p, &(struct grange){c, c}, 1);
}

static jx read_item(struct reader *r)
{
    size_t start = r->at;
    jx atom = read_atom(r);
    uint32_t min, max;
    if (r->e->code) return JX_NONE;
    size_t at = r->at;
    if (take(r, "*")) {
        min = 0, max = JX_MANY;
    } else if (take(r, "+")) {
        min = 1, max = JX_MANY;
    } else if (take(r, "?")) {
        min = 0, max = 1;
    } else if (!take_counts(r, &min, &max)) {
        return atom;
    }
    if (min > max) fault(r, at, "the counts are in the wrong order");
    if (min > JX_REPEAT_MAX) fault(r, at, "repeats more than %d times", JX_REPEAT_MAX);
    if (jx_kind(r->p, atom) == JX_IS_ANCHOR) fault(r, start, "nothing to repeat");
    take(r, "?"); /* lazy: the same strings match */
    at = r->at;
    uint32_t more, most;
    if (take(r, "+")) fault(r, at, "possessive repetitions are not supported");
    if (take(r, "*") || take(r, "?") || take_counts(r, &more, &most)) fault(r, at, "nothing to repeat");
    return r->e->code ? JX_NONE : jx_repeat(r->p, atom, min, max);
}

static jx read_sequence(struct reader *r)
{
    jx *v = NULL;
    size_t n = 0, cap = 0;
    while (!r->e->code && peek(r) >= 0 && peek(r) != '|' && peek(r) != ')') {
        jx item = read_item(r);
        mem_grow(&v, &cap, n + 1, sizeof *v);
        v[n++] = item;
    }
    jx out = r->e->code ? JX_NONE : jx_seq(r->p, v, n);
    free(v);
    return out;
}

static jx read_alternatives(struct reader *r)
{
    jx *v = NULL;
    size_t n = 0, cap = 0;
    do {
        jx branch = read_sequence(r);
        mem_grow(&v, &cap, n + 1, sizeof *v);
        v[n++] = branch;
    } while (!r->e->code && take(r, "|"));
    jx out = r->e->code ? JX_NONE : jx_alt(r->p, v, n);
    free(v);
    return out;
}

/* ---- the ends -------------------------------------------------------------------------------------------------- */

/* Where an expression stands: at the very beginning, at the very end (only there may an anchor be), and whether any
 * characters may still come before it, or behind it. */
struct place {
    bool begins, ends, before, behind;
};

static jx resolve(struct reader *r, jx x, struct place at);

static jx any_chars(struct reader *r, bool wanted)
{
    return wanted ? jx_repeat(r->p, jx_any_char(r->p), 0, JX_MANY) : JX_EMPTY;
}

static bool is_anchor(const struct reader *r, jx x, uint32_t end)
{
    return jx_kind(r->p, x) == JX_IS_ANCHOR && jx_repeat_min(r->p, x) == end;
}

static jx resolve_seq(struct reader *r, jx *v, size_t n, struct place at)
{
    size_t lo = 0, hi = n;
    while (lo < hi && at.begins && is_anchor(r, v[lo], 0)) {
        at.before = false;
        lo++;
    }
    while (hi > lo && at.ends && is_anchor(r, v[hi - 1], 1)) {
        at.behind = false;
        hi--;
    }
    if (hi == lo) return any_chars(r, at.before || at.behind);
    if (hi - lo == 1) return resolve(r, v[lo], at);
    v[lo] = resolve(r, v[lo], (struct place){.begins = at.begins, .before = at.before});
    v[hi - 1] = resolve(r, v[hi - 1], (struct place){.ends = at.ends, .behind = at.behind});
    for (size_t i = lo + 1; i + 1 < hi; i++) v[i] = resolve(r, v[i], (struct place){0});
    return jx_seq(r->p, v + lo, hi - lo);
}

static jx resolve(struct reader *r, jx x, struct place at)
{
    enum jx_kind kind = jx_kind(r->p, x);
    if (!jx_has_anchor(r->p, x)) return jx_seq3(r->p, any_chars(r, at.before), x, any_chars(r, at.behind));
    if (kind == JX_IS_ANCHOR) {
        bool end = is_anchor(r, x, 1);
        if (end ? at.ends : at.begins) return any_chars(r, end ? at.before : at.behind);
        fault(r, r->n, "^ and $ are supported at the ends only");
        return JX_NONE;
    }
    const jx *kids;
    size_t n = jx_children(r->p, x, &kids);
    jx *v = mem_array(n, sizeof *v), out = JX_NONE;
    memcpy(v, kids, n * sizeof *v);
    if (kind == JX_IS_SEQ) {
        out = resolve_seq(r, v, n, at);
    } else if (kind == JX_IS_ALT) {
        for (size_t i = 0; i < n; i++) v[i] = resolve(r, v[i], at);
        out = jx_alt(r->p, v, n);
    } else if (jx_repeat_min(r->p, x) == 0 && jx_repeat_max(r->p, x) == 1) { /* (^a)? */
        out = jx_alt2(r->p, resolve(r, JX_EMPTY, at), resolve(r, v[0], at));
    } else {
        fault(r, r->n, "^ and $ are supported at the ends only");
    }
    free(v);
    return out;
}

jx json_regex(struct jpool *p, const char *pattern, struct err *e)
{
    struct err local = {0};
    struct reader r = {.p = p, .text = pattern, .n = strlen(pattern), .e = &local};
    jx out = JX_NONE;
    if (r.n > JSON_REGEX_MAX) {
        err_set(&local, ERR_INVALID, "longer than %d bytes", JSON_REGEX_MAX);
    } else {
        out = read_alternatives(&r);
        if (!local.code && r.at < r.n) fault(&r, r.at, "unbalanced )");
        if (!local.code)
            out = resolve(&r, out, (struct place){.begins = true, .ends = true, .before = true, .behind = true});
    }
    if (!local.code) return out;
    *e = local;
    return JX_NONE;
}

bool json_regex_supported(const char *pattern)
{
    struct err e = {0};
    struct jpool *p = jpool_new();
    jx root = json_regex(p, pattern, &e);
    struct grammar *g = e.code ? NULL : jexpr_grammar(p, root, &e);
    grammar_unref(g);
    jpool_free(p);
    return g != NULL;
}
