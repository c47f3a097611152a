/* The spellings of a vocabulary as a trie: all pieces that a text starts with, shortest first.  Immutable. */
#ifndef TANDEM_ENGINE_TOKENIZER_VOCAB_TRIE_H
#define TANDEM_ENGINE_TOKENIZER_VOCAB_TRIE_H

#include "engine/tokenizer/vocab.h"

struct vocab_trie {
    struct vocab_node {
        uint32_t child; /* the first of its children, which follow each other in the order of their bytes */
        uint16_t n_children;
        int32_t id; /* of the spelling that ends here, or -1 */
    } * nodes;
    unsigned char *bytes; /* (n_nodes) the byte that leads to the node */
    size_t n_nodes;
};

/* Every spelling of v but the empty one.  Costs time and memory in proportion to their length. */
void vocab_trie_build(struct vocab_trie *t, const struct vocab *v);
void vocab_trie_free(struct vocab_trie *t);

enum { VOCAB_TRIE_ROOT = 0, VOCAB_TRIE_NONE = -1 };

/* The node that `byte` leads to from `node`, or VOCAB_TRIE_NONE. */
static inline int64_t vocab_trie_step(const struct vocab_trie *t, int64_t node, unsigned char byte)
{
    const struct vocab_node *from = t->nodes + node;
    const unsigned char *v = t->bytes + from->child;
    size_t lo = 0, hi = from->n_children;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (v[mid] < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < from->n_children && v[lo] == byte ? (int64_t)from->child + (int64_t)lo : VOCAB_TRIE_NONE;
}

#endif
