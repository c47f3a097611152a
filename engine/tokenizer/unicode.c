/* Character classes and normal forms on utf8proc's tables (unicode.h).
 *
 * utf8proc normalizes but does not say which characters became which; offsets need that, so decomposition, ordering and
 * composition are done here, pair by pair, and each output character carries its change.  */
#include "engine/tokenizer/unicode.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Characters that have a combining class or a decomposition here and none in the reference, whose normal forms are
 * those of Unicode 9: for equal ids they are left alone.  Found by trying every code point.  */
static const uint32_t later[][2] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},     {0xc3c, 0xc3c},
    {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},
    {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},   {0xa82c, 0xa82c},   {0xab69, 0xab69},   {0x10781, 0x10785},
    {0x10787, 0x107b0}, {0x107b2, 0x107ba}, {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff},
    {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e},
    {0x11839, 0x1183a}, {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0},
    {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45},
    {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1}, {0x1e030, 0x1e06d}, {0x1e08f, 0x1e08f},
    {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1f16c, 0x1f16c},
    {0x1fbf0, 0x1fbf9}};

/* Numbers younger than utf8proc's tables; the reference asks Rust (Unicode 17). */
static const uint32_t numbers[][2] = {{0x10d40, 0x10d49}, {0x116d0, 0x116e3}, {0x11bf0, 0x11bf9},
                                      {0x11de0, 0x11de9}, {0x16130, 0x16139}, {0x16d70, 0x16d79},
                                      {0x16ff4, 0x16ff6}, {0x1ccf0, 0x1ccf9}, {0x1e5f1, 0x1e5fa}};

/* Where the reference, with Unicode 8's punctuation, answers otherwise than utf8proc. */
static const uint32_t unlike_punct[][2] = {
    {0x61d, 0x61d},     {0x9fd, 0x9fd},     {0xa76, 0xa76},     {0xc77, 0xc77},     {0xc84, 0xc84},
    {0x166d, 0x166d},   {0x1b7d, 0x1b7e},   {0x2e43, 0x2e4f},   {0x2e52, 0x2e5d},   {0x10ead, 0x10ead},
    {0x10f55, 0x10f59}, {0x10f86, 0x10f89}, {0x111c9, 0x111c9}, {0x1144b, 0x1144f}, {0x1145a, 0x1145b},
    {0x1145d, 0x1145d}, {0x11660, 0x1166c}, {0x116b9, 0x116b9}, {0x1183b, 0x1183b}, {0x11944, 0x11946},
    {0x119e2, 0x119e2}, {0x11a3f, 0x11a46}, {0x11a9a, 0x11a9c}, {0x11a9e, 0x11aa2}, {0x11b00, 0x11b09},
    {0x11c41, 0x11c45}, {0x11c70, 0x11c71}, {0x11ef7, 0x11ef8}, {0x11f43, 0x11f4f}, {0x11fff, 0x11fff},
    {0x12ff1, 0x12ff2}, {0x16e97, 0x16e9a}, {0x16fe2, 0x16fe2}, {0x1e95e, 0x1e95f}};

/* Cc, Cf and Co of Unicode 8, which the reference's BertNormalizer drops. */
static const uint32_t others[][2] = {{0, 0x1f},          {0x7f, 0x9f},        {0xad, 0xad},       {0x600, 0x605},
                                     {0x61c, 0x61c},     {0x6dd, 0x6dd},      {0x70f, 0x70f},     {0x180e, 0x180e},
                                     {0x200b, 0x200f},   {0x202a, 0x202e},    {0x2060, 0x2064},   {0x2066, 0x206f},
                                     {0xe000, 0xf8ff},   {0xfeff, 0xfeff},    {0xfff9, 0xfffb},   {0x110bd, 0x110bd},
                                     {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a},  {0xe0001, 0xe0001}, {0xe0020, 0xe007f},
                                     {0xf0000, 0xffffd}, {0x100000, 0x10fffd}};

/* Nonspacing marks younger than Unicode 8, which its accent stripping keeps; between the ends of a range there is no
 * older one. */
static const uint32_t later_nonspacing[][2] = {
    {0x7fd, 0x7fd},     {0x897, 0x8e1},     {0x9fe, 0x9fe},     {0xafa, 0xaff},     {0xb55, 0xb55},
    {0xc04, 0xc3c},     {0xcf3, 0xd00},     {0xd3b, 0xd3c},     {0xd81, 0xd81},     {0xeba, 0xeba},
    {0xece, 0xece},     {0x180f, 0x1886},   {0x1abf, 0x1aeb},   {0x1df6, 0x1dfb},   {0xa82c, 0xa82c},
    {0xa8c5, 0xa8c5},   {0xa8ff, 0xa8ff},   {0xa9bd, 0xa9bd},   {0x10d24, 0x10f85}, {0x11070, 0x11074},
    {0x110c2, 0x110c2}, {0x111c9, 0x111c9}, {0x111cf, 0x111cf}, {0x1123e, 0x11241}, {0x1133b, 0x1133b},
    {0x113b8, 0x1145e}, {0x1182f, 0x1612f}, {0x16f4f, 0x16f4f}, {0x16fe4, 0x16fe4}, {0x1cf00, 0x1cf46},
    {0x1e000, 0x1e5ef}, {0x1e944, 0x1e94a}};

/* Marks younger than Unicode 9, which the reference's StripAccents keeps; between the ends of a range there is no older
 * one. */
static const uint32_t later_marks[][2] = {
    {0x7fd, 0x7fd},     {0x897, 0x8d3},     {0x9fe, 0x9fe},     {0xafa, 0xaff},     {0xb55, 0xb55},
    {0xc04, 0xc3c},     {0xcf3, 0xd00},     {0xd3b, 0xd3c},     {0xd81, 0xd81},     {0xeba, 0xeba},
    {0xece, 0xece},     {0x1715, 0x1715},   {0x180f, 0x1884},   {0x1abf, 0x1aeb},   {0x1cf7, 0x1cf7},
    {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0xa8ff, 0xa8ff},   {0x10d24, 0x10f85}, {0x11070, 0x11074},
    {0x110c2, 0x110c2}, {0x11145, 0x11146}, {0x111c9, 0x111c9}, {0x111ce, 0x111cf}, {0x1123f, 0x11241},
    {0x1133b, 0x1133b}, {0x113b8, 0x11434}, {0x11447, 0x1145e}, {0x116a0, 0x116aa}, {0x1182c, 0x11c2e},
    {0x11c37, 0x11c37}, {0x11c40, 0x11c91}, {0x11ca8, 0x11ca8}, {0x11cb7, 0x1612f}, {0x16f4f, 0x16f4f},
    {0x16f7f, 0x16f87}, {0x16fe4, 0x16ff1}, {0x1cf00, 0x1cf46}, {0x1e007, 0x1e007}, {0x1e019, 0x1e01a},
    {0x1e022, 0x1e022}, {0x1e025, 0x1e025}, {0x1e02b, 0x1e5ef}};

static bool ranges_have(const uint32_t (*v)[2], size_t n, uint32_t c)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (c > v[mid][1])
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && c >= v[lo][0];
}

#define RANGES_HAVE(table, c) ranges_have(table, sizeof(table) / sizeof *(table), c)

static bool is_later(uint32_t c)
{
    return RANGES_HAVE(later, c);
}

bool unicode_is_space(uint32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

bool unicode_is_numeric(uint32_t c)
{
    if (c < 0x80) return c >= '0' && c <= '9';
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    if (k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO) return true;
    return RANGES_HAVE(numbers, c);
}

bool unicode_is_punct(uint32_t c)
{
    if (c < 0x80) return c > ' ' && c < 0x7f && !((c | 32) >= 'a' && (c | 32) <= 'z') && !(c >= '0' && c <= '9');
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return (k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO) != RANGES_HAVE(unlike_punct, c);
}

bool unicode_is_other(uint32_t c)
{
    return RANGES_HAVE(others, c);
}

bool unicode_is_nonspacing(uint32_t c)
{
    if (c < 0x300) return false;
    if (c == 0x1734) return true; /* a spacing mark since Unicode 14 */
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_MN && !RANGES_HAVE(later_nonspacing, c);
}

bool unicode_is_mark(uint32_t c)
{
    if (c < 0x300) return false;
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    bool mark = k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_ME;
    return (mark && !RANGES_HAVE(later_marks, c)) || c == 0x1cf2 || c == 0x1cf3; /* letters since Unicode 12 */
}

size_t unicode_grapheme(const char *s, size_t n)
{
    unsigned char a = (unsigned char)s[0], b = n > 1 ? (unsigned char)s[1] : 0;
    if (a < 0x80 && b < 0x80) return a == '\r' && b == '\n' && n > 1 ? 2 : 1;
    utf8proc_int32_t state = 0;
    uint32_t c, next;
    size_t i = utf8_get(s, &c);
    for (; i < n; c = next) {
        unsigned k = utf8_get(s + i, &next);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)c, (utf8proc_int32_t)next, &state)) break;
        i += k;
    }
    return i;
}

void edits_add(struct edits *x, uint32_t c, int32_t change)
{
    mem_grow(&x->v, &x->cap, x->n + 1, sizeof *x->v);
    x->v[x->n++] = (struct edit){c, change};
}

void edits_free(struct edits *x)
{
    free(x->v);
    *x = (struct edits){0};
}

bool unicode_is_inert(const char *s, size_t n, enum unicode_form form)
{
    /* below U+0300 nothing composes (NFC); below U+0080 nothing decomposes */
    unsigned char bound = form == UNICODE_NFC ? 0xcc : 0x80;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] >= bound) return false;
    return true;
}

static unsigned combining_class(uint32_t c)
{
    if (c < 0x300) return 0;
    unsigned class = (unsigned)utf8proc_get_property((utf8proc_int32_t)c)->combining_class;
    return class && is_later(c) ? 0 : class;
}

/* Marks between starters go into canonical order; equal classes keep theirs. */
static void marks_sort(struct edit *v, size_t n)
{
    bool ordered = true;
    for (size_t i = 1; i < n && ordered; i++) ordered = combining_class(v[i - 1].c) <= combining_class(v[i].c);
    if (ordered) return;
    /* a counting sort by class: text may hold a megabyte of marks, and insertion would be quadratic */
    size_t at[257] = {0};
    struct edit *sorted = mem_array(n, sizeof *sorted);
    for (size_t i = 0; i < n; i++) at[combining_class(v[i].c) + 1]++;
    for (size_t k = 1; k < 257; k++) at[k] += at[k - 1];
    for (size_t i = 0; i < n; i++) sorted[at[combining_class(v[i].c)]++] = v[i];
    memcpy(v, sorted, n * sizeof *v);
    free(sorted);
}

static void decompose(const char *s, size_t n, bool compat, struct edits *out)
{
    size_t pending = out->n; /* marks from here on wait for the next starter */
    for (size_t i = 0; i < n;) {
        uint32_t c;
        i += utf8_get(s + i, &c);
        utf8proc_int32_t parts[32];
        int boundary = 0;
        utf8proc_ssize_t k = 1;
        parts[0] = (utf8proc_int32_t)c;
        if (c >= 0x80)
            k = utf8proc_decompose_char((utf8proc_int32_t)c, parts, 32,
                                        UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0), &boundary);
        if ((k != 1 || parts[0] != (utf8proc_int32_t)c) && is_later(c)) parts[0] = (utf8proc_int32_t)c, k = 1;
        for (utf8proc_ssize_t j = 0; j < k; j++) {
            bool starter = !combining_class((uint32_t)parts[j]);
            if (starter && out->n > pending) marks_sort(out->v + pending, out->n - pending);
            edits_add(out, (uint32_t)parts[j], j > 0);
            if (starter) pending = out->n;
        }
    }
    if (out->n > pending) marks_sort(out->v + pending, out->n - pending);
}

/* The one character that a and b make, or 0. */
static uint32_t compose_pair(uint32_t a, uint32_t b)
{
    if (b < 0x300) return 0;
    utf8proc_int32_t v[4] = {(utf8proc_int32_t)a, (utf8proc_int32_t)b};
    bool composed = utf8proc_normalize_utf32(v, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE) == 1;
    return composed && !is_later((uint32_t)v[0]) ? (uint32_t)v[0] : 0;
}

/* Canonical composition in place from `first` on.  A character is blocked from the starter by one between them whose
 * class is not lower. */
static void compose(struct edits *x, size_t first)
{
    size_t starter = SIZE_MAX, out = first;
    int last = -1; /* class of the last character kept behind the starter, -1 for none */
    for (size_t i = first; i < x->n; i++) {
        struct edit d = x->v[i];
        int class = (int)combining_class(d.c);
        if (starter != SIZE_MAX && (last < 0 || last < class)) {
            uint32_t c = compose_pair(x->v[starter].c, d.c);
            if (c) {
                x->v[starter].c = c;
                x->v[starter].change += d.change - 1;
                continue;
            }
        }
        if (!class) {
            starter = out;
            last = -1;
        } else {
            last = class;
        }
        x->v[out++] = d;
    }
    x->n = out;
}

void unicode_normalize(const char *s, size_t n, enum unicode_form form, struct edits *out)
{
    size_t first = out->n;
    decompose(s, n, form == UNICODE_NFKC || form == UNICODE_NFKD, out);
    if (form == UNICODE_NFC || form == UNICODE_NFKC) compose(out, first);
}

/* Capitals younger than utf8proc's tables, which the reference (Unicode 17 here) has: first, last, what to add. */
static const int32_t capitals[][3] = {
    {0x1c89, 0x1c89, 1},      {0xa7cb, 0xa7cb, 0x264 - 0xa7cb},
    {0xa7cc, 0xa7cc, 1},      {0xa7ce, 0xa7ce, 1},
    {0xa7d2, 0xa7d2, 1},      {0xa7d4, 0xa7d4, 1},
    {0xa7da, 0xa7da, 1},      {0xa7dc, 0xa7dc, 0x19b - 0xa7dc},
    {0x10d50, 0x10d65, 0x20}, {0x16ea0, 0x16eb8, 0x1b},
};

static uint32_t lowercase(uint32_t c)
{
    if (c >= 0x1c89)
        for (size_t i = 0; i < sizeof capitals / sizeof *capitals; i++)
            if ((int32_t)c >= capitals[i][0] && (int32_t)c <= capitals[i][1]) return c + (uint32_t)capitals[i][2];
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
}

void unicode_lowercase(const char *s, size_t n, struct edits *out)
{
    for (size_t i = 0; i < n;) {
        uint32_t c;
        i += utf8_get(s + i, &c);
        if (c == 0x130) { /* the one capital whose small form is two characters */
            edits_add(out, 'i', 0);
            edits_add(out, 0x307, 1);
        } else {
            edits_add(out, lowercase(c), 0);
        }
    }
}
