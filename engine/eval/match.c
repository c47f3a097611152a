#include "engine/eval/match.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/eval/words.h"
#include "engine/tokenizer/text.h"
#include "engine/tokenizer/tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <ctype.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { MATCH_LIMIT = 10 * 1000 * 1000, DEPTH_LIMIT = 100 * 1000, HEAP_LIMIT_KIB = 64 << 10 };

/* Narrows *text, *n to what is between white space. */
static void strip(const char **text, size_t *n)
{
    size_t first = *n, end = 0;
    for (size_t at = 0; at < *n;) {
        uint32_t c;
        size_t start = at;
        at += utf8_get(*text + at, &c);
        if (word_is_space(c)) continue;
        if (first == *n) first = start;
        end = at;
    }
    *n = end > first ? end - first : 0;
    *text += *n ? first : 0;
}

/* Appends the text without what is ignored. */
static void reduce(const char *text, unsigned ignore, struct buf *out)
{
    struct buf lower = {0};
    buf_str(&lower, text);
    if (ignore & MATCH_CASE) tokenizer_lowercase(&lower);
    buf_str(out, "");
    for (size_t i = 0; i < lower.len; i++) {
        unsigned char c = (unsigned char)lower.data[i];
        bool dropped =
            c < 0x80 && ((ignore & MATCH_PUNCTUATION && ispunct(c)) || (ignore & MATCH_NUMBERS && isdigit(c)));
        if (!dropped) buf_char(out, (char)c);
    }
    buf_free(&lower);
}

bool match_ignore_parse(const char *word, size_t n, unsigned *out)
{
    static const struct {
        const char *name;
        unsigned bit;
    } words[] = {{"space", MATCH_SPACE},
                 {"case", MATCH_CASE},
                 {"punctuation", MATCH_PUNCTUATION},
                 {"numbers", MATCH_NUMBERS},
                 {"none", 0}};
    for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
        if (strlen(words[k].name) != n || strncmp(words[k].name, word, n) != 0) continue;
        *out |= words[k].bit;
        return true;
    }
    return false;
}

bool match_exact(const char *text, const char *const *refs, int n_refs, unsigned ignore)
{
    struct buf mine = {0}, theirs = {0};
    bool equal = false;
    reduce(text, ignore, &mine);
    for (int i = 0; i < n_refs && !equal; i++) {
        buf_clear(&theirs);
        reduce(refs[i], ignore, &theirs);
        const char *a = mine.data, *b = theirs.data;
        size_t n = mine.len, m = theirs.len;
        if (ignore & MATCH_SPACE) strip(&a, &n);
        if (ignore & MATCH_SPACE) strip(&b, &m);
        equal = n == m && memcmp(a, b, n) == 0;
    }
    buf_free(&mine);
    buf_free(&theirs);
    return equal;
}

/* ---- extraction -------------------------------------------------------------------------------------------------- */

struct extractor {
    pcre2_code *code;
    pcre2_match_context *limits;
};

struct extractor *extractor_open(const char *regex, struct err *e)
{
    int error;
    PCRE2_SIZE at;
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &at, NULL);
    if (!code) {
        PCRE2_UCHAR what[160] = "";
        pcre2_get_error_message(error, what, sizeof what);
        err_set(e, ERR_INVALID, "the regex is wrong at byte %zu: %s", (size_t)at + 1, (const char *)what);
        return NULL;
    }
    struct extractor *x = mem_zalloc(sizeof *x);
    x->code = code;
    x->limits = pcre2_match_context_create(NULL);
    CHECK(x->limits);
    pcre2_set_match_limit(x->limits, MATCH_LIMIT);
    pcre2_set_depth_limit(x->limits, DEPTH_LIMIT);
    pcre2_set_heap_limit(x->limits, HEAP_LIMIT_KIB);
    return x;
}

void extractor_close(struct extractor *x)
{
    if (!x) return;
    pcre2_match_context_free(x->limits);
    pcre2_code_free(x->code);
    free(x);
}

/* The span that a match stands for: without groups all of it, else its first group that is not empty. */
static struct word chosen(const char *text, const PCRE2_SIZE *span, int n)
{
    for (int i = 1; i < n; i++)
        if (span[2 * i] != PCRE2_UNSET && span[2 * i + 1] > span[2 * i])
            return (struct word){text + span[2 * i], span[2 * i + 1] - span[2 * i]};
    if (n > 1 || span[1] < span[0]) return (struct word){text, 0}; /* \K can put the start behind the end */
    return (struct word){text + span[0], span[1] - span[0]};
}

void extractor_find(const struct extractor *x, const char *text, bool last, struct buf *out)
{
    size_t n = strlen(text), at = 0;
    struct word found = {NULL, 0};
    uint32_t groups = 0;
    int rc = 0;
    pcre2_pattern_info(x->code, PCRE2_INFO_CAPTURECOUNT, &groups);
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(x->code, NULL);
    CHECK(match);
    while (at <= n && (last || !found.at)) {
        rc = pcre2_match(x->code, (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK, match, x->limits);
        if (rc < 0) break;
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(match);
        found = chosen(text, span, groups ? (rc > 1 ? rc : 2) : 1);
        uint32_t c;
        size_t end = span[1] > at ? span[1] : at;
        at = end > span[0] || end == n ? end : end + utf8_get(text + end, &c); /* past an empty match */
        if (end == n) break;
    }
    pcre2_match_data_free(match);
    bool finished = rc >= 0 || rc == PCRE2_ERROR_NOMATCH;
    if (found.at && finished) {
        strip(&found.at, &found.len);
        buf_append(out, found.at, found.len);
    } else {
        buf_str(out, "[invalid]");
    }
}
