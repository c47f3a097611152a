#include "server/schema/lark.h"

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "server/schema/regex.h"

#include <stdlib.h>
#include <string.h>

enum { SYMBOLS_MAX = 512, NAME_MAX_BYTES = 63, ITEMS_MAX = 256, DEPTH_MAX = 64, COUNT_MAX = 10000 };

struct symbol {
    char name[NAME_MAX_BYTES + 1];
    jx rule;
    bool defined;
};

struct lark {
    struct jpool *p;
    const char *start, *s; /* s: the next byte */
    struct err *e;
    struct symbol *symbols;
    int n, depth; /* depth: of brackets */
};

static jx fail(struct lark *l, const char *what)
{
    if (!l->e->code) err_set(l->e, ERR_INVALID, "byte %zu: %s", (size_t)(l->s - l->start), what);
    return JX_NONE;
}

/* ---- words ----------------------------------------------------------------------------------------------------- */

static void skip_comment(struct lark *l)
{
    if ((l->s[0] == '/' && l->s[1] == '/') || *l->s == '#') l->s += strcspn(l->s, "\n");
}

/* Within brackets, or where all is set, lines do not count. */
static void skip_space(struct lark *l, bool all)
{
    for (;;) {
        l->s += strspn(l->s, all || l->depth ? " \t\r\n\f" : " \t\r\f");
        const char *before = l->s;
        skip_comment(l);
        if (l->s == before) return;
    }
}

static bool take(struct lark *l, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(l->s, word, n) != 0) return false;
    l->s += n;
    return true;
}

static size_t name_length(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
    return *s >= '0' && *s <= '9' ? 0 : n;
}

static struct symbol *find_symbol(struct lark *l, const char *name, size_t n)
{
    for (int i = 0; i < l->n; i++)
        if (strncmp(l->symbols[i].name, name, n) == 0 && !l->symbols[i].name[n]) return &l->symbols[i];
    if (!n || n > NAME_MAX_BYTES || l->n == SYMBOLS_MAX) {
        fail(l, n ? "there are too many names, or one is too long" : "expected a name");
        return NULL;
    }
    struct symbol *s = &l->symbols[l->n++];
    memcpy(s->name, name, n);
    s->name[n] = 0;
    s->rule = jx_rule(l->p);
    s->defined = false;
    return s;
}

static struct symbol *take_symbol(struct lark *l)
{
    size_t n = name_length(l->s);
    struct symbol *s = find_symbol(l, l->s, n);
    l->s += n;
    return s;
}

static void define(struct lark *l, struct symbol *s, jx body)
{
    if (s->defined) {
        fail(l, "a name is defined twice");
        return;
    }
    s->defined = true;
    jx_define(l->p, s->rule, body);
}

/* ---- strings and regular expressions --------------------------------------------------------------------------- */

static int hex_digits(const char *s, int n)
{
    int v = 0;
    for (int i = 0; i < n; i++) {
        char c = s[i];
        int d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* A character of UTF-8, as json_check has let it through; -1: an error. */
static int32_t take_plain(struct lark *l)
{
    unsigned char lead = (unsigned char)*l->s;
    int more = lead < 0x80 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
    int32_t code = lead < 0x80 ? lead : lead & (0x3f >> more);
    bool good = lead >= 32 && (lead < 0x80 || lead >= 0xc2);
    for (int i = 1; i <= more && good; i++) {
        good = ((unsigned char)l->s[i] & 0xc0) == 0x80;
        code = code << 6 | (l->s[i] & 0x3f);
    }
    if (!good) {
        fail(l, "a string does not end, or is not UTF-8");
        return -1;
    }
    l->s += 1 + more;
    return code;
}

/* The next character of a string in quotes; -1: an error. */
static int32_t take_char(struct lark *l)
{
    static const char from[] = "ntrfb\\\"'/", to[] = "\n\t\r\f\b\\\"'/";
    if (*l->s != '\\') return take_plain(l);
    char kind = l->s[1];
    int digits = kind == 'x' ? 2 : kind == 'u' ? 4 : 0, v = digits ? hex_digits(l->s + 2, digits) : -1;
    const char *at = kind ? strchr(from, kind) : NULL;
    if (!digits && at) v = (unsigned char)to[at - from];
    if (v < 0 || (v >= 0xd800 && v < 0xe000)) {
        fail(l, "this escape is not supported");
        return -1;
    }
    l->s += 2 + digits;
    return v;
}

static jx one_char(struct lark *l, int32_t c, bool any_case)
{
    int32_t lower = c | 32;
    bool letter = any_case && lower >= 'a' && lower <= 'z';
    struct grange r[2] = {{(uint32_t)c, (uint32_t)c}, {(uint32_t)(c ^ 32), (uint32_t)(c ^ 32)}};
    return jx_chars(l->p, r, letter ? 2 : 1);
}

static jx take_range(struct lark *l, int32_t from)
{
    l->s += 3; /* .." */
    int32_t to = *l->s == '"' ? -1 : take_char(l);
    if (to < from || *l->s != '"') return fail(l, "expected a range of characters, like \"a\"..\"z\"");
    l->s++;
    return jx_chars(l->p, &(struct grange){(uint32_t)from, (uint32_t)to}, 1);
}

static jx take_string(struct lark *l)
{
    const char *begin = ++l->s;
    size_t n = 0, most = strcspn(begin, "\n");
    int32_t *text = mem_array(most + 1, sizeof *text);
    while (*l->s != '"' && !l->e->code) text[n++] = take_char(l);
    jx out = JX_EMPTY;
    if (!l->e->code) {
        l->s++;
        if (n == 1 && strncmp(l->s, "..\"", 3) == 0) {
            out = take_range(l, text[0]);
        } else {
            bool any_case = take(l, "i");
            for (size_t i = 0; i < n; i++) out = jx_seq2(l->p, out, one_char(l, text[i], any_case));
        }
    }
    free(text);
    return l->e->code ? JX_NONE : out;
}

static jx regex_of(struct lark *l, const char *pattern, size_t n)
{
    struct buf text = {0};
    struct err e = {0};
    buf_str(&text, "^(?:");
    buf_append(&text, pattern, n);
    buf_str(&text, ")$");
    jx out = n > JSON_REGEX_MAX - 16 ? JX_NONE : json_regex(l->p, text.data, &e);
    buf_free(&text);
    return out == JX_NONE ? fail(l, e.code ? "this regular expression is not supported" : "it matches nothing") : out;
}

static jx take_regex(struct lark *l)
{
    const char *begin = ++l->s;
    bool class = false;
    for (; *l->s && *l->s != '\n' && (class || *l->s != '/'); l->s++) {
        if (*l->s == '\\' && l->s[1] && l->s[1] != '\n')
            l->s++;
        else if (*l->s == '[')
            class = true;
        else if (*l->s == ']')
            class = false;
    }
    if (*l->s != '/') return fail(l, "a regular expression does not end");
    size_t n = (size_t)(l->s++ - begin);
    if (name_length(l->s)) return fail(l, "flags of regular expressions are not supported");
    return regex_of(l, begin, n);
}

/* ---- expansions ------------------------------------------------------------------------------------------------ */

static jx take_alternatives(struct lark *l);

static jx take_group(struct lark *l, char end)
{
    if (++l->depth > DEPTH_MAX) return fail(l, "it is nested too deeply");
    l->s++;
    jx out = take_alternatives(l);
    skip_space(l, true);
    if (!l->e->code && *l->s != end) return fail(l, "a bracket is not closed");
    if (!l->e->code) l->s++;
    l->depth--;
    return end == ']' && out != JX_NONE ? jx_optional(l->p, out) : out;
}

static jx take_atom(struct lark *l)
{
    if (*l->s == '(') return take_group(l, ')');
    if (*l->s == '[') return take_group(l, ']');
    if (*l->s == '"') return take_string(l);
    if (*l->s == '/') return take_regex(l);
    if (!name_length(l->s)) return fail(l, "expected a name, a string, a regular expression or a bracket");
    struct symbol *s = take_symbol(l);
    if (*l->s == '{') return fail(l, "templates are not supported");
    return s ? s->rule : JX_NONE;
}

static bool take_count(struct lark *l, uint32_t *out)
{
    size_t n = strspn(l->s, "0123456789");
    long v = n && n < 6 ? strtol(l->s, NULL, 10) : -1;
    if (v < 0 || v > COUNT_MAX) return fail(l, "expected a count of at most 10000"), false;
    *out = (uint32_t)v;
    l->s += n;
    return true;
}

static jx take_item(struct lark *l)
{
    jx atom = take_atom(l);
    uint32_t min = 1, max = 1;
    skip_space(l, false);
    if (take(l, "~")) {
        skip_space(l, false);
        if (!take_count(l, &min)) return JX_NONE;
        max = min;
        skip_space(l, false);
        if (take(l, "..")) {
            skip_space(l, false);
            if (!take_count(l, &max)) return JX_NONE;
        }
        if (max < min) return fail(l, "the counts are in the wrong order");
    } else if (*l->s == '?' || *l->s == '*' || *l->s == '+') {
        min = *l->s == '+';
        max = *l->s == '?' ? 1 : JX_MANY;
        l->s++;
    }
    if (l->e->code || (min == 1 && max == 1)) return atom;
    return jx_repeat(l->p, atom, min, max);
}

static jx take_sequence(struct lark *l)
{
    jx items[ITEMS_MAX];
    size_t n = 0;
    for (;;) {
        skip_space(l, false);
        if (take(l, "->")) {
            skip_space(l, false);
            l->s += name_length(l->s);
            skip_space(l, false);
        }
        if (!*l->s || strchr("|)]\n", *l->s)) break;
        if (n == ITEMS_MAX) return fail(l, "a rule has too many parts");
        items[n++] = take_item(l);
        if (l->e->code) return JX_NONE;
    }
    return n ? jx_seq(l->p, items, n) : JX_EMPTY;
}

static jx take_alternatives(struct lark *l)
{
    jx alternatives[ITEMS_MAX];
    size_t n = 0;
    for (;;) {
        if (n == ITEMS_MAX) return fail(l, "a rule has too many alternatives");
        alternatives[n++] = take_sequence(l);
        if (l->e->code) return JX_NONE;
        const char *before = l->s;
        skip_space(l, true); /* the next line may go on with the rule */
        if (!take(l, "|")) {
            l->s = before;
            return jx_alt(l->p, alternatives, n);
        }
    }
}

/* ---- statements ------------------------------------------------------------------------------------------------ */

#define FLOAT_RE "(?:\\d+[eE][+-]?\\d+|(?:\\d+\\.\\d*|\\.\\d+)(?:[eE][+-]?\\d+)?)"

static const char *const common[][2] = {{"DIGIT", "[0-9]"},
                                        {"HEXDIGIT", "[a-fA-F0-9]"},
                                        {"INT", "[0-9]+"},
                                        {"SIGNED_INT", "[+-]?[0-9]+"},
                                        {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
                                        {"FLOAT", FLOAT_RE},
                                        {"SIGNED_FLOAT", "[+-]?" FLOAT_RE},
                                        {"NUMBER", FLOAT_RE "|\\d+"},
                                        {"SIGNED_NUMBER", "[+-]?(?:" FLOAT_RE "|\\d+)"},
                                        {"ESCAPED_STRING", "\"(?:[^\"\\\\\\n]|\\\\[^\\n])*\""},
                                        {"LCASE_LETTER", "[a-z]"},
                                        {"UCASE_LETTER", "[A-Z]"},
                                        {"LETTER", "[a-zA-Z]"},
                                        {"WORD", "[a-zA-Z]+"},
                                        {"CNAME", "[_a-zA-Z][_a-zA-Z0-9]*"},
                                        {"WS_INLINE", "[ \\t]+"},
                                        {"WS", "[ \\t\\f\\r\\n]+"},
                                        {"CR", "\\r"},
                                        {"LF", "\\n"},
                                        {"NEWLINE", "(?:\\r?\\n)+"}};

/* One name of `common`, and the name that it gets here. */
static void take_common(struct lark *l, bool alias)
{
    const char *name = l->s;
    size_t n = name_length(l->s), i = 0;
    l->s += n;
    skip_space(l, false);
    struct symbol *s = NULL;
    if (alias && take(l, "->")) {
        skip_space(l, false);
        s = take_symbol(l);
    } else {
        s = find_symbol(l, name, n);
    }
    while (i < sizeof common / sizeof *common && !(strncmp(common[i][0], name, n) == 0 && !common[i][0][n])) i++;
    if (i == sizeof common / sizeof *common)
        fail(l, "this name cannot be imported");
    else if (s && !l->e->code)
        define(l, s, regex_of(l, common[i][1], strlen(common[i][1])));
}

static void take_import(struct lark *l)
{
    skip_space(l, false);
    if (take(l, "common.")) {
        take_common(l, true);
        return;
    }
    if (!take(l, "common")) {
        fail(l, "only `common` can be imported");
        return;
    }
    skip_space(l, false);
    if (!take(l, "(")) fail(l, "expected names in brackets");
    while (!l->e->code) {
        skip_space(l, true);
        take_common(l, false);
        skip_space(l, true);
        if (take(l, ")")) return;
        if (!take(l, ",")) fail(l, "expected a comma or a bracket");
    }
}

static void take_definition(struct lark *l)
{
    l->s += strspn(l->s, "!?");
    struct symbol *s = take_symbol(l);
    if (take(l, ".")) l->s += strspn(l->s, "-0123456789"); /* a priority */
    skip_space(l, false);
    if (s && !take(l, ":")) fail(l, *l->s == '{' ? "templates are not supported" : "expected a colon");
    jx body = l->e->code ? JX_NONE : take_alternatives(l);
    if (!l->e->code && s) define(l, s, body);
}

static void take_statements(struct lark *l)
{
    while (!l->e->code) {
        skip_space(l, true);
        if (!*l->s) return;
        if (take(l, "%import"))
            take_import(l);
        else if (*l->s == '%')
            fail(l, "of the directives only %import is supported");
        else
            take_definition(l);
        if (l->e->code) return;
        skip_space(l, false);
        if (*l->s && *l->s != '\n') fail(l, "expected the end of the line");
    }
}

jx json_lark(struct jpool *p, const char *grammar, struct err *e)
{
    struct lark l = {.p = p, .start = grammar, .s = grammar, .e = e};
    jx out = JX_NONE;
    e->code = 0;
    if (strlen(grammar) > LARK_MAX) {
        err_set(e, ERR_INVALID, "byte %d: a grammar has at most so many", LARK_MAX);
        return JX_NONE;
    }
    l.symbols = mem_array(SYMBOLS_MAX, sizeof *l.symbols);
    take_statements(&l);
    struct symbol *start = l.e->code ? NULL : find_symbol(&l, "start", 5);
    for (int i = 0; i < l.n && !e->code; i++)
        if (!l.symbols[i].defined)
            err_set(e, ERR_INVALID, "byte %zu: %s is not defined", l.s - l.start, l.symbols[i].name);
    if (start && !e->code) out = start->rule;
    free(l.symbols);
    return out;
}

bool lark_supported(const char *grammar, struct err *e)
{
    struct jpool *p = jpool_new();
    jx root = json_lark(p, grammar, e);
    struct grammar *g = e->code ? NULL : jexpr_grammar(p, root, e);
    grammar_unref(g);
    jpool_free(p);
    return g != NULL;
}
