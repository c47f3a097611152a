/* The builder of grammar.h: expressions as nodes in an array, children before parents but for the bodies of rules. */
#include "engine/base/mem.h"
#include "engine/grammar/program.h"
#include "engine/grammar/run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES_MAX = 1 << 18, KIDS_MAX = 1 << 20, BYTES_MAX = 4 << 20, DEPTH_MAX = 1000 };

struct grammar_builder *grammar_builder_new(void)
{
    return mem_zalloc(sizeof(struct grammar_builder));
}

void grammar_builder_free(struct grammar_builder *b)
{
    if (!b) return;
    free(b->nodes);
    free(b->kids);
    free(b->bytes);
    class_table_free(&b->classes);
    free(b);
}

gexpr gram_fail(struct grammar_builder *b, const char *fmt, ...)
{
    if (b->err.code) return -1;
    va_list args;
    va_start(args, fmt);
    b->err.code = ERR_INVALID;
    vsnprintf(b->err.msg, sizeof b->err.msg, fmt, args);
    va_end(args);
    return -1;
}

static bool known(struct grammar_builder *b, gexpr x)
{
    if (b->err.code) return false;
    if (x >= 0 && (size_t)x < b->n_nodes) return true;
    gram_fail(b, "the grammar uses an expression that is not there");
    return false;
}

static gexpr put(struct grammar_builder *b, struct gnode node)
{
    if (b->err.code) return -1;
    if (b->n_nodes == NODES_MAX) return gram_fail(b, "the grammar has more than %d expressions", NODES_MAX);
    if (node.depth > DEPTH_MAX) return gram_fail(b, "the grammar is nested deeper than %d", DEPTH_MAX);
    mem_grow(&b->nodes, &b->cap_nodes, b->n_nodes + 1, sizeof *b->nodes);
    b->nodes[b->n_nodes] = node;
    return (gexpr)b->n_nodes++;
}

gexpr gram_bytes(struct grammar_builder *b, const void *bytes, size_t n)
{
    if (b->err.code) return -1;
    if (n > BYTES_MAX - b->n_bytes) return gram_fail(b, "the grammar has more than %d bytes of text", BYTES_MAX);
    size_t at = b->n_bytes;
    if (n) {
        mem_grow(&b->bytes, &b->cap_bytes, at + n, 1);
        memcpy(b->bytes + at, bytes, n);
    }
    b->n_bytes += n;
    return put(b, (struct gnode){.kind = GN_BYTES, .depth = 1, .a = (uint32_t)at, .b = (uint32_t)n});
}

gexpr gram_class_ranges(struct grammar_builder *b, struct ranges *r)
{
    ranges_normalize(r);
    uint32_t node = b->err.code ? CLASS_NOTHING : class_node_of(&b->classes, r->v, r->n);
    ranges_free(r);
    if (b->classes.n_nodes > CLASS_NODES_MAX) return gram_fail(b, "the grammar's classes are too large");
    return put(b, (struct gnode){.kind = GN_CLASS, .depth = 1, .a = node});
}

gexpr gram_class(struct grammar_builder *b, const struct grange *v, size_t n, int not_in)
{
    struct ranges r = {0};
    for (size_t i = 0; i < n; i++) ranges_add(&r, v[i].lo, v[i].hi);
    ranges_normalize(&r);
    if (not_in) ranges_complement(&r);
    return gram_class_ranges(b, &r);
}

static gexpr put_list(struct grammar_builder *b, enum gnode_kind kind, const gexpr *v, size_t n)
{
    uint16_t depth = 0;
    if (b->err.code) return -1;
    if (n > KIDS_MAX - b->n_kids) return gram_fail(b, "the grammar has more than %d parts", KIDS_MAX);
    for (size_t i = 0; i < n; i++) {
        if (!known(b, v[i])) return -1;
        if (b->nodes[v[i]].depth > depth) depth = b->nodes[v[i]].depth;
    }
    uint32_t first = (uint32_t)b->n_kids;
    mem_grow(&b->kids, &b->cap_kids, b->n_kids + n, sizeof *b->kids);
    for (size_t i = 0; i < n; i++) b->kids[b->n_kids++] = (uint32_t)v[i];
    return put(b, (struct gnode){.kind = (uint8_t)kind, .depth = (uint16_t)(depth + 1), .a = first, .b = (uint32_t)n});
}

gexpr gram_seq(struct grammar_builder *b, const gexpr *v, size_t n)
{
    return n == 1 ? v[0] : put_list(b, GN_SEQ, v, n);
}

gexpr gram_alt(struct grammar_builder *b, const gexpr *v, size_t n)
{
    if (!n) return gram_fail(b, "a choice of nothing");
    return n == 1 ? v[0] : put_list(b, GN_ALT, v, n);
}

gexpr gram_repeat(struct grammar_builder *b, gexpr x, uint32_t min, uint32_t max)
{
    if (!known(b, x)) return -1;
    if (min > max || min >= GRAM_FEW || (max >= GRAM_FEW && max != UINT32_MAX))
        return gram_fail(b, "a repetition of at least %u and at most %u times", min, max);
    if (min == 1 && max == 1) return x;
    return put(
        b, (struct gnode){
               .kind = GN_REPEAT, .depth = (uint16_t)(b->nodes[x].depth + 1), .a = (uint32_t)x, .b = min, .c = max});
}

gexpr gram_rule(struct grammar_builder *b)
{
    return put(b, (struct gnode){.kind = GN_RULE, .depth = 1, .a = (uint32_t)GRAM_NO_BODY});
}

void gram_define(struct grammar_builder *b, gexpr rule, gexpr body)
{
    if (!known(b, rule) || !known(b, body)) return;
    if (b->nodes[rule].kind != GN_RULE || b->nodes[rule].a != (uint32_t)GRAM_NO_BODY)
        gram_fail(b, "a rule is defined twice");
    else
        b->nodes[rule].a = (uint32_t)body;
}

/* ---- grammars ---- */

struct grammar *grammar_build(struct grammar_builder *b, gexpr root, struct err *e)
{
    if (!known(b, root)) {
        if (e) *e = b->err;
        return NULL;
    }
    struct grammar *g = mem_zalloc(sizeof *g);
    if (gram_compile(b, root, &g->p, e)) {
        gram_program_free(&g->p);
        free(g);
        return NULL;
    }
    atomic_init(&g->refs, 1);
    pthread_mutex_init(&g->lock, NULL);
    return g;
}

struct grammar *grammar_ref(struct grammar *g)
{
    atomic_fetch_add(&g->refs, 1);
    return g;
}

void grammar_unref(struct grammar *g)
{
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1) return;
    gram_automaton_unref(g->current);
    pthread_mutex_destroy(&g->lock);
    gram_program_free(&g->p);
    free(g);
}

int grammar_matches(struct grammar *g, const void *bytes, size_t n, struct err *e)
{
    struct gram_automaton *a = gram_automaton_of(g, 0);
    pthread_mutex_lock(gram_lock(a));
    int32_t state = gram_begin(a);
    for (size_t i = 0; i < n && state >= 0; i++) state = gram_next(a, state, ((const unsigned char *)bytes)[i]);
    int rc = state >= 0 ? gram_accepts(a, state) : 0;
    if (state == GRAM_FULL) rc = err_set(e, ERR_INVALID, "the grammar is too large: %s", gram_why(a));
    pthread_mutex_unlock(gram_lock(a));
    gram_automaton_unref(a);
    return rc;
}
