/* Filters of single values: text, numbers, JSON. Those of sequences are in jinja_sequence.c. */
#include "engine/template/jinja_sequence.h"

#include "engine/template/jinja_builtins.h"
#include "engine/template/jinja_int.h"
#include "engine/tokenizer/text.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILTER(name) static struct jv name(struct jinja *j, struct jv self, const struct jv *a, const struct jcall *c)

static bool truth_of(struct jv v)
{
    return v.type != J_MISSING && jv_truth(v);
}

FILTER(f_trim)
{
    return jinja_strip(j, jv_to_str(j, self), a[0], true, true);
}
FILTER(f_upper)
{
    return jinja_case(j, jv_to_str(j, self), CASE_UPPER);
}
FILTER(f_lower)
{
    return jinja_case(j, jv_to_str(j, self), CASE_LOWER);
}
FILTER(f_capitalize)
{
    return jinja_case(j, jv_to_str(j, self), CASE_CAPITALIZE);
}

/* jinja2's own: words begin after white space, "-", "(", "{", "[", "<" only. */
FILTER(f_title)
{
    struct jstr s = jv_to_str(j, self);
    struct jtext t = {0};
    for (size_t i = 0; i < s.n;) {
        size_t n = jinja_space(s.s + i, s.n - i);
        if (n || strchr("-({[<", s.s[i])) {
            n = n ? n : 1;
            jtext_add(j, &t, jstr_cut(j, s, i, i + n));
            i += n;
            continue;
        }
        size_t end = i, first = jstr_at(s, i, 1);
        while (end < s.n && !strchr("-({[<", s.s[end]) && !jinja_space(s.s + end, s.n - end)) end = jstr_at(s, end, 1);
        if (end < first) end = first;
        jtext_add(j, &t, *jinja_case(j, jstr_cut(j, s, i, first), CASE_UPPER).str);
        jtext_add(j, &t, *jinja_case(j, jstr_cut(j, s, first, end), CASE_LOWER).str);
        i = end;
    }
    return jtext_value(j, &t);
}

FILTER(f_replace)
{
    return jinja_replace(j, jv_to_str(j, self), jv_to_str(j, a[0]), jv_to_str(j, a[1]), jarg_int(j, a[2], "count", -1));
}

FILTER(f_string)
{
    return self.type == J_STR ? self : jv_str(j, jv_to_str(j, self));
}

FILTER(f_length)
{
    size_t n;
    if (!jv_length(j, self, &n)) jinja_fail(j, "object of type '%s' has no len()", jv_type_name(self));
    return jv_int((int64_t)n);
}

FILTER(f_default)
{
    bool use = self.type == J_UNDEF || (truth_of(a[1]) && !jv_truth(self));
    if (!use) return self;
    return a[0].type == J_MISSING ? jv_cstr(j, "") : a[0];
}

FILTER(f_escape)
{
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    struct jstr s = jv_to_str(j, self);
    struct jtext t = {0};
    size_t from = 0;
    for (size_t i = 0; i < s.n; i++) {
        const char *k = s.s[i] ? strchr("&<>'\"", s.s[i]) : NULL;
        if (!k) continue;
        jtext_add(j, &t, jstr_cut(j, s, from, i));
        jtext_cstr(j, &t, names[k - "&<>'\""]);
        from = i + 1;
    }
    jtext_add(j, &t, jstr_cut(j, s, from, s.n));
    return jtext_value(j, &t);
}

FILTER(f_indent)
{
    struct jtext indent = {0}, t = {0}, in = {0};
    if (a[0].type == J_STR) {
        jtext_add(j, &indent, *a[0].str);
    } else {
        int64_t width = jarg_int(j, a[0], "width", 4);
        if (width > JINJA_TEXT_MAX) jinja_fail(j, "makes a text of more than %d bytes", JINJA_TEXT_MAX);
        if (width > 0) jtext_repeat(j, &indent, ' ', (size_t)width);
    }
    jtext_add(j, &in, jarg_str(j, self, "indent"));
    jtext_cstr(j, &in, "\n");
    const struct jlist *lines = jinja_splitlines(j, jtext_str(&in), false).list;
    for (size_t i = 0; i < lines->n; i++) {
        if (i) jtext_cstr(j, &t, "\n");
        bool wanted = i ? truth_of(a[2]) || lines->v[i].str->n : truth_of(a[1]);
        if (wanted) jtext_add(j, &t, jtext_str(&indent));
        jtext_add(j, &t, *lines->v[i].str);
    }
    return jtext_value(j, &t);
}

FILTER(f_format)
{
    struct jv v = jv_list(j, JL_TUPLE, 0);
    if (c->n_keywords) {
        if (c->n) jinja_fail(j, "can't handle positional and keyword arguments at the same time");
        v = jv_dict(j);
        for (int i = 0; i < c->n_keywords; i++)
            jdict_set(j, v.dict, jv_str(j, c->keywords[i].name), c->keywords[i].value);
    }
    for (int i = 0; i < c->n; i++) jlist_add(j, v.list, c->args[i]);
    return jinja_percent(j, jv_to_str(j, self), v);
}

FILTER(f_center)
{
    struct jv text = jv_str(j, jv_to_str(j, self));
    struct jv width = a[0].type == J_MISSING ? jv_int(80) : a[0];
    return jinja_call_builtin(j, jinja_str_method(jstr_of("center")), text, &(struct jcall){.args = &width, .n = 1});
}

FILTER(f_truncate)
{
    struct jstr end = a[2].type == J_MISSING ? jstr_of("...") : jarg_str(j, a[2], "end");
    int64_t length = jarg_int(j, a[0], "length", 255), leeway = jarg_int(j, a[3], "leeway", 5);
    int64_t tail = (int64_t)jstr_chars(j, end);
    size_t n;
    if (length < tail) jinja_fail(j, "expected length >= %lld, got %lld", (long long)tail, (long long)length);
    if (leeway < 0) jinja_fail(j, "expected leeway >= 0, got %lld", (long long)leeway);
    if (!jv_length(j, self, &n)) jinja_fail(j, "object of type '%s' has no len()", jv_type_name(self));
    if ((int64_t)n - leeway <= length) return self;
    struct jstr s = jarg_str(j, self, "truncate");
    size_t stop = jstr_at(s, 0, (size_t)(length - tail));
    const char *blank = truth_of(a[1]) ? NULL : memrchr(s.s, ' ', stop);
    struct jtext t = {0};
    jtext_add(j, &t, jstr_cut(j, s, 0, blank ? (size_t)(blank - s.s) : stop));
    jtext_add(j, &t, end);
    return jtext_value(j, &t);
}

FILTER(f_wordcount)
{
    struct jstr s = jv_to_str(j, self);
    int64_t n = 0;
    bool inside = false;
    const struct jbuiltin *alnum = jinja_str_method(jstr_of("isalnum"));
    for (size_t i = 0, next; i < s.n; i = next) {
        next = jstr_at(s, i, 1);
        struct jstr ch = {.s = s.s + i, .n = next - i};
        struct jv v = {.type = J_STR, .str = &ch};
        bool word = s.s[i] == '_' || jv_truth(jinja_call_builtin(j, alnum, v, &(struct jcall){0}));
        jinja_work(j, 1);
        n += word && !inside;
        inside = word;
    }
    return jv_int(n);
}

/* --- numbers */

static struct jstr without_blanks(struct jstr s)
{
    for (size_t k; (k = jinja_space(s.s, s.n));) s.s += k, s.n -= k;
    for (size_t k; (k = jinja_space_before(s.s, s.n));) s.n -= k;
    return s;
}

/* The number that a text is, as Python's float() reads it. */
static bool text_number(struct jinja *j, struct jstr s, double *d)
{
    s = without_blanks(s);
    char *digits = jinja_alloc(j, s.n + 1), *end;
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) {
        bool within = i && i + 1 < s.n && isdigit((unsigned char)s.s[i - 1]) && isdigit((unsigned char)s.s[i + 1]);
        if (s.s[i] == '_' && within) continue;
        if (!s.s[i] || strchr("xXpP(_", s.s[i])) return false;
        digits[n++] = s.s[i];
    }
    jinja_work(j, n);
    *d = strtod(digits, &end);
    return n && !*end;
}

static int digit_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10 : 99;
}

/* As Python's int(text, base) reads it; base 0: the one that the text's prefix says. */
static bool text_int(struct jinja *j, struct jstr s, int64_t base, struct jv *out)
{
    s = without_blanks(s);
    bool negative = s.n && s.s[0] == '-', prefix = false;
    if (s.n && (s.s[0] == '-' || s.s[0] == '+')) s.s++, s.n--;
    if (s.n > 1 && s.s[0] == '0') {
        int named = (s.s[1] | 32) == 'x' ? 16 : (s.s[1] | 32) == 'o' ? 8 : (s.s[1] | 32) == 'b' ? 2 : 0;
        prefix = named && (base == 0 || base == named);
        if (prefix) base = named, s.s += 2, s.n -= 2;
    }
    bool plain = base == 0;
    if (plain) base = 10;
    char *digits = jinja_alloc(j, s.n + 1);
    size_t n = 0;
    jinja_work(j, s.n);
    for (size_t i = 0; i < s.n; i++) {
        bool between = i + 1 < s.n && s.s[i + 1] != '_' && (i || prefix);
        if (s.s[i] == '_' && between) continue;
        if (digit_value(s.s[i]) >= base) return false;
        digits[n++] = s.s[i];
    }
    if (!n || (plain && n > 1 && digits[0] == '0' && strspn(digits, "0") < n)) return false;
    *out = jint_parse(j, digits, n, (int)base, negative);
    return true;
}

FILTER(f_int)
{
    struct jv otherwise = a[0].type == J_MISSING ? jv_int(0) : a[0], v;
    int64_t i, base = jarg_int(j, a[1], "base", 10);
    double d = NAN;
    if (self.type == J_UNDEF) jinja_fail_undefined(j, self);
    if (self.type == J_FLOAT) return isnan(self.d) ? otherwise : jint_of_double(j, self.d);
    if (jint_is(self)) return jv_is_int(self, &i) ? jv_int(i) : self;
    if (self.type != J_STR) return otherwise;
    bool possible = base == 0 || (base >= 2 && base <= 36);
    if (possible && text_int(j, *self.str, base, &v)) return v;
    return text_number(j, *self.str, &d) && isfinite(d) ? jint_of_double(j, d) : otherwise;
}

FILTER(f_float)
{
    double d;
    if (self.type == J_UNDEF) jinja_fail_undefined(j, self);
    bool good = self.type == J_STR ? text_number(j, *self.str, &d) : jv_is_number(self, &d);
    if (good && self.type == J_BIG && isinf(d)) jinja_fail(j, "int too large to convert to float");
    return good ? jv_float(d) : a[0].type == J_MISSING ? jv_float(0) : a[0];
}

FILTER(f_abs)
{
    if (self.type == J_FLOAT) return jv_float(fabs(self.d));
    if (self.type == J_UNDEF) jinja_fail_undefined(j, self);
    if (!jint_is(self)) jinja_fail(j, "bad operand type for abs(): '%s'", jv_type_name(self));
    return jinja_binary(j, jint_below_zero(self) ? OP_SUB : OP_ADD, jv_int(0), self);
}

/* To `precision` decimals, halves to even, correctly for the number's exact value: printf does that. */
static double round_to(double d, int64_t precision)
{
    char s[700];
    if (!isfinite(d) || precision > 330) return d;
    if (precision >= 0) {
        snprintf(s, sizeof s, "%.*f", (int)precision, d);
        return strtod(s, NULL);
    }
    double unit = pow(10, (double)-precision);
    return precision < -308 ? copysign(0, d) : rint(d / unit) * unit;
}

/* To a multiple of 10^places, halves to the even one. */
static struct jv round_int(struct jinja *j, struct jv v, int64_t places)
{
    if (places > JINJA_INT_DIGITS) return jv_int(0);
    struct jv unit = jinja_binary(j, OP_POW, jv_int(10), jv_int(places));
    struct jv rest = jinja_binary(j, OP_MOD, v, unit), down = jinja_binary(j, OP_SUB, v, rest);
    int c = jint_compare(jinja_binary(j, OP_MUL, rest, jv_int(2)), unit);
    struct jv half = jinja_binary(j, OP_MOD, jinja_binary(j, OP_FLOORDIV, v, unit), jv_int(2));
    return c > 0 || (c == 0 && jv_truth(half)) ? jinja_binary(j, OP_ADD, down, unit) : down;
}

FILTER(f_round)
{
    double d;
    int64_t precision = jarg_int(j, a[0], "precision", 0);
    struct jstr method = a[1].type == J_MISSING ? jstr_of("common") : jarg_str(j, a[1], "method");
    bool up = jstr_same(method, jstr_of("ceil")), common = jstr_same(method, jstr_of("common"));
    if (!common && !up && !jstr_same(method, jstr_of("floor"))) jinja_fail(j, "method must be common, ceil or floor");
    if (self.type == J_UNDEF) jinja_fail_undefined(j, self);
    if (!jv_is_number(self, &d)) jinja_fail(j, "type %s doesn't define __round__ method", jv_type_name(self));
    if (common && jint_is(self)) return round_int(j, self, precision < 0 ? -precision : 0);
    if (common) return jv_float(round_to(d, precision));
    struct jv scale = jinja_binary(j, OP_POW, jv_int(10), jv_int(precision));
    struct jv scaled = jinja_binary(j, OP_MUL, self, scale);
    if (scaled.type == J_FLOAT) scaled = jint_of_double(j, up ? ceil(scaled.d) : floor(scaled.d));
    return jinja_binary(j, OP_DIV, scaled, scale);
}

/* --- */

FILTER(f_tojson)
{
    struct jjson how = {.ascii = truth_of(a[0]), .sorted = truth_of(a[3])};
    how.item_separator = jstr_of(", ");
    how.key_separator = jstr_of(": ");
    struct jtext t = {0}, indent = {0};
    if (a[1].type == J_STR) {
        how.pretty = true;
        how.indent = *a[1].str;
    } else if (a[1].type != J_MISSING && a[1].type != J_NONE) {
        int64_t n = jarg_int(j, a[1], "indent", 0);
        if (n > 1000) jinja_fail(j, "indent is too large");
        how.pretty = true;
        if (n > 0) jtext_repeat(j, &indent, ' ', (size_t)n);
        how.indent = jtext_str(&indent);
    }
    if (how.pretty) how.item_separator = jstr_of(",");
    if (a[2].type != J_MISSING && a[2].type != J_NONE) {
        const struct jlist *l = jv_iterate(j, a[2]);
        if (l->n != 2) jinja_fail(j, "separators must be two strings");
        how.item_separator = jarg_str(j, l->v[0], "separators[0]");
        how.key_separator = jarg_str(j, l->v[1], "separators[1]");
    }
    jinja_json(j, &t, self, &how);
    return jtext_value(j, &t);
}

FILTER(f_attr)
{
    if (self.type == J_DICT) { /* methods, but not keys */
        const struct jbuiltin *b = jinja_dict_method(jarg_str(j, a[0], "name"));
        return b ? jv_bound(j, b, self) : jv_undefined(j, "'dict object' has no such attribute");
    }
    return jinja_attribute(j, self, jarg_str(j, a[0], "name"));
}

FILTER(f_urlencode)
{
    struct jstr s = jv_to_str(j, self);
    struct jtext t = {0};
    for (size_t i = 0; i < s.n; i++) {
        static const char hex[] = "0123456789ABCDEF";
        unsigned char ch = (unsigned char)s.s[i];
        char out[3] = {'%', hex[ch >> 4], hex[ch & 15]};
        bool plain = ch && (isalnum(ch) ? ch < 0x80 : strchr("_.-~/", ch) != NULL);
        jtext_bytes(j, &t, plain ? s.s + i : out, plain ? 1 : 3);
    }
    jtext_origin(j, &t, 0, s);
    return jtext_value(j, &t);
}

static const struct jbuiltin FILTERS[] = {{"abs", "", f_abs},
                                          {"attr", "name", f_attr},
                                          {"capitalize", "", f_capitalize},
                                          {"center", "width?", f_center},
                                          {"count", "", f_length},
                                          {"d", "default_value? boolean?", f_default},
                                          {"default", "default_value? boolean?", f_default},
                                          {"e", "", f_escape},
                                          {"escape", "", f_escape},
                                          {"float", "default?", f_float},
                                          {"forceescape", "", f_escape},
                                          {"format", NULL, f_format},
                                          {"indent", "width? first? blank?", f_indent},
                                          {"int", "default? base?", f_int},
                                          {"length", "", f_length},
                                          {"lower", "", f_lower},
                                          {"pprint", "", jinja_pprint},
                                          {"replace", "old new count?", f_replace},
                                          {"round", "precision? method?", f_round},
                                          {"safe", "", f_string},
                                          {"string", "", f_string},
                                          {"title", "", f_title},
                                          {"tojson", "ensure_ascii? indent? separators? sort_keys?", f_tojson},
                                          {"trim", "chars?", f_trim},
                                          {"truncate", "length? killwords? end? leeway?", f_truncate},
                                          {"upper", "", f_upper},
                                          {"urlencode", "", f_urlencode},
                                          {"wordcount", "", f_wordcount}};

const struct jbuiltin *jinja_filter(struct jstr name)
{
    const struct jbuiltin *b = jbuiltin_find(FILTERS, sizeof FILTERS / sizeof *FILTERS, name);
    if (!b) b = jinja_sequence_filter(name);
    if (!b) b = jinja_layout_filter(name);
    return b ? b : jinja_markup_filter(name);
}
