#include "engine/eval/rouge.h"

#include "engine/base/mem.h"
#include "engine/eval/stem.h"
#include "engine/eval/words.h"

#include <stdlib.h>
#include <string.h>

/* A text made ready: its words, and how many of them end before each line's end. */
struct page {
    char *text;          /* in lower case, words stemmed in their places; owned */
    struct words words;  /* borrow from text */
    size_t *line_end;    /* (n_lines) owned */
    size_t n_lines, cap; /* lines without characters do not count */
    struct ids ids;
};

/* ---- words ------------------------------------------------------------------------------------------------------- */

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

/* Makes ASCII lower case, and the two other characters that Python's str.lower makes ASCII. */
static char *lowered(const char *text)
{
    char *out = mem_strdup(text);
    size_t k = 0;
    for (const char *p = text; *p; p++) {
        if (strncmp(p, "\xe2\x84\xaa", 3) == 0) { /* the Kelvin sign */
            out[k++] = 'k';
            p += 2;
        } else if (strncmp(p, "\xc4\xb0", 2) == 0) { /* I with a dot: i and a combining dot, which is no word's */
            out[k++] = 'i';
            out[k++] = ' ';
            p++;
        } else {
            out[k++] = *p >= 'A' && *p <= 'Z' ? (char)(*p - 'A' + 'a') : *p;
        }
    }
    out[k] = 0;
    return out;
}

static void end_line(struct page *p)
{
    mem_grow(&p->line_end, &p->cap, p->n_lines + 1, sizeof *p->line_end);
    p->line_end[p->n_lines++] = p->words.n;
}

static void page_read(struct page *p, const char *text, bool stem)
{
    enum { SHORT = 3 };
    *p = (struct page){.text = lowered(text)};
    for (char *at = p->text; *at;) {
        size_t n = 0, line = strcspn(at, "\n");
        for (size_t i = 0; i < line; i += n) {
            n = 0;
            while (i + n < line && is_word(at[i + n])) n++;
            if (n) words_add(&p->words, at + i, stem && n > SHORT ? stem_word(at + i, n) : n);
            if (!n) n = 1;
        }
        if (line) end_line(p);
        at += line + (at[line] == '\n');
    }
}

static void page_free(struct page *p)
{
    free(p->text);
    words_free(&p->words);
    free(p->line_end);
    free(p->ids.v);
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

static double f1(double hits, size_t n_text, size_t n_ref)
{
    double precision = n_text ? hits / (double)n_text : 0, recall = n_ref ? hits / (double)n_ref : 0;
    return precision + recall > 0 ? 2 * precision * recall / (precision + recall) : 0;
}

static double score_ngrams(const struct page *text, const struct page *ref, int order)
{
    double hits = (double)ngrams_matched(&ref->ids, &text->ids, 1, order);
    return f1(hits, ngrams_count(&text->ids, order), ngrams_count(&ref->ids, order));
}

/* The table of lengths of longest common subsequences of prefixes keeps one row; `left` (rows, cols), if not NULL, gets
 * a bit for each cell where the cell to its left has more than the one above. */
static size_t lcs_length(const int32_t *ref, size_t rows, const int32_t *text, size_t cols, unsigned char *left)
{
    uint32_t *row = mem_array(cols + 1, sizeof *row);
    for (size_t i = 0; i < rows; i++) {
        uint32_t corner = 0; /* of the row above, one to the left */
        for (size_t j = 1; j <= cols; j++) {
            uint32_t above = row[j];
            size_t cell = i * cols + j - 1;
            if (left && row[j - 1] > above) left[cell / 8] |= (unsigned char)(1 << cell % 8);
            row[j] = ref[i] == text[j - 1] ? corner + 1 : row[j - 1] > above ? row[j - 1] : above;
            corner = above;
        }
    }
    size_t length = row[cols];
    free(row);
    return length;
}

/* Marks the reference's words that are in one longest common subsequence: of several, the one that the way back from
 * the table's end finds. */
static void mark_lcs(const int32_t *ref, size_t rows, const int32_t *text, size_t cols, bool *marked)
{
    unsigned char *left = mem_zalloc(rows * cols / 8 + 1);
    lcs_length(ref, rows, text, cols, left);
    size_t i = rows, j = cols;
    while (i && j) {
        size_t cell = (i - 1) * cols + j - 1;
        if (ref[i - 1] == text[j - 1]) {
            marked[--i] = true;
            j--;
        } else if (left[cell / 8] >> cell % 8 & 1) {
            j--;
        } else {
            i--;
        }
    }
    free(left);
}

static size_t line_start(const struct page *p, size_t line)
{
    return line ? p->line_end[line - 1] : 0;
}

static size_t largest_id(const struct ids *t)
{
    int32_t most = 0;
    for (size_t i = 0; i < t->n; i++) most = t->v[i] > most ? t->v[i] : most;
    return (size_t)most;
}

/* Hits of the union of the lines' subsequences; a word counts at most as often as each of the texts has it. */
static double score_lines(const struct page *text, const struct page *ref)
{
    size_t n_ids = largest_id(&text->ids), n_ref_ids = largest_id(&ref->ids), hits = 0;
    if (n_ref_ids > n_ids) n_ids = n_ref_ids;
    size_t *in_text = mem_array(n_ids + 1, sizeof *in_text), *in_ref = mem_array(n_ids + 1, sizeof *in_ref);
    bool *marked = mem_zalloc(ref->ids.n + 1);
    for (size_t i = 0; i < text->ids.n; i++) in_text[text->ids.v[i]]++;
    for (size_t i = 0; i < ref->ids.n; i++) in_ref[ref->ids.v[i]]++;
    for (size_t r = 0; r < ref->n_lines; r++) {
        size_t from = line_start(ref, r), rows = ref->line_end[r] - from;
        for (size_t t = 0; t < text->n_lines; t++) {
            size_t at = line_start(text, t), cols = text->line_end[t] - at;
            if (rows && cols) mark_lcs(ref->ids.v + from, rows, text->ids.v + at, cols, marked + from);
        }
    }
    for (size_t i = 0; i < ref->ids.n; i++) {
        int32_t id = ref->ids.v[i];
        if (!marked[i] || !in_text[id] || !in_ref[id]) continue;
        hits++;
        in_text[id]--;
        in_ref[id]--;
    }
    free(in_text);
    free(in_ref);
    free(marked);
    return f1((double)hits, text->ids.n, ref->ids.n);
}

static void score_pair(const struct page *text, const struct page *ref, double out[ROUGE_KINDS])
{
    size_t lcs = lcs_length(ref->ids.v, ref->ids.n, text->ids.v, text->ids.n, NULL);
    out[ROUGE_1] = score_ngrams(text, ref, 1);
    out[ROUGE_2] = score_ngrams(text, ref, 2);
    out[ROUGE_L] = f1((double)lcs, text->ids.n, ref->ids.n);
    out[ROUGE_LSUM] = score_lines(text, ref);
}

void rouge_score(const char *text, const char *const *refs, int n_refs, bool stem, double out[ROUGE_KINDS])
{
    struct page page[2];
    for (int k = 0; k < ROUGE_KINDS; k++) out[k] = 0;
    for (int r = 0; r < n_refs; r++) {
        double one[ROUGE_KINDS];
        page_read(&page[0], text, stem);
        page_read(&page[1], refs[r], stem);
        struct words words[2] = {page[0].words, page[1].words};
        struct ids ids[2];
        words_number(words, 2, ids);
        page[0].ids = ids[0];
        page[1].ids = ids[1];
        score_pair(&page[0], &page[1], one);
        for (int k = 0; k < ROUGE_KINDS; k++) out[k] = one[k] > out[k] ? one[k] : out[k];
        page_free(&page[0]);
        page_free(&page[1]);
    }
}
