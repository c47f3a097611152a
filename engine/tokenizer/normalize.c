/* The normalizer (normalize.h): reading its description, and applying it piece by piece. */
#include "engine/tokenizer/normalize.h"

#include "engine/base/mem.h"
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
    default: return 0;
    }
}

static int read_any(void *arg, const struct json_at *at, struct err *e)
{
    return normalizer_read(arg, at, e);
}

int normalizer_read(struct normalizer *z, const struct json_at *at, struct err *e)
{
    if (!at->v) return 0;
    const char *type;
    int rc = json_type(at, &type, e);
    if (rc) return rc;
    if (!strcmp(type, "Sequence")) return json_each(at, "normalizers", read_any, z, e);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        if (strcmp(type, kinds[k].name)) continue;
        mem_grow(&z->steps, &z->cap, z->n + 1, sizeof *z->steps);
        z->steps[z->n] = (struct normalizer_step){.kind = kinds[k].kind};
        return step_read(&z->steps[z->n++], at, e);
    }
    return json_fail(at, e, ERR_UNSUPPORTED, "normalizer type \"%.40s\" is not known", type);
}

void normalizer_free(struct normalizer *z)
{
    for (size_t i = 0; i < z->n; i++) {
        regex_free(z->steps[i].regex);
        free(z->steps[i].content);
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

/* Writes the edited piece: a new character shares the span of the old one before it. */
static void edits_write(const struct edits *x, const struct text *from, struct piece p, struct text *to)
{
    size_t i = p.start;
    for (size_t k = 0; k < x->n; k++) {
        struct span at = {from->at[p.start].start, from->at[p.start].start};
        int32_t change = x->v[k].change;
        if (change <= 0)
            at = from->at[i < p.end ? i : p.end - 1];
        else if (i > p.start)
            at = from->at[i - 1];
        for (; change <= 0; change++) i = char_skip(from, i, p.end);
        text_add_char(to, x->v[k].c, at);
    }
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
