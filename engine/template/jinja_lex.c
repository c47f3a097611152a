/* The lexer (jinja_lex.h).  It follows jinja2's lexer.py rule by rule, since a template's output depends on every blank
 * that the lexer keeps or strips. */
#include "engine/template/jinja_lex.h"
#include "engine/template/jinja_int.h"

#include "engine/tokenizer/text.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { NESTING = 200 };

struct lexer {
    struct jinja *j;
    const char *s; /* (n) newlines are \n */
    size_t n, at;
    struct jtoken *v;
    size_t count, cap;
    bool line_starting; /* the match before ended with a newline */
    size_t counted;     /* lines are counted up to here */
    unsigned line;
    size_t line_start;
    char open[NESTING]; /* open brackets */
    int n_open;
};

static const struct {
    char text[3];
    enum jtok type;
} OPERATORS[] = {{"//", TOK_FLOORDIV}, {"**", TOK_POW},   {"==", TOK_EQ},      {"!=", TOK_NE},      {">=", TOK_GE},
                 {"<=", TOK_LE},       {"+", TOK_ADD},    {"-", TOK_SUB},      {"/", TOK_DIV},      {"*", TOK_MUL},
                 {"%", TOK_MOD},       {"~", TOK_TILDE},  {"[", TOK_LBRACKET}, {"]", TOK_RBRACKET}, {"(", TOK_LPAREN},
                 {")", TOK_RPAREN},    {"{", TOK_LBRACE}, {"}", TOK_RBRACE},   {">", TOK_GT},       {"<", TOK_LT},
                 {"=", TOK_ASSIGN},    {".", TOK_DOT},    {":", TOK_COLON},    {"|", TOK_PIPE},     {",", TOK_COMMA},
                 {";", TOK_SEMICOLON}};

const char *jinja_token_name(enum jtok type)
{
    static const char *const names[] = {"end of template",
                                        "text",
                                        "begin of statement block",
                                        "end of statement block",
                                        "begin of print statement",
                                        "end of print statement",
                                        "name",
                                        "string",
                                        "integer",
                                        "float"};
    if (type <= TOK_FLOAT) return names[type];
    for (size_t i = 0; i < sizeof OPERATORS / sizeof *OPERATORS; i++)
        if (OPERATORS[i].type == type) return OPERATORS[i].text;
    return "token";
}

static void locate(struct lexer *x, size_t at)
{
    for (; x->counted < at; x->counted++) {
        if (x->s[x->counted] != '\n') continue;
        x->line++;
        x->line_start = x->counted + 1;
    }
    x->j->line = x->line;
    x->j->column = (unsigned)(at - x->line_start) + 1;
}

static struct jtoken *emit(struct lexer *x, enum jtok type, size_t at)
{
    if (x->count == x->cap) {
        size_t cap = x->cap ? 2 * x->cap : 256;
        x->v = jinja_extend(x->j, x->v, x->cap * sizeof *x->v, cap * sizeof *x->v);
        x->cap = cap;
    }
    locate(x, at);
    struct jtoken *t = &x->v[x->count++];
    *t = (struct jtoken){.type = type, .line = x->j->line, .column = x->j->column};
    return t;
}

static bool starts(const struct lexer *x, size_t at, const char *what)
{
    size_t n = strlen(what);
    return at <= x->n && n <= x->n - at && memcmp(x->s + at, what, n) == 0;
}

static size_t skip_space(const struct lexer *x, size_t at)
{
    for (size_t n; at < x->n && (n = jinja_space(x->s + at, x->n - at));) at += n;
    return at;
}

static size_t strip_end(const struct lexer *x, size_t start, size_t end)
{
    for (size_t n; end > start && (n = jinja_space_before(x->s + start, end - start));) end -= n;
    return end;
}

/* The next state begins at `at`, after what was matched from x->at on. */
static void advance(struct lexer *x, size_t at)
{
    if (at > x->at) x->line_starting = x->s[at - 1] == '\n';
    x->at = at;
}

/* Data before a tag that begins at `end`: `sign` is what follows the delimiter, tag the delimiter's second byte. */
static void data_before(struct lexer *x, size_t end, char sign, char tag)
{
    size_t start = x->at;
    if (sign == '-') {
        end = strip_end(x, start, end);
    } else if (sign != '+' && tag != '{') { /* lstrip_blocks */
        size_t line = end;
        while (line > start && x->s[line - 1] != '\n') line--;
        if ((line > start || x->line_starting) && strip_end(x, line, end) == line) end = line;
    }
    if (end > start) emit(x, TOK_DATA, start)->text = (struct jstr){.s = x->s + start, .n = end - start};
}

static char sign_at(const struct lexer *x, size_t at)
{
    return at < x->n && (x->s[at] == '-' || x->s[at] == '+') ? x->s[at] : 0;
}

/* The end of a delimiter that closes at `at` ("%}" or "#}" is there), with what it takes of the text after it. */
static size_t close_tag(const struct lexer *x, size_t at, char sign, bool trim)
{
    at += 2;
    if (sign == '-') return skip_space(x, at);
    if (sign != '+' && trim && at < x->n && x->s[at] == '\n') at++;
    return at;
}

static void lex_comment(struct lexer *x, size_t at)
{
    size_t begin = at + 2 + (sign_at(x, at + 2) != 0), end = begin;
    while (end < x->n && !starts(x, end, "#}")) end++;
    if (end >= x->n) {
        locate(x, at);
        jinja_fail(x->j, "the comment is not closed");
    }
    char sign = end > begin ? sign_at(x, end - 1) : 0;
    advance(x, close_tag(x, end, sign, true));
}

/* {% raw %}: 0 when there is none at `at`, else where its body begins. */
static size_t raw_begin(const struct lexer *x, size_t at)
{
    if (!starts(x, at, "{%")) return 0;
    at = skip_space(x, at + 2 + (sign_at(x, at + 2) != 0));
    if (!starts(x, at, "raw")) return 0;
    at = skip_space(x, at + 3);
    if (starts(x, at, "-%}")) return skip_space(x, at + 3);
    return starts(x, at, "%}") ? at + 2 : 0;
}

static void lex_raw(struct lexer *x)
{
    size_t from = x->at;
    for (size_t at = from; at < x->n; at++) {
        if (!starts(x, at, "{%")) continue;
        char sign = sign_at(x, at + 2), end_sign;
        size_t end = skip_space(x, at + 2 + (sign != 0));
        if (!starts(x, end, "endraw")) continue;
        end = skip_space(x, end + 6);
        end_sign = sign_at(x, end);
        if (!starts(x, end + (end_sign != 0), "%}")) continue;
        data_before(x, at, sign, '%');
        advance(x, close_tag(x, end + (end_sign != 0), end_sign, true));
        return;
    }
    locate(x, from);
    jinja_fail(x->j, "the raw block is not closed");
}

static int hex_value(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* One escape at s (after the backslash); returns the bytes it takes. */
static size_t unescape(struct jinja *j, struct jtext *t, const char *s, size_t n)
{
    static const char plain[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    if (s[0] == '\n') return 1;
    for (size_t i = 0; i + 1 < sizeof plain; i += 2)
        if (plain[i] == s[0]) return jtext_bytes(j, t, plain + i + 1, 1), 1;
    uint32_t c = 0;
    if (s[0] >= '0' && s[0] <= '7') {
        size_t k = 0;
        for (; k < 3 && k < n && s[k] >= '0' && s[k] <= '7'; k++) c = 8 * c + (uint32_t)(s[k] - '0');
        return jtext_char(j, t, c), k;
    }
    size_t digits = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0;
    if (s[0] == 'N') jinja_fail(j, "\\N escapes are not supported");
    if (!digits) return jtext_bytes(j, t, "\\", 1), 0; /* no escape: both characters stay */
    for (size_t k = 1; k <= digits; k++) {
        int h = k < n ? hex_value(s[k]) : -1;
        if (h < 0) jinja_fail(j, "truncated \\%c escape in a string", s[0]);
        c = 16 * c + (uint32_t)h;
    }
    if (c > 0x10ffff) jinja_fail(j, "illegal Unicode character in a string");
    return jtext_char(j, t, c), digits + 1;
}

static void lex_string(struct lexer *x)
{
    size_t start = x->at + 1, end = start;
    char quote = x->s[x->at];
    bool escaped = false;
    while (end < x->n && x->s[end] != quote) {
        escaped |= x->s[end] == '\\';
        end += x->s[end] == '\\' ? 2 : 1;
    }
    struct jtoken *tok = emit(x, TOK_STRING, x->at);
    if (end >= x->n) jinja_fail(x->j, "the string is not closed");
    tok->text = (struct jstr){.s = x->s + start, .n = end - start};
    if (escaped) {
        struct jtext t = {0};
        for (size_t i = start; i < end;) {
            const char *stop = memchr(x->s + i, '\\', end - i);
            size_t n = stop ? (size_t)(stop - x->s) - i : end - i;
            jtext_bytes(x->j, &t, x->s + i, n);
            i += n;
            if (i < end) {
                i++;
                i += unescape(x->j, &t, x->s + i, end - i);
            }
        }
        tok->text = jtext_str(&t);
    }
    advance(x, end + 1);
}

/* Digits of a base with single "_" between them; returns where they end. */
static size_t digits_end(const struct lexer *x, size_t at, int base)
{
    size_t end = at;
    for (;;) {
        size_t d = end + (end > at && starts(x, end, "_"));
        int h = d < x->n ? hex_value(x->s[d]) : -1;
        if (h < 0 || h >= base) return end;
        end = d + 1;
    }
}

static bool is_digit(const struct lexer *x, size_t at)
{
    return at < x->n && x->s[at] >= '0' && x->s[at] <= '9';
}

/* The end of a float literal at x->at; 0: there is none. */
static size_t float_end(const struct lexer *x)
{
    if (x->at && x->s[x->at - 1] == '.') return 0;
    size_t whole = digits_end(x, x->at, 10), end = whole;
    if (starts(x, end, ".") && is_digit(x, end + 1)) end = digits_end(x, end + 1, 10);
    if (end < x->n && (x->s[end] | 32) == 'e') {
        size_t sign = end + 1 + (sign_at(x, end + 1) != 0);
        if (is_digit(x, sign)) end = digits_end(x, sign, 10);
    }
    return end > whole ? end : 0;
}

/* [from, end) without underscores, NUL-terminated, in the arena; *n: its length */
static char *copy_digits(const struct lexer *x, size_t from, size_t end, size_t *n)
{
    char *out = jinja_alloc(x->j, end - from + 1);
    *n = 0;
    for (; from < end; from++)
        if (x->s[from] != '_') out[(*n)++] = x->s[from];
    return out;
}

static void lex_number(struct lexer *x)
{
    size_t n, end = float_end(x);
    struct jtoken *t = emit(x, end ? TOK_FLOAT : TOK_INT, x->at);
    if (end) {
        t->value = jv_float(strtod(copy_digits(x, x->at, end, &n), NULL));
        return advance(x, end);
    }
    int base = 10;
    size_t from = x->at;
    if (x->s[from] == '0' && from + 1 < x->n) {
        char c = (char)(x->s[from + 1] | 32);
        int other = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
        size_t after = from + 2 + (other != 10 && starts(x, from + 2, "_"));
        if (other != 10 && digits_end(x, after, other) > after) from = after, base = other;
    }
    end = digits_end(x, from, base);
    if (base == 10 && x->s[from] == '0') { /* "007" is 00 and then 7 */
        for (end = from; end < x->n && (x->s[end] == '0' || (x->s[end] == '_' && starts(x, end + 1, "0")));) end++;
    }
    const char *digits = copy_digits(x, from, end, &n);
    t->value = jint_parse(x->j, digits, n, base, false);
    advance(x, end);
}

static bool is_name(const struct lexer *x, size_t at, unsigned *len)
{
    uint32_t c;
    *len = utf8_get(x->s + at, &c);
    if (c < 0x80) return c == '_' || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) || k == UTF8PROC_CATEGORY_PC;
}

static void lex_operator(struct lexer *x)
{
    size_t i = 0, count = sizeof OPERATORS / sizeof *OPERATORS;
    while (i < count && !starts(x, x->at, OPERATORS[i].text)) i++;
    locate(x, x->at);
    if (i == count) {
        uint32_t c;
        unsigned len = utf8_get(x->s + x->at, &c);
        jinja_fail(x->j, "unexpected character '%.*s'", (int)len, x->s + x->at);
    }
    char c = x->s[x->at];
    if (strchr("([{", c)) {
        if (x->n_open == NESTING) jinja_fail(x->j, "nested too deeply");
        x->open[x->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (strchr(")]}", c)) {
        if (!x->n_open) jinja_fail(x->j, "unexpected '%c'", c);
        if (x->open[--x->n_open] != c) jinja_fail(x->j, "unexpected '%c', expected '%c'", c, x->open[x->n_open]);
    }
    emit(x, OPERATORS[i].type, x->at);
    advance(x, x->at + strlen(OPERATORS[i].text));
}

static void lex_word(struct lexer *x)
{
    size_t end = x->at;
    for (unsigned len; end < x->n && is_name(x, end, &len);) end += len;
    emit(x, TOK_NAME, x->at)->text = (struct jstr){.s = x->s + x->at, .n = end - x->at};
    advance(x, end);
}

/* The end of the tag, when it is here and no bracket is open. */
static bool lex_tag_end(struct lexer *x, const char *closing)
{
    if (x->n_open) return false;
    char sign = sign_at(x, x->at);
    if (sign == '+' && closing[0] == '}') sign = 0; /* "+}}" is no end of a print statement */
    size_t at = x->at + (sign != 0);
    if (!starts(x, at, closing)) return false;
    emit(x, closing[0] == '%' ? TOK_BLOCK_END : TOK_VARIABLE_END, x->at);
    advance(x, close_tag(x, at, sign, closing[0] == '%'));
    return true;
}

static void lex_tag(struct lexer *x, const char *closing)
{
    size_t from = x->at;
    while (!lex_tag_end(x, closing)) {
        if (x->at >= x->n) {
            locate(x, from);
            jinja_fail(x->j, "the tag is not closed");
        }
        unsigned len;
        size_t after = skip_space(x, x->at);
        char c = x->s[x->at];
        if (after > x->at) {
            advance(x, after);
        } else if (c >= '0' && c <= '9') {
            lex_number(x);
        } else if (is_name(x, x->at, &len)) {
            lex_word(x);
        } else if (c == '"' || c == '\'') {
            lex_string(x);
        } else {
            lex_operator(x);
        }
    }
}

/* Text up to the next tag, and the tag. */
static void lex_root(struct lexer *x)
{
    size_t at = x->at;
    while (at < x->n && !(x->s[at] == '{' && at + 1 < x->n && strchr("{%#", x->s[at + 1]) && x->s[at + 1])) at++;
    if (at >= x->n) {
        data_before(x, x->n, '+', 0);
        return advance(x, x->n);
    }
    char sign = sign_at(x, at + 2), tag = x->s[at + 1];
    data_before(x, at, sign, tag);
    size_t raw = raw_begin(x, at);
    if (raw) {
        advance(x, raw);
        return lex_raw(x);
    }
    if (tag == '#') return lex_comment(x, at);
    emit(x, tag == '%' ? TOK_BLOCK_BEGIN : TOK_VARIABLE_BEGIN, at);
    advance(x, at + 2 + (sign != 0));
    lex_tag(x, tag == '%' ? "%}" : "}}");
}

/* \r\n and \r become \n, and one newline at the end goes. */
static struct jstr normalize(struct jinja *j, struct jstr s)
{
    char *out = jinja_alloc(j, s.n + 1);
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) {
        if (s.s[i] == '\r') {
            out[n++] = '\n';
            i += i + 1 < s.n && s.s[i + 1] == '\n';
        } else {
            out[n++] = s.s[i];
        }
    }
    if (n && out[n - 1] == '\n') n--;
    return (struct jstr){.s = out, .n = n};
}

const struct jtoken *jinja_lex(struct jinja *j, struct jstr source)
{
    source = normalize(j, source);
    struct lexer x = {.j = j, .s = source.s, .n = source.n, .line = 1, .line_starting = true};
    while (x.at < x.n) lex_root(&x);
    emit(&x, TOK_END, x.n);
    return x.v;
}
