/* Byte-pair encoding (bpe.h).
 *
 * A word becomes symbols, one per character, and the pair of lowest rank, leftmost first, is merged until none is left.
 * Short words rescan their few pairs; long ones keep the candidates in a heap, O(n log n), so that a megabyte without a
 * space costs no more than sorting it.  A long word is first split where no merge can reach across: SentencePiece-style
 * models treat a whole text as one word, which this splits into words again. */
#include "engine/tokenizer/bpe.h"

#include "engine/base/mem.h"
#include "engine/tokenizer/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SMALL_WORD = 48 }; /* symbols up to which rescanning beats the heap */

enum { JOINT_BITS = 18 }; /* a false hit only prevents a possible split */

#define NO_RANK UINT32_MAX

uint32_t byte_level_char(unsigned char byte)
{
    if ((byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad)) return byte;
    if (byte <= ' ') return 256u + byte;              /* 0x00-0x20 */
    if (byte <= 0xa0) return 256u + 33 + byte - 0x7f; /* 0x7f-0xa0 */
    return 256 + 67;                                  /* 0xad */
}

int byte_level_byte(uint32_t c)
{
    if ((c >= '!' && c <= '~') || (c >= 0xa1 && c <= 0xff && c != 0xad)) return (int)c;
    if (c < 256 || c > 256 + 67) return -1;
    c -= 256;
    return c <= ' ' ? (int)c : c < 67 ? (int)c - 33 + 0x7f : 0xad;
}

void bpe_free(struct bpe *m)
{
    vocab_free(&m->vocab);
    free(m->merges);
    free(m->joints);
    free(m->prefix);
    free(m->suffix);
    *m = (struct bpe){0};
}

void bpe_merges_init(struct bpe *m, size_t n)
{
    size_t slots = 16;
    while (slots < 2 * n) slots *= 2;
    m->merges = mem_array(slots, sizeof *m->merges);
    m->merge_mask = slots - 1;
    for (size_t i = 0; i < slots; i++) m->merges[i].left = UINT32_MAX;
}

static struct bpe_merge *merge_slot(const struct bpe *m, uint32_t left, uint32_t right)
{
    uint64_t h = (((uint64_t)left << 32) | right) * 0x9e3779b97f4a7c15u;
    size_t i = (size_t)(h >> 32) & m->merge_mask;
    for (;; i = (i + 1) & m->merge_mask) {
        struct bpe_merge *slot = m->merges + i;
        if (slot->left == UINT32_MAX || (slot->left == left && slot->right == right)) return slot;
    }
}

void bpe_merge_add(struct bpe *m, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    *merge_slot(m, (uint32_t)left, (uint32_t)right) =
        (struct bpe_merge){(uint32_t)left, (uint32_t)right, rank, (uint32_t)id};
}

static uint32_t merge_rank(const struct bpe *m, int32_t left, int32_t right, uint32_t *id)
{
    const struct bpe_merge *slot = merge_slot(m, (uint32_t)left, (uint32_t)right);
    if (slot->left == UINT32_MAX) return NO_RANK;
    *id = slot->id;
    return slot->rank;
}

static uint32_t joint_hash(int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> (64 - JOINT_BITS));
}

static bool joint_has(const struct bpe *m, int32_t left, int32_t right)
{
    uint32_t h = joint_hash(left, right);
    return !m->joints || m->joints[h / 64] >> h % 64 & 1;
}

/* The symbol of a spelling's first or last character, or -1. */
static int32_t char_symbol(const struct bpe *m, const char *s, size_t n, bool last)
{
    size_t k = 0;
    uint32_t c;
    if (!n) return -1;
    if (last)
        for (k = n - 1; k > 0 && ((unsigned char)s[k] & 0xc0) == 0x80;) k--;
    return vocab_find(&m->vocab, s + k, utf8_get(s + k, &c));
}

/* Before merging, a token is its characters, or itself where a word may start from it as a whole, such as <0x0A>: a
 * merge bridges every pair of such an end and such a beginning. */
static void joints_build(struct bpe *m)
{
    struct edge {
        int32_t first, last;
    } *edges = mem_array((size_t)m->vocab.size, sizeof *edges);
    for (size_t i = 0; i < m->vocab.n; i++) {
        const struct vocab_entry *t = m->vocab.entries + i;
        const char *s = m->vocab.arena.data + t->at;
        edges[t->id] = (struct edge){char_symbol(m, s, t->len, false), char_symbol(m, s, t->len, true)};
    }
    m->joints = mem_array((1u << JOINT_BITS) / 64, sizeof *m->joints);
    for (size_t i = 0; i <= m->merge_mask; i++) {
        const struct bpe_merge *merge = m->merges + i;
        if (merge->left == UINT32_MAX) continue;
        int32_t left[2] = {(int32_t)merge->left, edges[merge->left].last};
        int32_t right[2] = {(int32_t)merge->right, edges[merge->right].first};
        for (int k = 0; k < 4; k++) {
            uint32_t h = joint_hash(left[k / 2], right[k % 2]);
            m->joints[h / 64] |= (uint64_t)1 << h % 64;
        }
    }
    free(edges);
}

void bpe_seal(struct bpe *m)
{
    m->plain = !m->prefix && !m->suffix;
    for (int b = 0; b < 256; b++) {
        char s[8];
        snprintf(s, sizeof s, "<0x%02X>", (unsigned)b);
        m->fallback[b] = m->byte_fallback ? vocab_find(&m->vocab, s, 6) : -1;
        m->byte_unit[b] = vocab_find(&m->vocab, s, utf8_put(s, byte_level_char((unsigned char)b)));
    }
    if (m->plain) joints_build(m); /* with affixes, a character's symbol depends on where it stands */
}

void bpe_symbol_add(struct bpe_run *run, int32_t id, uint32_t len)
{
    mem_grow(&run->symbols, &run->cap, run->n + 1, sizeof *run->symbols);
    run->symbols[run->n++] = (struct bpe_symbol){.id = id, .len = len};
}

struct unknown { /* an unknown token not yet emitted: the next character may be fused with it */
    bool any;
    uint32_t len;
};

static void unknown_flush(const struct bpe *m, struct bpe_run *run, struct unknown *unk)
{
    if (unk->any) bpe_symbol_add(run, m->unk, unk->len);
    *unk = (struct unknown){0};
}

static bool fallback_add(const struct bpe *m, struct bpe_run *run, const char *s, size_t n)
{
    if (!m->byte_fallback) return false;
    for (size_t i = 0; i < n; i++)
        if (m->fallback[(unsigned char)s[i]] < 0) return false;
    for (size_t i = 0; i < n; i++) bpe_symbol_add(run, m->fallback[(unsigned char)s[i]], 1);
    return true;
}

/* One character: spelled[0, n_spelled) in the vocabulary's writing, len bytes in the word. */
static void unit_add(const struct bpe *m, struct bpe_run *run, struct unknown *unk, int32_t id, const char *spelled,
                     size_t n_spelled, uint32_t len)
{
    if (id >= 0) {
        unknown_flush(m, run, unk);
        bpe_symbol_add(run, id, len);
        return;
    }
    /* Bytes are emitted before a pending unknown token, as in the reference, so that ids agree. */
    if (fallback_add(m, run, spelled, n_spelled) || m->unk < 0) return;
    if (!m->fuse_unk) unknown_flush(m, run, unk);
    unk->any = true;
    unk->len += len;
}

/* Prefix and suffix are spelled around the character before it is looked up. */
static void unit_add_affixed(const struct bpe *m, struct bpe_run *run, struct unknown *unk, const char *s, size_t n,
                             uint32_t len, bool first, bool last)
{
    struct buf *b = &run->spelled;
    buf_clear(b);
    if (m->prefix && !first) buf_str(b, m->prefix);
    buf_append(b, s, n);
    if (m->suffix && last) buf_str(b, m->suffix);
    unit_add(m, run, unk, vocab_find(&m->vocab, b->data, b->len), b->data, b->len, len);
}

static void symbols_init(const struct bpe *m, struct bpe_run *run, const char *word, size_t n, bool byte_level)
{
    struct unknown unk = {0};
    run->n = 0;
    for (size_t i = 0, len; i < n; i += len) {
        char spelled[4];
        const char *s = spelled;
        unsigned k;
        int32_t id = -1;
        if (byte_level) {
            unsigned char byte = (unsigned char)word[i];
            len = 1;
            id = m->byte_unit[byte];
            k = id >= 0 && m->plain ? 0 : utf8_put(spelled, byte_level_char(byte));
        } else {
            uint32_t c;
            len = k = utf8_get(word + i, &c);
            s = word + i;
            if (m->plain) id = vocab_find(&m->vocab, s, k);
        }
        if (m->plain)
            unit_add(m, run, &unk, id, s, k, (uint32_t)len);
        else
            unit_add_affixed(m, run, &unk, s, k, (uint32_t)len, i == 0, i + len == n);
    }
    unknown_flush(m, run, &unk);
}

/* Merges v[0, n); returns how many are left. */
static size_t merge_small(const struct bpe *m, struct bpe_symbol *v, size_t n)
{
    uint32_t ranks[SMALL_WORD], makes[SMALL_WORD];
    for (size_t i = 0; i + 1 < n; i++) ranks[i] = merge_rank(m, v[i].id, v[i + 1].id, &makes[i]);
    for (;;) {
        uint32_t best = NO_RANK;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            if (ranks[i] < best) best = ranks[i], at = i;
        if (best == NO_RANK) return n;
        v[at].id = (int32_t)makes[at];
        v[at].len += v[at + 1].len;
        n--;
        memmove(v + at + 1, v + at + 2, (n - at - 1) * sizeof *v);
        if (at + 1 < n) { /* pairs at + 1.. move down by one; the last symbol starts no pair */
            memmove(ranks + at + 1, ranks + at + 2, (n - at - 2) * sizeof *ranks);
            memmove(makes + at + 1, makes + at + 2, (n - at - 2) * sizeof *makes);
            ranks[at] = merge_rank(m, v[at].id, v[at + 1].id, &makes[at]);
        }
        if (at) ranks[at - 1] = merge_rank(m, v[at - 1].id, v[at].id, &makes[at - 1]);
    }
}

static void heap_push(struct bpe_run *run, uint64_t order, uint32_t id)
{
    mem_grow(&run->heap, &run->cap_heap, run->n_heap + 1, sizeof *run->heap);
    size_t i = run->n_heap++;
    for (; i && run->heap[(i - 1) / 4].order > order; i = (i - 1) / 4) run->heap[i] = run->heap[(i - 1) / 4];
    run->heap[i] = (struct bpe_candidate){order, id};
}

static struct bpe_candidate heap_pop(struct bpe_run *run)
{
    struct bpe_candidate top = run->heap[0], last = run->heap[--run->n_heap];
    size_t i = 0, n = run->n_heap;
    for (size_t child; (child = 4 * i + 1) < n; i = child) {
        for (size_t k = child + 1, end = child + 4; k < n && k < end; k++)
            if (run->heap[k].order < run->heap[child].order) child = k;
        if (run->heap[child].order >= last.order) break;
        run->heap[i] = run->heap[child];
    }
    run->heap[i] = last;
    return top;
}

static void heap_consider(const struct bpe *m, struct bpe_run *run, const struct bpe_symbol *v, int32_t left,
                          int32_t right)
{
    if (left < 0 || right < 0) return;
    uint32_t id;
    uint32_t rank = merge_rank(m, v[left].id, v[right].id, &id);
    if (rank != NO_RANK) heap_push(run, (uint64_t)rank << 32 | (uint32_t)left, id);
}

static size_t merge_large(const struct bpe *m, struct bpe_run *run, struct bpe_symbol *v, size_t n)
{
    run->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        v[i].prev = (int32_t)i - 1;
        v[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    for (size_t i = 0; i + 1 < n; i++) heap_consider(m, run, v, (int32_t)i, (int32_t)i + 1);
    while (run->n_heap) {
        struct bpe_candidate c = heap_pop(run);
        struct bpe_symbol *left = v + (uint32_t)c.order;
        if (!left->len || left->next < 0) continue;
        struct bpe_symbol *right = v + left->next;
        uint32_t id;
        if (merge_rank(m, left->id, right->id, &id) == NO_RANK || id != c.id) continue; /* one of them has changed */
        left->id = (int32_t)id;
        left->len += right->len;
        left->next = right->next;
        right->len = 0;
        if (right->next >= 0) v[right->next].prev = (int32_t)(left - v);
        heap_consider(m, run, v, left->prev, (int32_t)(left - v));
        heap_consider(m, run, v, (int32_t)(left - v), left->next);
    }
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (v[i].len) v[kept++] = v[i];
    return kept;
}

static void merge_word(const struct bpe *m, struct bpe_run *run)
{
    struct bpe_symbol *v = run->symbols;
    size_t n = run->n, kept = 0;
    if (n <= SMALL_WORD) {
        run->n = merge_small(m, v, n);
        return;
    }
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && joint_has(m, v[end - 1].id, v[end].id);) end++;
        size_t k = end - i <= SMALL_WORD ? merge_small(m, v + i, end - i) : merge_large(m, run, v + i, end - i);
        memmove(v + kept, v + i, k * sizeof *v);
        kept += k;
    }
    run->n = kept;
}

void bpe_encode(const struct bpe *m, struct bpe_run *run, const char *word, size_t n, bool byte_level)
{
    if (m->ignore_merges) {
        const char *s = word;
        size_t len = n;
        if (byte_level) {
            buf_clear(&run->spelled);
            for (size_t i = 0; i < n; i++) {
                char c[4];
                buf_append(&run->spelled, c, utf8_put(c, byte_level_char((unsigned char)word[i])));
            }
            s = run->spelled.data;
            len = run->spelled.len;
        }
        int32_t id = vocab_find(&m->vocab, s, len);
        if (id >= 0) {
            run->n = 0;
            bpe_symbol_add(run, id, (uint32_t)n);
            return;
        }
    }
    symbols_init(m, run, word, n, byte_level);
    merge_word(m, run);
}

void bpe_run_free(struct bpe_run *run)
{
    free(run->symbols);
    free(run->heap);
    free(run->ends);
    buf_free(&run->spelled);
    *run = (struct bpe_run){0};
}
