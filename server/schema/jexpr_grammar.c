/* Converts expressions to a grammar, rule by rule, with the engine's builder, which removes what can never match and
 * refuses left recursion. */
#include "server/schema/jexpr_pool.h"

#include "engine/base/buf.h"
#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

struct lowering {
    const struct jpool *p;
    gexpr *made; /* of each node; meaningful when done */
    bool *done;
    struct grammar_builder *b;
    gexpr *stack; /* arguments being gathered */
    size_t n_stack, cap_stack;
};

static gexpr lower(struct lowering *l, jx x);

/* A character in its only spelling: in a string an escape for seven characters, itself otherwise. */
static gexpr lower_chars(struct lowering *l, const struct jnode *node)
{
    static const struct {
        unsigned char c;
        const char *spelling;
    } escapes[] = {{'"', "\\\""}, {'\\', "\\\\"}, {'\b', "\\b"}, {'\t', "\\t"},
                   {'\n', "\\n"}, {'\f', "\\f"},  {'\r', "\\r"}};
    static const struct grange plain[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x10ffff}};
    enum { N_ESCAPES = sizeof escapes / sizeof *escapes, N_PLAIN = sizeof plain / sizeof *plain };
    gexpr parts[1 + N_ESCAPES];
    size_t n_parts = 0, n_cut = 0;
    bool escaped[N_ESCAPES] = {0};
    if (node->min) return gram_class(l->b, l->p->ranges + node->first, node->n, 0);
    struct grange *cut = mem_array(node->n * N_PLAIN, sizeof *cut);
    for (uint32_t i = 0; i < node->n; i++) {
        struct grange v = l->p->ranges[node->first + i];
        for (size_t k = 0; k < N_PLAIN; k++) {
            uint32_t lo = v.lo > plain[k].lo ? v.lo : plain[k].lo, hi = v.hi < plain[k].hi ? v.hi : plain[k].hi;
            if (lo <= hi) cut[n_cut++] = (struct grange){lo, hi};
        }
        for (size_t k = 0; k < N_ESCAPES; k++) escaped[k] |= escapes[k].c >= v.lo && escapes[k].c <= v.hi;
    }
    if (n_cut) parts[n_parts++] = gram_class(l->b, cut, n_cut, 0);
    for (size_t k = 0; k < N_ESCAPES; k++)
        if (escaped[k]) parts[n_parts++] = gram_bytes(l->b, escapes[k].spelling, 2);
    free(cut);
    return n_parts == 1 ? parts[0] : gram_alt(l->b, parts, n_parts);
}

static gexpr lower_list(struct lowering *l, const struct jnode *node)
{
    size_t base = l->n_stack;
    for (uint32_t i = 0; i < node->n; i++) {
        gexpr g = lower(l, l->p->kids[node->first + i]);
        mem_grow(&l->stack, &l->cap_stack, l->n_stack + 1, sizeof *l->stack);
        l->stack[l->n_stack++] = g;
    }
    const gexpr *v = l->stack + base;
    gexpr out = node->kind == JX_IS_SEQ ? gram_seq(l->b, v, node->n) : gram_alt(l->b, v, node->n);
    l->n_stack = base;
    return out;
}

static gexpr lower(struct lowering *l, jx x)
{
    if (l->done[x]) return l->made[x];
    const struct jnode *node = &l->p->nodes[x];
    gexpr out = -1;
    switch (node->kind) {
    case JX_IS_BYTES: out = gram_bytes(l->b, node->n ? l->p->bytes + node->first : "", node->n); break;
    case JX_IS_CHARS: out = lower_chars(l, node); break;
    case JX_IS_SEQ:
    case JX_IS_ALT: out = lower_list(l, node); break;
    case JX_IS_REPEAT: out = gram_repeat(l->b, lower(l, l->p->kids[node->first]), node->min, node->max); break;
    case JX_IS_NONE: out = gram_class(l->b, NULL, 0, 0); break;
    default: break; /* rules are created before everything else */
    }
    l->made[x] = out;
    l->done[x] = true;
    return out;
}

struct grammar *jexpr_grammar(struct jpool *p, jx root, struct err *e)
{
    if (!p->err.code && root == JX_NONE) jpool_fail(p, "no value is allowed");
    if (p->err.code) {
        err_set(e, p->err.code, "%s", p->err.msg);
        return NULL;
    }
    struct lowering l = {.p = p, .b = grammar_builder_new()};
    l.made = mem_array(p->n_nodes, sizeof *l.made);
    l.done = mem_array(p->n_nodes, sizeof *l.done);
    for (uint32_t r = p->last_rule; r; r = p->nodes[r].min) {
        l.made[r] = gram_rule(l.b);
        l.done[r] = true;
    }
    for (uint32_t r = p->last_rule; r; r = p->nodes[r].min)
        gram_define(l.b, l.made[r], lower(&l, (jx)p->nodes[r].first));
    gexpr whole = lower(&l, root);
    struct grammar *g = grammar_build(l.b, whole, e);
    grammar_builder_free(l.b);
    free(l.made);
    free(l.done);
    free(l.stack);
    return g;
}
