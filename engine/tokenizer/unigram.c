/* The best path through a word (unigram.h).
 *
 * Sums, their order and the choice between equal sums are the reference's (tokenizers, models/unigram), as ids must be
 * equal: a path that comes later replaces one with the same end only when its sum is larger. */
#include "engine/tokenizer/unigram.h"

#include "engine/base/mem.h"
#include "engine/tokenizer/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const double unknown_penalty = 10;

void unigram_seal(struct unigram *m)
{
    double least = INFINITY;
    for (size_t i = 0; i < m->vocab.n; i++)
        if (m->scores[m->vocab.entries[i].id] < least) least = m->scores[m->vocab.entries[i].id];
    m->unk_score = least - unknown_penalty;
    vocab_trie_build(&m->trie, &m->vocab);
    for (int b = 0; b < 256; b++) {
        char s[8];
        int n = snprintf(s, sizeof s, "<0x%02X>", (unsigned)b);
        m->fallback[b] = m->byte_fallback ? vocab_find(&m->vocab, s, (size_t)n) : -1;
    }
}

void unigram_free(struct unigram *m)
{
    vocab_free(&m->vocab);
    vocab_trie_free(&m->trie);
    free(m->scores);
}

/* The best way found so far to a byte of the word. */
struct unigram_end {
    double score;
    uint32_t start; /* of the last piece; UINT32_MAX: no way yet */
    int32_t id;     /* of the last piece */
};

static void way_offer(struct unigram_end *to, double score, size_t start, int32_t id)
{
    if (to->start == UINT32_MAX || score > to->score) *to = (struct unigram_end){score, (uint32_t)start, id};
}

static int ways_find(const struct unigram *m, struct unigram_end *ends, const char *word, size_t n, struct err *e)
{
    for (size_t i = 0; i <= n; i++) ends[i] = (struct unigram_end){.start = UINT32_MAX};
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t c;
        bool single = false;
        int64_t node = VOCAB_TRIE_ROOT;
        len = utf8_get(word + i, &c);
        for (size_t k = i; k < n; k++) {
            node = vocab_trie_step(&m->trie, node, (unsigned char)word[k]);
            if (node == VOCAB_TRIE_NONE) break;
            int32_t id = m->trie.nodes[node].id;
            if (id < 0) continue;
            way_offer(&ends[k + 1], m->scores[id] + ends[i].score, i, id);
            single |= k + 1 - i == len;
        }
        if (single) continue;
        if (m->unk < 0)
            return err_set(e, ERR_UNSUPPORTED, "tokenizer.json: U+%04X is in no piece, and unk_id is not set",
                           (unsigned)c);
        way_offer(&ends[i + len], m->unk_score + ends[i].score, i, m->unk);
    }
    return 0;
}

/* Unknown characters in a row are one string: a piece after all, or its bytes, or one unknown token. */
static void unknown_add(const struct unigram *m, struct bpe_run *run, const char *s, size_t n)
{
    int32_t id = vocab_find(&m->vocab, s, n);
    bool bytes = id < 0 && m->byte_fallback;
    for (size_t i = 0; i < n && bytes; i++) bytes = m->fallback[(unsigned char)s[i]] >= 0;
    if (!bytes) {
        bpe_symbol_add(run, id >= 0 ? id : m->unk, (uint32_t)n);
        return;
    }
    for (size_t i = 0; i < n; i++) bpe_symbol_add(run, m->fallback[(unsigned char)s[i]], i ? 0 : (uint32_t)n);
}

int unigram_encode(const struct unigram *m, struct bpe_run *run, const char *word, size_t n, struct err *e)
{
    run->n = 0;
    mem_grow(&run->ends, &run->cap_ends, n + 1, sizeof *run->ends);
    struct unigram_end *ends = run->ends;
    int rc = ways_find(m, ends, word, n, e);
    if (rc) return rc;
    /* The way is known backwards.  Turned round in place: each end's start becomes the next piece's end. */
    uint32_t next = UINT32_MAX;
    for (size_t end = n; end > 0;) {
        uint32_t start = ends[end].start;
        ends[end].start = next;
        next = (uint32_t)end;
        end = start;
    }
    for (size_t start = 0, end = next; start < n;) {
        size_t stop = end;
        int32_t id = ends[end].id;
        if (id == m->unk)
            while (ends[stop].start != UINT32_MAX && ends[ends[stop].start].id == m->unk) stop = ends[stop].start;
        if (id == m->unk)
            unknown_add(m, run, word + start, stop - start);
        else
            bpe_symbol_add(run, id, (uint32_t)(stop - start));
        start = stop;
        end = ends[stop].start;
    }
    return 0;
}
