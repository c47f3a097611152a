/* Methods of strings, lists and dicts. */
#include "engine/template/jinja_builtins.h"
#include "engine/tokenizer/text.h"

#include <string.h>
#include <utf8proc.h>

#define METHOD(name) static struct jv name(struct jinja *j, struct jv self, const struct jv *a, const struct jcall *c)

static bool given(struct jv v)
{
    return v.type != J_MISSING && v.type != J_NONE;
}

METHOD(str_strip)
{
    return jinja_strip(j, *self.str, a[0], true, true);
}
METHOD(str_lstrip)
{
    return jinja_strip(j, *self.str, a[0], true, false);
}
METHOD(str_rstrip)
{
    return jinja_strip(j, *self.str, a[0], false, true);
}
METHOD(str_upper)
{
    return jinja_case(j, *self.str, CASE_UPPER);
}
METHOD(str_lower)
{
    return jinja_case(j, *self.str, CASE_LOWER);
}
METHOD(str_casefold)
{
    return jinja_case(j, *self.str, CASE_FOLD);
}
METHOD(str_capitalize)
{
    return jinja_case(j, *self.str, CASE_CAPITALIZE);
}
METHOD(str_title)
{
    return jinja_case(j, *self.str, CASE_TITLE);
}
METHOD(str_swapcase)
{
    return jinja_case(j, *self.str, CASE_SWAP);
}

METHOD(str_replace)
{
    return jinja_replace(j, *self.str, jarg_str(j, a[0], "replace() argument 1"),
                         jarg_str(j, a[1], "replace() argument 2"), jarg_int(j, a[2], "count", -1));
}

METHOD(str_splitlines)
{
    return jinja_splitlines(j, *self.str, a[0].type != J_MISSING && jv_truth(a[0]));
}

/* The words of s, at most `most` cuts (-1: all). */
static struct jv split_space(struct jinja *j, struct jstr s, int64_t most)
{
    struct jv v = jv_list(j, JL_LIST, 0);
    jinja_work(j, s.n / 16);
    for (size_t at = 0, n;;) {
        while (at < s.n && (n = jinja_space(s.s + at, s.n - at))) at += n;
        if (at == s.n) return v;
        size_t end = at;
        while (end < s.n && !jinja_space(s.s + end, s.n - end)) end = jstr_at(s, end, 1);
        if (most >= 0 && (int64_t)v.list->n == most) {
            end = s.n;
            while ((n = jinja_space_before(s.s, end))) end -= n;
        }
        jinja_work(j, 1);
        jlist_add(j, v.list, jv_str(j, jstr_cut(j, s, at, end)));
        if (most >= 0 && (int64_t)v.list->n > most) return v;
        at = end;
    }
}

static struct jv rsplit_space(struct jinja *j, struct jstr s, int64_t most)
{
    struct jv all = split_space(j, s, -1), v = jv_list(j, JL_LIST, 0);
    size_t n = all.list->n;
    if (most < 0 || n <= (size_t)most + 1) return all;
    /* the first words stay one element, up to the last of them */
    const struct jstr *last = all.list->v[n - (size_t)most - 1].str;
    jlist_add(j, v.list, jv_str(j, jstr_cut(j, s, 0, (size_t)(last->s - s.s) + last->n)));
    for (size_t i = n - (size_t)most; i < n; i++) jlist_add(j, v.list, all.list->v[i]);
    return v;
}

/* Where `what` ends last before `end`; SIZE_MAX */
static size_t rfind(struct jinja *j, struct jstr s, size_t start, size_t end, struct jstr what)
{
    if (what.n > end || end - what.n < start) return SIZE_MAX;
    for (size_t at = end - what.n;; at--) {
        bool likely = !what.n || s.s[at] == what.s[0];
        if (likely || !(at & 63)) jinja_work(j, 1 + (likely ? what.n / 64 : 0));
        if (likely && memcmp(s.s + at, what.s, what.n) == 0) return at;
        if (at == start) return SIZE_MAX;
    }
}

static struct jv split(struct jinja *j, struct jstr s, const struct jv *a, bool right)
{
    int64_t most = jarg_int(j, a[1], "maxsplit", -1);
    if (!given(a[0])) return right ? rsplit_space(j, s, most) : split_space(j, s, most);
    struct jstr by = jarg_str(j, a[0], "separator");
    struct jv v = jv_list(j, JL_LIST, 0);
    size_t start = 0, end = s.n;
    if (!by.n) jinja_fail(j, "empty separator");
    for (; most != 0; most -= most > 0) {
        size_t at = right ? rfind(j, s, 0, end, by) : jstr_find(j, s, start, by);
        if (at == SIZE_MAX) break;
        jinja_work(j, 1);
        jlist_add(j, v.list, jv_str(j, right ? jstr_cut(j, s, at + by.n, end) : jstr_cut(j, s, start, at)));
        if (right) {
            end = at;
        } else {
            start = at + by.n;
        }
    }
    jlist_add(j, v.list, jv_str(j, jstr_cut(j, s, start, end)));
    for (size_t i = 0, n = v.list->n; right && i < n / 2; i++) {
        struct jv swap = v.list->v[i];
        v.list->v[i] = v.list->v[n - 1 - i];
        v.list->v[n - 1 - i] = swap;
    }
    return v;
}

METHOD(str_split)
{
    return split(j, *self.str, a, false);
}
METHOD(str_rsplit)
{
    return split(j, *self.str, a, true);
}

static struct jv partition(struct jinja *j, struct jstr s, struct jv sep, bool right)
{
    struct jstr by = jarg_str(j, sep, "separator"), empty = {.s = ""};
    if (!by.n) jinja_fail(j, "empty separator");
    size_t at = right ? rfind(j, s, 0, s.n, by) : jstr_find(j, s, 0, by);
    bool found = at != SIZE_MAX;
    struct jv v = jv_list(j, JL_TUPLE, 3);
    jlist_add(j, v.list, jv_str(j, found ? jstr_cut(j, s, 0, at) : right ? empty : s));
    jlist_add(j, v.list, jv_str(j, found ? by : empty));
    jlist_add(j, v.list, jv_str(j, found ? jstr_cut(j, s, at + by.n, s.n) : right ? s : empty));
    return v;
}

METHOD(str_partition)
{
    return partition(j, *self.str, a[0], false);
}
METHOD(str_rpartition)
{
    return partition(j, *self.str, a[0], true);
}

/* s[start:end] for methods that take such bounds */
static struct jstr bounded(struct jinja *j, struct jstr s, const struct jv *bounds)
{
    if (!given(bounds[0]) && !given(bounds[1])) return s;
    struct jv v = {.type = J_STR, .str = &s};
    return *jinja_slice(j, v, bounds[0], bounds[1], (struct jv){.type = J_MISSING}).str;
}

static struct jv affix(struct jinja *j, struct jstr s, const struct jv *a, bool end)
{
    s = bounded(j, s, a + 1);
    bool is_tuple = a[0].type == J_LIST && a[0].list->kind == JL_TUPLE;
    for (size_t i = 0; i < (is_tuple ? a[0].list->n : 1); i++) {
        struct jstr x = jarg_str(j, is_tuple ? a[0].list->v[i] : a[0], "startswith/endswith first arg");
        if (x.n <= s.n && memcmp(end ? s.s + s.n - x.n : s.s, x.s, x.n) == 0) return jv_bool(true);
    }
    return jv_bool(false);
}

METHOD(str_startswith)
{
    return affix(j, *self.str, a, false);
}
METHOD(str_endswith)
{
    return affix(j, *self.str, a, true);
}

METHOD(str_removeprefix)
{
    struct jstr s = *self.str, x = jarg_str(j, a[0], "removeprefix() argument");
    bool there = x.n <= s.n && memcmp(s.s, x.s, x.n) == 0;
    return there ? jv_str(j, jstr_cut(j, s, x.n, s.n)) : self;
}

METHOD(str_removesuffix)
{
    struct jstr s = *self.str, x = jarg_str(j, a[0], "removesuffix() argument");
    bool there = x.n && x.n <= s.n && memcmp(s.s + s.n - x.n, x.s, x.n) == 0;
    return there ? jv_str(j, jstr_cut(j, s, 0, s.n - x.n)) : self;
}

static struct jv find(struct jinja *j, struct jstr s, const struct jv *a, bool right, bool must)
{
    struct jstr in = bounded(j, s, a + 1), what = jarg_str(j, a[0], "find() argument");
    size_t at = right ? rfind(j, in, 0, in.n, what) : jstr_find(j, in, 0, what);
    if (at == SIZE_MAX) {
        if (must) jinja_fail(j, "substring not found");
        return jv_int(-1);
    }
    size_t before = (size_t)(in.s - s.s) + at;
    return jv_int((int64_t)jstr_chars(j, (struct jstr){.s = s.s, .n = before}));
}

METHOD(str_find)
{
    return find(j, *self.str, a, false, false);
}
METHOD(str_rfind)
{
    return find(j, *self.str, a, true, false);
}
METHOD(str_index)
{
    return find(j, *self.str, a, false, true);
}
METHOD(str_rindex)
{
    return find(j, *self.str, a, true, true);
}

METHOD(str_count)
{
    struct jstr in = bounded(j, *self.str, a + 1), what = jarg_str(j, a[0], "count() argument");
    if (!what.n) return jv_int((int64_t)jstr_chars(j, in) + 1);
    int64_t n = 0;
    for (size_t at = 0; (at = jstr_find(j, in, at, what)) != SIZE_MAX; at += what.n, n++) jinja_work(j, 1);
    return jv_int(n);
}

METHOD(str_join)
{
    const struct jlist *l = jv_iterate(j, a[0]);
    struct jtext t = {0};
    for (size_t i = 0; i < l->n; i++) {
        jinja_work(j, 1);
        if (l->v[i].type != J_STR)
            jinja_fail(j, "sequence item %zu: expected str instance, %s found", i, jv_type_name(l->v[i]));
        if (i) jtext_add(j, &t, *self.str);
        jtext_add(j, &t, *l->v[i].str);
    }
    return jtext_value(j, &t);
}

METHOD(str_format)
{
    return jinja_format(j, *self.str, c);
}

static struct jv pad(struct jinja *j, struct jstr s, const struct jv *a, bool left, bool right)
{
    struct jstr fill = given(a[1]) ? jarg_str(j, a[1], "fill character") : jstr_of(" ");
    int64_t width = jarg_int(j, a[0], "width", 0), n = (int64_t)jstr_chars(j, s);
    if (jstr_chars(j, fill) != 1) jinja_fail(j, "the fill character must be exactly one character long");
    int64_t room = width > n ? width - n : 0, before = left && right ? room / 2 + (room & width & 1) : left ? room : 0;
    struct jtext t = {0};
    if (room > JINJA_TEXT_MAX) jinja_fail(j, "makes a text of more than %d bytes", JINJA_TEXT_MAX);
    for (int64_t i = 0; i < before; i++) jtext_add(j, &t, fill);
    jtext_add(j, &t, s);
    for (int64_t i = before; i < room; i++) jtext_add(j, &t, fill);
    jinja_work(j, (size_t)room);
    return jtext_value(j, &t);
}

METHOD(str_center)
{
    return pad(j, *self.str, a, true, true);
}
METHOD(str_ljust)
{
    return pad(j, *self.str, a, false, true);
}
METHOD(str_rjust)
{
    return pad(j, *self.str, a, true, false);
}

METHOD(str_zfill)
{
    struct jstr s = *self.str;
    int64_t width = jarg_int(j, a[0], "width", 0), n = (int64_t)jstr_chars(j, s);
    if (width > JINJA_TEXT_MAX) jinja_fail(j, "makes a text of more than %d bytes", JINJA_TEXT_MAX);
    size_t sign = s.n && (s.s[0] == '-' || s.s[0] == '+');
    struct jtext t = {0};
    jtext_add(j, &t, jstr_cut(j, s, 0, sign));
    if (width > n) jtext_repeat(j, &t, '0', (size_t)(width - n));
    jtext_add(j, &t, jstr_cut(j, s, sign, s.n));
    return jtext_value(j, &t);
}

enum class { IS_ALPHA = 1, IS_DECIMAL = 2, IS_NUMERIC = 4, IS_UPPER = 8, IS_LOWER = 16, IS_SPACE = 32, IS_DIGIT = 64 };

static int classes(const char *s, unsigned len, uint32_t c)
{
    int k = jinja_space(s, len) ? IS_SPACE : 0;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT: return k | IS_ALPHA | IS_UPPER;
    case UTF8PROC_CATEGORY_LL: return k | IS_ALPHA | IS_LOWER;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return k | IS_ALPHA;
    case UTF8PROC_CATEGORY_ND: return k | IS_DECIMAL | IS_DIGIT | IS_NUMERIC;
    case UTF8PROC_CATEGORY_NL: return k | IS_NUMERIC;
    case UTF8PROC_CATEGORY_NO: /* superscripts, subscripts and circled figures are digits */
        if (c == 0xb2 || c == 0xb3 || c == 0xb9 || (c >= 0x2070 && c <= 0x2089) || (c >= 0x2460 && c <= 0x2468))
            k |= IS_DIGIT;
        return k | IS_NUMERIC;
    default: return k;
    }
}

static struct jv all_are(struct jinja *j, struct jstr s, int want)
{
    jinja_work(j, s.n / 16);
    for (size_t i = 0; i < s.n;) {
        uint32_t c;
        unsigned len = utf8_get(s.s + i, &c);
        if (!(classes(s.s + i, len, c) & want)) return jv_bool(false);
        i += len;
    }
    return jv_bool(s.n != 0);
}

/* some cased characters, and none of the other case */
static struct jv cased(struct jinja *j, struct jstr s, int want, int other)
{
    int seen = 0;
    jinja_work(j, s.n / 16);
    for (size_t i = 0; i < s.n;) {
        uint32_t c;
        unsigned len = utf8_get(s.s + i, &c);
        seen |= classes(s.s + i, len, c);
        i += len;
    }
    return jv_bool((seen & want) && !(seen & other));
}

METHOD(str_isalpha)
{
    return all_are(j, *self.str, IS_ALPHA);
}
METHOD(str_isalnum)
{
    return all_are(j, *self.str, IS_ALPHA | IS_DECIMAL | IS_DIGIT | IS_NUMERIC);
}
METHOD(str_isdigit)
{
    return all_are(j, *self.str, IS_DIGIT);
}
METHOD(str_isdecimal)
{
    return all_are(j, *self.str, IS_DECIMAL);
}
METHOD(str_isnumeric)
{
    return all_are(j, *self.str, IS_NUMERIC);
}
METHOD(str_isspace)
{
    return all_are(j, *self.str, IS_SPACE);
}
METHOD(str_isupper)
{
    return cased(j, *self.str, IS_UPPER, IS_LOWER);
}
METHOD(str_islower)
{
    return cased(j, *self.str, IS_LOWER, IS_UPPER);
}

METHOD(str_isascii)
{
    for (size_t i = 0; i < self.str->n; i++)
        if ((unsigned char)self.str->s[i] >= 0x80) return jv_bool(false);
    return jv_bool(true);
}

/* Upper case begins words only, and lower case never does. */
METHOD(str_istitle)
{
    bool inside = false, any = false;
    jinja_work(j, self.str->n / 16);
    for (size_t i = 0; i < self.str->n;) {
        uint32_t ch;
        unsigned len = utf8_get(self.str->s + i, &ch);
        int k = classes(self.str->s + i, len, ch);
        if ((k & IS_UPPER && inside) || (k & IS_LOWER && !inside)) return jv_bool(false);
        inside = k & (IS_UPPER | IS_LOWER);
        any = any || inside;
        i += len;
    }
    return jv_bool(any);
}

METHOD(str_expandtabs)
{
    int64_t size = jarg_int(j, a[0], "tabsize", 8), column = 0;
    struct jtext t = {0};
    if (size > JINJA_TEXT_MAX) jinja_fail(j, "makes a text of more than %d bytes", JINJA_TEXT_MAX);
    for (size_t i = 0, next; i < self.str->n; i = next) {
        char ch = self.str->s[i];
        next = jstr_at(*self.str, i, 1);
        jinja_work(j, 1);
        if (ch == '\t') {
            int64_t blanks = size > 0 ? size - column % size : 0;
            jtext_repeat(j, &t, ' ', (size_t)blanks);
            column += blanks;
            continue;
        }
        jtext_add(j, &t, jstr_cut(j, *self.str, i, next));
        column = ch == '\n' || ch == '\r' ? 0 : column + 1;
    }
    return jtext_value(j, &t);
}

METHOD(str_encode)
{
    return jinja_encode(j, *self.str, a[0], a[1]);
}

METHOD(str_isprintable)
{
    jinja_work(j, self.str->n / 16);
    for (size_t i = 0; i < self.str->n;) {
        uint32_t ch;
        i += utf8_get(self.str->s + i, &ch);
        if (!jinja_printable(ch)) return jv_bool(false);
    }
    return jv_bool(true);
}

/* Whether an identifier may begin with the character, or go on with it: Unicode's XID_Start and XID_Continue, which are
 * categories, and a few that are listed. */
static bool in_identifier(uint32_t c, bool first)
{
    static const uint32_t never[][2] = {{0x37a, 0x37a},   {0x2e2f, 0x2e2f}, {0xfc5e, 0xfc63}, {0xfdfa, 0xfdfb},
                                        {0xfe70, 0xfe70}, {0xfe72, 0xfe72}, {0xfe74, 0xfe74}, {0xfe76, 0xfe76},
                                        {0xfe78, 0xfe78}, {0xfe7a, 0xfe7a}, {0xfe7c, 0xfe7c}, {0xfe7e, 0xfe7e}};
    if (c == 0x2118 || c == 0x212e) return true;
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        if (c >= never[i][0] && c <= never[i][1]) return false;
    if (first && (c == 0xe33 || c == 0xeb3 || c == 0xff9e || c == 0xff9f)) return false;
    if (first && (c == 0x1885 || c == 0x1886)) return true;
    if (!first && (c == 0xb7 || c == 0x387 || (c >= 0x1369 && c <= 0x1371) || c == 0x19da)) return true;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_NL: return true;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ND: return !first;
    case UTF8PROC_CATEGORY_PC: return !first || c == '_';
    default: return false;
    }
}

METHOD(str_isidentifier)
{
    jinja_work(j, self.str->n / 16);
    for (size_t i = 0, next; i < self.str->n; i = next) {
        uint32_t ch;
        next = i + utf8_get(self.str->s + i, &ch);
        if (!in_identifier(ch, i == 0)) return jv_bool(false);
    }
    return jv_bool(self.str->n != 0);
}

static const struct jbuiltin STR[] = {{"strip", "chars?", str_strip},
                                      {"lstrip", "chars?", str_lstrip},
                                      {"rstrip", "chars?", str_rstrip},
                                      {"split", "sep? maxsplit?", str_split},
                                      {"rsplit", "sep? maxsplit?", str_rsplit},
                                      {"splitlines", "keepends?", str_splitlines},
                                      {"partition", "sep", str_partition},
                                      {"rpartition", "sep", str_rpartition},
                                      {"startswith", "prefix start? end?", str_startswith},
                                      {"endswith", "suffix start? end?", str_endswith},
                                      {"removeprefix", "prefix", str_removeprefix},
                                      {"removesuffix", "suffix", str_removesuffix},
                                      {"replace", "old new count?", str_replace},
                                      {"find", "sub start? end?", str_find},
                                      {"rfind", "sub start? end?", str_rfind},
                                      {"index", "sub start? end?", str_index},
                                      {"rindex", "sub start? end?", str_rindex},
                                      {"count", "sub start? end?", str_count},
                                      {"join", "iterable", str_join},
                                      {"format", NULL, str_format},
                                      {"encode", "encoding? errors?", str_encode},
                                      {"isprintable", "", str_isprintable},
                                      {"isidentifier", "", str_isidentifier},
                                      {"upper", "", str_upper},
                                      {"lower", "", str_lower},
                                      {"casefold", "", str_casefold},
                                      {"capitalize", "", str_capitalize},
                                      {"title", "", str_title},
                                      {"swapcase", "", str_swapcase},
                                      {"center", "width fillchar?", str_center},
                                      {"ljust", "width fillchar?", str_ljust},
                                      {"rjust", "width fillchar?", str_rjust},
                                      {"zfill", "width", str_zfill},
                                      {"isalpha", "", str_isalpha},
                                      {"isalnum", "", str_isalnum},
                                      {"isdigit", "", str_isdigit},
                                      {"isdecimal", "", str_isdecimal},
                                      {"isnumeric", "", str_isnumeric},
                                      {"isspace", "", str_isspace},
                                      {"isascii", "", str_isascii},
                                      {"istitle", "", str_istitle},
                                      {"expandtabs", "tabsize?", str_expandtabs},
                                      {"isupper", "", str_isupper},
                                      {"islower", "", str_islower}};

const struct jbuiltin *jinja_str_method(struct jstr name)
{
    return jbuiltin_find(STR, sizeof STR / sizeof *STR, name);
}

/* --- lists and dicts */

METHOD(list_index)
{
    const struct jlist *l = self.list;
    for (size_t i = 0; i < l->n; i++)
        if (jv_equal(j, l->v[i], a[0])) return jv_int((int64_t)i);
    jinja_fail(j, "the value is not in the list");
}

METHOD(list_count)
{
    int64_t n = 0;
    for (size_t i = 0; i < self.list->n; i++) n += jv_equal(j, self.list->v[i], a[0]);
    return jv_int(n);
}

METHOD(copy)
{
    return self; /* values are immutable */
}

const struct jbuiltin *jinja_list_method(enum jlist_kind kind, struct jstr name)
{
    static const struct jbuiltin methods[] = {
        {"index", "value", list_index}, {"count", "value", list_count}, {"copy", "", copy}};
    if (kind == JL_BYTES) return jinja_bytes_method(name);
    return kind > JL_RANGE ? NULL : jbuiltin_find(methods, kind == JL_LIST ? 3 : 2, name);
}

static struct jv view(struct jinja *j, const struct jdict *d, enum jlist_kind kind)
{
    struct jv v = jv_list(j, kind, d->n);
    jinja_work(j, d->n);
    for (size_t i = 0; i < d->n; i++) {
        struct jv pair = kind == JL_ITEMS ? jv_list(j, JL_TUPLE, 2) : kind == JL_KEYS ? d->v[i].key : d->v[i].value;
        if (kind == JL_ITEMS) {
            jlist_add(j, pair.list, d->v[i].key);
            jlist_add(j, pair.list, d->v[i].value);
        }
        jlist_add(j, v.list, pair);
    }
    return v;
}

METHOD(dict_items)
{
    return view(j, self.dict, JL_ITEMS);
}
METHOD(dict_keys)
{
    return view(j, self.dict, JL_KEYS);
}
METHOD(dict_values)
{
    return view(j, self.dict, JL_VALUES);
}

METHOD(dict_get)
{
    const struct jv *there = jdict_find(j, self.dict, a[0]);
    return there ? *there : a[1].type == J_MISSING ? jv_none() : a[1];
}

const struct jbuiltin *jinja_dict_method(struct jstr name)
{
    static const struct jbuiltin methods[] = {{"items", "", dict_items},
                                              {"keys", "", dict_keys},
                                              {"values", "", dict_values},
                                              {"get", "key default?", dict_get},
                                              {"copy", "", copy}};
    return jbuiltin_find(methods, sizeof methods / sizeof *methods, name);
}
