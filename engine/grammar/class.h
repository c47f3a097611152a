/* Sets of characters as machines over bytes: a class is the start node of a machine, and each node maps bytes to next
 * nodes, until one complete UTF-8 character was read.  Equal machines are shared (nodes are interned from the last byte
 * backwards, so that all "any continuation byte" are the same node).  A table belongs to one builder or program. */
#ifndef TANDEM_ENGINE_GRAMMAR_CLASS_H
#define TANDEM_ENGINE_GRAMMAR_CLASS_H

#include "engine/grammar/grammar.h"

#include <stdbool.h>

enum { CLASS_END = 0 };          /* target of an edge that completes a character */
#define CLASS_NOTHING UINT32_MAX /* the class without characters */
enum { CLASS_NODES_MAX = 1 << 18 };

struct class_edge {
    uint8_t lo, hi; /* bytes, inclusive */
    uint32_t to;
};

struct class_node {
    uint32_t first, n; /* edges, ascending */
};

struct class_table {
    struct class_edge *edges;
    size_t n_edges, cap_edges;
    struct class_node *nodes; /* nodes[0] is CLASS_END */
    size_t n_nodes, cap_nodes;
    uint32_t *slots; /* interned nodes; 0 free */
    size_t mask;
    uint32_t whole[4]; /* [k]: any k continuation bytes; 0: not made yet */
};

void class_table_free(struct class_table *);

/* The node that reads one character of the set; CLASS_NOTHING for the empty set.  r must be a set (ranges_normalize).
 */
uint32_t class_node_of(struct class_table *, const struct grange *r, size_t n);
/* The node after a byte: CLASS_END, a node, or CLASS_NOTHING. */
uint32_t class_next(const struct class_table *, uint32_t node, uint8_t byte);

/* ---- sets of code points ---- */

struct ranges {
    struct grange *v; /* owned */
    size_t n, cap;
};

void ranges_add(struct ranges *, uint32_t lo, uint32_t hi);
void ranges_add_all(struct ranges *, const struct ranges *);
void ranges_normalize(struct ranges *);  /* ascending, apart from each other, within Unicode, without surrogates */
void ranges_complement(struct ranges *); /* of a normalized one; stays normalized */
void ranges_free(struct ranges *);

/* Adds to *out the set that Python's re uses for \d, \s and \w in text, or with re.ASCII. */
void ranges_add_escape(struct ranges *out, char which, bool ascii);
/* Adds the characters that Python's re.IGNORECASE also matches; normalizes. */
void ranges_add_cases(struct ranges *, bool ascii);

#endif
