/* Oniguruma patterns on PCRE2.  No state of its own; see regex.h.
 *
 * Where the two differ, and what is done about it:
 *   \s       PCRE2 adds U+180E; rewritten to Unicode's White_Space.
 *   \w \d    PCRE2's \w is [\p{L}\p{N}_]; rewritten to Alphabetic, M, Nd, Pc, and Nd.
 *   \h       a hex digit in Oniguruma, white space in PCRE2.
 *   (?m)     "dot matches newline" in Ruby syntax, PCRE2's (?s); ^ and $ match at every line in Ruby.
 *   x{1,3}+  not possessive in Ruby syntax: (x{1,3})+.
 *   [a[bc]]  nested and intersected classes: refused.
 *   \p{L} and its like: characters newer than PCRE2's tables are added (regex_newer.h).
 *   \p{Han} means the script, not PCRE2's script extensions.
 * tests/tokenizer/README.md lists what is left.  */
#include "engine/tokenizer/regex.h"

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/tokenizer/regex_newer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    PATTERN_MAX = 1 << 16,
    MATCH_LIMIT = 10 * 1000 * 1000, /* per match; grows with the subject, as one linear match may visit it all */
    DEPTH_LIMIT = 100 * 1000,
    HEAP_LIMIT_KIB = 64 << 10,
    JIT_STACK_MAX = 1 << 20,
};

struct regex {
    pcre2_code *code;
    bool jit;
};

#define WHITE_SPACE "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}" NEWER_L NEWER_M NEWER_ND
#define HEX "0-9A-Fa-f"

/* what an escape, and its negation, mean: the inside of a class */
static const struct {
    const char *is, *is_not, *set;
} escapes[] = {
    {"s", "S", WHITE_SPACE},
    {"w", "W", WORD},
    {"d", "D", "\\p{Nd}" NEWER_ND},
    {"h", "H", HEX},
    {"p{L}", "P{L}", "\\p{L}" NEWER_L},
    {"p{N}", "P{N}", "\\p{N}" NEWER_ND NEWER_N},
    {"p{Nd}", "P{Nd}", "\\p{Nd}" NEWER_ND},
    {"p{M}", "P{M}", "\\p{M}" NEWER_M},
    {"p{P}", "P{P}", "\\p{P}" NEWER_P},
    {"p{S}", "P{S}", "\\p{S}" NEWER_S},
    {"p{Lu}", "P{Lu}", "\\p{Lu}" NEWER_LU},
    {"p{Ll}", "P{Ll}", "\\p{Ll}" NEWER_LL},
    {"p{Lo}", "P{Lo}", "\\p{Lo}" NEWER_LO},
    {"p{Han}", "P{Han}", "\\p{sc:Han}" NEWER_HAN}, /* a bare name means Script_Extensions to PCRE2 */
    {"p{Hiragana}", "P{Hiragana}", "\\p{sc:Hiragana}"},
    {"p{Katakana}", "P{Katakana}", "\\p{sc:Katakana}"},
    {"p{Hangul}", "P{Hangul}", "\\p{sc:Hangul}"},
    {"p{Latin}", "P{Latin}", "\\p{sc:Latin}"},
    {"p{Cyrillic}", "P{Cyrillic}", "\\p{sc:Cyrillic}"},
    {"p{Arabic}", "P{Arabic}", "\\p{sc:Arabic}"},
    {"pL", "PL", "\\p{L}" NEWER_L},
    {"pN", "PN", "\\p{N}" NEWER_ND NEWER_N},
};

struct rewrite {
    const char *p;
    size_t n, i;
    bool in_class;
    struct buf out;
    struct err *e;
};

static int rewrite_refuse(struct rewrite *r, const char *what)
{
    return err_set(r->e, ERR_UNSUPPORTED, "regular expression, byte %zu: %s", r->i, what);
}

/* The backslash at r->i is followed by s. */
static bool rewrite_sees(const struct rewrite *r, const char *s)
{
    size_t n = strlen(s);
    return r->n - r->i > n && !memcmp(r->p + r->i + 1, s, n);
}

static int rewrite_escape(struct rewrite *r)
{
    if (r->i + 1 >= r->n) return err_set(r->e, ERR_INVALID, "regular expression ends with a backslash");
    char c = r->p[r->i + 1];
    for (size_t k = 0; k < sizeof escapes / sizeof *escapes; k++) {
        bool is = rewrite_sees(r, escapes[k].is), is_not = rewrite_sees(r, escapes[k].is_not);
        if (!is && !is_not) continue;
        size_t n = strlen(escapes[k].is);
        if (is_not && r->in_class) { /* PCRE2 cannot nest classes: its own idea of the set has to do */
            if (c == 'W' || c == 'H') return rewrite_refuse(r, "a negated set inside a class");
            buf_append(&r->out, r->p + r->i, n + 1);
        } else if (r->in_class) {
            buf_str(&r->out, escapes[k].set);
        } else {
            buf_printf(&r->out, "[%s%s]", is_not ? "^" : "", escapes[k].set);
        }
        r->i += n + 1;
        return 0;
    }
    if (c == 'C' || c == 'K' || c == 'Q' || c == 'E' || c == 'X') return rewrite_refuse(r, "this escape is not read");
    if (c == 'u') {
        if (r->i + 6 > r->n) return err_set(r->e, ERR_INVALID, "regular expression: \\u needs four hex digits");
        buf_printf(&r->out, "\\x{%.4s}", r->p + r->i + 2);
        r->i += 6;
        return 0;
    }
    buf_append(&r->out, r->p + r->i, 2);
    r->i += 2;
    return 0;
}

/* "[": a class opens, or, inside one, a POSIX name such as [:alpha:] */
static int rewrite_bracket(struct rewrite *r)
{
    if (r->in_class) {
        if (r->i + 1 >= r->n || r->p[r->i + 1] != ':') return rewrite_refuse(r, "a class inside a class");
        buf_str(&r->out, "[:");
        r->i += 2;
        while (r->i < r->n && r->p[r->i] != ']') buf_char(&r->out, r->p[r->i++]);
        if (r->i < r->n) buf_char(&r->out, r->p[r->i++]);
        return 0;
    }
    r->in_class = true;
    buf_char(&r->out, r->p[r->i++]);
    if (r->i < r->n && r->p[r->i] == '^') buf_char(&r->out, r->p[r->i++]);
    if (r->i < r->n && r->p[r->i] == ']') buf_str(&r->out, "\\]"), r->i++;
    return 0;
}

static int rewrite_group(struct rewrite *r)
{
    buf_char(&r->out, r->p[r->i++]);
    if (r->i >= r->n) return 0;
    if (r->p[r->i] == '*') return rewrite_refuse(r, "a verb");
    if (r->p[r->i] != '?') return 0;
    size_t k = r->i + 1;
    while (k < r->n && r->p[k] && strchr("imx-", r->p[k])) k++;
    if (k < r->n && (r->p[k] == ':' || r->p[k] == ')')) {
        for (; r->i < k; r->i++) buf_char(&r->out, r->p[r->i] == 'm' ? 's' : r->p[r->i]);
        return 0;
    }
    if (k >= r->n || !strchr("=!<>", r->p[r->i + 1])) return rewrite_refuse(r, "this kind of group is not read");
    buf_char(&r->out, r->p[r->i++]);
    return 0;
}

/* "{m,n}" as Ruby has it: {,n} starts at 0, and a plus behind it repeats the whole. */
static int rewrite_braces(struct rewrite *r)
{
    size_t k = r->i + 1;
    unsigned lo = 0, hi = 0;
    bool has_lo = false, comma = false, has_hi = false;
    for (; k < r->n && r->p[k] >= '0' && r->p[k] <= '9' && lo < 100000; k++, has_lo = true)
        lo = lo * 10 + (unsigned)(r->p[k] - '0');
    if (k < r->n && r->p[k] == ',') comma = true, k++;
    for (; k < r->n && r->p[k] >= '0' && r->p[k] <= '9' && hi < 100000; k++, has_hi = true)
        hi = hi * 10 + (unsigned)(r->p[k] - '0');
    if (k >= r->n || r->p[k] != '}' || (!has_lo && !has_hi)) return buf_char(&r->out, r->p[r->i++]), 0; /* literal */
    bool plus = k + 1 < r->n && r->p[k + 1] == '+';
    if (plus && lo > 1) return rewrite_refuse(r, "{n,m}+ with n > 1");
    if (plus)
        buf_char(&r->out, lo ? '+' : '*');
    else if (!comma)
        buf_printf(&r->out, "{%u}", lo);
    else if (has_hi)
        buf_printf(&r->out, "{%u,%u}", lo, hi);
    else
        buf_printf(&r->out, "{%u,}", lo);
    r->i = k + (plus ? 2 : 1);
    return 0;
}

static int rewrite_next(struct rewrite *r)
{
    char c = r->p[r->i];
    if (c == '\\') return rewrite_escape(r);
    if (c == '[') return rewrite_bracket(r);
    if (r->in_class) {
        if (c == ']') r->in_class = false;
        if (c == '&' && r->i + 1 < r->n && r->p[r->i + 1] == '&') return rewrite_refuse(r, "a class intersection");
    } else {
        if (c == '(') return rewrite_group(r);
        if (c == '{') return rewrite_braces(r);
    }
    buf_char(&r->out, c);
    r->i++;
    return 0;
}

static pcre2_general_context *memory;

static void *memory_get(size_t bytes, void *arg)
{
    (void)arg;
    return mem_alloc(bytes);
}

static void memory_free(void *p, void *arg)
{
    (void)arg;
    free(p);
}

static void memory_open(void)
{
    memory = pcre2_general_context_create(memory_get, memory_free, NULL);
}

void *regex_memory(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, memory_open);
    return memory;
}

static struct regex *regex_make(const char *pattern, size_t n, uint32_t options, struct err *e)
{
    int code;
    PCRE2_SIZE where;
    pcre2_compile_context *context = pcre2_compile_context_create(regex_memory());
    CHECK(context);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, 100);
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern, n, options, &code, &where, context);
    pcre2_compile_context_free(context);
    if (!compiled) {
        char why[160] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        err_set(e, ERR_INVALID, "regular expression, byte %zu: %s", (size_t)where, why);
        return NULL;
    }
    struct regex *r = mem_alloc(sizeof *r);
    r->code = compiled;
    r->jit = !pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
    return r;
}

struct regex *regex_compile(const char *pattern, size_t n, struct err *e)
{
    if (n > PATTERN_MAX) return err_set(e, ERR_INVALID, "regular expression longer than %d bytes", PATTERN_MAX), NULL;
    const uint32_t syntax = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    struct rewrite w = {.p = pattern, .n = n, .e = e};
    buf_str(&w.out, "");
    int rc = 0;
    while (w.i < n && !rc) rc = rewrite_next(&w);
    struct regex *r = rc ? NULL : regex_make(w.out.data, w.out.len, syntax, e);
    buf_free(&w.out);
    return r;
}

struct regex *regex_literal(const char *text, size_t n, struct err *e)
{
    if (n > PATTERN_MAX) return err_set(e, ERR_INVALID, "pattern longer than %d bytes", PATTERN_MAX), NULL;
    return regex_make(text, n, PCRE2_UTF | PCRE2_LITERAL, e);
}

int regex_read(const struct json_at *at, const char *key, struct regex **out, struct err *e)
{
    struct json_at m = json_member(at, key);
    if (!cJSON_IsObject(m.v)) return json_fail(&m, e, ERR_INVALID, "must be {\"String\": s} or {\"Regex\": r}");
    const char *literal, *pattern;
    int rc = json_string_or(&m, "String", NULL, &literal, e);
    if (!rc) rc = json_string_or(&m, "Regex", NULL, &pattern, e);
    if (rc) return rc;
    if (!literal == !pattern) return json_fail(&m, e, ERR_INVALID, "needs one of String and Regex");
    struct err why = {0};
    *out = literal ? regex_literal(literal, strlen(literal), &why) : regex_compile(pattern, strlen(pattern), &why);
    return *out ? 0 : json_fail(&m, e, why.code, "%s", why.msg);
}

void regex_free(struct regex *r)
{
    if (!r) return;
    pcre2_code_free(r->code);
    free(r);
}

void regex_run_free(struct regex_run *run)
{
    pcre2_match_data_free(run->match);
    pcre2_match_context_free(run->context);
    pcre2_jit_stack_free(run->stack);
    *run = (struct regex_run){0};
}

static void run_prepare(struct regex_run *run)
{
    run->match = pcre2_match_data_create(1, regex_memory());
    run->context = pcre2_match_context_create(regex_memory());
    run->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_MAX, regex_memory());
    CHECK(run->match && run->context);
    pcre2_jit_stack_assign(run->context, NULL, run->stack);
    pcre2_set_depth_limit(run->context, DEPTH_LIMIT);
    pcre2_set_heap_limit(run->context, HEAP_LIMIT_KIB);
}

/* 1 found, 0 not, or an err code */
static int regex_search(const struct regex *r, struct regex_run *run, struct regex_scan *scan, struct err *e)
{
    uint32_t limit = scan->n < UINT32_MAX / 16 ? MATCH_LIMIT + 8 * (uint32_t)scan->n : UINT32_MAX;
    pcre2_set_match_limit(run->context, limit);
    PCRE2_SPTR s = (PCRE2_SPTR)scan->s;
    /* the text is valid UTF-8 (text_decode saw to it) and pieces start on characters: no need to check each time */
    int rc = r->jit ? pcre2_jit_match(r->code, s, scan->n, scan->from, PCRE2_NO_UTF_CHECK, run->match, run->context)
                    : pcre2_match(r->code, s, scan->n, scan->from, PCRE2_NO_UTF_CHECK, run->match, run->context);
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc < 0) {
        char why[120] = "";
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
        return err_set(e, ERR_INVALID, "the tokenizer's regular expression gave up on this text: %s", why);
    }
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(run->match);
    /* \K is refused and lookarounds cannot move the ends, yet a match that ends before its start would loop for ever */
    if (v[0] > v[1] || v[0] < scan->from) return err_set(e, ERR_INVALID, "regular expression matched backwards");
    scan->start = v[0];
    scan->end = v[1];
    return 1;
}

int regex_next(const struct regex *r, struct regex_run *run, struct regex_scan *scan, struct err *e)
{
    if (!run->match) run_prepare(run);
    while (scan->from <= scan->n) {
        size_t last = scan->end;
        int rc = regex_search(r, run, scan, e);
        if (rc <= 0) return rc;
        if (scan->start != scan->end || !scan->any || scan->end != last) {
            scan->from = scan->end;
            scan->any = true;
            return 1;
        }
        /* an empty match right behind the last one is passed over, as Oniguruma's iterator does */
        do scan->from++;
        while (scan->from < scan->n && ((unsigned char)scan->s[scan->from] & 0xc0) == 0x80);
    }
    return 0;
}
