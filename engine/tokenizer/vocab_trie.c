/* Building the trie (vocab_trie.h): spellings are sorted, so a node is a range of them with a common prefix. */
#include "engine/tokenizer/vocab_trie.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

struct spelling {
    const unsigned char *s;
    uint32_t len;
    int32_t id;
};

static int spelling_order(const void *x, const void *y)
{
    const struct spelling *a = x, *b = y;
    int c = memcmp(a->s, b->s, a->len < b->len ? a->len : b->len);
    return c ? c : (a->len > b->len) - (a->len < b->len);
}

/* The spellings [lo, hi) that share their first `depth` bytes. */
struct range {
    uint32_t lo, hi, depth;
};

static size_t nodes_count(const struct spelling *v, size_t n)
{
    size_t nodes = 1; /* the root; each spelling adds the bytes that it does not share with the one before */
    for (size_t i = 0; i < n; i++) {
        size_t common = 0;
        while (i && common < v[i].len && common < v[i - 1].len && v[i].s[common] == v[i - 1].s[common]) common++;
        nodes += v[i].len - common;
    }
    return nodes;
}

static void children_add(struct vocab_trie *t, struct range *ranges, const struct spelling *v, size_t node)
{
    struct range r = ranges[node];
    struct vocab_node *to = t->nodes + node;
    *to = (struct vocab_node){.id = -1, .child = (uint32_t)t->n_nodes};
    while (r.lo < r.hi && v[r.lo].len == r.depth) to->id = v[r.lo++].id;
    for (uint32_t i = r.lo, k; i < r.hi; i = k) {
        unsigned char byte = v[i].s[r.depth];
        for (k = i + 1; k < r.hi && v[k].s[r.depth] == byte;) k++;
        ranges[t->n_nodes] = (struct range){i, k, r.depth + 1};
        t->bytes[t->n_nodes++] = byte;
        to->n_children++;
    }
}

void vocab_trie_build(struct vocab_trie *t, const struct vocab *v)
{
    struct spelling *sorted = mem_array(v->n + 1, sizeof *sorted);
    size_t n = 0;
    for (size_t i = 0; i < v->n; i++) {
        const struct vocab_entry *x = v->entries + i;
        if (x->len) sorted[n++] = (struct spelling){(const unsigned char *)v->arena.data + x->at, x->len, x->id};
    }
    qsort(sorted, n, sizeof *sorted, spelling_order);
    size_t nodes = nodes_count(sorted, n);
    struct range *ranges = mem_array(nodes, sizeof *ranges);
    *t = (struct vocab_trie){.nodes = mem_array(nodes, sizeof *t->nodes), .bytes = mem_array(nodes, 1), .n_nodes = 1};
    ranges[0].hi = (uint32_t)n;
    for (size_t node = 0; node < t->n_nodes; node++) children_add(t, ranges, sorted, node);
    free(ranges);
    free(sorted);
}

void vocab_trie_free(struct vocab_trie *t)
{
    free(t->nodes);
    free(t->bytes);
    *t = (struct vocab_trie){0};
}
