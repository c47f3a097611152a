/* Upper and lower case, stripping, replacing and splitting of text, as Python's str does it. */
#include "engine/template/jinja_builtins.h"
#include "engine/tokenizer/text.h"

#include <string.h>
#include <utf8proc.h>

/* Characters whose upper case is several (Unicode's SpecialCasing.txt, the unconditional rows a text may hold). */
static const struct {
    uint32_t c;
    const char *upper, *title;
} SPECIAL[] = {{0xdf, "SS", "Ss"},   {0x149, "ʼN", "ʼN"},  {0x1f0, "J̌", "J̌"},      {0x390, "Ϊ́", "Ϊ́"},
               {0x3b0, "Ϋ́", "Ϋ́"},    {0x587, "ԵՒ", "Եւ"},  {0x1e96, "H̱", "H̱"},     {0x1e97, "T̈", "T̈"},
               {0x1e98, "W̊", "W̊"},   {0x1e99, "Y̊", "Y̊"},   {0x1e9a, "Aʾ", "Aʾ"},   {0xfb00, "FF", "Ff"},
               {0xfb01, "FI", "Fi"}, {0xfb02, "FL", "Fl"}, {0xfb03, "FFI", "Ffi"}, {0xfb04, "FFL", "Ffl"},
               {0xfb05, "ST", "St"}, {0xfb06, "ST", "St"}};

static bool is_cased(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

static bool is_ignorable(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' || c == ':' || c == 0xb7 ||
           c == 0x2019;
}

/* Is the sigma at `at` (two bytes) the last letter of a word? */
static bool final_sigma(struct jstr s, size_t at)
{
    uint32_t c = 0;
    size_t i = at;
    bool before = false;
    while (i) {
        i--;
        while ((s.s[i] & 0xc0) == 0x80) i--;
        utf8_get(s.s + i, &c);
        if (is_ignorable(c)) continue;
        before = is_cased(c);
        break;
    }
    for (i = at + 2; before && i < s.n;) {
        i += utf8_get(s.s + i, &c);
        if (!is_ignorable(c)) return !is_cased(c);
    }
    return before;
}

static void put_upper(struct jinja *j, struct jtext *t, uint32_t c, bool title)
{
    for (size_t i = 0; c >= 0xdf && i < sizeof SPECIAL / sizeof *SPECIAL; i++)
        if (SPECIAL[i].c == c) return jtext_cstr(j, t, title ? SPECIAL[i].title : SPECIAL[i].upper);
    jtext_char(j, t, (uint32_t)(title ? utf8proc_totitle((utf8proc_int32_t)c) : utf8proc_toupper((utf8proc_int32_t)c)));
}

static void put_lower(struct jinja *j, struct jtext *t, struct jstr s, size_t at, uint32_t c)
{
    if (c == 0x130) return jtext_cstr(j, t, "i̇");
    if (c == 0x3a3) return jtext_cstr(j, t, final_sigma(s, at) ? "ς" : "σ");
    jtext_char(j, t, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
}

static void put_folded(struct jinja *j, struct jtext *t, uint32_t c)
{
    utf8proc_int32_t out[8];
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, out, 8, UTF8PROC_CASEFOLD, NULL);
    for (utf8proc_ssize_t i = 0; i < n && i < 8; i++) jtext_char(j, t, (uint32_t)out[i]);
}

struct jv jinja_case(struct jinja *j, struct jstr s, enum jcase how)
{
    struct jtext t = {0};
    bool inside = false; /* title: within a word */
    jinja_work(j, s.n / 8);
    for (size_t i = 0; i < s.n;) {
        uint32_t c;
        unsigned len = utf8_get(s.s + i, &c);
        bool first = how == CASE_CAPITALIZE ? i == 0 : !inside;
        bool upper = how == CASE_UPPER || ((how == CASE_CAPITALIZE || how == CASE_TITLE) && first);
        if (how == CASE_SWAP) upper = utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LL;
        if (how == CASE_FOLD) {
            put_folded(j, &t, c);
        } else if (upper) {
            put_upper(j, &t, c, how == CASE_CAPITALIZE || how == CASE_TITLE);
        } else {
            put_lower(j, &t, s, i, c);
        }
        inside = is_cased(c);
        i += len;
    }
    jtext_origin(j, &t, 0, s);
    return jtext_value(j, &t);
}

static bool among(struct jstr chars, const char *c, size_t n)
{
    for (size_t i = 0, len; i < chars.n; i += len) {
        len = jstr_at(chars, i, 1) - i;
        if (len == n && memcmp(chars.s + i, c, n) == 0) return true;
    }
    return false;
}

struct jv jinja_strip(struct jinja *j, struct jstr s, struct jv chars, bool left, bool right)
{
    size_t start = 0, end = s.n;
    bool space = chars.type == J_MISSING || chars.type == J_NONE;
    struct jstr set = space ? (struct jstr){0} : jarg_str(j, chars, "strip arg");
    while (left && start < end) {
        size_t n = jstr_at(s, start, 1) - start;
        if (space ? !jinja_space(s.s + start, n) : !among(set, s.s + start, n)) break;
        start += n;
    }
    while (right && start < end) {
        size_t n = 1;
        while ((s.s[end - n] & 0xc0) == 0x80) n++;
        if (space ? !jinja_space(s.s + end - n, n) : !among(set, s.s + end - n, n)) break;
        end -= n;
    }
    jinja_work(j, (start + s.n - end) / 8 * (1 + set.n / 8));
    return jv_str(j, jstr_cut(j, s, start, end));
}

struct jv jinja_replace(struct jinja *j, struct jstr s, struct jstr old, struct jstr new, int64_t count)
{
    struct jtext t = {0};
    size_t at = 0;
    for (bool first = true; count != 0; count -= count > 0, first = false) {
        size_t found = old.n ? jstr_find(j, s, at, old) : first ? 0 : at < s.n ? jstr_at(s, at, 1) : SIZE_MAX;
        if (found == SIZE_MAX) break;
        jinja_work(j, 1);
        jtext_add(j, &t, jstr_cut(j, s, at, found));
        jtext_add(j, &t, new);
        at = found + old.n;
    }
    jtext_add(j, &t, jstr_cut(j, s, at, s.n));
    return jtext_value(j, &t);
}

/* Bytes of the line end at s[i]; 0 when there is none. */
static size_t line_end(struct jstr s, size_t i)
{
    unsigned char c = (unsigned char)s.s[i];
    if (c == '\r') return i + 1 < s.n && s.s[i + 1] == '\n' ? 2 : 1;
    if ((c >= '\n' && c <= '\f') || (c >= 0x1c && c <= 0x1e)) return 1;
    if (c == 0xc2) return (unsigned char)s.s[i + 1] == 0x85 ? 2 : 0;
    if (c == 0xe2) return (s.s[i + 1] & 0xff) == 0x80 && ((s.s[i + 2] & 0xfe) == 0xa8) ? 3 : 0;
    return 0;
}

struct jv jinja_splitlines(struct jinja *j, struct jstr s, bool keep)
{
    struct jv v = jv_list(j, JL_LIST, 0);
    size_t start = 0;
    jinja_work(j, s.n / 16);
    for (size_t i = 0; i < s.n;) {
        size_t n = line_end(s, i);
        if (!n) {
            i++;
            continue;
        }
        jinja_work(j, 1);
        jlist_add(j, v.list, jv_str(j, jstr_cut(j, s, start, keep ? i + n : i)));
        start = i += n;
    }
    if (start < s.n) jlist_add(j, v.list, jv_str(j, jstr_cut(j, s, start, s.n)));
    return v;
}
