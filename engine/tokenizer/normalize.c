/* The normalizer (normalize.h): reading its description, and applying it piece by piece. */
#include "engine/tokenizer/normalize.h"

#include "engine/base/mem.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { CONTENT_MAX = 256 }; /* of a Prepend or Replace: limit against files that expand a text without bound */

static const struct {
    const char *name;
    enum normalizer_kind kind;
} kinds[] = {
    {"NFC", NORMALIZE_NFC},
    {"NFD", NORMALIZE_NFD},
    {"NFKC", NORMALIZE_NFKC},
    {"NFKD", NORMALIZE_NFKD},
    {"Lowercase", NORMALIZE_LOWERCASE},
    {"Strip", NORMALIZE_STRIP},
    {"Prepend", NORMALIZE_PREPEND},
    {"Replace", NORMALIZE_REPLACE},
    {"Precompiled", NORMALIZE_CHARSMAP},
    {"StripAccents", NORMALIZE_DROP_MARKS},
    {"Nmt", NORMALIZE_NMT},
    {"ByteLevel", NORMALIZE_BYTE_LEVEL},
};

static int read_content(const struct json_at *at, const char *key, char **out, struct err *e)
{
    const char *s;
    int rc = json_string(at, key, &s, e);
    if (rc) return rc;
    struct json_at m = json_member(at, key);
    if (strlen(s) > CONTENT_MAX) return json_fail(&m, e, ERR_INVALID, "longer than %d bytes", CONTENT_MAX);
    *out = mem_strdup(s);
    return 0;
}

static int step_read(struct normalizer_step *step, const struct json_at *at, struct err *e)
{
    int rc = 0;
    switch (step->kind) {
    case NORMALIZE_STRIP:
        rc = json_bool_or(at, "strip_left", true, &step->left, e);
        return rc ? rc : json_bool_or(at, "strip_right", true, &step->right, e);
    case NORMALIZE_PREPEND: return read_content(at, "prepend", &step->content, e);
    case NORMALIZE_REPLACE:
        rc = regex_read(at, "pattern", &step->regex, e);
        return rc ? rc : read_content(at, "content", &step->content, e);
    case NORMALIZE_CHARSMAP: return charsmap_read(&step->map, at, e);
    default: return 0;
    }
}

static int read_any(void *arg, const struct json_at *at, struct err *e)
{
    return normalizer_read(arg, at, e);
}

static void step_add(struct normalizer *z, enum normalizer_kind kind)
{
    mem_grow(&z->steps, &z->cap, z->n + 1, sizeof *z->steps);
    z->steps[z->n++] = (struct normalizer_step){.kind = kind};
}

/* BertNormalizer is up to five steps. */
static int bert_read(struct normalizer *z, const struct json_at *at, struct err *e)
{
    bool clean, cjk, lower, accents;
    int rc = json_bool_or(at, "clean_text", true, &clean, e);
    if (!rc) rc = json_bool_or(at, "handle_chinese_chars", true, &cjk, e);
    if (!rc) rc = json_bool_or(at, "lowercase", true, &lower, e);
    if (!rc) rc = json_bool_or(at, "strip_accents", lower, &accents, e);
    if (rc) return rc;
    if (clean) step_add(z, NORMALIZE_BERT_CLEAN);
    if (cjk) step_add(z, NORMALIZE_BERT_CJK);
    if (accents) step_add(z, NORMALIZE_NFD), step_add(z, NORMALIZE_DROP_NONSPACING);
    if (lower) step_add(z, NORMALIZE_LOWERCASE);
    return 0;
}

int normalizer_read(struct normalizer *z, const struct json_at *at, struct err *e)
{
    if (!at->v) return 0;
    const char *type;
    int rc = json_type(at, &type, e);
    if (rc) return rc;
    if (!strcmp(type, "Sequence")) return json_each(at, "normalizers", read_any, z, e);
    if (!strcmp(type, "BertNormalizer")) return bert_read(z, at, e);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        if (strcmp(type, kinds[k].name)) continue;
        step_add(z, kinds[k].kind);
        return step_read(&z->steps[z->n - 1], at, e);
    }
    return json_fail(at, e, ERR_UNSUPPORTED, "normalizer type \"%.40s\" is not known", type);
}

void normalizer_free(struct normalizer *z)
{
    for (size_t i = 0; i < z->n; i++) {
        regex_free(z->steps[i].regex);
        free(z->steps[i].content);
        charsmap_free(z->steps[i].map);
    }
    free(z->steps);
    *z = (struct normalizer){0};
}

static size_t char_skip(const struct text *t, size_t i, size_t end)
{
    if (i >= end) return end;
    uint32_t c;
    return i + utf8_get(t->s + i, &c);
}

/* Writes one character of the edited piece, of which the old bytes before *i are done: a new character shares the span
 * of the old one before it. */
static void edit_write(struct edit x, const struct text *from, struct piece p, size_t *i, struct text *to)
{
    struct span at = {from->at[p.start].start, from->at[p.start].start};
    if (x.change <= 0)
        at = from->at[*i < p.end ? *i : p.end - 1];
    else if (*i > p.start)
        at = from->at[*i - 1];
    for (; x.change <= 0; x.change++) *i = char_skip(from, *i, p.end);
    text_add_char(to, x.c, at);
}

static void edits_write(const struct edits *x, const struct text *from, struct piece p, struct text *to)
{
    size_t i = p.start;
    for (size_t k = 0; k < x->n; k++) edit_write(x->v[k], from, p, &i, to);
}

/* The edits of text that is inert for long stretches would only say "the same": those stretches are copied, the rest
 * normalized.  A stretch ends before its last character, as a mark behind it may change that one. */
static void normalize_form(const struct text *from, struct piece p, enum unicode_form form, struct edits *x,
                           struct text *to)
{
    enum { STRETCH = 256 };
    size_t i = p.start;
    while (i < p.end) {
        size_t k = i;
        while (k < p.end) { /* the longest inert stretch from i */
            size_t m = p.end - k < STRETCH ? p.end - k : STRETCH;
            if (unicode_is_inert(from->s + k, m, form)) {
                k += m;
                continue;
            }
            while (unicode_is_inert(from->s + k, 1, form) || ((unsigned char)from->s[k] & 0xc0) == 0x80) k++;
            break;
        }
        if (k < p.end && k > i) {
            do k--;
            while (k > i && ((unsigned char)from->s[k] & 0xc0) == 0x80);
        }
        text_copy(to, from, i, k);
        i = k;
        if (i == p.end) break;
        /* now up to the next run of ASCII: two in a row, so that the second begins anew whatever came before it */
        for (k = i + 1; k < p.end; k++)
            if ((unsigned char)from->s[k] < 0x80 && (unsigned char)from->s[k - 1] < 0x80 && k - i > 1) break;
        x->n = 0;
        unicode_normalize(from->s + i, k - i, form, x);
        edits_write(x, from, (struct piece){(uint32_t)i, (uint32_t)k, PIECE_OPEN}, to);
        i = k;
    }
}

static int normalize_replace(const struct normalizer_step *step, struct regex_run *run, const struct text *from,
                             struct piece p, struct text *to, struct err *e)
{
    struct regex_scan scan = {.s = from->s + p.start, .n = p.end - p.start};
    size_t done = 0, n = strlen(step->content);
    int rc;
    while ((rc = regex_next(step->regex, run, &scan, e)) > 0) {
        text_copy(to, from, p.start + done, p.start + scan.start);
        struct span at = {from->at[p.start].start, from->at[p.start].start};
        if (scan.end) at = from->at[p.start + scan.end - 1];
        text_add(to, step->content, n, at);
        done = scan.end;
        if (to->full) break;
    }
    text_copy(to, from, p.start + done, p.end);
    return rc < 0 ? rc : 0;
}

static void normalize_strip(const struct normalizer_step *step, const struct text *from, struct piece p,
                            struct text *to)
{
    uint32_t c;
    size_t start = p.start, end = p.end;
    for (unsigned n; step->left && start < end; start += n) {
        n = utf8_get(from->s + start, &c);
        if (!unicode_is_space(c)) break;
    }
    while (step->right && end > start) {
        size_t k = end - 1;
        while (k > start && ((unsigned char)from->s[k] & 0xc0) == 0x80) k--;
        utf8_get(from->s + k, &c);
        if (!unicode_is_space(c)) break;
        end = k;
    }
    text_copy(to, from, start, end);
}

enum fate { FATE_KEPT, FATE_DROPPED, FATE_SPACE };

/* sentencepiece's nmt: the characters that its builder.cc lists. */
static enum fate nmt_fate(uint32_t c)
{
    if ((c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f)
        return FATE_DROPPED;
    bool space = (c >= 9 && c <= 0xd) || c == 0x1680 || (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 ||
                 c == 0x2581 || c == 0xfeff || c == 0xfffd;
    return space ? FATE_SPACE : FATE_KEPT;
}

/* BERT_CLEAN: controls are dropped and white space becomes a space; tab and line ends are white space, the other
 * characters that are both are controls. */
static enum fate bert_fate(uint32_t c)
{
    if (c == 0xfffd || (unicode_is_other(c) && c != '\t' && c != '\n' && c != '\r')) return FATE_DROPPED;
    return c != ' ' && unicode_is_space(c) ? FATE_SPACE : FATE_KEPT;
}

static enum fate fate_of(enum normalizer_kind kind, uint32_t c)
{
    switch (kind) {
    case NORMALIZE_DROP_NONSPACING: return unicode_is_nonspacing(c) ? FATE_DROPPED : FATE_KEPT;
    case NORMALIZE_DROP_MARKS: return unicode_is_mark(c) ? FATE_DROPPED : FATE_KEPT;
    case NORMALIZE_NMT: return nmt_fate(c);
    default: return bert_fate(c);
    }
}

static void normalize_drop(enum normalizer_kind kind, const struct text *from, struct piece p, struct text *to)
{
    size_t kept = p.start; /* from here on the bytes are kept, and not yet copied */
    for (size_t i = p.start, n; i < p.end && !to->full; i += n) {
        uint32_t c;
        n = utf8_get(from->s + i, &c);
        enum fate fate = fate_of(kind, c);
        if (fate == FATE_KEPT) continue;
        text_copy(to, from, kept, i);
        kept = i + n;
        if (fate == FATE_SPACE) text_add(to, " ", 1, from->at[i]);
    }
    text_copy(to, from, kept, p.end);
}

/* The blocks that BERT's own tokenizer calls Chinese. */
static bool is_cjk(uint32_t c)
{
    return c >= 0x3400 && ((c <= 0x4dbf) || (c >= 0x4e00 && c <= 0x9fff) || (c >= 0xf900 && c <= 0xfaff) ||
                           (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b81f) ||
                           (c >= 0x2b920 && c <= 0x2ceaf) || (c >= 0x2f800 && c <= 0x2fa1f));
}

static void normalize_cjk(const struct text *from, struct piece p, struct text *to)
{
    size_t done = p.start;
    for (size_t i = p.start, n; i < p.end && !to->full; i += n) {
        uint32_t c;
        n = utf8_get(from->s + i, &c);
        if (!is_cjk(c)) continue;
        text_copy(to, from, done, i);
        text_add(to, " ", 1, from->at[i]);
        text_copy(to, from, i, i + n);
        text_add(to, " ", 1, from->at[i]);
        done = i + n;
    }
    text_copy(to, from, done, p.end);
}

/* The text as charsmap.c rewrites it; the last character is held back, as what follows may change its edit. */
struct mapped {
    const struct text *from;
    struct piece p;
    struct text *to;
    size_t done; /* old bytes up to here are done */
    struct edit last;
    bool any;
};

static void mapped_add(struct mapped *x, uint32_t c, int32_t change)
{
    if (x->any) edit_write(x->last, x->from, x->p, &x->done, x->to);
    x->last = (struct edit){c, change};
    x->any = true;
}

/* `replacement` for s[0, n): as many characters as both have are replaced, the rest is new or dropped.  A dropped
 * character belongs to the one before it; at the beginning, where there is none, the reference loses count, and so do
 * the offsets here. */
static void mapped_replace(struct mapped *x, const char *s, size_t n, const char *replacement, size_t n_replacement)
{
    int32_t fewer = 0, more = 0;
    for (size_t i = 0; i < n; i++) fewer += ((unsigned char)s[i] & 0xc0) != 0x80;
    for (size_t i = 0; i < n_replacement; i++) more += ((unsigned char)replacement[i] & 0xc0) != 0x80;
    int32_t replaced = fewer < more ? fewer : more, k = 0;
    for (size_t i = 0; i < n_replacement; k++) {
        uint32_t c;
        i += utf8_get(replacement + i, &c);
        mapped_add(x, c, k >= replaced);
    }
    if (fewer > more && x->any) x->last.change -= fewer - more;
}

static void mapped_char(struct mapped *x, const struct charsmap *m, const char *s, size_t n)
{
    size_t n_replacement;
    const char *replacement = charsmap_find(m, s, n, &n_replacement);
    uint32_t c;
    utf8_get(s, &c);
    if (replacement)
        mapped_replace(x, s, n, replacement, n_replacement);
    else
        mapped_add(x, c, 0);
}

/* A grapheme of fewer than six bytes is looked up as a whole, others character by character: the reference's rule. */
static void normalize_map(const struct charsmap *m, const struct text *from, struct piece p, struct text *to)
{
    enum { WHOLE_BYTES = 5 };
    struct mapped x = {.from = from, .p = p, .to = to, .done = p.start};
    for (size_t i = p.start, end; i < p.end && !to->full; i = end) {
        const char *s = from->s + i;
        end = i + unicode_grapheme(s, p.end - i);
        size_t n, n_replacement;
        uint32_t c;
        const char *replacement = end - i <= WHOLE_BYTES ? charsmap_find(m, s, end - i, &n_replacement) : NULL;
        if (replacement)
            mapped_replace(&x, s, end - i, replacement, n_replacement);
        else
            for (size_t k = i; k < end; k += n) {
                n = utf8_get(from->s + k, &c);
                mapped_char(&x, m, from->s + k, n);
            }
    }
    if (x.any) edit_write(x.last, from, p, &x.done, to);
}

static int step_apply(const struct normalizer_step *step, struct regex_run *run, struct edits *x,
                      const struct text *from, struct piece p, struct text *to, struct err *e)
{
    switch (step->kind) {
    case NORMALIZE_NFC: normalize_form(from, p, UNICODE_NFC, x, to); break;
    case NORMALIZE_NFD: normalize_form(from, p, UNICODE_NFD, x, to); break;
    case NORMALIZE_NFKC: normalize_form(from, p, UNICODE_NFKC, x, to); break;
    case NORMALIZE_NFKD: normalize_form(from, p, UNICODE_NFKD, x, to); break;
    case NORMALIZE_LOWERCASE:
        x->n = 0;
        unicode_lowercase(from->s + p.start, p.end - p.start, x);
        edits_write(x, from, p, to);
        break;
    case NORMALIZE_STRIP: normalize_strip(step, from, p, to); break;
    case NORMALIZE_PREPEND:
        text_add(to, step->content, strlen(step->content), from->at[p.start]);
        text_copy(to, from, p.start, p.end);
        break;
    case NORMALIZE_REPLACE: return normalize_replace(step, run, from, p, to, e);
    case NORMALIZE_BYTE_LEVEL:
        for (size_t i = p.start; i < p.end; i++)
            text_add_char(to, byte_level_char((unsigned char)from->s[i]), from->at[i]);
        break;
    case NORMALIZE_DROP_NONSPACING:
    case NORMALIZE_DROP_MARKS:
    case NORMALIZE_NMT:
    case NORMALIZE_BERT_CLEAN: normalize_drop(step->kind, from, p, to); break;
    case NORMALIZE_BERT_CJK: normalize_cjk(from, p, to); break;
    case NORMALIZE_CHARSMAP: normalize_map(step->map, from, p, to); break;
    }
    return 0;
}

int normalizer_apply(const struct normalizer *z, struct regex_run *run, struct text *t, struct text *spare,
                     struct err *e)
{
    struct edits x = {0};
    int rc = 0;
    for (size_t i = 0; i < z->n && !rc; i++) {
        text_clear(spare);
        for (size_t k = 0; k < t->n_pieces && !rc; k++) {
            struct piece p = t->pieces[k];
            size_t start = spare->n;
            if (p.id == PIECE_OPEN)
                rc = step_apply(&z->steps[i], run, &x, t, p, spare, e);
            else
                text_copy(spare, t, p.start, p.end);
            text_piece(spare, start, spare->n, p.id);
        }
        if (!rc && spare->full) rc = err_set(e, ERR_NOMEM, "the normalizer makes this text too large");
        struct text swap = *t;
        *t = *spare;
        *spare = swap;
    }
    edits_free(&x);
    return rc;
}
