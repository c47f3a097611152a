/* Bytes, what str.encode gives: a list of whole numbers of the kind JL_BYTES, which is printed, compared and decoded in
 * a way of its own.  UTF-8, ASCII and Latin-1 are known. */
#include "engine/template/jinja_builtins.h"
#include "engine/tokenizer/text.h"

#include <stdio.h>
#include <string.h>

enum encoding { UTF_8, ASCII, LATIN_1 };
enum errors { STRICT, IGNORE, REPLACE };

static bool is_one_of(struct jstr name, const char *names)
{
    char plain[24]; /* Python takes blanks, hyphens and underscores for each other */
    if (!name.n || name.n >= sizeof plain) return false;
    for (size_t i = 0; i < name.n; i++) {
        char c = name.s[i];
        plain[i] = c == '_' || c == ' ' ? '-' : c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
    }
    plain[name.n] = 0;
    for (const char *p = names; *p; p += strlen(p) + 1)
        if (strcmp(p, plain) == 0) return true;
    return false;
}

static enum encoding encoding_of(struct jinja *j, struct jv v)
{
    struct jstr name = v.type == J_MISSING ? jstr_of("utf-8") : jarg_str(j, v, "encoding");
    if (is_one_of(name, "utf-8\0utf8\0u8\0")) return UTF_8;
    if (is_one_of(name, "ascii\0us-ascii\0")) return ASCII;
    if (is_one_of(name, "latin-1\0latin1\0iso-8859-1\0iso8859-1\0l1\0")) return LATIN_1;
    jinja_fail(j, "unknown encoding: %.*s (utf-8, ascii and latin-1 are known)", jstr_short(name), name.s);
}

static enum errors errors_of(struct jinja *j, struct jv v)
{
    struct jstr name = v.type == J_MISSING ? jstr_of("strict") : jarg_str(j, v, "errors");
    if (jstr_same(name, jstr_of("strict"))) return STRICT;
    if (jstr_same(name, jstr_of("ignore"))) return IGNORE;
    if (jstr_same(name, jstr_of("replace"))) return REPLACE;
    jinja_fail(j, "unknown error handler name '%.*s' (strict, ignore and replace are known)", jstr_short(name), name.s);
}

static const char *name_of(enum encoding e)
{
    static const char *const names[] = {"utf-8", "ascii", "latin-1"};
    return names[e];
}

struct jv jinja_encode(struct jinja *j, struct jstr s, struct jv encoding, struct jv errors)
{
    enum encoding to = encoding_of(j, encoding);
    enum errors how = errors_of(j, errors);
    struct jv v = jv_list(j, JL_BYTES, s.n);
    jinja_work(j, s.n);
    for (size_t i = 0; i < s.n;) {
        uint32_t c;
        unsigned len = utf8_get(s.s + i, &c);
        if (to == UTF_8) {
            for (unsigned k = 0; k < len; k++) jlist_add(j, v.list, jv_int((unsigned char)s.s[i + k]));
        } else if (c < (to == ASCII ? 0x80 : 0x100)) {
            jlist_add(j, v.list, jv_int(c));
        } else if (how == REPLACE) {
            jlist_add(j, v.list, jv_int('?'));
        } else if (how == STRICT) {
            jinja_fail(j, "'%s' codec can't encode character U+%04X", name_of(to), c);
        }
        i += len;
    }
    return v;
}

/* Copies the bytes, with a NUL behind them. */
static char *bytes_of(struct jinja *j, const struct jlist *l)
{
    char *s = jinja_alloc(j, l->n + 1);
    jinja_work(j, l->n);
    for (size_t i = 0; i < l->n; i++) s[i] = (char)l->v[i].i;
    return s;
}

static struct jv decode(struct jinja *j, struct jv self, const struct jv *a, const struct jcall *c)
{
    enum encoding from = encoding_of(j, a[0]);
    enum errors how = errors_of(j, a[1]);
    const char *s = bytes_of(j, self.list);
    struct jtext t = {0};
    for (size_t i = 0; i < self.list->n;) {
        unsigned char byte = (unsigned char)s[i];
        int len = from == UTF_8 ? utf8_step(s + i, self.list->n - i) : 1;
        if (len > 0 && (from == UTF_8 || byte < 0x80 || from == LATIN_1)) {
            if (from == UTF_8)
                jtext_bytes(j, &t, s + i, (size_t)len);
            else
                jtext_char(j, &t, byte);
            i += (size_t)len;
            continue;
        }
        /* Python replaces the longest beginning of a character at once: not done here, so it is an error */
        if (how == STRICT || (how == REPLACE && from == UTF_8))
            jinja_fail(j, "'%s' codec can't decode byte 0x%02x in position %zu", name_of(from), byte, i);
        if (how == REPLACE) jtext_char(j, &t, 0xfffd);
        i++;
    }
    (void)c;
    return jtext_value(j, &t);
}

static struct jv hex(struct jinja *j, struct jv self, const struct jv *a, const struct jcall *c)
{
    struct jtext t = {0};
    jinja_work(j, self.list->n);
    for (size_t i = 0; i < self.list->n; i++) {
        char digits[3];
        snprintf(digits, sizeof digits, "%02x", (unsigned)self.list->v[i].i & 0xff);
        jtext_bytes(j, &t, digits, 2);
    }
    (void)a;
    (void)c;
    return jtext_value(j, &t);
}

const struct jbuiltin *jinja_bytes_method(struct jstr name)
{
    static const struct jbuiltin methods[] = {{"decode", "encoding? errors?", decode}, {"hex", "", hex}};
    return jbuiltin_find(methods, sizeof methods / sizeof *methods, name);
}

void jinja_bytes_repr(struct jinja *j, struct jtext *t, const struct jlist *l)
{
    const char *s = bytes_of(j, l);
    char quote = memchr(s, '\'', l->n) && !memchr(s, '"', l->n) ? '"' : '\'';
    jtext_bytes(j, t, "b", 1);
    jtext_bytes(j, t, &quote, 1);
    for (size_t i = 0; i < l->n; i++) {
        char c = s[i], escaped[5] = {c};
        if (c == quote || c == '\\')
            snprintf(escaped, sizeof escaped, "\\%c", c);
        else if (c == '\n' || c == '\r' || c == '\t')
            snprintf(escaped, sizeof escaped, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if ((unsigned char)c < 0x20 || (unsigned char)c > 0x7e)
            snprintf(escaped, sizeof escaped, "\\x%02x", (unsigned char)c);
        jtext_cstr(j, t, escaped);
    }
    jtext_bytes(j, t, &quote, 1);
}
