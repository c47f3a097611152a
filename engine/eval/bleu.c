#include "engine/eval/bleu.h"

#include "engine/base/mem.h"
#include "engine/eval/words.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- tokenizer 13a ----------------------------------------------------------------------------------------------- */

/* Replaces every occurrence, from the left. */
static void replace(struct buf *text, const char *what, const char *with)
{
    struct buf out = {0};
    size_t n = strlen(what);
    const char *at = text->data, *end = text->data + text->len;
    buf_str(&out, "");
    for (const char *hit; (hit = memmem(at, (size_t)(end - at), what, n)); at = hit + n) {
        buf_append(&out, at, (size_t)(hit - at));
        buf_str(&out, with);
    }
    buf_append(&out, at, (size_t)(end - at));
    buf_free(text);
    *text = out;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_point(char c)
{
    return c == '.' || c == ',';
}

/* ASCII's symbols but ' , - and . */
static bool stands_alone(char c)
{
    return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') || (c >= '(' && c <= '+') ||
           (c >= ':' && c <= '@') || c == '/';
}

static void split_symbols(const struct buf *in, struct buf *out)
{
    for (size_t i = 0; i < in->len; i++) {
        char c = in->data[i];
        if (stands_alone(c)) buf_char(out, ' ');
        buf_char(out, c);
        if (stands_alone(c)) buf_char(out, ' ');
    }
}

/* The next three are substitutions of two neighbours each, which do not overlap: as a regex finds them. */

static void split_points_behind(const struct buf *in, struct buf *out)
{
    for (size_t i = 0; i < in->len; i++) {
        buf_char(out, in->data[i]);
        if (is_digit(in->data[i]) || i + 1 == in->len || !is_point(in->data[i + 1])) continue;
        buf_char(out, ' ');
        buf_char(out, in->data[++i]);
        buf_char(out, ' ');
    }
}

static void split_points_before(const struct buf *in, struct buf *out)
{
    for (size_t i = 0; i < in->len; i++) {
        bool hit = is_point(in->data[i]) && i + 1 < in->len && !is_digit(in->data[i + 1]);
        if (hit) buf_char(out, ' ');
        buf_char(out, in->data[i]);
        if (hit) buf_char(out, ' ');
        if (hit) buf_char(out, in->data[++i]);
    }
}

static void split_dashes(const struct buf *in, struct buf *out)
{
    for (size_t i = 0; i < in->len; i++) {
        buf_char(out, in->data[i]);
        if (!is_digit(in->data[i]) || i + 1 == in->len || in->data[i + 1] != '-') continue;
        buf_str(out, " - ");
        i++;
    }
}

void bleu_tokenize(const char *text, struct buf *out)
{
    static void (*const passes[])(const struct buf *, struct buf *) = {split_symbols, split_points_behind,
                                                                       split_points_before, split_dashes};
    struct buf line = {0}, next = {0};
    buf_append(&line, text, word_text_end(text));
    replace(&line, "<skipped>", "");
    replace(&line, "-\n", "");
    replace(&line, "\n", " ");
    replace(&line, "&quot;", "\"");
    replace(&line, "&amp;", "&");
    replace(&line, "&lt;", "<");
    replace(&line, "&gt;", ">");
    buf_char(&next, ' ');
    buf_append(&next, line.data, line.len);
    buf_char(&next, ' ');
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        struct buf swap = line;
        line = next;
        next = swap;
        buf_clear(&next);
        passes[i](&line, &next);
    }
    struct words words = {0};
    words_split(&words, next.data, next.len);
    for (size_t i = 0; i < words.n; i++) {
        if (i) buf_char(out, ' ');
        buf_append(out, words.v[i].at, words.v[i].len);
    }
    words_free(&words);
    buf_free(&line);
    buf_free(&next);
}

/* ---- the score --------------------------------------------------------------------------------------------------- */

static size_t nearest_length(size_t n, const struct ids *refs, int n_refs)
{
    size_t best = 0, best_gap = SIZE_MAX;
    for (int i = 0; i < n_refs; i++) {
        size_t len = refs[i].n, gap = len > n ? len - n : n - len;
        if (gap < best_gap || (gap == best_gap && len < best)) best = len, best_gap = gap;
    }
    return best;
}

void bleu_count(const char *text, const char *const *refs, int n_refs, double stats[BLEU_STATS])
{
    int n = n_refs + 1; /* the text, then its references */
    struct buf *line = mem_array((size_t)n, sizeof *line);
    struct words *words = mem_array((size_t)n, sizeof *words);
    struct ids *ids = mem_array((size_t)n, sizeof *ids);
    for (int i = 0; i < n; i++) {
        buf_str(&line[i], "");
        bleu_tokenize(i ? refs[i - 1] : text, &line[i]);
        words_split(&words[i], line[i].data, line[i].len);
    }
    words_number(words, n, ids);
    stats[0] = (double)ids[0].n;
    stats[1] = (double)nearest_length(ids[0].n, ids + 1, n_refs);
    for (int k = 0; k < BLEU_ORDER; k++) {
        stats[2 + k] = (double)ngrams_matched(&ids[0], ids + 1, n_refs, k + 1);
        stats[2 + BLEU_ORDER + k] = (double)ngrams_count(&ids[0], k + 1);
    }
    for (int i = 0; i < n; i++) {
        buf_free(&line[i]);
        words_free(&words[i]);
        free(ids[i].v);
    }
    free(line);
    free(words);
    free(ids);
}

double bleu_score(const double stats[BLEU_STATS], bool effective_order)
{
    const double *matched = stats + 2, *total = matched + BLEU_ORDER;
    double words = stats[0], ref_words = stats[1], brevity = 1, logs = 0, smooth = 1;
    int orders = 0;
    if (words < ref_words) brevity = words > 0 ? exp(1 - ref_words / words) : 0;
    if (!(matched[0] > 0)) return 0; /* no n-gram matches where no word does */
    for (; orders < BLEU_ORDER && total[orders] > 0; orders++) {
        double hits = matched[orders], all = total[orders];
        if (!(hits > 0)) smooth *= 2;
        logs += log(hits > 0 ? 100 * hits / all : 100 / (smooth * all));
    }
    if (orders < BLEU_ORDER && !effective_order) return 0;
    return brevity * exp(logs / orders);
}
