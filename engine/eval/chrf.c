#include "engine/eval/chrf.h"

#include "engine/base/mem.h"
#include "engine/eval/words.h"
#include "engine/tokenizer/text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static bool is_punct(char c)
{
    return (unsigned char)c < 0x80 && ispunct((unsigned char)c);
}

/* The words of the text; a punctuation mark at the end of one, else at its beginning, is a word of its own. */
static void split_words(const char *text, struct words *out)
{
    struct words raw = {0};
    words_split(&raw, text, strlen(text));
    for (size_t i = 0; i < raw.n; i++) {
        const char *at = raw.v[i].at;
        size_t n = raw.v[i].len;
        uint32_t c;
        if (utf8_get(at, &c) == n) { /* one character */
            words_add(out, at, n);
        } else if (is_punct(at[n - 1])) {
            words_add(out, at, n - 1);
            words_add(out, at + n - 1, 1);
        } else if (is_punct(at[0])) {
            words_add(out, at, 1);
            words_add(out, at + 1, n - 1);
        } else {
            words_add(out, at, n);
        }
    }
    words_free(&raw);
}

double chrf_score(const double *stats, int n_stats)
{
    double precision = 0, recall = 0;
    int orders = 0;
    for (int i = 0; i < n_stats; i += 3) {
        if (!(stats[i] > 0 && stats[i + 1] > 0)) continue;
        precision += stats[i + 2] / stats[i];
        recall += stats[i + 2] / stats[i + 1];
        orders++;
    }
    if (!(precision + recall > 0)) return 0;
    precision /= orders;
    recall /= orders;
    const double factor = 2 * 2; /* beta squared */
    return 100 * ((1 + factor) * precision * recall / (factor * precision + recall));
}

static void count_order(const struct ids *text, const struct ids *ref, int order, double out[3])
{
    double theirs = (double)ngrams_count(ref, order);
    out[0] = theirs > 0 ? (double)ngrams_count(text, order) : 0;
    out[1] = theirs;
    out[2] = (double)ngrams_matched(text, ref, 1, order);
}

static void keep_better(const double *stats, double *best, int n, bool first)
{
    if (first || chrf_score(stats, n) > chrf_score(best, n)) memcpy(best, stats, (size_t)n * sizeof *best);
}

void chrf_count(const char *text, const char *const *refs, int n_refs, double plain[CHRF_STATS],
                double plus[CHRF_PLUS_STATS])
{
    struct words words[2] = {0};
    struct ids chars, ref_chars, ids[2];
    split_words(text, &words[0]);
    chars_number(text, strlen(text), &chars);
    for (int r = 0; r < n_refs; r++) {
        double stats[CHRF_PLUS_STATS];
        words[1].n = 0;
        split_words(refs[r], &words[1]);
        words_number(words, 2, ids);
        chars_number(refs[r], strlen(refs[r]), &ref_chars);
        for (int k = 0; k < CHRF_CHARS; k++) count_order(&chars, &ref_chars, k + 1, stats + 3 * k);
        for (int k = 0; k < CHRF_WORDS; k++) count_order(&ids[0], &ids[1], k + 1, stats + CHRF_STATS + 3 * k);
        keep_better(stats, plain, CHRF_STATS, r == 0);
        keep_better(stats, plus, CHRF_PLUS_STATS, r == 0);
        free(ids[0].v);
        free(ids[1].v);
        free(ref_chars.v);
    }
    free(chars.v);
    words_free(&words[0]);
    words_free(&words[1]);
}
