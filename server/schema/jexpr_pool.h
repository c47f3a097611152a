/* Internals of an expression pool: jexpr.c, jexpr_fit.c and jexpr_grammar.c only. */
#ifndef TANDEM_SERVER_SCHEMA_JEXPR_POOL_H
#define TANDEM_SERVER_SCHEMA_JEXPR_POOL_H

#include "server/schema/jexpr.h"

/* first, n: a range of pool.bytes (bytes), pool.ranges (chars) or pool.kids (seq, alt, repeat); rule: first is the
 * body. */
struct jnode {
    enum jx_kind kind;
    bool anchor; /* contains an anchor */
    uint32_t first, n;
    uint32_t min, max;          /* repeat: counts; rule: min is the previous rule; anchor: min is 1 for the end; chars:
                                   min is 1 where they are not escaped */
    uint32_t size, depth;       /* size: expanded, approximate positions of an automaton; depth: of the tree */
    uint32_t shortest, longest; /* characters */
};

struct jpool {
    struct jnode *nodes;
    jx *kids;
    char *bytes;
    struct grange *ranges;
    size_t n_nodes, n_kids, n_bytes, n_ranges;
    size_t cap_nodes, cap_kids, cap_bytes, cap_ranges;
    uint32_t last_rule;  /* list of all rules; 0 ends it */
    uint32_t rules_size; /* of all bodies */
    bool raw;            /* characters are not escaped (jpool_raw) */
    struct err err;
};

#endif
