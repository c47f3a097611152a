#include "engine/tokenizer/wordpiece.h"

#include "engine/base/mem.h"

void wordpiece_seal(struct wordpiece *m, const char *prefix)
{
    vocab_trie_build(&m->trie, &m->vocab);
    m->inside = VOCAB_TRIE_ROOT;
    for (; *prefix && m->inside != VOCAB_TRIE_NONE; prefix++)
        m->inside = vocab_trie_step(&m->trie, m->inside, (unsigned char)*prefix);
}

void wordpiece_free(struct wordpiece *m)
{
    vocab_free(&m->vocab);
    vocab_trie_free(&m->trie);
}

static bool is_longer(const char *s, size_t n, int32_t characters)
{
    int32_t k = 0;
    for (size_t i = 0; i < n && k <= characters; i++) k += ((unsigned char)s[i] & 0xc0) != 0x80;
    return k > characters;
}

void wordpiece_encode(const struct wordpiece *m, struct bpe_run *run, const char *word, size_t n)
{
    run->n = 0;
    bool known = !is_longer(word, n, m->characters);
    for (size_t i = 0, end; known && i < n; i = end) {
        int64_t node = i ? m->inside : VOCAB_TRIE_ROOT;
        int32_t id = -1;
        end = i;
        for (size_t k = i; k < n && node != VOCAB_TRIE_NONE; k++) {
            node = vocab_trie_step(&m->trie, node, (unsigned char)word[k]);
            if (node != VOCAB_TRIE_NONE && m->trie.nodes[node].id >= 0) id = m->trie.nodes[node].id, end = k + 1;
        }
        known = id >= 0;
        if (known) bpe_symbol_add(run, id, (uint32_t)(end - i));
    }
    if (known) return;
    run->n = 0;
    bpe_symbol_add(run, m->unk, (uint32_t)n);
}
