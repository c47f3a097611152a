/* "%s: %d" % values and "{}: {x}".format(...), the part of Python's formatting that templates use: the conversions
 * s r d i f e g x o c %, flags, width and precision; and of format specs fill, alignment, sign, 0, width, comma,
 * or _, precision and the types s d f e g x X o b %. */
#include "engine/template/jinja_builtins.h"
#include "engine/template/jinja_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS = 400, WIDTH_MAX = 100000 };

struct spec {
    struct jstr fill;
    char align; /* < > ^ = or 0 */
    char sign;  /* + - blank or 0 */
    bool alternate;
    char separator;           /* of groups of digits; 0: none */
    int64_t width, precision; /* precision -1: none */
    char type;                /* 0: none */
};

static void pad(struct jinja *j, struct jtext *out, struct jstr body, size_t sign, const struct spec *s, char usual)
{
    int64_t n = (int64_t)jstr_chars(j, body), room = s->width > n ? s->width - n : 0;
    char align = s->align ? s->align : usual;
    int64_t before = align == '>' ? room : align == '^' ? room / 2 : 0;
    for (int64_t i = 0; i < before; i++) jtext_add(j, out, s->fill);
    jtext_add(j, out, jstr_cut(j, body, 0, sign));
    for (int64_t i = 0; align == '=' && i < room; i++) jtext_add(j, out, s->fill);
    jtext_add(j, out, jstr_cut(j, body, sign, body.n));
    for (int64_t i = before; align != '=' && i < room; i++) jtext_add(j, out, s->fill);
}

/* Digits before the point in groups of three, those of x, o and b in groups of four; in the arena. */
static char *group(struct jinja *j, const char *s, const struct spec *how)
{
    size_t length = strlen(s), start = strspn(s, "-"), in = how->type && strchr("xXob", how->type) ? 4 : 3;
    size_t n = strspn(s + start, in == 4 ? "0123456789abcdefABCDEF" : "0123456789"), at = 0;
    char *out = jinja_alloc(j, 2 * length + 1);
    for (size_t i = 0; i < length; i++) {
        size_t left = start + n - i; /* digits from here to the point */
        if (i > start && i < start + n && left % in == 0) out[at++] = how->separator;
        out[at++] = s[i];
    }
    return out;
}

/* prefix: "0x" and the like, which goes before what the alignment "=" fills in */
static void put_number(struct jinja *j, struct jtext *out, const char *digits, const char *prefix, const struct spec *s)
{
    bool negative = digits[0] == '-';
    struct jtext t = {0};
    if (s->separator) digits = group(j, digits, s);
    if (negative || s->sign == '+' || s->sign == ' ') jtext_bytes(j, &t, negative ? "-" : &s->sign, 1);
    jtext_cstr(j, &t, prefix);
    size_t fixed = t.n;
    jtext_cstr(j, &t, digits + negative);
    pad(j, out, jtext_str(&t), fixed, s, '>');
}

/* Like %g, but one digit stands behind the point and the exponent comes one digit earlier: Python's format without a
 * type. */
static void print_plain(char *out, size_t room, double d, int precision)
{
    if (precision == 0) precision = 1;
    snprintf(out, room, "%.*e", precision - 1, d);
    char *mark = strchr(out, 'e');
    int exponent = atoi(mark + 1);
    if (exponent < -4 || exponent + 1 > precision - 1) {
        char tail[16], *end = mark;
        snprintf(tail, sizeof tail, "%s", mark);
        if (memchr(out, '.', (size_t)(mark - out))) {
            while (end[-1] == '0') end--;
            if (end[-1] == '.') end--;
        }
        memcpy(end, tail, strlen(tail) + 1);
        return;
    }
    snprintf(out, room, "%.*g", precision, d);
    if (!strchr(out, '.')) strcat(out, ".0");
}

static void put_float(struct jinja *j, struct jtext *out, double d, const struct spec *s)
{
    char c = s->type ? s->type : 'g', form[8];
    int precision = (int)(s->precision < 0 ? 6 : s->precision);
    size_t room = (size_t)precision + DIGITS;
    char *digits = jinja_alloc(j, room);
    jinja_work(j, room / 16);
    if (!isfinite(d)) {
        const char *name = isnan(d) ? "nan"
                           : d < 0  ? "-inf"
                                    : "inf",
                   *large = isnan(d) ? "NAN"
                            : d < 0  ? "-INF"
                                     : "INF";
        snprintf(digits, room, "%s", c == 'F' || c == 'E' || c == 'G' ? large : name);
    } else if (!s->type && s->precision >= 0) {
        print_plain(digits, room - 2, d, precision);
    } else {
        snprintf(form, sizeof form, s->alternate ? "%%#.*%c" : "%%.*%c", c == '%' ? 'f' : c);
        snprintf(digits, room - 1, form, precision, c == '%' ? d * 100 : d);
    }
    if (c == '%') strcat(digits, "%");
    put_number(j, out, digits, "", s);
}

static void put_int(struct jinja *j, struct jtext *out, struct jv v, const struct spec *s)
{
    int base = s->type == 'x' || s->type == 'X' ? 16 : s->type == 'o' ? 8 : s->type == 'b' ? 2 : 10;
    const char *digits = jint_digits(j, v, base);
    struct jtext t = {0};
    if (jint_below_zero(v)) jtext_cstr(j, &t, "-");
    size_t n = strlen(digits), zeros = s->precision > (int64_t)n ? (size_t)s->precision - n : 0;
    jtext_repeat(j, &t, '0', zeros);
    for (size_t i = 0; i < n; i++) {
        char c = s->type == 'X' && digits[i] >= 'a' ? (char)(digits[i] - 32) : digits[i];
        jtext_bytes(j, &t, &c, 1);
    }
    jtext_bytes(j, &t, "", 1);
    char prefix[3] = {'0', s->type, 0};
    put_number(j, out, t.s, s->alternate && base != 10 ? prefix : "", s);
}

static void put_text(struct jinja *j, struct jtext *out, struct jstr text, const struct spec *s, char usual)
{
    if (s->precision >= 0) text = jstr_cut(j, text, 0, jstr_at(text, 0, (size_t)s->precision));
    pad(j, out, text, 0, s, usual);
}

static size_t read_number(struct jinja *j, struct jstr f, size_t at, int64_t *n)
{
    for (*n = 0; at < f.n && f.s[at] >= '0' && f.s[at] <= '9'; at++) {
        *n = 10 * *n + (f.s[at] - '0');
        if (*n > WIDTH_MAX) jinja_fail(j, "the width of a format is too large");
    }
    return at;
}

/* --- % */

struct values {
    struct jv all;
    size_t next;
};

static struct jv next_value(struct jinja *j, struct values *v)
{
    bool tuple = v->all.type == J_LIST && v->all.list->kind == JL_TUPLE;
    if (v->next >= (tuple ? v->all.list->n : 1)) jinja_fail(j, "not enough arguments for format string");
    return tuple ? v->all.list->v[v->next++] : (v->next++, v->all);
}

static void percent_value(struct jinja *j, struct jtext *out, struct jv v, const struct spec *s)
{
    double d;
    int64_t i;
    struct jtext t = {0};
    switch (s->type) {
    case 's': return put_text(j, out, jv_to_str(j, v), s, '>');
    case 'r': jtext_repr(j, &t, v); return put_text(j, out, jtext_str(&t), s, '>');
    case 'c':
        if (jv_is_int(v, &i)) {
            jtext_char(j, &t, i < 0 || i > 0x10ffff ? 0xfffd : (uint32_t)i);
            return put_text(j, out, jtext_str(&t), s, '>');
        }
        return put_text(j, out, jarg_str(j, v, "%c"), s, '>');
    default: break;
    }
    if (v.type == J_UNDEF) jinja_fail_undefined(j, v);
    if (!jv_is_number(v, &d)) jinja_fail(j, "%%%c format: a real number is required, not %s", s->type, jv_type_name(v));
    if (strchr("fFeEgG", s->type)) {
        if (v.type == J_BIG && isinf(d)) jinja_fail(j, "int too large to convert to float");
        return put_float(j, out, d, s);
    }
    if (v.type == J_FLOAT && s->type != 'd') jinja_fail(j, "%%%c format: an integer is required, not float", s->type);
    put_int(j, out, v.type == J_FLOAT ? jint_of_double(j, d) : v, s);
}

/* One conversion at f[at] (after the %); returns where it ends. */
static size_t percent(struct jinja *j, struct jtext *out, struct jstr f, size_t at, struct values *values)
{
    struct spec s = {.fill = jstr_of(" "), .precision = -1};
    struct jv v = {.type = J_MISSING};
    if (at < f.n && f.s[at] == '(') {
        const char *close = memchr(f.s + at, ')', f.n - at);
        if (!close) jinja_fail(j, "incomplete format key");
        if (values->all.type != J_DICT) jinja_fail(j, "format requires a mapping");
        size_t end = (size_t)(close - f.s);
        struct jv *there = jdict_find_text(j, values->all.dict, f.s + at + 1, end - at - 1);
        if (!there)
            jinja_fail(j, "there is no '%.*s' to format", jstr_short(jstr_cut(j, f, at + 1, end)), f.s + at + 1);
        v = *there;
        at = end + 1;
    }
    bool zero = false;
    for (; at < f.n && f.s[at] && strchr("-+ #0", f.s[at]); at++) {
        if (f.s[at] == '-') s.align = '<';
        if (f.s[at] == '0') zero = true;
        if (f.s[at] == '#') s.alternate = true;
        if (f.s[at] == '+' || (f.s[at] == ' ' && !s.sign)) s.sign = f.s[at];
    }
    at = read_number(j, f, at, &s.width);
    if (at < f.n && f.s[at] == '.') at = read_number(j, f, at + 1, &s.precision);
    if (at >= f.n) jinja_fail(j, "incomplete format");
    s.type = f.s[at] == 'i' || f.s[at] == 'u' ? 'd' : f.s[at] == 'a' ? 'r' : f.s[at];
    if (s.type == '%') return jtext_cstr(j, out, "%"), at + 1;
    if (!s.type || !strchr("srcdfFeEgGxXo", s.type)) jinja_fail(j, "unsupported format character '%c'", s.type);
    if (zero && !s.align && !strchr("src", s.type)) s.align = '=', s.fill = jstr_of("0");
    percent_value(j, out, v.type == J_MISSING ? next_value(j, values) : v, &s);
    return at + 1;
}

struct jv jinja_percent(struct jinja *j, struct jstr f, struct jv all)
{
    struct jtext out = {0};
    struct values values = {all, 0};
    for (size_t at = 0; at < f.n;) {
        const char *mark = memchr(f.s + at, '%', f.n - at);
        size_t end = mark ? (size_t)(mark - f.s) : f.n;
        jtext_add(j, &out, jstr_cut(j, f, at, end));
        jinja_work(j, 1);
        at = mark ? percent(j, &out, f, end + 1, &values) : f.n;
    }
    bool tuple = all.type == J_LIST && all.list->kind == JL_TUPLE;
    if (tuple ? values.next < all.list->n : !values.next && all.type != J_DICT && all.type != J_LIST)
        jinja_fail(j, "not all arguments converted during string formatting");
    return jtext_value(j, &out);
}

/* --- format */

static struct spec read_spec(struct jinja *j, struct jstr f)
{
    struct spec s = {.fill = jstr_of(" "), .precision = -1};
    size_t at = 0, first = f.n ? jstr_at(f, 0, 1) : 0;
    if (first < f.n && f.s[first] && strchr("<>^=", f.s[first])) {
        s.fill = (struct jstr){.s = f.s, .n = first};
        s.align = f.s[first];
        at = first + 1;
    } else if (f.n && f.s[0] && strchr("<>^=", f.s[0])) {
        s.align = f.s[at++];
    }
    if (at < f.n && f.s[at] && strchr("+- ", f.s[at])) s.sign = f.s[at++];
    if (at < f.n && f.s[at] == '#') s.alternate = true, at++;
    if (at < f.n && f.s[at] == '0') {
        at++;
        if (!s.align) s.align = '=', s.fill = jstr_of("0");
    }
    at = read_number(j, f, at, &s.width);
    if (at < f.n && (f.s[at] == ',' || f.s[at] == '_')) s.separator = f.s[at++];
    if (at < f.n && f.s[at] == '.') at = read_number(j, f, at + 1, &s.precision);
    if (at < f.n) s.type = f.s[at++];
    if (at < f.n || (s.type && !strchr("sdfFeEgGxXob%", s.type))) jinja_fail(j, "invalid format specifier");
    return s;
}

static void format_value(struct jinja *j, struct jtext *out, struct jv v, struct jstr spec)
{
    struct spec s = read_spec(j, spec);
    double d;
    if (!spec.n) return jtext_value_str(j, out, v);
    if (v.type == J_STR && (!s.type || s.type == 's')) return put_text(j, out, *v.str, &s, '<');
    if (v.type == J_FLOAT && !s.type && s.precision < 0) {
        struct jtext t = {0};
        jtext_double(j, &t, v.d);
        jtext_bytes(j, &t, "", 1);
        return put_number(j, out, t.s, "", &s);
    }
    if (jint_is(v) && (!s.type || strchr("dxXob", s.type))) {
        if (s.precision >= 0) jinja_fail(j, "Precision not allowed in integer format specifier");
        return put_int(j, out, v, &s);
    }
    if (jv_is_number(v, &d) && (!s.type || strchr("fFeEgG%", s.type))) {
        if (v.type == J_BIG && isinf(d)) jinja_fail(j, "int too large to convert to float");
        return put_float(j, out, d, &s);
    }
    jinja_fail(j, "unsupported format string for '%s'", jv_type_name(v));
}

/* The value that "0.name[key]" means. */
static struct jv find_field(struct jinja *j, struct jstr f, const struct jcall *c, int *next)
{
    size_t at = 0;
    while (at < f.n && f.s[at] != '.' && f.s[at] != '[') at++;
    struct jstr first = {.s = f.s, .n = at};
    struct jv v = {.type = J_MISSING};
    int64_t index;
    if (!at || read_number(j, first, 0, &index) == at) {
        if (!at) index = (*next)++;
        if (index >= c->n)
            jinja_fail(j, "Replacement index %lld out of range for positional args tuple", (long long)index);
        v = c->args[index];
    }
    for (int i = 0; v.type == J_MISSING && i < c->n_keywords; i++)
        if (jstr_same(c->keywords[i].name, first)) v = c->keywords[i].value;
    if (v.type == J_MISSING) jinja_fail(j, "there is no '%.*s' to format", jstr_short(first), f.s);
    while (at < f.n) {
        bool item = f.s[at++] == '[';
        size_t start = at;
        while (at < f.n && (item ? f.s[at] != ']' : f.s[at] != '.' && f.s[at] != '[')) at++;
        struct jstr part = {.s = f.s + start, .n = at - start};
        if (!part.n || (item && at == f.n)) jinja_fail(j, "invalid format field");
        bool number = item && read_number(j, part, 0, &index) == part.n;
        v = !item ? jinja_attribute(j, v, part) : jinja_item(j, v, number ? jv_int(index) : jv_str(j, part));
        at += item;
    }
    return v;
}

/* {field!conversion:spec}, from after the brace; returns where it ends. */
static size_t format_field(struct jinja *j, struct jtext *out, struct jstr f, size_t at, const struct jcall *c,
                           int *next)
{
    size_t start = at;
    while (at < f.n && f.s[at] != '}' && f.s[at] != '!' && f.s[at] != ':') at++;
    struct jv v = find_field(j, (struct jstr){.s = f.s + start, .n = at - start}, c, next);
    if (at + 1 < f.n && f.s[at] == '!') {
        struct jtext t = {0};
        if (f.s[at + 1] == 's')
            jtext_value_str(j, &t, v);
        else
            jtext_repr(j, &t, v);
        v = jtext_value(j, &t);
        at += 2;
    }
    struct jstr spec = {.s = ""};
    if (at < f.n && f.s[at] == ':') {
        start = ++at;
        while (at < f.n && f.s[at] != '}' && f.s[at] != '{') at++;
        spec = (struct jstr){.s = f.s + start, .n = at - start};
    }
    if (at >= f.n || f.s[at] != '}') jinja_fail(j, "expected '}' before end of string");
    format_value(j, out, v, spec);
    return at + 1;
}

struct jv jinja_format(struct jinja *j, struct jstr f, const struct jcall *c)
{
    struct jtext out = {0};
    int next = 0;
    for (size_t at = 0; at < f.n;) {
        size_t end = at;
        while (end < f.n && f.s[end] != '{' && f.s[end] != '}') end++;
        jtext_add(j, &out, jstr_cut(j, f, at, end));
        jinja_work(j, 1);
        if (end == f.n) break;
        if (end + 1 < f.n && f.s[end + 1] == f.s[end]) {
            jtext_bytes(j, &out, f.s + end, 1);
            at = end + 2;
        } else {
            if (f.s[end] == '}') jinja_fail(j, "Single '}' encountered in format string");
            at = format_field(j, &out, f, end + 1, c, &next);
        }
    }
    return jtext_value(j, &out);
}
