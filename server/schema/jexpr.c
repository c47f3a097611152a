/* Expressions over JSON text: building, folding, inspecting.  See jexpr.h; jexpr_grammar.c passes them to the
 * engine. */
#include "server/schema/jexpr_pool.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SMALL = 24 /* an expression of at most this size is copied where it is used twice */ };

static uint32_t add(uint32_t a, uint32_t b)
{
    uint32_t sum;
    return __builtin_add_overflow(a, b, &sum) ? JX_MANY : sum;
}

/* 0 times JX_MANY is 0. */
static uint32_t times(uint32_t a, uint32_t b)
{
    uint32_t product;
    if (a == 0 || b == 0) return 0;
    return a == JX_MANY || b == JX_MANY || __builtin_mul_overflow(a, b, &product) ? JX_MANY : product;
}

struct jpool *jpool_new(void)
{
    struct jpool *p = mem_zalloc(sizeof *p);
    mem_grow(&p->nodes, &p->cap_nodes, 64, sizeof *p->nodes);
    p->nodes[JX_NONE] = (struct jnode){.kind = JX_IS_NONE};
    p->nodes[JX_EMPTY] = (struct jnode){.kind = JX_IS_BYTES};
    p->n_nodes = 2;
    return p;
}

void jpool_free(struct jpool *p)
{
    if (!p) return;
    free(p->nodes);
    free(p->kids);
    free(p->bytes);
    free(p->ranges);
    free(p);
}

void jpool_fail(struct jpool *p, const char *fmt, ...)
{
    va_list ap;
    if (p->err.code) return;
    p->err.code = ERR_INVALID;
    va_start(ap, fmt);
    vsnprintf(p->err.msg, sizeof p->err.msg, fmt, ap);
    va_end(ap);
}

void jpool_name_failure(struct jpool *p, const char *name)
{
    if (p->err.code) err_prefix(&p->err, "%.100s", name);
}

bool jpool_failed(const struct jpool *p)
{
    return p->err.code != 0;
}

/* The node's own size and depth are set; counts it against the limits. */
static jx push(struct jpool *p, struct jnode node)
{
    if (p->err.code) return JX_NONE;
    if (p->n_nodes >= JX_NODES_MAX || node.size > JX_SIZE_MAX) {
        jpool_fail(p, "the schema is too large");
        return JX_NONE;
    }
    if (node.depth > JX_DEPTH_MAX) {
        jpool_fail(p, "the schema is nested too deeply");
        return JX_NONE;
    }
    mem_grow(&p->nodes, &p->cap_nodes, p->n_nodes + 1, sizeof *p->nodes);
    p->nodes[p->n_nodes] = node;
    return (jx)p->n_nodes++;
}

jx jx_bytes(struct jpool *p, const void *bytes, size_t n)
{
    if (n == 0) return JX_EMPTY;
    if (p->err.code) return JX_NONE;
    if (n > JX_SIZE_MAX || p->n_bytes + n > JX_BYTES_MAX) {
        jpool_fail(p, "the schema is too large");
        return JX_NONE;
    }
    mem_grow(&p->bytes, &p->cap_bytes, p->n_bytes + n, 1);
    memcpy(p->bytes + p->n_bytes, bytes, n);
    struct jnode node = {.kind = JX_IS_BYTES, .first = (uint32_t)p->n_bytes, .n = (uint32_t)n, .size = (uint32_t)n};
    p->n_bytes += n;
    return push(p, node);
}

jx jx_text(struct jpool *p, const char *text)
{
    return jx_bytes(p, text, strlen(text));
}

static int by_low(const void *a, const void *b)
{
    const struct grange *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Replaces v by the characters of its ranges that can be written, sorted, without overlaps; v has room for 4 n.
 * @return the number of ranges. */
static size_t writable(struct grange *v, size_t n)
{
    static const struct grange can[] = {{'\b', '\n'}, {'\f', '\r'}, {0x20, 0xd7ff}, {0xe000, 0x10ffff}};
    enum { N_CAN = sizeof can / sizeof *can };
    size_t cut = n * N_CAN, kept = 0;
    for (size_t k = 1; k < N_CAN; k++) memcpy(v + k * n, v, n * sizeof *v);
    for (size_t k = 0; k < N_CAN; k++) {
        for (size_t i = k * n; i < (k + 1) * n; i++) {
            if (v[i].lo < can[k].lo) v[i].lo = can[k].lo;
            if (v[i].hi > can[k].hi) v[i].hi = can[k].hi;
        }
    }
    qsort(v, cut, sizeof *v, by_low);
    for (size_t i = 0; i < cut; i++) {
        if (v[i].lo > v[i].hi) continue;
        if (kept && v[i].lo <= v[kept - 1].hi + 1) {
            if (v[i].hi > v[kept - 1].hi) v[kept - 1].hi = v[i].hi;
        } else {
            v[kept++] = v[i];
        }
    }
    return kept;
}

jx jx_chars(struct jpool *p, const struct grange *v, size_t n)
{
    if (n == 0 || p->err.code) return JX_NONE;
    mem_grow(&p->ranges, &p->cap_ranges, p->n_ranges + 4 * n, sizeof *p->ranges);
    struct grange *mine = p->ranges + p->n_ranges;
    memcpy(mine, v, n * sizeof *v);
    n = writable(mine, n);
    if (n == 0) return JX_NONE;
    /* a class of code points is a few byte ranges, one per form of UTF-8 */
    struct jnode node = {.kind = JX_IS_CHARS,
                         .first = (uint32_t)p->n_ranges,
                         .n = (uint32_t)n,
                         .size = mine[n - 1].hi < 0x80 ? (uint32_t)n : 8 + 2 * (uint32_t)n,
                         .min = p->raw,
                         .shortest = 1,
                         .longest = 1};
    p->n_ranges += n;
    return push(p, node);
}

bool jpool_raw(struct jpool *p, bool raw)
{
    bool before = p->raw;
    p->raw = raw;
    return before;
}

jx jx_raw_chars(struct jpool *p, const struct grange *v, size_t n)
{
    bool before = jpool_raw(p, true);
    jx out = jx_chars(p, v, n);
    jpool_raw(p, before);
    return out;
}

jx jx_any_char(struct jpool *p)
{
    return jx_chars(p, &(struct grange){0, 0x10ffff}, 1);
}

/* Appends n children to the pool.  @return the index of the first. */
static uint32_t take_kids(struct jpool *p, const jx *v, size_t n)
{
    uint32_t first = (uint32_t)p->n_kids;
    mem_grow(&p->kids, &p->cap_kids, p->n_kids + n + 1, sizeof *p->kids);
    if (n) memcpy(p->kids + p->n_kids, v, n * sizeof *v);
    p->n_kids += n;
    return first;
}

jx jx_seq(struct jpool *p, const jx *v, size_t n)
{
    struct jnode node = {.kind = JX_IS_SEQ};
    size_t kept = 0;
    jx only = JX_EMPTY;
    for (size_t i = 0; i < n; i++) {
        if (v[i] == JX_NONE) return JX_NONE;
        if (v[i] == JX_EMPTY) continue;
        const struct jnode *kid = &p->nodes[v[i]];
        only = v[i];
        kept++;
        node.size = add(node.size, kid->size);
        node.shortest = add(node.shortest, kid->shortest);
        node.longest = add(node.longest, kid->longest);
        node.anchor |= kid->anchor;
        if (kid->depth + 1 > node.depth) node.depth = kid->depth + 1;
    }
    if (kept <= 1) return only;
    node.first = take_kids(p, NULL, 0);
    for (size_t i = 0; i < n; i++)
        if (v[i] != JX_EMPTY) take_kids(p, &v[i], 1);
    node.n = (uint32_t)kept;
    return push(p, node);
}

jx jx_seq2(struct jpool *p, jx a, jx b)
{
    return jx_seq(p, (jx[]){a, b}, 2);
}

jx jx_seq3(struct jpool *p, jx a, jx b, jx c)
{
    return jx_seq(p, (jx[]){a, b, c}, 3);
}

jx jx_alt(struct jpool *p, const jx *v, size_t n)
{
    struct jnode node = {.kind = JX_IS_ALT, .shortest = JX_MANY};
    size_t kept = 0;
    jx only = JX_NONE;
    for (size_t i = 0; i < n; i++) {
        if (v[i] == JX_NONE) continue;
        const struct jnode *kid = &p->nodes[v[i]];
        only = v[i];
        kept++;
        node.size = add(node.size, kid->size);
        if (kid->shortest < node.shortest) node.shortest = kid->shortest;
        if (kid->longest > node.longest) node.longest = kid->longest;
        node.anchor |= kid->anchor;
        if (kid->depth + 1 > node.depth) node.depth = kid->depth + 1;
    }
    if (kept <= 1) return only;
    node.first = take_kids(p, NULL, 0);
    for (size_t i = 0; i < n; i++)
        if (v[i] != JX_NONE) take_kids(p, &v[i], 1);
    node.n = (uint32_t)kept;
    return push(p, node);
}

jx jx_alt2(struct jpool *p, jx a, jx b)
{
    return jx_alt(p, (jx[]){a, b}, 2);
}

jx jx_repeat(struct jpool *p, jx body, uint32_t min, uint32_t max)
{
    if (min > JX_REPEAT_MAX) {
        jpool_fail(p, "something is to be repeated %u times; the limit is %d", min, JX_REPEAT_MAX);
        return JX_NONE;
    }
    if (max != JX_MANY && max > JX_REPEAT_MAX) max = JX_REPEAT_MAX;
    if (min > max) return JX_NONE;
    if (max == 0 || body == JX_EMPTY) return JX_EMPTY;
    if (body == JX_NONE) return min == 0 ? JX_EMPTY : JX_NONE;
    if (min == 1 && max == 1) return body;
    const struct jnode *kid = &p->nodes[body];
    struct jnode node = {.kind = JX_IS_REPEAT,
                         .n = 1,
                         .min = min,
                         .max = max,
                         .size = add(kid->size, 2),
                         .shortest = times(kid->shortest, min),
                         .longest = times(kid->longest, max),
                         .depth = kid->depth + 1,
                         .anchor = kid->anchor};
    node.first = take_kids(p, &body, 1);
    return push(p, node);
}

jx jx_optional(struct jpool *p, jx body)
{
    return jx_repeat(p, body, 0, 1);
}

jx jx_rule(struct jpool *p)
{
    /* .first: the body, once defined */
    jx rule = push(p, (struct jnode){.kind = JX_IS_RULE, .size = 1, .longest = JX_MANY, .first = JX_NONE});
    if (rule == JX_NONE) return JX_NONE;
    p->nodes[rule].min = p->last_rule;
    p->last_rule = (uint32_t)rule;
    return rule;
}

void jx_define(struct jpool *p, jx rule, jx body)
{
    if (p->err.code) return;
    CHECK(p->nodes[rule].kind == JX_IS_RULE && p->nodes[rule].first == JX_NONE);
    p->nodes[rule].first = (uint32_t)body;
    p->rules_size = add(p->rules_size, p->nodes[body].size);
    if (p->rules_size > JX_SIZE_MAX) jpool_fail(p, "the schema is too large");
}

jx jx_shared(struct jpool *p, jx body)
{
    if (p->err.code || p->nodes[body].size <= SMALL) return p->err.code ? JX_NONE : body;
    jx rule = jx_rule(p);
    if (rule != JX_NONE) jx_define(p, rule, body);
    return rule;
}

jx jx_anchor(struct jpool *p, int end)
{
    return push(p, (struct jnode){.kind = JX_IS_ANCHOR, .min = (uint32_t)end, .anchor = true, .size = 1});
}

/* ---- inspecting
 * --------------------------------------------------------------------------------------------------- */

enum jx_kind jx_kind(const struct jpool *p, jx x)
{
    return p->nodes[x].kind;
}

size_t jx_children(const struct jpool *p, jx x, const jx **out)
{
    const struct jnode *node = &p->nodes[x];
    bool has = node->kind == JX_IS_SEQ || node->kind == JX_IS_ALT || node->kind == JX_IS_REPEAT;
    *out = has ? p->kids + node->first : NULL;
    return has ? node->n : 0;
}

uint32_t jx_repeat_min(const struct jpool *p, jx x)
{
    return p->nodes[x].min;
}

uint32_t jx_repeat_max(const struct jpool *p, jx x)
{
    return p->nodes[x].max;
}

bool jx_has_anchor(const struct jpool *p, jx x)
{
    return p->nodes[x].anchor;
}

uint32_t jx_min_length(const struct jpool *p, jx x)
{
    return p->nodes[x].shortest;
}

uint32_t jx_max_length(const struct jpool *p, jx x)
{
    return p->nodes[x].longest;
}
