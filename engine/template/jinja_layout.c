/* Filters that lay text out: wordwrap, pprint, filesizeformat; and random. */
#include "engine/template/jinja_sequence.h"

#include "engine/template/jinja_builtins.h"
#include "engine/tokenizer/text.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <utf8proc.h>

#define FILTER(name) static struct jv name(struct jinja *j, struct jv self, const struct jv *a, const struct jcall *c)

static bool truth_of(struct jv v, bool otherwise)
{
    return v.type == J_MISSING ? otherwise : jv_truth(v);
}

FILTER(f_filesizeformat)
{
    static const char prefixes[] = "kMGTPEZY";
    bool binary = truth_of(a[0], false);
    struct jv number = self, none = jv_none();
    if (self.type == J_STR) /* none: it is no number */
        number = jinja_call_builtin(j, jinja_filter(jstr_of("float")), self, &(struct jcall){.args = &none, .n = 1});
    double bytes, base = binary ? 1024 : 1000, unit = base * base;
    struct jtext t = {0};
    if (!jv_is_number(number, &bytes)) jinja_fail(j, "float() argument must be a number, not '%s'", jv_type_name(self));
    if (number.type == J_BIG && isinf(bytes)) jinja_fail(j, "int too large to convert to float");
    if (bytes == 1) return jv_cstr(j, "1 Byte");
    if (bytes < base) {
        jtext_value_str(j, &t,
                        jinja_call_builtin(j, jinja_filter(jstr_of("int")), jv_float(bytes), &(struct jcall){0}));
        jtext_cstr(j, &t, " Bytes");
        return jtext_value(j, &t);
    }
    size_t i = 0;
    for (; i + 2 < sizeof prefixes && !(bytes < unit); i++) unit *= base;
    char out[400];
    snprintf(out, sizeof out, "%.1f %c%sB", base * bytes / unit, binary ? toupper(prefixes[i]) : prefixes[i],
             binary ? "i" : "");
    jtext_cstr(j, &t, out);
    return jtext_value(j, &t);
}

FILTER(f_random)
{
    size_t n;
    uint64_t drawn = 0;
    if (self.type == J_DICT || !jv_length(j, self, &n)) jinja_fail(j, "random needs a sequence");
    if (!n) return jv_undefined(j, "No random item, sequence was empty.");
    if (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn) jinja_fail(j, "no random number");
    return jinja_item(j, self, jv_int((int64_t)(drawn % n)));
}

/* ---- wordwrap: Python's textwrap ------------------------------------------------------------------------------- */

static bool is_blank(char c)
{
    return c && strchr("\t\n\v\f\r ", c);
}

/* The character that ends before at, and the one that begins there; 0 at an end. */
static size_t back(struct jstr s, size_t at)
{
    if (at) at--;
    while (at && (s.s[at] & 0xc0) == 0x80) at--;
    return at;
}

static uint32_t before(struct jstr s, size_t at)
{
    uint32_t c = 0;
    if (at) utf8_get(s.s + back(s, at), &c);
    return c;
}

static uint32_t behind(struct jstr s, size_t at)
{
    uint32_t c = 0;
    if (at < s.n) utf8_get(s.s + at, &c);
    return c;
}

static bool is_digit(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND;
}

static bool is_word(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return c && (c == '_' || (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
                 (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO));
}

static bool is_letter(uint32_t c)
{
    return is_word(c) && !is_digit(c);
}

static bool is_word_punctuation(uint32_t c)
{
    return is_word(c) || (c && c < 0x80 && strchr("!\"'&.,?", (int)c));
}

/* Two or more dashes at s[at], followed by a word: their length; else 0 */
static size_t dashes(struct jstr s, size_t at)
{
    size_t n = 0;
    while (at + n < s.n && s.s[at + n] == '-') n++;
    return n >= 2 && is_word(behind(s, at + n)) ? n : 0;
}

/* Whether a line may end behind the hyphen that ends at `at`: letters on both sides of it. */
static bool breaks_behind(struct jstr s, size_t at)
{
    size_t hyphen = at - 1, one = back(s, hyphen);
    uint32_t last = before(s, hyphen), second = before(s, one);
    if (s.s[hyphen] != '-') return false;
    bool letters = is_letter(last) && is_letter(second);
    bool compound = is_word_punctuation(last) && second == '-' && is_letter(before(s, back(s, one)));
    uint32_t next = behind(s, at);
    size_t after = at < s.n ? jstr_at(s, at, 1) : s.n;
    if (after < s.n && s.s[after] == '-') after++;
    return (letters || compound) && is_letter(next) && is_letter(behind(s, after));
}

/* Where the chunk that begins at s[at] ends: blanks, a dash between words, or a word up to where a line may end. */
static size_t chunk_end(struct jstr s, size_t at, bool hyphens)
{
    size_t end = at;
    bool blank = is_blank(s.s[at]);
    if (hyphens && !blank && at && is_word_punctuation(before(s, at)) && dashes(s, at)) return at + dashes(s, at);
    for (end = blank ? at + 1 : jstr_at(s, at, 1); end < s.n && is_blank(s.s[end]) == blank; end = jstr_at(s, end, 1)) {
        if (blank || !hyphens) continue;
        if (end - at > 1 && breaks_behind(s, end)) return end;
        if (is_word_punctuation(before(s, end)) && dashes(s, end)) return end;
    }
    return end;
}

struct wrap {
    size_t width;
    bool long_words, hyphens;
};

/* Bytes of a word longer than a line that still go on this one. */
static size_t part_of_word(struct jinja *j, struct jstr word, size_t room, bool hyphens)
{
    size_t end = jstr_at(word, 0, room ? room : 1);
    const char *hyphen = hyphens && jstr_chars(j, word) > room ? memrchr(word.s, '-', end) : NULL;
    if (!hyphen || hyphen == word.s) return end;
    size_t n = (size_t)(hyphen - word.s), dash = 0;
    while (dash < n && word.s[dash] == '-') dash++;
    return dash < n ? n + 1 : end;
}

static bool all_blank(struct jstr s)
{
    size_t at = 0;
    for (size_t k; (k = jinja_space(s.s + at, s.n - at));) at += k;
    return at == s.n;
}

/* The paragraph's lines are added to `lines`. */
static void wrap_paragraph(struct jinja *j, struct jstr s, const struct wrap *w, struct jlist *lines)
{
    struct jlist *chunks = jv_list(j, JL_LIST, 0).list;
    for (size_t at = 0, end; at < s.n; at = end) {
        end = chunk_end(s, at, w->hyphens);
        jinja_work(j, 1 + (end - at) / 16);
        jlist_add(j, chunks, jv_str(j, jstr_cut(j, s, at, end)));
    }
    bool first = true;
    for (size_t i = 0; i < chunks->n;) {
        struct jtext line = {0};
        size_t used = 0, keep = 0, length = 0;
        bool any = false;
        jinja_work(j, 1);
        if (!first && all_blank(*chunks->v[i].str) && ++i == chunks->n) break;
        for (; i < chunks->n && used + (length = jstr_chars(j, *chunks->v[i].str)) <= w->width; i++) {
            used += length;
            jtext_add(j, &line, *chunks->v[i].str);
            any = true;
            if (!all_blank(*chunks->v[i].str)) keep = line.n;
        }
        if (i < chunks->n && length > w->width) {
            struct jstr word = *chunks->v[i].str;
            size_t n = w->long_words ? part_of_word(j, word, w->width - used, w->hyphens) : any ? 0 : word.n;
            if (w->long_words && used == w->width && any) n = 0;
            jtext_add(j, &line, jstr_cut(j, word, 0, n));
            if (n) keep = line.n;
            chunks->v[i] = jv_str(j, jstr_cut(j, word, n, word.n));
            i += n == word.n;
        }
        line.n = keep;
        if (keep) jlist_add(j, lines, jv_str(j, jstr_cut(j, jtext_str(&line), 0, keep)));
        first = first && !keep;
    }
}

FILTER(f_wordwrap)
{
    struct wrap w = {.long_words = truth_of(a[1], true), .hyphens = truth_of(a[3], true)};
    int64_t width = jarg_int(j, a[0], "width", 79);
    struct jstr between = a[2].type == J_STR ? *a[2].str : jstr_of("\n");
    if (width <= 0) jinja_fail(j, "invalid width %lld (must be > 0)", (long long)width);
    w.width = (size_t)width;
    const struct jlist *paragraphs = jinja_splitlines(j, jarg_str(j, self, "wordwrap"), false).list;
    struct jtext out = {0};
    for (size_t i = 0; i < paragraphs->n; i++) {
        struct jlist *lines = jv_list(j, JL_LIST, 0).list;
        wrap_paragraph(j, *paragraphs->v[i].str, &w, lines);
        if (i) jtext_add(j, &out, between);
        for (size_t k = 0; k < lines->n; k++) {
            if (k) jtext_add(j, &out, between);
            jtext_add(j, &out, *lines->v[k].str);
        }
    }
    return jtext_value(j, &out);
}

static const struct jbuiltin FILTERS[] = {
    {"filesizeformat", "binary?", f_filesizeformat},
    {"random", "", f_random},
    {"wordwrap", "width? break_long_words? wrapstring? break_on_hyphens?", f_wordwrap}};

const struct jbuiltin *jinja_layout_filter(struct jstr name)
{
    return jbuiltin_find(FILTERS, sizeof FILTERS / sizeof *FILTERS, name);
}
