/* From expressions to a program (program.h).
 *
 * Expressions that match no text (an empty class, a rule that never ends) are removed first.  Then some text leads from
 * every reachable position to the end, so a mask never leads into a dead end.  Left recursion is rejected, since it
 * would push calls without reading anything. */
#include "engine/base/mem.h"
#include "engine/grammar/program.h"

#include <stdlib.h>
#include <string.h>

enum { CODE_MAX = 1 << 19, TARGETS_MAX = 1 << 20, TRIE_DEPTH_MAX = 400, EMITS_MAX = 1 << 22 };

struct compiler {
    const struct grammar_builder *b;
    struct gram_program *p;
    uint8_t *used, *nullable, *productive; /* (n_nodes) */
    uint32_t *entry;                       /* (n_nodes) of rules: address of the body; 0: not yet compiled */
    uint32_t *todo;                        /* rules that are called and not yet compiled */
    size_t n_todo, n_emits;                /* n_emits: expressions written, also those without an instruction */
    bool full;
};

static const struct gnode *node_of(const struct compiler *x, uint32_t i)
{
    return x->b->nodes + i;
}

/* The children of a node, in order. */
static uint32_t n_children(const struct gnode *n)
{
    switch (n->kind) {
    case GN_SEQ:
    case GN_ALT: return n->b;
    case GN_REPEAT: return 1;
    case GN_RULE: return n->a != (uint32_t)GRAM_NO_BODY;
    default: return 0;
    }
}

static uint32_t child(const struct compiler *x, const struct gnode *n, uint32_t k)
{
    return n->kind == GN_SEQ || n->kind == GN_ALT ? x->b->kids[n->a + k] : n->a;
}

/* ---- reachability from the root ---- */

static int mark_used(struct compiler *x, uint32_t root, struct err *e)
{
    uint32_t *stack = mem_array(x->b->n_nodes, sizeof *stack);
    size_t n = 0;
    int rc = 0;
    stack[n++] = root;
    x->used[root] = 1;
    while (n && !rc) {
        const struct gnode *node = node_of(x, stack[--n]);
        if (node->kind == GN_RULE && !n_children(node)) rc = err_set(e, ERR_INVALID, "a rule has no definition");
        for (uint32_t k = 0; k < n_children(node); k++) {
            uint32_t c = child(x, node, k);
            if (!x->used[c]) stack[n++] = c;
            x->used[c] = 1;
        }
    }
    free(stack);
    return rc;
}

/* ---- nullable and productive expressions ---- */

struct parents {
    uint32_t *first, *v; /* the entries of i: v[first[i], first[i + 1]) */
};

static struct parents parents_of(const struct compiler *x)
{
    size_t n = x->b->n_nodes, edges = 0;
    struct parents p = {.first = mem_array(n + 1, sizeof *p.first)};
    for (size_t i = 0; i < n; i++)
        for (uint32_t k = 0; x->used[i] && k < n_children(node_of(x, (uint32_t)i)); k++, edges++)
            p.first[child(x, node_of(x, (uint32_t)i), k) + 1]++;
    for (size_t i = 0; i < n; i++) p.first[i + 1] += p.first[i];
    p.v = mem_array(edges + 1, sizeof *p.v);
    uint32_t *at = mem_array(n + 1, sizeof *at);
    memcpy(at, p.first, n * sizeof *at);
    for (size_t i = 0; i < n; i++)
        for (uint32_t k = 0; x->used[i] && k < n_children(node_of(x, (uint32_t)i)); k++)
            p.v[at[child(x, node_of(x, (uint32_t)i), k)]++] = (uint32_t)i;
    free(at);
    return p;
}

static bool holds_at_once(const struct gnode *n, bool nullable)
{
    switch (n->kind) {
    case GN_BYTES: return !nullable || n->b == 0;
    case GN_CLASS: return !nullable && n->a != CLASS_NOTHING;
    case GN_SEQ:
    case GN_REPEAT: return n->b == 0;
    default: return false;
    }
}

/* The least solution: a sequence has the property when all its parts have it, a choice when one has.  Linear in the
 * edges. */
static void solve(const struct compiler *x, const struct parents *p, uint8_t *holds, bool nullable)
{
    size_t n = x->b->n_nodes, top = 0;
    uint32_t *left = mem_array(n, sizeof *left), *stack = mem_array(n, sizeof *stack);
    for (size_t i = 0; i < n; i++) {
        const struct gnode *node = node_of(x, (uint32_t)i);
        left[i] = node->kind == GN_SEQ ? node->b : 1;
        if (!x->used[i] || !holds_at_once(node, nullable)) continue;
        holds[i] = 1;
        stack[top++] = (uint32_t)i;
    }
    while (top) {
        uint32_t i = stack[--top];
        for (uint32_t k = p->first[i]; k < p->first[i + 1]; k++) {
            uint32_t up = p->v[k];
            if (holds[up] || --left[up]) continue;
            holds[up] = 1;
            stack[top++] = up;
        }
    }
    free(left);
    free(stack);
}

/* ---- left recursion ---- */

/* The number of a node's children that can start where the node starts. */
static uint32_t n_left(const struct compiler *x, const struct gnode *n)
{
    uint32_t all = n_children(n);
    if (n->kind != GN_SEQ) return all;
    for (uint32_t k = 0; k < all; k++)
        if (!x->nullable[x->b->kids[n->a + k]]) return k + 1;
    return all;
}

static int refuse_left_recursion(const struct compiler *x, uint32_t root, struct err *e)
{
    enum { NEW, OPEN, DONE };
    struct visit {
        uint32_t node, next;
    } *stack = mem_array(x->b->n_nodes, sizeof *stack);
    uint8_t *seen = mem_array(x->b->n_nodes, 1);
    int rc = 0;
    /* a left-recursive cycle may be anywhere, not only left-reachable from the root */
    for (uint32_t from = 0; from < x->b->n_nodes && !rc; from++) {
        size_t n = 0;
        if (!x->used[from] || seen[from]) continue;
        stack[n++] = (struct visit){from, 0};
        seen[from] = OPEN;
        while (n && !rc) {
            struct visit *v = stack + n - 1;
            const struct gnode *node = node_of(x, v->node);
            if (v->next == n_left(x, node)) {
                seen[v->node] = DONE;
                n--;
                continue;
            }
            uint32_t c = child(x, node, v->next++);
            if (seen[c] == OPEN) rc = err_set(e, ERR_INVALID, "a rule begins with itself (left recursion)");
            if (seen[c] != NEW) continue;
            seen[c] = OPEN;
            stack[n++] = (struct visit){c, 0};
        }
    }
    free(stack);
    free(seen);
    return rc;
}

/* ---- code ---- */

static uint32_t code(struct compiler *x, enum gram_op op, size_t a, size_t b)
{
    struct gram_program *p = x->p;
    if (p->n_code == CODE_MAX) {
        x->full = true;
        return 0;
    }
    mem_grow(&p->code, &p->cap_code, p->n_code + 1, sizeof *p->code);
    p->code[p->n_code] = (struct gram_ins){(uint8_t)op, (uint32_t)a, (uint32_t)b};
    return (uint32_t)p->n_code++;
}

static uint32_t here(const struct compiler *x)
{
    return (uint32_t)x->p->n_code;
}

/* A split whose n targets are set later. */
static uint32_t split(struct compiler *x, uint32_t n)
{
    struct gram_program *p = x->p;
    if (n > TARGETS_MAX - p->n_targets) {
        x->full = true;
        return 0;
    }
    mem_grow(&p->targets, &p->cap_targets, p->n_targets + n, sizeof *p->targets);
    uint32_t first = (uint32_t)p->n_targets;
    memset(p->targets + first, 0, n * sizeof *p->targets);
    p->n_targets += n;
    code(x, GRAM_SPLIT, first, n);
    return first;
}

static void emit(struct compiler *x, uint32_t i);

/* ---- choices ---- */

struct branch {
    const unsigned char *s;
    uint32_t at, n;
};

static int by_bytes(const void *a, const void *b)
{
    const struct branch *x = a, *y = b;
    int c = memcmp(x->s + x->at, y->s + y->at, x->n < y->n ? x->n : y->n);
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

/* The start of a split's branches and their jumps to the end, which `join` sets. */
static void join(struct compiler *x, uint32_t first_jump_target, const uint32_t *jumps, uint32_t n)
{
    for (uint32_t k = 0; k < n && !x->full; k++) x->p->code[jumps[k]].a = first_jump_target;
}

/* Compiles sorted texts with the same first `at` bytes: their common prefix once, then a branch per next byte, so that
 * a choice of ten thousand strings has a single position at a time. */
static void emit_texts(struct compiler *x, const struct branch *v, uint32_t n, uint32_t at, int depth)
{
    const struct branch *first = v, *last = v + n - 1;
    uint32_t same = at;
    while (same < first->n && same < last->n && first->s[first->at + same] == last->s[last->at + same]) same++;
    if (same > at) code(x, GRAM_LITERAL, first->at + at, same - at);
    if (first->n == last->n && same == first->n) return; /* one text, perhaps several times */
    uint32_t groups = 0;
    bool deep = depth >= TRIE_DEPTH_MAX; /* then one branch per text, without shared prefixes */
    for (uint32_t i = 0; i < n; i++)
        groups += i == 0 || deep || v[i].n == same || v[i - 1].n == same ||
                  v[i].s[v[i].at + same] != v[i - 1].s[v[i - 1].at + same];
    uint32_t *jumps = mem_array(groups, sizeof *jumps), targets = split(x, groups), g = 0;
    for (uint32_t i = 0, end; i < n && !x->full; i = end, g++) {
        end = i + 1;
        while (!deep && end < n && v[i].n > same && v[end].s[v[end].at + same] == v[i].s[v[i].at + same]) end++;
        x->p->targets[targets + g] = here(x);
        if (deep && v[i].n > same) code(x, GRAM_LITERAL, v[i].at + same, v[i].n - same);
        if (!deep && v[i].n > same) emit_texts(x, v + i, end - i, same, depth + 1);
        jumps[g] = code(x, GRAM_JUMP, 0, 0);
    }
    join(x, here(x), jumps, g);
    free(jumps);
}

static void emit_alt(struct compiler *x, const struct gnode *n)
{
    uint32_t *live = mem_array(n->b, sizeof *live), *jumps = mem_array(n->b, sizeof *jumps), m = 0, texts = 0;
    for (uint32_t k = 0; k < n->b; k++) {
        uint32_t c = x->b->kids[n->a + k];
        if (!x->productive[c]) continue;
        live[m++] = c;
        texts += node_of(x, c)->kind == GN_BYTES;
    }
    if (m > 1 && texts == m) {
        struct branch *v = mem_array(m, sizeof *v);
        for (uint32_t k = 0; k < m; k++)
            v[k] = (struct branch){x->b->bytes, node_of(x, live[k])->a, node_of(x, live[k])->b};
        if (x->b->bytes) {
            qsort(v, m, sizeof *v, by_bytes);
            emit_texts(x, v, m, 0, 0);
        }
        free(v);
    } else if (m == 1) {
        emit(x, live[0]);
    } else {
        uint32_t targets = split(x, m);
        for (uint32_t k = 0; k < m && !x->full; k++) {
            x->p->targets[targets + k] = here(x);
            emit(x, live[k]);
            jumps[k] = code(x, GRAM_JUMP, 0, 0);
        }
        join(x, here(x), jumps, m);
    }
    free(live);
    free(jumps);
}

/* ---- repetitions ---- */

static void emit_counted(struct compiler *x, uint32_t body, uint32_t min, uint32_t max)
{
    struct gram_program *p = x->p;
    if (x->nullable[body]) min = 0; /* the rest may be empty */
    mem_grow(&p->loops, &p->cap_loops, p->n_loops + 1, sizeof *p->loops);
    uint32_t l = (uint32_t)p->n_loops++;
    code(x, GRAM_COUNT, l, 0);
    p->loops[l] = (struct gram_loop){.min = min, .max = max, .body = here(x)};
    emit(x, body);
    p->loops[l].again = code(x, GRAM_AGAIN, l, 0);
    p->loops[l].after = here(x);
}

static void emit_repeat(struct compiler *x, const struct gnode *n)
{
    uint32_t min = n->b, max = n->c, targets, start = here(x);
    if (!x->productive[n->a] || max == 0) return;
    if (min == 0 && (max == 1 || max == UINT32_MAX)) {
        targets = split(x, 2);
        if (x->full) return;
        x->p->targets[targets] = here(x);
        emit(x, n->a);
        if (max != 1) code(x, GRAM_JUMP, start, 0);
        x->p->targets[targets + 1] = here(x);
    } else if (min == 1 && max == UINT32_MAX) {
        emit(x, n->a);
        targets = split(x, 2);
        if (x->full) return;
        x->p->targets[targets] = start;
        x->p->targets[targets + 1] = here(x);
    } else {
        emit_counted(x, n->a, min, max);
    }
}

/* ---- the rest ---- */

static void emit(struct compiler *x, uint32_t i)
{
    const struct gnode *n = node_of(x, i);
    if (++x->n_emits > EMITS_MAX) x->full = true;
    if (x->full) return;
    switch (n->kind) {
    case GN_BYTES:
        if (n->b) code(x, GRAM_LITERAL, n->a, n->b);
        break;
    case GN_CLASS: code(x, GRAM_CLASS, n->a, 0); break;
    case GN_SEQ:
        for (uint32_t k = 0; k < n->b; k++) emit(x, x->b->kids[n->a + k]);
        break;
    case GN_ALT: emit_alt(x, n); break;
    case GN_REPEAT: emit_repeat(x, n); break;
    default:
        if (!x->entry[i]) {
            x->entry[i] = UINT32_MAX;
            x->todo[x->n_todo++] = i;
        }
        code(x, GRAM_CALL, i, 0);
    }
}

static const struct gram_ins *follow(const struct gram_program *p, uint32_t pc)
{
    for (int k = 0; k < 64 && p->code[pc].op == GRAM_JUMP; k++) pc = p->code[pc].a;
    return p->code + pc;
}

static void link_calls(struct compiler *x)
{
    struct gram_program *p = x->p;
    for (uint32_t pc = 0; pc < p->n_code; pc++) {
        if (p->code[pc].op != GRAM_CALL) continue;
        p->code[pc].a = x->entry[p->code[pc].a];
        if (follow(p, pc + 1)->op == GRAM_RETURN) p->code[pc].op = GRAM_TAIL;
    }
}

static void find_kinds(struct gram_program *p)
{
    bool cut[257] = {false};
    for (size_t pc = 0; pc < p->n_code; pc++)
        if (p->code[pc].op == GRAM_LITERAL)
            for (uint32_t k = 0; k < p->code[pc].b; k++) {
                unsigned char byte = p->bytes[p->code[pc].a + k];
                cut[byte] = cut[byte + 1] = true;
            }
    for (size_t i = 0; i < p->classes.n_edges; i++)
        cut[p->classes.edges[i].lo] = cut[p->classes.edges[i].hi + 1] = true;
    for (int byte = 0; byte < 256; byte++) {
        if (byte == 0 || cut[byte]) p->example[p->n_kinds++] = (uint8_t)byte;
        p->kind[byte] = (uint8_t)(p->n_kinds - 1);
    }
}

static void copy_parts(const struct grammar_builder *b, struct gram_program *p)
{
    p->n_bytes = p->cap_bytes = b->n_bytes;
    p->bytes = mem_array(b->n_bytes + 1, 1);
    if (b->n_bytes) memcpy(p->bytes, b->bytes, b->n_bytes);
    const struct class_table *c = &b->classes;
    p->classes = (struct class_table){.n_edges = c->n_edges, .n_nodes = c->n_nodes};
    p->classes.edges = mem_array(c->n_edges + 1, sizeof *c->edges);
    p->classes.nodes = mem_array(c->n_nodes + 1, sizeof *c->nodes);
    if (c->n_edges) memcpy(p->classes.edges, c->edges, c->n_edges * sizeof *c->edges);
    if (c->n_nodes) memcpy(p->classes.nodes, c->nodes, c->n_nodes * sizeof *c->nodes);
}

static int emit_all(struct compiler *x, uint32_t root, struct err *e)
{
    emit(x, root);
    code(x, GRAM_MATCH, 0, 0);
    for (size_t k = 0; k < x->n_todo && !x->full; k++) {
        uint32_t rule = x->todo[k];
        x->entry[rule] = here(x);
        emit(x, node_of(x, rule)->a);
        code(x, GRAM_RETURN, 0, 0);
    }
    if (x->full) return err_set(e, ERR_INVALID, "the grammar is too large: more than %d instructions", CODE_MAX);
    copy_parts(x->b, x->p);
    link_calls(x);
    find_kinds(x->p);
    return 0;
}

int gram_compile(const struct grammar_builder *b, gexpr root, struct gram_program *p, struct err *e)
{
    struct compiler x = {.b = b, .p = p};
    uint32_t r = (uint32_t)root;
    x.used = mem_array(3 * b->n_nodes, 1);
    x.nullable = x.used + b->n_nodes;
    x.productive = x.nullable + b->n_nodes;
    x.entry = mem_array(b->n_nodes, sizeof *x.entry);
    x.todo = mem_array(b->n_nodes, sizeof *x.todo);
    int rc = mark_used(&x, r, e);
    if (!rc) {
        struct parents up = parents_of(&x);
        solve(&x, &up, x.nullable, true);
        solve(&x, &up, x.productive, false);
        free(up.first);
        free(up.v);
        rc = refuse_left_recursion(&x, r, e);
    }
    if (!rc && !x.productive[r]) rc = err_set(e, ERR_INVALID, "the grammar allows no text at all");
    if (!rc) rc = emit_all(&x, r, e);
    free(x.used);
    free(x.entry);
    free(x.todo);
    return rc;
}

void gram_program_free(struct gram_program *p)
{
    free(p->code);
    free(p->targets);
    free(p->loops);
    free(p->bytes);
    class_table_free(&p->classes);
    *p = (struct gram_program){0};
}
