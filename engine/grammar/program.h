/* The internals of a grammar: the expressions of a builder, and the program compiled from them.
 *
 * A program describes a pushdown automaton.  LITERAL and CLASS read a byte; the other instructions only move to
 * others.  A position is (instruction, offset in it, stack).  The stack holds return addresses of calls, and for
 * counted repetitions the number of times the body was read, so that x{0,10000} is as short as x*. */
#ifndef TANDEM_ENGINE_GRAMMAR_PROGRAM_H
#define TANDEM_ENGINE_GRAMMAR_PROGRAM_H

#include "engine/grammar/class.h"
#include "engine/grammar/grammar.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- expressions ---- */

enum gnode_kind { GN_BYTES, GN_CLASS, GN_SEQ, GN_ALT, GN_REPEAT, GN_RULE };

enum { GRAM_NO_BODY = -1 };

struct gnode {
    uint8_t kind;
    uint16_t depth; /* depth of the tree below, without following rules */
    uint32_t a;     /* BYTES: where in bytes; CLASS: class node; SEQ, ALT: first of kids; REPEAT: the body; RULE: the
                       body, or GRAM_NO_BODY */
    uint32_t b;     /* BYTES, SEQ, ALT: how many; REPEAT: min */
    uint32_t c;     /* REPEAT: max */
};

struct grammar_builder {
    struct gnode *nodes;
    uint32_t *kids;
    unsigned char *bytes;
    size_t n_nodes, cap_nodes, n_kids, cap_kids, n_bytes, cap_bytes;
    struct class_table classes;
    struct err err; /* the first */
};

/* Remembers the error unless there is one already; returns -1. */
__attribute__((format(printf, 2, 3))) gexpr gram_fail(struct grammar_builder *, const char *fmt, ...);
gexpr gram_class_ranges(struct grammar_builder *, struct ranges *); /* takes the ranges, which need not be normalized */

/* ---- programs ---- */

enum gram_op {
    GRAM_LITERAL, /* bytes[a, a + b), then pc + 1 */
    GRAM_CLASS,   /* class node a, then pc + 1 */
    GRAM_SPLIT,   /* to each of targets[a, a + b) */
    GRAM_JUMP,    /* to a */
    GRAM_CALL,    /* pushes pc + 1, to a */
    GRAM_TAIL,    /* to a: a tail call */
    GRAM_RETURN,
    GRAM_COUNT, /* loops[a] begins: pushes its `again` with count 0 */
    GRAM_AGAIN, /* loops[a]: its body was read again; the count is on the stack */
    GRAM_MATCH,
};

struct gram_ins {
    uint8_t op;
    uint32_t a, b;
};

/* Counts that are not tracked exactly since they are far from their bounds: below min, and between min and max. */
#define GRAM_FEW (UINT32_MAX - 2)
#define GRAM_MANY (UINT32_MAX - 1)

struct gram_loop {
    uint32_t min, max; /* max UINT32_MAX: unbounded, else below GRAM_FEW */
    uint32_t body, again, after;
};

struct gram_program {
    struct gram_ins *code; /* begins at 0 */
    uint32_t *targets;
    struct gram_loop *loops;
    unsigned char *bytes;
    size_t n_code, cap_code, n_targets, cap_targets, n_loops, cap_loops, n_bytes, cap_bytes;
    struct class_table classes;
    /* bytes that no instruction distinguishes are one kind */
    uint8_t kind[256], example[256];
    int n_kinds;
};

struct gram_automaton;

struct grammar {
    _Atomic int refs;
    struct gram_program p;
    pthread_mutex_t lock;
    struct gram_automaton *current; /* under lock; the one new users get; NULL: not created yet */
};

/* Compiles the nodes.  @return 0 on success; on failure a negative code, and *e is set. */
int gram_compile(const struct grammar_builder *, gexpr root, struct gram_program *, struct err *e);
void gram_program_free(struct gram_program *);

#endif
