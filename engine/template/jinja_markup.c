/* Filters that make or take apart HTML: striptags, xmlattr, urlize.  Their texts are plain strings, as all are here. */
#include "engine/template/jinja_sequence.h"

#include "engine/template/jinja_builtins.h"
#include "engine/tokenizer/text.h"

#include <ctype.h>
#include <pthread.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define FILTER(name) static struct jv name(struct jinja *j, struct jv self, const struct jv *a, const struct jcall *c)

static struct jstr escaped(struct jinja *j, struct jv v)
{
    return *jinja_call_builtin(j, jinja_filter(jstr_of("escape")), v, &(struct jcall){0}).str;
}

static bool starts(struct jstr s, size_t at, const char *what)
{
    size_t n = strlen(what);
    return at <= s.n && s.n - at >= n && memcmp(s.s + at, what, n) == 0;
}

static struct jstr from(struct jinja *j, struct jstr s, size_t start)
{
    return jstr_cut(j, s, start, s.n);
}

/* ---- striptags ------------------------------------------------------------------------------------------------- */

/* The character that the reference at s[at] (an "&") names; its length, or 0. */
static size_t read_reference(struct jstr s, size_t at, uint32_t *out)
{
    static const struct {
        const char *name;
        uint32_t c;
    } names[] = {{"&amp;", '&'},     {"&lt;", '<'},       {"&gt;", '>'},       {"&quot;", '"'},     {"&apos;", '\''},
                 {"&nbsp;", 0xa0},   {"&copy;", 0xa9},    {"&reg;", 0xae},     {"&laquo;", 0xab},   {"&raquo;", 0xbb},
                 {"&euro;", 0x20ac}, {"&ndash;", 0x2013}, {"&mdash;", 0x2014}, {"&hellip;", 0x2026}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!starts(s, at, names[i].name)) continue;
        *out = names[i].c;
        return strlen(names[i].name);
    }
    if (!starts(s, at, "&#")) return 0;
    size_t i = at + 2;
    bool hex = i < s.n && (s.s[i] | 32) == 'x';
    uint32_t value = 0;
    i += hex;
    size_t first = i;
    for (; i < s.n && (hex ? isxdigit((unsigned char)s.s[i]) : isdigit((unsigned char)s.s[i])); i++) {
        uint32_t digit = s.s[i] <= '9' ? (uint32_t)(s.s[i] - '0') : (uint32_t)((s.s[i] | 32) - 'a' + 10);
        if (value <= 0x110000) value = value * (hex ? 16 : 10) + digit;
    }
    if (i == first) return 0;
    bool character = value && value <= 0x10ffff && (value < 0xd800 || value > 0xdfff);
    *out = character ? value : 0xfffd;
    return i - at + (i < s.n && s.s[i] == ';');
}

FILTER(f_striptags)
{
    struct jstr s = jv_to_str(j, self);
    struct jtext plain = {0}, out = {0};
    size_t at = 0;
    for (const char *p; (p = memchr(s.s + at, '<', s.n - at));) {
        size_t start = (size_t)(p - s.s);
        bool comment = starts(s, start, "<!--");
        size_t end = start + 4 <= s.n || !comment
                         ? jstr_find(j, s, start + (comment ? 4 : 0), jstr_of(comment ? "-->" : ">"))
                         : SIZE_MAX;
        if (end == SIZE_MAX) break;
        jtext_add(j, &plain, jstr_cut(j, s, at, start));
        at = end + (comment ? 3 : 1);
    }
    jtext_add(j, &plain, from(j, s, at));
    s = jtext_str(&plain);
    const struct jlist *words =
        jinja_call_builtin(j, jinja_str_method(jstr_of("split")), jv_str(j, s), &(struct jcall){0}).list;
    for (size_t w = 0; w < words->n; w++) {
        struct jstr word = *words->v[w].str;
        if (w) jtext_cstr(j, &out, " ");
        for (size_t i = 0; i < word.n;) {
            uint32_t ch;
            size_t n = word.s[i] == '&' ? read_reference(word, i, &ch) : 0, next = i + 1;
            if (n) jtext_char(j, &out, ch);
            while (!n && next < word.n && word.s[next] != '&') next++;
            if (!n) jtext_add(j, &out, jstr_cut(j, word, i, next));
            i = n ? i + n : next;
        }
    }
    return jtext_value(j, &out);
}

/* ---- xmlattr --------------------------------------------------------------------------------------------------- */

FILTER(f_xmlattr)
{
    bool space = a[0].type == J_MISSING || jv_truth(a[0]);
    struct jtext out = {0};
    if (self.type != J_DICT) jinja_fail(j, "'%s' object has no attribute 'items'", jv_type_name(self));
    for (size_t i = 0; i < self.dict->n; i++) {
        struct jv key = self.dict->v[i].key, value = self.dict->v[i].value;
        jinja_work(j, 1);
        if (value.type == J_NONE || value.type == J_UNDEF) continue;
        struct jstr name = jarg_str(j, key, "an attribute's name");
        for (size_t k = 0; k < name.n; k++)
            if (strchr("/>=", name.s[k]) || jinja_space(name.s + k, name.n - k))
                jinja_fail(j, "Invalid character in attribute name: '%.*s'", jstr_short(name), name.s);
        if (out.n || space) jtext_cstr(j, &out, " ");
        jtext_add(j, &out, escaped(j, key));
        jtext_cstr(j, &out, "=\"");
        jtext_add(j, &out, escaped(j, value));
        jtext_cstr(j, &out, "\"");
    }
    return jtext_value(j, &out);
}

/* ---- urlize ---------------------------------------------------------------------------------------------------- */

/* jinja2's words that are links (markupsafe has escaped the text): with a scheme or "www.", a host with a known kind of
 * end or a number, and a path; or a bare host with one of the old top-level domains; and addresses. */
static const char LINK[] =
    "^((https?://|www\\.)(([\\w%-]+\\.)+)?([a-z]{2,63}|xn--[\\w%]{2,59})"
    "|([\\w%-]{2,63}\\.)+(com|net|int|edu|gov|org|info|mil)"
    "|(https?://)(([\\d]{1,3})(\\.[\\d]{1,3}){3}|(\\[([\\da-f]{0,4}:){2}([\\da-f]{0,4}:?){1,6}])))"
    "(?::[\\d]{1,5})?(?:[/?#]\\S*)?$";
static const char ADDRESS[] = "^\\S+@\\w[\\w.-]*\\.\\w+$";

static pcre2_code *link_code, *address_code; /* for the whole process */
static pthread_once_t compiled = PTHREAD_ONCE_INIT;

static void compile(void)
{
    int error;
    PCRE2_SIZE at;
    uint32_t flags = PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK;
    link_code = pcre2_compile((PCRE2_SPTR)LINK, PCRE2_ZERO_TERMINATED, flags | PCRE2_CASELESS, &error, &at, NULL);
    address_code = pcre2_compile((PCRE2_SPTR)ADDRESS, PCRE2_ZERO_TERMINATED, flags, &error, &at, NULL);
}

static bool is_match(struct jinja *j, const pcre2_code *code, struct jstr s)
{
    jinja_work(j, 16 + s.n);
    pcre2_match_data *data = code ? pcre2_match_data_create(1, NULL) : NULL;
    if (!data) jinja_fail(j, "there is no memory left");
    int rc = pcre2_match(code, (PCRE2_SPTR)s.s, s.n, 0, PCRE2_NO_UTF_CHECK, data, NULL);
    pcre2_match_data_free(data);
    return rc >= 0;
}

/* Bytes at s[at] that belong before a link ("(", "<", escaped too). */
static size_t opening(struct jstr s, size_t at)
{
    return starts(s, at, "&lt;") ? 4 : starts(s, at, "(") || starts(s, at, "<");
}

/* Bytes that end at `end` and belong behind it. */
static size_t closing(struct jstr s, size_t end)
{
    if (end >= 4 && starts(s, end - 4, "&gt;")) return 4;
    return end && s.s[end - 1] && strchr(")>.,\n", s.s[end - 1]);
}

static size_t count_of(struct jinja *j, struct jstr s, const char *what)
{
    size_t n = 0;
    for (size_t at = 0; (at = jstr_find(j, s, at, jstr_of(what))) != SIZE_MAX; at += strlen(what)) n++;
    return n;
}

struct links {
    int64_t limit; /* characters of a link that are shown; -1: all */
    struct jstr attributes;
    const struct jlist *schemes; /* NULL: none besides */
};

static void put_link(struct jinja *j, struct jtext *out, const char *before, struct jstr to, struct jstr attributes,
                     struct jstr shown, int64_t limit)
{
    bool cut = limit >= 0 && (int64_t)jstr_chars(j, shown) > limit;
    jtext_cstr(j, out, "<a href=\"");
    jtext_cstr(j, out, before);
    jtext_add(j, out, to);
    jtext_cstr(j, out, "\"");
    jtext_add(j, out, attributes);
    jtext_cstr(j, out, ">");
    jtext_add(j, out, cut ? jstr_cut(j, shown, 0, jstr_at(shown, 0, (size_t)limit)) : shown);
    jtext_cstr(j, out, cut ? "...</a>" : "</a>");
}

static void put_target(struct jinja *j, struct jtext *out, struct jstr s, const struct links *l)
{
    struct jstr none = {.s = ""};
    if (is_match(j, link_code, s)) {
        bool whole = starts(s, 0, "https://") || starts(s, 0, "http://");
        return put_link(j, out, whole ? "" : "https://", s, l->attributes, s, l->limit);
    }
    struct jstr address = starts(s, 0, "mailto:") ? from(j, s, 7) : none;
    if (address.n && is_match(j, address_code, address)) return put_link(j, out, "", s, none, address, -1);
    bool plain = memchr(s.s, '@', s.n) && !starts(s, 0, "www.") && s.s[0] != '@' && !memchr(s.s, ':', s.n);
    if (plain && is_match(j, address_code, s)) return put_link(j, out, "mailto:", s, none, s, -1);
    for (size_t i = 0; l->schemes && i < l->schemes->n; i++) {
        struct jstr scheme = jarg_str(j, l->schemes->v[i], "extra_schemes");
        if (s.n > scheme.n && memcmp(s.s, scheme.s, scheme.n) == 0)
            return put_link(j, out, "", s, l->attributes, s, -1);
    }
    jtext_add(j, out, s);
}

static void put_word(struct jinja *j, struct jtext *out, struct jstr word, const struct links *l)
{
    static const char *const pairs[][2] = {{"(", ")"}, {"<", ">"}, {"&lt;", "&gt;"}};
    size_t head = 0, end = word.n;
    for (size_t n; (n = opening(word, head));) head += n;
    for (size_t n; end > head && (n = closing(word, end)) && end - n >= head;) end -= n;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) { /* a link may have brackets of its own */
        struct jstr middle = jstr_cut(j, word, head, end);
        size_t open = count_of(j, middle, pairs[i][0]), n = open;
        if (open <= count_of(j, middle, pairs[i][1])) continue;
        for (size_t at; n && (at = jstr_find(j, word, end, jstr_of(pairs[i][1]))) != SIZE_MAX; n--)
            end = at + strlen(pairs[i][1]);
    }
    jtext_add(j, out, jstr_cut(j, word, 0, head));
    if (end > head) put_target(j, out, jstr_cut(j, word, head, end), l);
    jtext_add(j, out, from(j, word, end));
}

/* rel="...", with what is always in it, sorted; and target="..." */
static struct jstr link_attributes(struct jinja *j, struct jv rel, bool nofollow, struct jv target)
{
    struct jv words = jv_list(j, JL_LIST, 0), none = {.type = J_MISSING};
    if (rel.type == J_STR) words = jinja_call_builtin(j, jinja_str_method(jstr_of("split")), rel, &(struct jcall){0});
    struct jv all = jv_list(j, JL_LIST, words.list->n + 2);
    for (size_t i = 0; i < words.list->n; i++) jlist_add(j, all.list, words.list->v[i]);
    jlist_add(j, all.list, jv_cstr(j, "noopener"));
    if (nofollow) jlist_add(j, all.list, jv_cstr(j, "nofollow"));
    struct jkeyword exact = {jstr_of("case_sensitive"), jv_bool(true)};
    struct jcall call = {.keywords = &exact, .n_keywords = 1};
    struct jv sorted = jinja_call_builtin(j, jinja_filter(jstr_of("sort")), all, &call);
    struct jtext out = {0};
    jtext_cstr(j, &out, " rel=\"");
    for (size_t i = 0; i < sorted.list->n; i++) {
        if (i && jv_equal(j, sorted.list->v[i - 1], sorted.list->v[i])) continue;
        if (i) jtext_cstr(j, &out, " ");
        jtext_add(j, &out, escaped(j, sorted.list->v[i]));
    }
    jtext_cstr(j, &out, "\"");
    if (target.type != none.type && jv_truth(target)) {
        jtext_cstr(j, &out, " target=\"");
        jtext_add(j, &out, escaped(j, target));
        jtext_cstr(j, &out, "\"");
    }
    return jtext_str(&out);
}

FILTER(f_urlize)
{
    bool nofollow = a[1].type != J_MISSING && jv_truth(a[1]);
    struct links l = {.limit = jarg_int(j, a[0], "trim_url_limit", -1)};
    l.attributes = link_attributes(j, a[3], nofollow, a[2]);
    if (a[4].type != J_MISSING && a[4].type != J_NONE) l.schemes = jv_iterate(j, a[4]);
    pthread_once(&compiled, compile);
    struct jstr s = escaped(j, self);
    struct jtext out = {0};
    for (size_t at = 0, end; at < s.n; at = end) {
        size_t blank = 0;
        for (size_t k; (k = jinja_space(s.s + at + blank, s.n - at - blank));) blank += k;
        end = at + blank;
        jtext_add(j, &out, jstr_cut(j, s, at, end));
        for (at = end; end < s.n && !jinja_space(s.s + end, s.n - end);) end = jstr_at(s, end, 1);
        if (end > at) put_word(j, &out, jstr_cut(j, s, at, end), &l);
    }
    return jtext_value(j, &out);
}

static const struct jbuiltin FILTERS[] = {{"striptags", "", f_striptags},
                                          {"urlize", "trim_url_limit? nofollow? target? rel? extra_schemes?", f_urlize},
                                          {"xmlattr", "autospace?", f_xmlattr}};

const struct jbuiltin *jinja_markup_filter(struct jstr name)
{
    return jbuiltin_find(FILTERS, sizeof FILTERS / sizeof *FILTERS, name);
}
